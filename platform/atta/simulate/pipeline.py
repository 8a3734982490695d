"""``atta simulate --strategy dorylus``: a job's pipeline in simulated time. Progress, tasks, pool and weights are
decided by the code that trainers and daemons run."""

from __future__ import annotations

import json
import math
import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from atta.errors import ConfigError, DataError
from atta.kvstore.parameter_jobs import SummedJob
from atta.kvstore.parameters import ParameterSpec, VectorStep
from atta.observe.settings import NoOption, Setting
from atta.simulate.resources import Clock
from atta.train.dorylus.hand_out import HandOut, PoolSize
from atta.train.dorylus.progress import MODES, PipelineProgress, PipelineStage, Work, check_mode, stages_of


@dataclass(frozen=True)
class PipelineScenario:
    """A job of ``dorylus``, with a trainer of ``threads`` per machine. Raises ConfigError for numbers out of range."""

    machines: Annotated[int, NoOption("an option of every simulation")] = 2
    intervals: Annotated[int, Setting("Intervals of each trainer.", at_least=1, at_most=4096)] = 16
    layers: Annotated[int, Setting("Layers of the model.", at_least=1, at_most=100)] = 2
    epochs: Annotated[int, NoOption("an option of every simulation")] = 10
    mode: Annotated[str, Setting("One of those of atta train.", choices=MODES)] = "async"
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
    plan: Annotated[
        str | None, Setting("File of atta plan --json: machines, layers and costs, unless given.", metavar="FILE")
    ] = None

    def __post_init__(self) -> None:
        check_mode(self.mode, self.staleness)
        stages_of(self.layers)
        for name in ("machines", "intervals", "epochs", "workers", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"simulated pipeline: {name} must be at least 1")
        for name, value in vars(self).items():
            if isinstance(value, float) and not (0 <= value < math.inf or (name == "link" and value > 0)):
                raise ConfigError(f"simulated pipeline: {name} {value} is out of range")
        if self.link <= 0 or not 0 <= self.kill < 1:
            raise ConfigError("simulated pipeline: a link must carry something, and some workers must live")

    @property
    def transfer_s(self) -> float:
        """How long a task and its result travel."""
        return self.rtt_s + 2 * self.task_bytes / self.link


_TICK_S = 0.1
_TICKS_PER_CHECK = 10


