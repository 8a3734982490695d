"""Settings of the strategies whose trainers form servers: ``full`` and ``cooperative``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from atta.observe.settings import Option, Setting
from atta.train.settings.common import MOST_PROCESSES, ONE_PER_CORE, TrainSettings

if TYPE_CHECKING:
    from atta.samplers.local.server import Rule

__all__ = ["EVALS", "CooperativeSettings", "FullSettings", "ServerSettings"]

EVALS = ("trained", "exact")


@dataclass(frozen=True)
class ServerSettings(TrainSettings):
    """What strategies have whose trainers form servers."""

    trainers_per_server: Annotated[
        int | None,
        Option(
            "Consecutive trainers that share a subgraph.",
            unset="all",
            at_least=1,
            at_most=MOST_PROCESSES,
            too_many=ONE_PER_CORE,
        ),
    ] = None

    @property
    def server_size(self) -> int:
        """Trainers per server."""
        return self.trainers_per_server or self.trainers

    @property
    def servers(self) -> int:
        """How many servers the trainers form."""
        return self.trainers // self.server_size


@dataclass(frozen=True)
class FullSettings(ServerSettings):
    """What strategies have whose trainers share all that their server's vertices depend on (GraNNDis)."""

    eas: Annotated[
        tuple[int, int] | None,
        Setting(
            "Expansion-aware sampling outside a server's own vertices: hops and new neighbours per vertex, such as 1,15.",
            metavar="MAX_HOP,FANOUT",
            unset="exact closure",
        ),
    ] = None
    resample_every: Annotated[int, Setting("Epochs after which eas draws anew; 0 = never.", at_least=0)] = 0
    eval: Annotated[
        str,
        Setting(
            "What val and test are predicted from: trained = as in training, exact = the whole graph, and rows travel.",
            choices=EVALS,
        ),
    ] = "trained"

    def rule(self, epoch: int) -> Rule:
        """Which vertices join a server's own in this epoch; raises ConfigError for ``eas`` out of range."""
        from atta.samplers.operators.server import Closure, ExpansionAware

        if self.eas is None:
            return Closure(self.depth)
        max_hop, fanout = self.eas
        return ExpansionAware(max_hop, fanout, resample=epoch // self.resample_every if self.resample_every else 0)


@dataclass(frozen=True)
class CooperativeSettings(FullSettings):
    """What the strategy with co-batches has."""

    co_batches: Annotated[
        int | None, Setting("Steps per epoch; with 1 the subgraph stays on the device.", at_least=1)
    ] = None
    memory: Annotated[
        int | None, Setting("Memory per trainer, from which co-batches follows.", unit="bytes", at_least=1)
    ] = None
