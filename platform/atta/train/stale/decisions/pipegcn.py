"""PipeGCN (Wan et al., ICLR 2022): rows and gradients of the epoch before, sent while this one computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atta.errors import ConfigError
from atta.train.settings.servers import PipeGcnOptions, check_options
from atta.train.stale.decisions.common import Decisions, Published
from atta.train.stale.rules import Rule, exact, snapshot
from atta.train.stale.table import Direction

__all__ = ["PipeGcnDecisions"]


@dataclass(frozen=True)
class PipeGcnDecisions(PipeGcnOptions, Decisions):
    """Age 1 in both directions. The first epoch is exact, so nobody reads rows that were never computed."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.smooth is not None and not 0 <= self.smooth < 1:
            raise ConfigError(f"smooth={self.smooth}: must lie in [0, 1)")

    @property
    def smooths(self) -> bool:  # type: ignore[override]
        """See ``Decisions.smooths``."""
        return self.smooth is not None

    def keeps(self, direction: Direction) -> int | None:
        return 1

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return exact(1) if epoch == 1 else snapshot(epoch - 1)

    def publishes(self, epoch: int, direction: Direction, owner: int, last: Published) -> bool:
        return True

    def smoothed(self, before: torch.Tensor | None, fresh: torch.Tensor) -> torch.Tensor:
        """Their moving mean."""
        if self.smooth is None or before is None:
            return fresh
        return torch.lerp(fresh, before, self.smooth)
