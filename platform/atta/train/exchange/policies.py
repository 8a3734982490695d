"""What trainers read of each other's rows, and when they publish their own: pure functions of epochs and versions.

Epochs count from 1 here, as in the papers. A row's version is the epoch that computed it. Version 0 is the exact pass
before the first epoch.

| strategy | rows of others are | gradients of rows are | published |
|---|---|---|---|
| ``exchange`` | of this epoch | of this epoch | every epoch |
| ``exchange``, a budget | as measured errors allow | as measured errors allow | when they ask for it |
| ``sancus`` | within a bound | of this epoch (or the other way round) | when the bound asks for it |
| ``pipegcn`` | of the epoch before | of the epoch before | every epoch |
| ``digest`` | of the last synchronisation | cut, or of their last synchronisation | every N epochs |
| ``sat`` | predicted from the last synchronisations | as digest | as digest |
| ``digest-async`` | the newest that owners have pushed | cut | every N steps of their owner |"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from atta.errors import ConfigError
from atta.train.settings.common import DEEP_MODELS, TrainSettings
from atta.train.settings.servers import (
    SYNC_EVERY,
    TRAIN_EVERY,
    WARMUP,
    DigestOptions,
    PipeGcnOptions,
    SancusOptions,
    SatOptions,
    ServerSettings,
    check_options,
    followed,
)

if TYPE_CHECKING:
    import torch

    from atta.train.cooperative.source import Direction

NEVER = -1
"""Version of a row that was never published."""
_DEFAULT_EPS = {"epoch": 1.0, "adaptive": 1.0, "gap": 0.03}


class Rule(NamedTuple):
    """Which versions of a row a reader may use, both bounds included. Of these it takes the newest."""

    oldest: int
    newest: int


LATEST = Rule(0, (1 << 63) - 1)
"""The newest rows there are."""


def exact(version: int) -> Rule:
    """Rows of one epoch."""
    return Rule(version, version)


@dataclass(frozen=True, slots=True)
class SyncPeriod:
    """Synchronises every ``every`` epochs: owners push, then readers pull what was committed before (DIGEST).

    Phase ``early`` pushes in epoch r if r % every = 0 and pulls in the epoch after, so ages are 1 ... every. Phase
    ``paper`` pushes if (r - 1) % every = 0 and pulls if r % every = 0: after its first pull ages are every - 1 ... 2 every
    - 2. With ``every`` = 1 both give age 1, because nothing is read before it is committed."""

    every: int
    phase: str = "early"

    @property
    def first(self) -> int:
        """The first epoch that reads what was pushed."""
        return self.every + (self.phase == "early" or self.every == 1)

    def pushes(self, epoch: int) -> bool:
        """Whether owners push their rows in ``epoch``."""
        return (epoch if self.phase == "early" else epoch - 1) % self.every == 0

    def read(self, epoch: int) -> int:
        """The version that readers use in ``epoch``; 0: of the exact pass before the first epoch."""
        if self.phase == "early":
            return epoch - 1 - (epoch - 1) % self.every
        pulled = epoch - epoch % self.every
        return max(0, pulled - 1 - (pulled - 2) % self.every)

    def pulls(self, epoch: int) -> bool:
        """Whether readers pull at the beginning of ``epoch``. In the first epoch they pull version 0."""
        return epoch == 1 or self.read(epoch) != self.read(epoch - 1)


@dataclass(frozen=True, slots=True)
class Ages:
    """Ages of ``rows`` rows that were read, in epochs: bounds and the sum, so that several readers' ages can be added.
    Of no rows the bounds are infinity and -1."""

    rows: int = 0
    least: float = math.inf
    most: int = -1
    total: int = 0

    @classmethod
    def of(cls, epoch: int, versions: torch.Tensor) -> Ages:
        """Ages in ``epoch`` of rows with these ``versions`` (int64 of any shape)."""
        if not versions.numel():
            return cls()
        ages = (epoch - versions).clamp(min=0)  # without barriers an owner may be ahead of its readers
        return cls(ages.numel(), int(ages.min()), int(ages.max()), int(ages.sum()))

    def __add__(self, other: Ages) -> Ages:
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Ages(self.rows + other.rows, least, most, self.total + other.total)


class RowPolicy:
    """Full-graph training: rows and gradients of this epoch. Other policies differ from it.

    Attributes:
        gaps: whether owners keep what they have published, to measure gaps. That is a second copy of these rows.
        paced: whether the speeds of owners count.
        smooth: readers use a moving mean of the rows with this decay; None: the rows themselves.
    """

    gaps: bool = False
    paced: bool = False
    smooth: float | None = None

    def history(self, direction: Direction) -> int | None:
        """How many versions readers keep while an epoch brings new ones. 0: new rows replace them at once. None: rows
        are read in their own epoch only, so nothing is kept."""
        return None

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """Which rows of others are read in ``epoch``; None: none, so gradients end at the cut."""
        return exact(epoch)

    def publishes(self, epoch: int, direction: Direction, owner: int, held: int = NEVER, gap: float = math.inf) -> bool:
        """Whether trainer ``owner`` publishes the rows of a layer in ``epoch``. Asked before they are read. held: the
        oldest version that a reader has; -1: none. gap: mean absolute difference of the rows to those that were
        published."""
        return True

    def of_owners(self, seconds: Sequence[float]) -> Sequence[RowPolicy]:
        """The policy that each owner publishes by. seconds: that each computes in an epoch, without waiting."""
        return [self] * len(seconds)

    def clip_norm(self, trainers: int) -> float | None:
        """Largest norm of one trainer's gradient; None: there is no limit."""
        return None


