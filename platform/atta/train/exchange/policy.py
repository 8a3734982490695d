"""What trainers read of each other's rows, and when they publish their own: pure functions of epochs and versions.

Epochs count from 1 here, as in the papers. A row's version is the epoch that computed it. Version 0 is the exact pass
before the first epoch. The policy of a strategy is in its file in ``atta.train.strategies``.

| rule | versions that it admits in epoch r | used by |
|---|---|---|
| ``exact(v)`` | v | exact exchange and gradients of SANCUS (v = r), PipeGCN (v = r - 1), DIGEST |
| ``at_most(r, e)`` | r - e ... r | SANCUS |
| ``latest()`` | all | asynchronous readers |

Sources: SANCUS (Peng et al., VLDB 2022) definitions 1 to 3, DIGEST (Chai et al., 2022) algorithm 1.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from atta.errors import ConfigError
from atta.train.settings.servers import PHASES

if TYPE_CHECKING:
    import torch

    from atta.train.cooperative.source import Direction

NEVER = -1
"""Version of a row that was never published."""
_NO_BOUND = (1 << 63) - 1


class Rule(NamedTuple):
    """Which versions of a row a reader may use, both bounds included. Of these it takes the newest."""

    oldest: int
    newest: int


def exact(version: int) -> Rule:
    """Rows of one epoch."""
    return Rule(version, version)


def at_most(epoch: int, age: int) -> Rule:
    """Rows that are at most ``age`` epochs old."""
    return Rule(max(0, epoch - age), epoch)


def latest() -> Rule:
    """The newest rows there are."""
    return Rule(0, _NO_BOUND)


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


class RowPolicy(abc.ABC):
    """What trainers read and publish.

    Attributes:
        gaps: whether owners keep what they have published, to measure gaps. That is a second copy of these rows.
        smooth: readers use a moving mean of the rows with this decay; None: the rows themselves.
    """

    gaps: bool = False
    smooth: float | None = None

    def history(self, direction: Direction) -> int | None:
        """How many versions readers keep while an epoch brings new ones.

        0: new rows replace them at once. None: rows are read in their own epoch only, so nothing is kept.
        """
        return None

    @abc.abstractmethod
    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """Which rows of others are read in ``epoch``; None: none, so gradients end at the cut."""

    @abc.abstractmethod
    def publishes(self, epoch: int, direction: Direction, owner: int, held: int = NEVER, gap: float = math.inf) -> bool:
        """Whether trainer ``owner`` publishes the rows of a layer in ``epoch``. Asked before they are read.

        held: the oldest version that a reader has; -1: none. gap: mean absolute difference of the rows to those that
        were published.
        """

    def clip_norm(self, trainers: int) -> float | None:
        """Largest norm of one trainer's gradient; None: there is no limit."""
        return None


def policy_of(kind: type[Any], settings: Any) -> Any:
    """The policy of a dataclass ``kind`` from the settings of the same names; raises its ConfigErrors."""
    return kind(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(kind)})
