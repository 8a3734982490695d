"""Which versions of a row a reader may use, and whether an owner must publish. Pure functions of epochs and versions.

| rule | versions that it admits in epoch r | used by |
|---|---|---|
| ``exact(r)`` | r | exact exchange; gradients of SANCUS |
| ``at_most(r, e)`` | r - e ... r | SANCUS |
| ``snapshot(v)`` | v, once it is committed | DIGEST, PipeGCN (v = r - 1) |
| ``window(v, k)`` | the last k that are committed and not above v | SAT |
| ``latest()`` | all | asynchronous readers |

Sources: SANCUS (Peng et al., VLDB 2022) definitions 1 to 3, DIGEST (Chai et al., 2022) algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from atta.errors import ConfigError
from atta.train.settings.servers import PHASES

__all__ = [
    "NEVER", "Ages", "Rule", "SyncPeriod", "at_most", "due_by_age", "due_by_gap", "exact", "latest",
    "lead", "mean_absolute_difference", "snapshot", "window",
]  # fmt: skip

NEVER = -1
"""Version of a row that was never published."""
_NO_BOUND = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Rule:
    """Which versions of a row a reader may use. Of those that it may use it takes the newest.

    Attributes:
        oldest, newest: the versions that are admitted, both included.
        committed: whether only versions of committed epochs are admitted.
        count: how many versions of each row the reader takes.
    """

    oldest: int
    newest: int
    committed: bool = False
    count: int = 1

    def admits(self, versions: torch.Tensor, committed: int) -> torch.Tensor:
        """bool, shaped as ``versions`` (int64). ``committed``: the last committed epoch."""
        newest = min(self.newest, committed) if self.committed else self.newest
        return (versions >= max(self.oldest, 0)) & (versions <= newest)


def exact(epoch: int) -> Rule:
    """Rows of this epoch."""
    return Rule(epoch, epoch)


def at_most(epoch: int, age: int) -> Rule:
    """Rows that are at most ``age`` epochs old."""
    return Rule(epoch - age, epoch)


def snapshot(version: int) -> Rule:
    """Rows of one synchronisation, after it was committed. So all rows have the same version."""
    return Rule(version, version, committed=True)


def window(version: int, count: int) -> Rule:
    """The rows of the last ``count`` committed synchronisations up to ``version``."""
    return Rule(0, version, committed=True, count=count)


def latest() -> Rule:
    """The newest rows there are."""
    return Rule(0, _NO_BOUND)


def due_by_age(epoch: int, oldest_copy: int, bound: int) -> bool:
    """Whether rows must be published before they are read in ``epoch`` (SANCUS definitions 1 and 2).

    ``oldest_copy``: the oldest version that a reader holds. Asked before each use, it keeps every age within ``bound``.
    """
    return oldest_copy == NEVER or epoch - oldest_copy > bound


def due_by_gap(gap: float, bound: float) -> bool:
    """Whether rows have changed by more than ``bound`` since they were published (SANCUS definition 3).

    A gap that is not a number is due: then the table refuses the rows, and the run ends with their cause.
    """
    return not gap <= bound


def lead(owner: int, bound: int) -> int:
    """How many epochs earlier than others ``owner`` publishes for the second time, so that owners take turns.

    All owners begin in the same epoch, so without it they would publish in the same epochs for ever. Take it off the
    bound once. It is at most the bound, so it makes no copy older.
    """
    return owner % (bound + 1)


def mean_absolute_difference(rows: torch.Tensor, published: torch.Tensor) -> float:
    """How far ``rows`` [n, d] are from those that were published; 0 without rows."""
    return float((rows - published).abs().mean()) if rows.numel() else 0.0


@dataclass(frozen=True, slots=True)
class SyncPeriod:
    """Synchronises every ``every`` epochs: owners push, then readers pull what was committed before (DIGEST).

    Phase ``early`` pushes in epoch r if r % every = 0 and pulls in the epoch after, so ages are 1 ... every. Phase
    ``paper`` pushes if (r - 1) % every = 0 and pulls if r % every = 0. Then ages are every - 1 ... 2 every - 2, after
    its first pull. With ``every`` = 1 both phases give age 1, because nothing is read before it is committed.
    """

    every: int
    phase: str = "early"

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:
            raise ConfigError(f"period {self.every!r}: must be a number of epochs from 1 on")
        if self.phase not in PHASES:
            raise ConfigError(f"phase {self.phase!r}: must be one of {', '.join(PHASES)}")

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
    """Ages of rows that were read, in epochs. Sums and bounds, so that several readers' ages can be added.

    Attributes:
        rows: how many rows were read.
        least, most: bounds of their ages; of no rows infinity and -1.
        total: sum of their ages.
    """

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
        return Ages(
            self.rows + other.rows,
            min(self.least, other.least),
            max(self.most, other.most),
            self.total + other.total,
        )

    @property
    def mean(self) -> float:
        """Mean age; 0 of no rows."""
        return self.total / self.rows if self.rows else 0.0