def epochs_behind(seconds: Sequence[float], epochs: int) -> list[int]:
    """How many whole epochs each trainer would be behind the fastest one after ``epochs`` of that one's, if nobody
    waited for others. seconds: that each computes in an epoch."""
    fastest = min(seconds, default=0.0)
    return [int(epochs * (1 - fastest / own)) if own > 0 else 0 for own in seconds]


@dataclass(frozen=True)
class SancusPolicy(SancusOptions, RowPolicy):
    """Rows within a bound, gradients of this epoch (Peng et al., VLDB 2022, definitions 1 to 3). Without a warm-up, the
    code of the paper's authors loses 2 to 5 points of accuracy."""

    warmup: Annotated[int, WARMUP] = 50

    def __post_init__(self) -> None:
        check_options(self)
        if self.bound != "gap" and self.limit != int(self.limit):
            raise ConfigError(f"eps={self.eps}: is a number of epochs with bound={self.bound}")
        if self.bound == "gap" and self.skip != "rows":
            raise ConfigError(f"skip={self.skip}: goes with bound=epoch and adaptive; bound=gap is on changes of rows")
        if self.clip_grad is not None and self.clip_grad <= 0:
            raise ConfigError(f"clip-grad={self.clip_grad}: must be positive")

    @property
    def limit(self) -> float:
        """The bound's value."""
        return _DEFAULT_EPS[self.bound] if self.eps is None else self.eps

    @property
    def gaps(self) -> bool:  # type: ignore[override]
        """Whether the change of rows is bounded, not their age."""
        return self.bound == "gap"

    @property
    def paced(self) -> bool:  # type: ignore[override]
        """Whether the bound is on what a reader's copy would miss if nobody waited."""
        return self.bound == "adaptive"

    def history(self, direction: Direction) -> int | None:
        return 0 if self._skips(direction) else None

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """A bound on the change is no bound on the age."""
        if not self._skips(direction):
            return exact(epoch)
        return LATEST if self.gaps else Rule(max(0, epoch - int(self.limit)), epoch)

    def publishes(self, epoch: int, direction: Direction, owner: int, held: int = NEVER, gap: float = math.inf) -> bool:
        """The first broadcast is always active. A gap that is not a number is due: then the rows are refused, with
        their cause."""
        if not self._skips(direction) or held == NEVER or epoch <= self.warmup:
            return True
        return not gap <= self.limit if self.gaps else epoch - held > self.limit

    def of_owners(self, seconds: Sequence[float]) -> Sequence[RowPolicy]:
        """With the adaptive bound a copy is as old as its rows, and as many epochs more as their owner would be behind
        the fastest reader by the time they are sent again."""
        if not self.paced:
            return super().of_owners(seconds)
        limit = int(self.limit)
        return [replace(self, eps=float(limit - lag)) for lag in epochs_behind(seconds, limit + 1)]

    def _skips(self, direction: Direction) -> bool:
        return (direction == "forward") == (self.skip == "rows")

    def clip_norm(self, trainers: int) -> float | None:
        """A share of a sum over P trainers is about 1/√P of its norm."""
        return None if self.clip_grad is None else self.clip_grad / math.sqrt(trainers)


