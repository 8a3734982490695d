"""The stages of an interval (Dorylus, section 4), when it may go on, and a record of what it did. Rows of a layer have
a version for each interval that computes them: the epoch, since an interval scatters them once in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from atta.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

MODES = ("nopipe", "pipe", "async")
Part = Literal["gather", "apply", "scatter", "loss", "gather-back", "apply-back", "scatter-back"]
BY_TRAINER: frozenset[Part] = frozenset(["gather", "scatter", "gather-back", "scatter-back"])
"""What a trainer computes, because it reads the graph. Workers compute all other parts, which need no graph."""
Producer = tuple[int, int]
"""An interval of any trainer: rank and number."""
_NEVER = -1
_MOST_SPANS = 200_000
"""Spans that are kept; some 30 MB as JSON."""


class PipelineStage(NamedTuple):
    """A stage of an interval, of ``layer`` from 0.

    ``gather`` sums up the rows that a layer reads; ``apply`` makes rows of the next layer from these; ``scatter`` sends
    them to those who read them. ``loss`` is the last layer's apply, the loss, and the backward of both. Of backward,
    ``gather-back`` sums up gradients of rows of layer + 1; ``apply-back`` computes the layer again, and from it gradients of
    weights and sums; ``scatter-back`` sends the latter."""

    part: Part
    layer: int

    @property
    def by_trainer(self) -> bool:
        """Whether a trainer computes it."""
        return self.part in BY_TRAINER

    @property
    def gives_gradient(self) -> bool:
        """Whether its result has a gradient of the layer's weights."""
        return self.part in ("loss", "apply-back")


class Work(NamedTuple):
    """A stage of an interval in an epoch. Works are done in this order: earlier epochs and earlier stages first."""

    epoch: int
    stage: int
    interval: int


class Begun(NamedTuple):
    """An interval has weights [size] of ``version`` for an epoch."""

    interval: int
    epoch: int
    version: int
    values: np.ndarray


class Acknowledged(NamedTuple):
    """The gradient of an interval, epoch and layer counts."""

    interval: int
    epoch: int
    layer: int


class Computed(NamedTuple):
    """The first result of a task."""

    work: Work
    arrays: Mapping[str, np.ndarray]


class Arrived(NamedTuple):
    """Rows, or gradients of sums, of another trainer's interval."""

    stage: PipelineStage
    producer: Producer
    epoch: int
    rows: np.ndarray


class Broken(NamedTuple):
    """The job cannot go on."""

    error: BaseException


Happening = Begun | Acknowledged | Computed | Arrived | Broken


def stages_of(layers: int) -> tuple[PipelineStage, ...]:
    """The stages of an epoch, in order: of ``2 * layers - 1`` of them workers compute."""
    if layers < 1:
        raise ConfigError(f"a model of {layers} layers cannot be trained")
    found = [PipelineStage(part, layer) for layer in range(layers - 1) for part in ("gather", "apply", "scatter")]
    found += [PipelineStage("gather", layers - 1), PipelineStage("loss", layers - 1)]
    for layer in reversed(range(layers - 1)):
        # Gradients of the sums of layer + 1 have been computed: they reach the rows that these sums were made of.
        found += [PipelineStage("scatter-back", layer + 1), PipelineStage("gather-back", layer)]
        found.append(PipelineStage("apply-back", layer))
    return tuple(found)


@dataclass(slots=True)
class _Interval:
    """Where an interval is: it does ``stage`` of ``epoch``, or waits to. Epochs before ``epoch`` are finished.
    ``taken``: the stage is under way. ``version``: of the weights of this epoch; None before the first task of a
    worker. ``unacknowledged``: layers whose gradient was sent, and which nobody has acknowledged yet."""

    epoch: int = 0
    stage: int = 0
    taken: bool = False
    version: int | None = None
    unacknowledged: set[int] = field(default_factory=set)


