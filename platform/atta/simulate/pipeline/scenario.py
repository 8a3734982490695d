"""What a simulated pipeline is like: how many machines and workers, and how long each part takes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.train.dorylus.progress import check_mode, stages_of

__all__ = ["PipelineScenario"]


@dataclass(frozen=True)
class PipelineScenario:
    """A job of ``dorylus``. Raises ConfigError for numbers out of range.

    Attributes:
        machines: each has a trainer.
        intervals: of each trainer.
        layers: of the model.
        epochs: to simulate.
        mode, staleness: as ``atta train`` takes them.
        workers: most workers of a trainer.
        threads: with which a trainer gathers.
        graph_s: gathering, or scattering, an interval.
        task_s: computing a task.
        task_bytes: of a task on its way to a worker, and of its result on the way back.
        link: bytes per second of each worker's link, each way.
        rtt_s: round trip between machines, and to workers.
        jitter_s: a task takes longer by 0 to this, drawn evenly.
        kill: share of tasks during which their worker dies.
        start_s: how long a worker takes to start.
        timeout_s: of tasks; None: from their mean.
        max_relaunch: of a task.
        seed: of everything that is drawn.
    """

    machines: int = 2
    intervals: int = 16
    layers: int = 2
    epochs: int = 10
    mode: str = "async"
    staleness: int = 0
    workers: int = 100
    threads: int = 1
    graph_s: float = 0.01
    task_s: float = 0.01
    task_bytes: float = 0.0
    link: float = math.inf
    rtt_s: float = 0.0
    jitter_s: float = 0.0
    kill: float = 0.0
    start_s: float = 2.0
    timeout_s: float | None = None
    max_relaunch: int = 5
    seed: int = 0

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
