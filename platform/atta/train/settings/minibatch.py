"""Settings of ``minibatch``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from atta.observe.settings import Option
from atta.train.settings.links import LinkSettings

__all__ = ["PRECISIONS", "MinibatchSettings"]

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class MinibatchSettings(LinkSettings):
    """What strategies with sampled mini-batches have."""

    num_neighbors: Annotated[
        tuple[int, ...], Option("In-neighbours per vertex and hop, from the seeds outwards; -1: all.")
    ] = (15, 10, 5)
    batch_size: Annotated[int, Option("Seeds per trainer and step.", at_least=1)] = 1024
    accumulate: Annotated[int, Option("Batches per trainer and optimiser step.", at_least=1)] = 1
    precision: Annotated[str, Option("bf16 keeps weights and loss in fp32.", choices=PRECISIONS)] = "fp32"
    compile: Annotated[bool, Option("Compile the model: slow first steps, then faster.")] = False
    seed_policy: Annotated[
        str,
        Option("local: near a trainer; global: one order for any number of partitions.", choices=("local", "global")),
    ] = "local"
    eval_num_neighbors: Annotated[
        tuple[int, ...] | None, Option("Fan-outs of validation and test.", unset="--num-neighbors")
    ] = None
    target: Annotated[str | None, Option("Typed graphs: node type to learn.", metavar="TYPE", unset="labelled one")] = (
        None
    )
    num_neighbors_by_type: Annotated[
        str | None, Option("By edge type: writes=10,5;cites=5.", metavar="TEXT", unset="--num-neighbors")
    ] = None
    embedding_lr: Annotated[float | None, Option("Of embeddings of types without features.", unset="--lr")] = None
    checkpoint_steps: Annotated[
        int | None, Option("Optimiser steps between checkpoints.", unset="epochs only", at_least=1)
    ] = None
    eval_batch_size: Annotated[
        int | None, Option("Seeds per batch of evaluations.", unset="--batch-size", at_least=1)
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