class PipelineProgress:
    """The intervals of one trainer.

    ``nopipe``: all intervals do the same stage; a stage begins when all have ended the one before.
    ``pipe``: a gather waits until the rows that it reads are those of this epoch; everything else overlaps.
    ``async``: a gather takes rows of the last ``staleness + 1`` epochs. The epoch ``first`` is as in ``pipe``.

    ``oldest``: the greatest age at which a row was read, in epochs."""

    def __init__(
        self,
        layers: int,
        intervals: int,
        *,
        epochs: int,
        first: int = 0,
        mode: str = "pipe",
        staleness: int = 0,
        rank: int = 0,
        forward: Iterable[Producer] = (),
        backward: Iterable[Producer] = (),
    ) -> None:
        """``epochs``: how many are over when training stops, with the ``first`` ones, which are over already.
        ``forward``, ``backward``: intervals of other trainers whose rows, or whose gradients, are read here. Raises
        ConfigError: a number is out of range, or a bound goes with a mode that has none."""
        check_mode(mode, staleness)
        self.stages, self.first, self._epochs = stages_of(layers), first, epochs
        self._mode, self._bound, self._rank = mode, staleness, rank
        self._intervals = [_Interval(first) for _ in range(intervals)]
        own = [(rank, number) for number in range(intervals)]
        self._versions: dict[PipelineStage, dict[Producer, int]] = {}
        for layer in range(layers - 1):
            self._versions[PipelineStage("scatter", layer)] = dict.fromkeys([*own, *forward], _NEVER)
            self._versions[PipelineStage("scatter-back", layer + 1)] = dict.fromkeys([*own, *backward], _NEVER)
        self.oldest = 0

    def go_on(self, epochs: int) -> None:
        """Once ``done``: train until so many epochs are over."""
        assert self.done, "epochs are under way"
        self._epochs = epochs

    @property
    def done(self) -> bool:
        """Whether all intervals have finished all epochs."""
        return all(one.epoch >= self._epochs for one in self._intervals)

    @property
    def finished(self) -> int:
        """How many epochs all intervals of this trainer have finished."""
        return min(one.epoch for one in self._intervals)

    def wanting(self) -> list[Work]:
        """The intervals that need weights before they can go on, slowest first; only those that this trainer's own
        intervals do not hold back."""
        last = self.finished + self._bound
        return sorted(
            Work(one.epoch, one.stage, number)
            for number, one in enumerate(self._intervals)
            if one.version is None and one.epoch <= last and self._waits(one) and not self.stages[one.stage].by_trainer
        )

    def begun(self, interval: int, epoch: int, version: int) -> bool:
        """The interval has weights of a version for this epoch. False: it has had some already, and nothing changes."""
        one = self._intervals[interval]
        if one.epoch != epoch or one.version is not None:
            return False
        one.version = version
        return True

    def ready(self) -> list[Work]:
        """What can be done now, in the order in which it should be."""
        return sorted(self._ready())

    def take(self, work: Work) -> None:
        """Begin a ``ready`` work."""
        one = self._at(work)
        assert not one.taken, f"{work} is under way"
        one.taken = True
        if (reads := self._reads(self.stages[work.stage])) is not None:
            self.oldest = max(self.oldest, work.epoch - min(self._versions[reads].values()))

    def end(self, work: Work) -> None:
        """A work that was taken has ended; a gradient that came with it is on its way."""
        one, stage = self._at(work), self.stages[work.stage]
        assert one.taken, f"{work} was not taken"
        if not stage.by_trainer and stage.gives_gradient:
            one.unacknowledged.add(stage.layer)
        if stage in self._versions:
            self._versions[stage][self._rank, work.interval] = work.epoch
        one.taken, one.stage = False, work.stage + 1
        self._advance(one)

    def acknowledged(self, interval: int, epoch: int, layer: int) -> None:
        """The gradient of a layer counts. A repetition changes nothing."""
        one = self._intervals[interval]
        if one.epoch == epoch:
            one.unacknowledged.discard(layer)
            self._advance(one)

    def arrived(self, stage: PipelineStage, producer: Producer, epoch: int) -> None:
        """Rows of an interval of another trainer have arrived; older ones than before change nothing. Raises
        ConfigError: nobody here reads rows of that interval."""
        versions = self._versions.get(stage)
        if versions is None or producer not in versions or producer[0] == self._rank:
            raise ConfigError(f"rows of {stage.part} {stage.layer} came from {producer}, which nobody reads here")
        versions[producer] = max(versions[producer], epoch)

    def _advance(self, one: _Interval) -> None:
        """An epoch ends when all its stages have, and all its gradients count."""
        if one.stage == len(self.stages) and not one.unacknowledged:
            one.epoch, one.stage, one.version = one.epoch + 1, 0, None

    def _ready(self) -> Iterator[Work]:
        oldest = {stage: min(versions.values()) for stage, versions in self._versions.items()}
        slowest = min((one.epoch, one.stage) for one in self._intervals)
        for number, one in enumerate(self._intervals):
            if not self._waits(one) or (self._mode == "nopipe" and (one.epoch, one.stage) > slowest):
                continue
            stage = self.stages[one.stage]
            if not stage.by_trainer and one.version is None:
                continue
            reads = self._reads(stage)
            if reads is None or self._least(one.epoch) <= oldest[reads]:
                yield Work(one.epoch, one.stage, number)

    def _waits(self, one: _Interval) -> bool:
        return one.epoch < self._epochs and not one.taken and one.stage < len(self.stages)

    def _least(self, epoch: int) -> int:
        return epoch if self._mode != "async" or epoch == self.first else epoch - self._bound - 1

    @staticmethod
    def _reads(stage: PipelineStage) -> PipelineStage | None:
        """The stage whose rows a stage reads; None: it reads its own interval only. Features are always there."""
        if stage.part == "gather" and stage.layer > 0:
            return PipelineStage("scatter", stage.layer - 1)
        return PipelineStage("scatter-back", stage.layer + 1) if stage.part == "gather-back" else None

    def _at(self, work: Work) -> _Interval:
        one = self._intervals[work.interval]
        assert (one.epoch, one.stage) == (work.epoch, work.stage), f"{work}: the interval is elsewhere"
        return one


