"""PipeGCN (Wan et al., ICLR 2022): rows and gradients of the epoch before, sent while this one computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from atta.errors import ConfigError
from atta.observe.settings import Option
from atta.train.stale.decisions.common import Published, check_options
from atta.train.stale.rules import Rule, exact, snapshot
from atta.train.stale.table import Direction

__all__ = ["PipeGcnDecisions"]


@dataclass(frozen=True)
class PipeGcnDecisions:
    """Age 1 in both directions. The first epoch is exact, so nobody reads rows that were never computed."""

    smooth: Annotated[
        float | None, Option("Decay of the moving mean that replaces rows and gradients, such as 0.95.", unset="off")
    ] = None

    gaps = False

    def __post_init__(self) -> None:
        check_options(self)
        if self.smooth is not None and not 0 <= self.smooth < 1:
            raise ConfigError(f"--smooth {self.smooth}: must lie in [0, 1)")

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        """See ``Decisions.reads``."""
        return exact(1) if epoch == 1 else snapshot(epoch - 1)

    def publishes(self, epoch: int, direction: Direction, owner: int, last: Published) -> bool:
        """See ``Decisions.publishes``."""
        return True

    def smoothed(self, before: torch.Tensor | None, fresh: torch.Tensor) -> torch.Tensor:
        """What a reader uses after ``before`` (None: nothing yet) when ``fresh`` has come: their moving mean."""
        if self.smooth is None or before is None:
            return fresh
        return torch.lerp(fresh, before, self.smooth)
