"""Settings of the strategies in which servers read each other's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from atta.observe.settings import Setting
from atta.train.settings.servers import ServerSettings

__all__ = ["ACROSS", "MESSAGE_CODECS", "ROWS", "ExchangeSettings", "StaleSettings"]

ROWS = ("halo", "all")
ACROSS = ("servers", "trainers")
MESSAGE_CODECS = ("none", "bf16", "fp16", "int8", "delta-int8")


@dataclass(frozen=True)
class ExchangeSettings(ServerSettings):
    """What strategies have whose servers read each other's rows."""

    rows: Annotated[
        str, Setting("Which rows trainers send: those that others read, or all, as CAGNET does.", choices=ROWS)
    ] = "halo"
    codec: Annotated[
        str,
        Setting(
            "How rows and gradients travel; delta-int8: as differences to what the reader has.", choices=MESSAGE_CODECS
        ),
    ] = "none"
    send_features: Annotated[bool, Setting("Send features in every epoch, as CAGNET does; else readers keep them.")] = (
        False
    )


@dataclass(frozen=True)
class StaleSettings(ExchangeSettings):
    """What strategies have whose trainers read stale rows."""

    stale_across: Annotated[
        str, Setting("Whose rows may be stale: those of other servers, or of all other trainers.", choices=ACROSS)
    ] = "servers"
