"""Settings of a training run as the trainers see them: those that every run has, and those of each kind of strategy.

``TrainConfig`` has all of them. Trainers and models take the class whose settings they read, so they do not depend on which
strategies there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from atta.observe.settings import NoOption, Option

if TYPE_CHECKING:
    from atta.samplers.local.server import Rule

__all__ = [
    "DEEP_MODELS",
    "DEVICES",
    "MODELS",
    "MOST_LAYERS",
    "CooperativeSettings",
    "MinibatchSettings",
    "ServerSettings",
    "TrainSettings",
]

DEEP_MODELS = ("resgcn+", "deepergcn")
MODELS = ("sage", "gcn", "gat", *DEEP_MODELS)
DEVICES = ("auto", "cpu", "cuda")
DEFAULT_LAYERS = 3
MOST_LAYERS = 1000
"""Of models on whole graphs; GraNNDis trains up to 112."""
_MOST_PROCESSES = 1024
_ONE_PER_CORE = "about one per core is useful"


@dataclass(frozen=True)
class TrainSettings:
    """What every training run has, whatever its strategy."""

    data: Annotated[str | None, Option("Partitioned dataset; its daemons are started for the run.")] = None
    cluster: Annotated[str | None, Option("Cluster file (or addresses) of daemons that run already.")] = None
    model: Annotated[str, Option("The last two are deep ones.", choices=MODELS)] = "sage"
    strategy: Annotated[str, Option("How trainers get what they compute on.")] = "minibatch"
    trainers: Annotated[
        int,
        Option(
            "Trainer processes, on all machines together.", at_least=1, at_most=_MOST_PROCESSES, too_many=_ONE_PER_CORE
        ),
    ] = 1
    epochs: Annotated[int, Option("Passes over the training vertices.", at_least=1)] = 10
    layers: Annotated[
        int | None,
        Option("Model layers; with a single fan-out it holds for all.", unset="one per hop, or 3", at_least=1),
    ] = None
    checkpoint_layers: Annotated[
        bool, Option("Deep models: recompute activations in backward instead of keeping them, to save memory.")
    ] = False
    hidden: Annotated[int, Option("Width of hidden layers.", at_least=1)] = 256
    heads: Annotated[int, Option("Attention heads (gat).", at_least=1)] = 4
    lr: Annotated[float, Option("Learning rate of Adam.")] = 0.01
    weight_decay: Annotated[float, Option("L2 penalty on the weights.")] = 0.0
    dropout: Annotated[float, Option("Probability with which an activation is dropped.")] = 0.5
    seed: Annotated[int, Option("Seed of all random choices.")] = 0
    eval_every: Annotated[
        int, Option("Epochs between evaluations; the last epoch is always evaluated.", at_least=1)
    ] = 1
    patience: Annotated[
        int | None,
        Option(
            "Stop after this many evaluations in a row without a better validation accuracy.", unset="never", at_least=1
        ),
    ] = None
    device: Annotated[
        str, Option("Where models compute; auto: a GPU per trainer if there is one.", choices=DEVICES)
    ] = "auto"
    threads: Annotated[
        int | None,
        Option(
            "Worker threads per daemon started here.",
            unset="the cores, shared among the daemons",
            at_least=1,
            at_most=_MOST_PROCESSES,
            too_many=_ONE_PER_CORE,
        ),
    ] = None
    checkpoint: Annotated[str | None, Option("Write a checkpoint after every epoch.", metavar="DIR")] = None
    resume: Annotated[bool, Option("Continue from the checkpoint, if there is one.")] = False
    verbose: Annotated[bool, NoOption("the command has --quiet, its opposite")] = True

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.layers or DEFAULT_LAYERS


@dataclass(frozen=True)
class MinibatchSettings(TrainSettings):
    """What strategies with sampled mini-batches have."""

    num_neighbors: Annotated[
        tuple[int, ...], Option("Fan-outs, in-neighbours per vertex and hop, from the seeds outwards; -1 = all.")
    ] = (15, 10, 5)
    batch_size: Annotated[int, Option("Seeds per trainer and step.", at_least=1)] = 1024
    seed_policy: Annotated[
        str,
        Option(
            "Seeds of a trainer: near it (fewer remote rows), or of one order for any number of partitions.",
            choices=("local", "global"),
            was="seeds",
        ),
    ] = "local"
    eval_num_neighbors: Annotated[
        tuple[int, ...] | None, Option("Fan-outs of validation and test.", unset="--num-neighbors")
    ] = None
    eval_batch_size: Annotated[
        int | None, Option("Seeds per batch of validation and test.", unset="--batch-size", at_least=1)
    ] = None

    @property
    def depth(self) -> int:
        """Number of layers, and of hops."""
        return len(self.num_neighbors) if self.layers is None else self.layers

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """Fan-outs of training, one per layer, from the seeds outwards."""
        return self._per_layer(self.num_neighbors)

    @property
    def eval_fan_outs(self) -> tuple[int, ...]:
        """Fan-outs of validation and test, one per layer."""
        return self._per_layer(self.eval_num_neighbors or self.num_neighbors)

    def _per_layer(self, hops: tuple[int, ...]) -> tuple[int, ...]:
        return hops * self.depth if len(hops) == 1 else hops


@dataclass(frozen=True)
class ServerSettings(TrainSettings):
    """What strategies have whose trainers share the subgraph of their server (GraNNDis)."""

    trainers_per_server: Annotated[
        int | None,
        Option(
            "Consecutive trainers that share a subgraph; a server has one partition, or all.",
            unset="all",
            at_least=1,
            at_most=_MOST_PROCESSES,
            too_many=_ONE_PER_CORE,
        ),
    ] = None
    eas: Annotated[
        tuple[int, int] | None,
        Option(
            "Expansion-aware sampling: hops and new neighbours per vertex outside the server's own vertices, such as 1,15.",
            metavar="MAX_HOP,FANOUT",
            unset="exact closure",
        ),
    ] = None
    resample_every: Annotated[int, Option("Epochs after which --eas draws anew; 0 = never.", at_least=0)] = 0

    @property
    def server_size(self) -> int:
        """Trainers per server."""
        return self.trainers_per_server or self.trainers

    @property
    def servers(self) -> int:
        """How many servers the trainers form."""
        return self.trainers // self.server_size

    def rule(self, epoch: int) -> Rule:
        """Which vertices join a server's own in this epoch; raises ConfigError for ``eas`` out of range."""
        from atta.samplers.operators.server import Closure, ExpansionAware

        if self.eas is None:
            return Closure(self.depth)
        max_hop, fanout = self.eas
        return ExpansionAware(max_hop, fanout, resample=epoch // self.resample_every if self.resample_every else 0)


@dataclass(frozen=True)
class CooperativeSettings(ServerSettings):
    """What the strategy with co-batches has."""

    co_batches: Annotated[
        int | None, Option("Steps per epoch; with 1 the subgraph stays on the device.", at_least=1)
    ] = None
    memory: Annotated[
        int | None, Option("Memory per trainer, from which --co-batches follows.", unit="bytes", at_least=1)
    ] = None
