"""What a simulated pipeline is like: how many machines and workers, and how long each part takes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated

from atta.errors import ConfigError
from atta.observe.settings import NoOption, Setting
from atta.train.steps.pipeline.decisions.progress import MODES, check_mode
from atta.train.steps.pipeline.decisions.stages import stages_of

__all__ = ["PipelineScenario"]


@dataclass(frozen=True)
class PipelineScenario:
    """A job of ``dorylus``. Raises ConfigError for numbers out of range.

    Attributes:
        machines: each has a trainer.
        epochs: to simulate.
        threads: with which a trainer gathers.
        rtt_s: round trip between machines, and to workers.
        seed: of everything that is drawn.
    """

    machines: Annotated[int, NoOption("an option of every simulation")] = 2
    intervals: Annotated[int, Setting("Intervals of each trainer.", at_least=1, at_most=4096)] = 16
    layers: Annotated[int, Setting("Layers of the model.", at_least=1, at_most=100)] = 2
    epochs: Annotated[int, NoOption("an option of every simulation")] = 10
    mode: Annotated[str, Setting("As in atta train.", choices=MODES)] = "async"
    staleness: Annotated[int, Setting("As in atta train.", at_least=0, at_most=64)] = 0
    workers: Annotated[int, Setting("Most workers of a trainer.", at_least=1, at_most=10_000)] = 100
    threads: Annotated[int, NoOption("an option of every simulation")] = 1
    graph_s: Annotated[float, Setting("Gathering, or scattering, an interval.", name="graph", unit="s")] = 0.01
    task_s: Annotated[float, Setting("Computing a worker's task.", name="compute", unit="s")] = 0.01
    task_bytes: Annotated[float, Setting("Of a task, and of its result on the way back.", unit="bytes")] = 0.0
    link: Annotated[
        float, Setting("Rate of each worker's link, each way.", name="worker-link", unit="rate", unset="no limit")
    ] = math.inf
    rtt_s: Annotated[float, NoOption("an option of every simulation")] = 0.0
    jitter_s: Annotated[float, Setting("A task takes longer by 0 to this, drawn evenly.", name="jitter", unit="s")] = (
        0.0
    )
    kill: Annotated[float, Setting("Share of tasks during which their worker dies.", at_least=0, at_most=0.99)] = 0.0
    start_s: Annotated[float, Setting("How long a worker takes to start.", name="worker-start", unit="s")] = 2.0
    timeout_s: Annotated[
        float | None, Setting("As in atta train.", name="worker-timeout", unit="s", unset="from the mean")
    ] = None
    max_relaunch: Annotated[int, Setting("As in atta train.", at_least=0, at_most=1000)] = 5
    seed: Annotated[int, NoOption("an option of every simulation")] = 0

    def __post_init__(self) -> None:
        check_mode(self.mode, self.staleness)
        stages_of(self.layers)
        for name in ("machines", "intervals", "epochs", "workers", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"simulated pipeline: {name} must be at least 1")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not (0 <= value < math.inf or (field.name == "link" and value > 0)):
                raise ConfigError(f"simulated pipeline: {field.name} {value} is out of range")
        if self.link <= 0 or not 0 <= self.kill < 1:
            raise ConfigError("simulated pipeline: a link must carry something, and some workers must live")

    @property
    def transfer_s(self) -> float:
        """How long a task and its result travel."""
        return self.rtt_s + 2 * self.task_bytes / self.link
