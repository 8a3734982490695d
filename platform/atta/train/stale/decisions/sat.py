"""SAT (Zhang et al., 2024): DIGEST, whose rows are predicted from the last synchronisations."""

from __future__ import annotations

from dataclasses import dataclass

from atta.errors import ConfigError
from atta.train.settings.servers import HISTORY_CODECS, SatOptions, check_options
from atta.train.stale.codecs.rows import FixedCodec, row_codec
from atta.train.stale.decisions.digest import DigestDecisions
from atta.train.stale.rules import Rule, SyncPeriod, window

__all__ = ["SatDecisions"]


@dataclass(frozen=True)
class SatDecisions(SatOptions, DigestDecisions):
    """As ``DigestDecisions``. Each pulled synchronisation also joins the history that predictions are made from."""

    def __post_init__(self) -> None:
        check_options(self)
        codec = row_codec(self.history_codec)
        if isinstance(codec, FixedCodec) and codec.name not in HISTORY_CODECS:
            raise ConfigError(f"history-codec={codec.name}: must be one of {', '.join(HISTORY_CODECS)}")

    def history(self, epoch: int) -> Rule:
        """The versions that the predictions of ``epoch`` are made from."""
        return window(SyncPeriod(self.sync_every, self.phase).read(epoch), self.window)

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