@dataclass(frozen=True)
class PipeGcnPolicy(PipeGcnOptions, RowPolicy):
    """Age 1 in both directions (Wan et al., ICLR 2022). The first epoch is exact, so nobody reads rows that were never
    computed. Newer rows are still under way while those of the epoch before are read."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.smooth is not None and not 0 <= self.smooth < 1:
            raise ConfigError(f"smooth={self.smooth}: must lie in [0, 1)")

    def history(self, direction: Direction) -> int | None:
        return 0

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return exact(max(1, epoch - 1))


@dataclass(frozen=True)
class DigestPolicy(DigestOptions, RowPolicy):
    """Rows of the last synchronisation (Chai et al., 2022, algorithm 1). An exact pass before the first epoch fills the
    tables with version 0. Rows at age N cost little accuracy. Gradients that are so old do harm, so they have a period
    of their own."""

    sync_every: Annotated[int, SYNC_EVERY] = 10

    def __post_init__(self) -> None:
        check_options(self)

    def period(self, direction: Direction) -> SyncPeriod | None:
        """When this direction is synchronised; None: never."""
        every = self.sync_every if direction == "forward" else self.grad_sync_every
        return None if every is None else SyncPeriod(every, self.phase)

    def history(self, direction: Direction) -> int | None:
        return 1

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """Before the first synchronisation there are no gradients."""
        period = self.period(direction)
        if period is None or (direction == "backward" and period.read(epoch) == 0):
            return None
        return exact(period.read(epoch))

    def publishes(self, epoch: int, direction: Direction, owner: int, held: int = NEVER, gap: float = math.inf) -> bool:
        period = self.period(direction)
        return period is not None and period.pushes(epoch)

    def pulls(self, epoch: int, direction: Direction) -> bool:
        """Whether the version that is read changes in ``epoch``, so that it has to be pulled."""
        period = self.period(direction)
        return period is not None and self.reads(epoch, direction) is not None and period.pulls(epoch)


@dataclass(frozen=True)
class AsyncDigestPolicy(DigestPolicy):
    """As DIGEST, but epochs are the steps of this trainer, and rows are the newest that owners have pushed (DIGEST-A)."""

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return LATEST if direction == "forward" else None


@dataclass(frozen=True)
class SatPolicy(SatOptions, DigestPolicy):
    """As DIGEST (Zhang et al., 2024). Each pulled synchronisation also joins the history that predictions are made from."""

    sync_every: Annotated[int, SYNC_EVERY] = 10
    train_every: Annotated[int, TRAIN_EVERY] = 10

    @property
    def predicts(self) -> int:
        """The first epoch that may read predictions: two synchronisations have come and were learnt from, and what that
        gave was measured by a third one."""
        period = SyncPeriod(self.sync_every, self.phase)
        learns = -(-period.first // self.train_every) * self.train_every
        later = range(learns + self._hidden + 1, learns + self._hidden + 1 + self.sync_every)
        return next(epoch for epoch in later if period.pulls(epoch)) + 1

    @property
    def _hidden(self) -> int:
        """For how many epochs learning may hide behind others."""
        return max(1, self.train_every // 2)

    def trains(self, epoch: int) -> bool:
        """Whether predictors learn from the rows of ``epoch``."""
        return epoch % self.train_every == 0

    def shares(self, epoch: int) -> bool:
        """Whether trainers put together in ``epoch`` what each has learnt since the last epoch of training. That is
        half a period later. So learning has some epochs to hide behind."""
        began = epoch - self._hidden
        return began > 0 and self.trains(began)

    def ahead(self, epoch: int) -> float:
        """How old the rows that are read in ``epoch`` are, in synchronisation periods."""
        return (epoch - SyncPeriod(self.sync_every, self.phase).read(epoch)) / self.sync_every


def policy_of(kind: type[Any], settings: Any) -> Any:
    """The policy of a dataclass ``kind`` from the settings of the same names; raises its ConfigErrors."""
    given = followed(settings)
    return kind(**{name: getattr(given, name) for name in getattr(kind, "__dataclass_fields__", ())})


FEW_EPOCHS = 25
"""With fewer, an exact step beside the cheap one would take more than a 25th of the run."""
_OLD_LAYERS = 3
"""With so many layers, rows of the epoch before lose many points (bench/results/stale-accuracy.md)."""
_MOST_CUT = 0.5
"""Share of edges that no gradient crosses, times further layers: 0.46 lost nothing, 0.68 and more at least 2 points."""
_MOST_STEPS = 30
"""Steps of an epoch, times further layers, that rows may be old: 17 lost nothing, 34 and 66 two points and more."""
_MANY_TIMES = 4  # the least fan-out: 2 and 3 times lost nothing, 7 and 8 times 5 and 14 points, 18 times half a point


class Cut(NamedTuple):
    """What a doubt depends on beside settings; NaN: unknown."""

    edges: float
    """Share of edges that come from trainers whose rows may be stale."""
    targets: float = math.nan
    """Training vertices of a trainer."""
    degree: float = math.nan  # in-neighbours of a vertex, mean


Holds = Callable[[Any, Cut], bool]
DOUBTS: tuple[tuple[str, Holds, str], ...] = (
    ("minibatch", lambda run, cut: cut.degree > _MANY_TIMES * min(run.fan_outs) > 0,
     "a vertex has {degree:.0f} in-neighbours, of which hops draw {num_neighbors}: on some graphs this costs many points of "
     "accuracy; take more --num-neighbors, a smaller --batch-size, or exchange"),
    ("exchange", lambda run, cut: bool(run.budget) and cut.edges == 0, "no edge is cut: --accuracy-loss has no rows to save"),
    ("exchange", lambda run, cut: bool(run.budget) and run.depth == 1 and run.model not in DEEP_MODELS
     and not run.send_features, "one layer reads features alone, which travel once: --accuracy-loss changes nothing"),
    ("exchange", lambda run, cut: bool(run.budget) and run.epochs < FEW_EPOCHS,
     "--accuracy-loss with {epochs} epochs: too few to measure what older rows do, so rows are sent in every epoch"),
    ("sancus pipegcn digest sat", lambda run, cut: cut.edges == 0, "no edge is cut, so there are no rows to save"),
    ("sancus pipegcn", lambda run, cut: run.depth == 1 and run.model not in DEEP_MODELS and not run.send_features,
     "one layer reads features alone, which never change: as exchange"),
    ("pipegcn", lambda run, cut: run.epochs == 1, "the first epoch is exact, and there is no other"),
    ("pipegcn", lambda run, cut: run.depth >= _OLD_LAYERS,
     "{depth} layers: rows and gradients of the epoch before cost many points of accuracy; take 2 layers, or sancus"),
    ("digest sat digest-async", lambda run, cut: run.grad_sync_every is None and cut.edges * (run.depth - 1) > _MOST_CUT,
     "{edges:.0%} of the edges are cut, and no gradient crosses them: with {depth} layers this costs 2 points of accuracy or "
     "more; take fewer parts, METIS, or sancus"),
    ("dorylus", lambda run, cut: run.pipeline == "async" and run.depth >= _OLD_LAYERS,
     "mode=async with {depth} layers: rows get older in every layer, which costs many points of accuracy; take mode=pipe"),
    ("digest sat", lambda run, cut: run.epochs < SyncPeriod(run.sync_every, run.phase).first,
     "sync-every={sync_every} with {epochs} epochs: all read rows of the first weights; take a smaller sync-every"),
    ("sat", lambda run, cut: run.epochs < policy_of(SatPolicy, run).predicts,
     "train-every={train_every} and sync-every={sync_every} with {epochs} epochs: never predicts, as digest"),
    ("historical", lambda run, cut: cut.targets / run.batch_size * (run.depth - 1) > _MOST_STEPS,
     "batches of {batch_size} of {targets:.0f} targets: {depth} layers of rows get old within an epoch, which costs points of "
     "accuracy; take a larger --batch-size or fewer layers"),
    ("sancus", lambda run, cut: run.epochs <= max(1, run.warmup),
     "warmup={warmup} with {epochs} epochs: never skips, as exchange; take a smaller warmup"),
    ("sancus", lambda run, cut: run.eps == 0, "eps=0: never skips, as exchange"),
)  # fmt: skip
"""Strategies, when a doubt holds, and why. Of several the first is said: losses of accuracy come before idleness."""


def doubt(settings: TrainSettings, cut: Cut) -> str:
    """What a strategy cannot do on a graph with its epochs and layers, in one line; empty: nothing."""
    run: Any = followed(settings) if isinstance(settings, ServerSettings) else settings
    values = vars(run) | cut._asdict() | {"depth": run.depth}
    found = (says for names, holds, says in DOUBTS if run.strategy in names.split() and holds(run, cut))
    return next((f"{run.strategy}: {says.format_map(values)}" for says in found), "")
