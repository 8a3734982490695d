"""Settings of the strategy whose trainers divide their vertices into intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from atta.errors import ConfigError
from atta.observe.settings import Setting
from atta.train.settings.servers import ServerSettings

__all__ = ["AUTO", "DORYLUS_MODELS", "PIPELINE_MODES", "DorylusSettings"]

AUTO = "auto"
PIPELINE_MODES = ("nopipe", "pipe", "async")
DORYLUS_MODELS = ("gcn", "sage", "gat")
"""Models that can be split into gather and apply."""
MOST_WORKERS = 256
_STALE_LAYERS = 3


@dataclass(frozen=True)
class DorylusSettings(ServerSettings):
    """What ``dorylus`` has (Thorpe et al., OSDI 2021)."""

    intervals: Annotated[
        int, Setting("Intervals that each trainer divides its vertices into.", at_least=1, at_most=4096)
    ] = 16
    mode: Annotated[
        str,
        Setting(
            "What overlaps: nothing; everything between two layers; or all, and rows may be of earlier epochs.",
            choices=PIPELINE_MODES,
        ),
    ] = "async"
    staleness: Annotated[
        int, Setting("Epochs that an interval may be ahead of the slowest, with mode=async.", at_least=0, at_most=64)
    ] = 0
    workers: Annotated[
        str, Setting("Most worker processes of a trainer; auto: 4 per core, shared among trainers.", metavar="auto|N")
    ] = AUTO
    worker_timeout: Annotated[
        str,
        Setting(
            "After how long another worker does a task too; auto: five times the mean, at least 500ms.",
            metavar="auto|DURATION",
            unit="s",
        ),
    ] = AUTO
    max_relaunch: Annotated[
        int, Setting("How often a task is done again before the run fails.", at_least=0, at_most=1000)
    ] = 5
    interval_trace: Annotated[
        str | None, Setting("Each trainer writes what its intervals did into this folder, for Perfetto.", metavar="DIR")
    ] = None

    @property
    def most_workers(self) -> int | None:
        """``workers`` as a number; None: auto. Raises ConfigError for anything else."""
        if self.workers == AUTO:
            return None
        if not (self.workers.isascii() and self.workers.isdecimal() and 1 <= int(self.workers) <= MOST_WORKERS):
            raise ConfigError(f"workers={self.workers}: must be {AUTO}, or a number from 1 to {MOST_WORKERS}")
        return int(self.workers)

    @property
    def timeout_s(self) -> float | None:
        """``worker_timeout`` as a number; None: auto. Raises ConfigError for anything else."""
        if self.worker_timeout == AUTO:
            return None
        try:
            found = float(self.worker_timeout)
        except ValueError:
            found = math.nan
        if not 0 < found < math.inf:
            raise ConfigError(f"worker-timeout={self.worker_timeout}: must be {AUTO}, or seconds above 0")
        return found

    @property
    def warning(self) -> str | None:
        """What people should know before they train so; None: nothing."""
        if self.staleness and self.depth >= _STALE_LAYERS:
            return (
                f"warning: staleness={self.staleness} with {self.depth} layers: rows get older in every layer, and accuracy "
                "falls by many points; take staleness=0"
            )
        return None
