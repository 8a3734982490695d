"""The policy of each strategy whose trainers read rows of others.

| strategy | rows of others are | gradients of rows are | published |
|---|---|---|---|
| ``exchange`` | of this epoch | of this epoch | every epoch |
| ``sancus`` | within a bound | of this epoch | when the bound asks for it |
| ``pipegcn`` | of the epoch before | of the epoch before | every epoch |
| ``digest`` | of the last synchronisation | cut, or of their last synchronisation | every N epochs |
| ``sat`` | predicted from the last synchronisations | as digest | as digest |
| ``digest-async`` | the newest that owners have pushed | cut | every N steps of their owner |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atta.errors import ConfigError
from atta.train.exchange.policy import NEVER, RowPolicy, Rule, SyncPeriod, at_most, exact, latest
from atta.train.settings.servers import DigestOptions, PipeGcnOptions, SancusOptions, SatOptions, check_options

if TYPE_CHECKING:
    from atta.train.cooperative.source import Direction

_DEFAULT_EPS = {"epoch": 1.0, "adaptive": 1.0, "gap": 0.03}


@dataclass(frozen=True)
class ExactPolicy(RowPolicy):
    """Full-graph training: rows and gradients of this epoch."""

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return exact(epoch)

    def publishes(self, epoch: int, direction: Direction, owner: int, held: int = NEVER, gap: float = math.inf) -> bool:
        return True


@dataclass(frozen=True)
class SancusPolicy(SancusOptions, RowPolicy):
    """Rows within a bound, gradients of this epoch (Peng et al., VLDB 2022). Without a warm-up, the code of the paper's
    authors loses 2 to 5 points of accuracy."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.bound != "gap" and self.limit != int(self.limit):
            raise ConfigError(f"eps={self.eps}: is a number of epochs with bound={self.bound}")
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

    def history(self, direction: Direction) -> int | None:
        return 0 if direction == "forward" else None

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """A bound on the change is no bound on the age."""
        if direction == "backward":
            return exact(epoch)
        return latest() if self.gaps else at_most(epoch, int(self.limit))

    def publishes(self, epoch: int, direction: Direction, owner: int, held: int = NEVER, gap: float = math.inf) -> bool:
        """Definitions 1 and 2, or 3. The first broadcast is always active. A gap that is not a number is due: then the
        rows are refused, and the run ends with their cause.

        With the adaptive bound an owner publishes ``owner % (bound + 1)`` epochs earlier for the second time, so that
        owners, who all begin in the same epoch, take turns. It makes no copy older.
        """
        if direction == "backward" or held == NEVER or epoch <= self.warmup:
            return True
        if self.gaps:
            return not gap <= self.limit
        bound = int(self.limit)
        if self.bound == "adaptive" and held <= max(1, self.warmup):
            bound -= owner % (bound + 1)
        return epoch - held > bound

    def clip_norm(self, trainers: int) -> float | None:
        """A share of a sum over P trainers is about 1/√P of its norm."""
        return None if self.clip_grad is None else self.clip_grad / math.sqrt(trainers)


@dataclass(frozen=True)
class PipeGcnPolicy(PipeGcnOptions, RowPolicy):
    """Age 1 in both directions (Wan et al., ICLR 2022). The first epoch is exact, so nobody reads rows that were never
    computed. Newer rows are still under way while those of the epoch before are read.
    """

    def __post_init__(self) -> None:
        check_options(self)
        if self.smooth is not None and not 0 <= self.smooth < 1:
            raise ConfigError(f"smooth={self.smooth}: must lie in [0, 1)")

    def history(self, direction: Direction) -> int | None:
        return 0

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return exact(max(1, epoch - 1))

    def publishes(self, epoch: int, direction: Direction, owner: int, held: int = NEVER, gap: float = math.inf) -> bool:
        return True


@dataclass(frozen=True)
class DigestPolicy(DigestOptions, RowPolicy):
    """Rows of the last synchronisation (Chai et al., 2022). An exact pass before the first epoch fills the tables with
    version 0.

    Rows at age N cost little accuracy. Gradients that are so old do harm, so they have a period of their own.
    """

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
    """DIGEST-A: as DIGEST, but epochs are the steps of this trainer, and rows are the newest that owners have pushed."""

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return latest() if direction == "forward" else None


@dataclass(frozen=True)
class SatPolicy(SatOptions, DigestPolicy):
    """As ``DigestPolicy`` (Zhang et al., 2024). Each pulled synchronisation also joins the history that predictions are
    made from.
    """

    def trains(self, epoch: int) -> bool:
        """Whether predictions are measured in ``epoch``, and then learnt from."""
        return epoch % self.train_every == 0

    def shares(self, epoch: int) -> bool:
        """Whether trainers put together in ``epoch`` what each has learnt since the last epoch of training.

        That is half a period later. So learning has some epochs to hide behind.
        """
        began = epoch - max(1, self.train_every // 2)
        return began > 0 and self.trains(began)

    def ahead(self, epoch: int) -> float:
        """How old the rows that are read in ``epoch`` are, in synchronisation periods."""
        return (epoch - SyncPeriod(self.sync_every, self.phase).read(epoch)) / self.sync_every
