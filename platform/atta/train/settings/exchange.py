"""Settings of the strategies in which servers read each other's rows."""

from __future__ import annotations

from dataclasses import dataclass

from atta.train.settings.servers import ServerSettings

__all__ = ["ExchangeSettings"]


@dataclass(frozen=True)
class ExchangeSettings(ServerSettings):
    """What ``exchange`` has: nothing but its servers."""