def check_mode(mode: str, staleness: int) -> None:
    """Raise ConfigError for a mode that does not exist, or a bound that does not go with it."""
    if mode not in MODES:
        raise ConfigError(f"mode={mode}: must be one of {', '.join(MODES)}")
    if staleness < 0:
        raise ConfigError(f"staleness={staleness}: must be at least 0")
    if staleness and mode != "async":
        raise ConfigError(f"staleness={staleness}: goes with mode=async; {mode} reads rows of this epoch only")


class StageSpan(NamedTuple):
    """A stage that has ended; ``start`` and ``end`` in seconds since training began."""

    work: Work
    start: float
    end: float


class IntervalTracks:
    """Remembers the first ``most`` stages of a trainer's intervals that have ended, in ``spans``; ``left_out``: how many more
    did. Times are passed in. A worker's stage lasts from the time at which it was handed out until its first result."""

    def __init__(self, stages: Sequence[PipelineStage], intervals: int, *, most: int = _MOST_SPANS) -> None:
        self._stages, self._most = stages, most
        self._began: list[float] = [0.0] * intervals
        self.spans: list[StageSpan] = []
        self.left_out = 0

    def begin(self, work: Work, at: float) -> None:
        """An interval does one stage at a time."""
        self._began[work.interval] = at

    def end(self, work: Work, at: float) -> None:
        """The stage that the interval began last has ended."""
        if len(self.spans) < self._most:
            self.spans.append(StageSpan(work, self._began[work.interval], at))
        else:
            self.left_out += 1

    def events(self, rank: int) -> list[dict[str, Any]]:
        """Trace events: the trainer is a process, each interval a thread of it; times in microseconds."""
        names = [("process_name", 0, f"trainer {rank}")]
        names += [("thread_name", number, f"interval {number}") for number in range(len(self._began))]
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": kind, "pid": rank, "tid": number, "args": {"name": name}}
            for kind, number, name in names
        ]
        for work, start, end in self.spans:
            stage = self._stages[work.stage]
            about = {
                "ph": "X",
                "name": f"{stage.part} {stage.layer}",
                "cat": "trainer" if stage.by_trainer else "worker",
            }
            times = {"ts": round(1e6 * start, 3), "dur": round(1e6 * (end - start), 3)}
            events.append({**about, **times, "pid": rank, "tid": work.interval, "args": {"epoch": work.epoch}})
        return events