def planned_costs(path: str | Path, intervals: int) -> dict[str, Any]:
    """The fields of a scenario that a file of ``atta plan --strategy auto --json`` tells: its machines and layers, and
    what one of ``intervals`` costs by the sizes and rates of the plan. Raises DataError: the file cannot be read or is
    no such file."""
    from atta.train.planning.sizes import PlannedModel, Rates, ServerWork, interval_costs

    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        rates = {name: math.inf if value is None else value for name, value in found["rates"].items()}
        model, work = PlannedModel(**found["network"]), ServerWork(**found["sizes"]["exchanged"])
        costs = interval_costs(work, model, Rates(**rates), intervals)
        return {"machines": int(found["machines"]["servers"]), "layers": model.layers, **costs._asdict()}
    except OSError as error:
        raise DataError(path, f"cannot read the plan: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(path, f"is not a file of `atta plan --strategy auto --json`: {error}") from error


@dataclass(frozen=True)
class PipelineOutcome:
    """What a simulated pipeline did.

    ``epoch_s``: by epoch, until all intervals of all machines have ended it. ``oldest``: the greatest age of a row that
    was read, in epochs. ``relaunched``, ``lost`` and ``ignored`` are counted by ``HandOut``. ``busy``: share of the
    time in which a trainer gathers or scatters, mean over threads; ``working``: in which workers have a task.
    """

    epoch_s: list[float]
    oldest: int
    relaunched: int
    lost: int
    ignored: int
    workers: int
    busy: float
    working: float


@dataclass
class _Trainer:
    """A machine's trainer and its workers. ``first``: the number of its first interval; ``idle``: workers without a task;
    ``alive``: all that have started."""

    first: int
    progress: PipelineProgress
    hand_out: HandOut
    pool: PoolSize
    idle: deque[int] = field(default_factory=deque)
    alive: set[int] = field(default_factory=set)
    threads: int = 0
    coming: int = 0
    busy_s: float = 0.0


class SimulatedPipeline:
    """All machines of a job in simulated time. The same scenario always gives the same figures."""

    def __init__(self, scenario: PipelineScenario) -> None:
        self._is, self._clock, self._rng = scenario, Clock(), random.Random(scenario.seed)
        everybody = [(rank, number) for rank in range(scenario.machines) for number in range(scenario.intervals)]
        self._trainers = []
        for rank in range(scenario.machines):
            others = [one for one in everybody if one[0] != rank]
            progress = PipelineProgress(
                scenario.layers, scenario.intervals, epochs=scenario.epochs, mode=scenario.mode,
                staleness=scenario.staleness, rank=rank, forward=others, backward=others,
            )  # fmt: skip
            hand_out = HandOut(timeout_s=scenario.timeout_s, max_relaunch=scenario.max_relaunch)
            pool = PoolSize(scenario.intervals, limit=scenario.workers, threads=scenario.threads)
            first = rank * scenario.intervals
            self._trainers.append(_Trainer(first, progress, hand_out, pool, threads=scenario.threads))
        spec = ParameterSpec(
            "simulated", (1,) * scenario.layers, len(everybody), "summed", VectorStep("sgd", 0.0), "<f8",
            scenario.staleness, max_updates=scenario.epochs,
        )  # fmt: skip
        self._job = SummedJob(spec, np.zeros(scenario.layers))
        self._ends: list[float] = []
        self._workers = 0
        self._ticks = 0
        self._worked_s = self._alive_s = 0.0

    def run(self) -> PipelineOutcome:
        """Simulate all epochs. Raises AttaError if a task was relaunched too often."""
        for trainer in self._trainers:
            for _ in range(trainer.pool.size):
                self._join(trainer)
            self._step(trainer)
        self._clock.at(_TICK_S, self._tick)
        self._clock.run()
        now, counts = self._clock.now, [trainer.hand_out for trainer in self._trainers]
        return PipelineOutcome(
            np.diff([0.0, *self._ends]).tolist(),
            max(trainer.progress.oldest for trainer in self._trainers),
            sum(one.relaunched for one in counts),
            sum(one.lost for one in counts),
            sum(one.ignored for one in counts),
            sum(trainer.pool.size for trainer in self._trainers),
            sum(trainer.busy_s for trainer in self._trainers) / (now * self._is.threads * len(self._trainers)),
            min(1.0, self._worked_s / max(self._alive_s, 1e-9)),
        )

    def _join(self, trainer: _Trainer) -> None:
        trainer.alive.add(self._workers)
        trainer.idle.append(self._workers)
        self._workers += 1

    def _started(self, trainer: _Trainer) -> None:
        trainer.coming -= 1
        self._join(trainer)
        self._step(trainer)

    def _step(self, trainer: _Trainer) -> None:
        progress, now = trainer.progress, self._clock.now
        for work in progress.wanting():
            found = self._job.begin(trainer.first + work.interval, work.epoch)
            if found is not None and found.values is not None:
                progress.begun(work.interval, work.epoch, found.version)
        for work in progress.ready():
            if not progress.stages[work.stage].by_trainer:
                progress.take(work)
                trainer.hand_out.add(work)
            elif trainer.threads:
                progress.take(work)
                trainer.threads -= 1
                trainer.busy_s += self._is.graph_s
                self._clock.at(now + self._is.graph_s, self._graph_end, trainer, work)
        while trainer.idle and trainer.hand_out.waiting:
            worker = trainer.idle.popleft()
            given = trainer.hand_out.take(worker, now)
            assert given is not None, "one waits"
            took = self._is.transfer_s + self._is.task_s + self._rng.uniform(0.0, self._is.jitter_s)
            self._worked_s += took
            if self._rng.random() < self._is.kill:
                self._clock.at(now + took * self._rng.random(), self._dies, trainer, worker)
            else:
                self._clock.at(now + took, self._task_end, trainer, worker, given)

    def _graph_end(self, trainer: _Trainer, work: Work) -> None:
        trainer.threads += 1
        trainer.progress.end(work)
        stage = trainer.progress.stages[work.stage]
        if stage.part.startswith("scatter"):
            rank = self._trainers.index(trainer)
            for other in self._trainers:
                if other is not trainer:
                    arrival = self._clock.now + self._is.rtt_s / 2
                    self._clock.at(arrival, self._arrive, other, stage, (rank, work.interval), work.epoch)
        self._step(trainer)

    def _arrive(self, trainer: _Trainer, stage: PipelineStage, producer: tuple[int, int], epoch: int) -> None:
        trainer.progress.arrived(stage, producer, epoch)
        self._step(trainer)

    def _task_end(self, trainer: _Trainer, worker: int, work: Work) -> None:
        if worker not in trainer.alive:
            return
        first = trainer.hand_out.result(worker, work, self._clock.now)
        if len(trainer.alive) > trainer.pool.size:
            trainer.alive.discard(worker)
        else:
            trainer.idle.append(worker)
        if first:
            begun = self._job.begin(trainer.first + work.interval, work.epoch)
            assert begun is not None, "the interval has begun this epoch, with some version of the weights"
            trainer.progress.end(work)
            stage = trainer.progress.stages[work.stage]
            if stage.gives_gradient:
                self._clock.at(self._clock.now + self._is.rtt_s, self._count, trainer, work, stage.layer, begun.version)
        self._step(trainer)

    def _dies(self, trainer: _Trainer, worker: int) -> None:
        if worker in trainer.alive:
            trainer.alive.discard(worker)
            trainer.hand_out.gone(worker)
            self._fill(trainer)
            self._step(trainer)

    def _fill(self, trainer: _Trainer) -> None:
        for _ in range(trainer.pool.size - len(trainer.alive) - trainer.coming):
            trainer.coming += 1
            self._clock.at(self._clock.now + self._is.start_s, self._started, trainer)

    def _count(self, trainer: _Trainer, work: Work, layer: int, version: int) -> None:
        """A gradient counts. If it ends an epoch, everybody may go on."""
        before = self._job.weights.version
        self._job.push(trainer.first + work.interval, work.epoch, layer, version, np.zeros(1))
        trainer.progress.acknowledged(work.interval, work.epoch, layer)
        if self._job.weights.version > before:
            self._ends.append(self._clock.now)
        if self._job.done:
            self._clock.stop()
            return
        for one in self._trainers if self._job.weights.version > before else [trainer]:
            self._step(one)

    def _tick(self) -> None:
        self._ticks += 1
        for trainer in self._trainers:
            self._alive_s += _TICK_S * len(trainer.alive)
            trainer.hand_out.late(self._clock.now)
            for worker in trainer.hand_out.stuck(self._clock.now):
                self._dies(trainer, worker)
            if self._ticks % _TICKS_PER_CHECK == 0:
                queue = sum(trainer.progress.stages[work.stage].by_trainer for work in trainer.progress.ready())
                trainer.pool.check(queue)
                while trainer.idle and len(trainer.alive) > trainer.pool.size:
                    trainer.alive.discard(trainer.idle.pop())
                self._fill(trainer)
            self._step(trainer)
        self._clock.at(self._clock.now + _TICK_S, self._tick)


def simulate_pipeline(scenario: PipelineScenario) -> PipelineOutcome:
    """What a pipeline would do. Raises AttaError if a task was relaunched too often."""
    return SimulatedPipeline(scenario).run()
