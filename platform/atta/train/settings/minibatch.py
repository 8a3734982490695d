"""Settings of ``minibatch``, and of the tasks without a table ``y`` of vertices."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from atta.errors import ConfigError
from atta.observe.settings import Option, Setting
from atta.train.settings.common import BATCH_SIZE, DEFAULT_BATCH, TrainSettings

LINK, EDGE_CLASSES, UNSUPERVISED, INFOMAX = "link", "edge-classes", "unsupervised", "dgi"
UNTABLED = (LINK, EDGE_CLASSES, UNSUPERVISED, INFOMAX)
"""Tasks whose targets are no table of vertices; the model's outputs are embeddings."""
DECODERS = ("dot", "distmult", "mlp")
NEGATIVES = ("uniform", "degree", "in_batch", "exact")
SPLITS_BY = ("hash", "time")
SPLITS = ("train", "val", "test")
JUDGES = ("auto", "classes", "links")
_WALKS = ("uniform", "in_batch", "exact")  # the DAG of three branches draws no in-neighbours: uniform is exact there


@dataclass(frozen=True)
class LinkSettings(TrainSettings):
    """What strategies that can train tasks without a table of vertices have."""

    edge_type: Annotated[
        str | None, Option("Edges to predict (link, edge-classes).", metavar="TYPE", unset="only type")
    ] = None
    reverse_type: Annotated[
        str | None, Option("Reverses of --edge-type.", metavar="TYPE", unset="found by name or ends")
    ] = None
    decoder: Annotated[str, Option("Scores of pairs: dot, distmult, mlp.", choices=DECODERS)] = "dot"
    edge_split: Annotated[str, Option("Shares to train, validate, test on.", metavar="SHARES")] = "0.8,0.1,0.1"
    split_by: Annotated[
        str,
        Option("Split edges by their ends, or by table time.",
               choices=SPLITS_BY)
    ] = "hash"  # fmt: skip
    negatives: Annotated[
        str, Option("How pairs without an edge are drawn: uniform, degree, in_batch, exact.", choices=NEGATIVES)
    ] = "uniform"
    negatives_per_edge: Annotated[int, Option("Of them per edge, or per seed.", at_least=1)] = 1
    walk_length: Annotated[int, Option("Steps of walks to positive samples.", at_least=1, at_most=100)] = 1
    eval_negatives: Annotated[
        str,
        Option("Other targets that an edge is ranked among.",
               metavar="K|all")
    ] = "100"  # fmt: skip
    evaluate_by: Annotated[str, Option("What judges embeddings (unsupervised, dgi).", choices=JUDGES)] = "auto"


_TASKS = {
    "edge_type": (LINK, EDGE_CLASSES),
    "reverse_type": (LINK, EDGE_CLASSES),
    "decoder": (LINK,),
    "edge_split": UNTABLED,
    "split_by": (LINK, EDGE_CLASSES, INFOMAX),
    "negatives": (LINK, UNSUPERVISED),
    "negatives_per_edge": (LINK, UNSUPERVISED),
    "walk_length": (UNSUPERVISED,),
    "eval_negatives": (LINK, UNSUPERVISED, INFOMAX),
    "evaluate_by": (UNSUPERVISED, INFOMAX),
}
"""The tasks that a setting belongs to."""


def check_links(settings: LinkSettings) -> None:
    """Refuse settings of these tasks that make no sense, or belong to another task. Raises ConfigError."""
    for name, tasks in _TASKS.items():
        if settings.task not in tasks and getattr(settings, name) != getattr(LinkSettings, name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: belongs to --task {' or '.join(tasks)}, not {settings.task}")
    if settings.task in UNTABLED:
        parse_shares(settings.edge_split)
        parse_eval_negatives(settings.eval_negatives)
    if settings.task == UNSUPERVISED and settings.walk_length == 1 and settings.negatives not in _WALKS:
        raise ConfigError(
            f"--negatives {settings.negatives}: --task {UNSUPERVISED} takes {', '.join(_WALKS)} with walks of one step"
        )


def parse_eval_negatives(text: str) -> int | None:
    """Number of candidates per positive; None: ``all``. Raises ConfigError."""
    if text == "all":
        return None
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"--eval-negatives {text}: give a number of at least 1, or all")
    return int(text)


def parse_shares(text: str) -> tuple[float, float, float]:
    """The shares of edges of training, validation and test, from ``0.8,0.1,0.1``. Raises ConfigError."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != len(SPLITS) or not all(0 <= n <= 1 for n in numbers) or not math.isclose(sum(numbers), 1):
        raise ConfigError(f"--edge-split {text}: give three shares that add up to 1, of training, validation and test")
    if not numbers[0]:
        raise ConfigError(f"--edge-split {text}: no edge would be left for training")
    return numbers[0], numbers[1], numbers[2]


PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class MinibatchSettings(LinkSettings):
    """What strategies with sampled mini-batches have."""

    num_neighbors: Annotated[
        tuple[int, ...], Option("In-neighbours per vertex and hop, from the seeds outwards; -1: all.")
    ] = (15, 10, 5)
    batch_size: Annotated[int, BATCH_SIZE] = DEFAULT_BATCH
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
        str | None, Option("By edge type: writes=9,5;cites=5.", metavar="TEXT", unset="--num-neighbors")
    ] = None
    embed: Annotated[
        str | None, Option("Types that learn their x, or all.", metavar="TYPE,TYPE", unset="those without x")
    ] = None
    embedding_lr: Annotated[float | None, Option("Of rows that node types learn.", unset="--lr")] = None
    checkpoint_steps: Annotated[
        int | None, Option("Optimiser steps between checkpoints.", unset="epochs only", at_least=1)
    ] = None
    aggregate: Annotated[
        str, Option("Daemons sum the last hop's rows: auto, where it is faster.", choices=("auto", "on", "off"))
    ] = "auto"
    eval_batch_size: Annotated[
        int | None, Option("Seeds per batch of evaluations.", unset="--batch-size", at_least=1)
    ] = None
    method: Annotated[
        str, Setting("How in-neighbours are drawn: uniform, weighted, labor, or a method of your own.", metavar="NAME")
    ] = "uniform"
    dependency: Annotated[
        int, Setting("In so many batches each vertex draws its in-neighbours anew once, such as 64.", at_least=1)
    ] = 1

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

    def drawing(self, *, train: bool) -> dict[str, Any]:
        """How in-neighbours are drawn, as ``NeighborLoader`` takes it; evaluations draw anew in every batch."""
        way = {"weight_attr": "weight"} if self.method == "weighted" else {"method": self.method}
        return {**way, "dependency": self.dependency if train else 1}

    def _per_layer(self, hops: tuple[int, ...]) -> tuple[int, ...]:
        return hops * self.depth if len(hops) == 1 else hops


_ENTRY_END = re.compile(r"(?<=[0-9])[\s;]*;|^[\s;]+|[\s;]+$")
"""";" after a number: a name may have one, too."""


def parse_fan_outs(text: str, depth: int) -> dict[str, tuple[int, ...]]:
    """Read ``writes=10,5; paper__cites__paper=15,10``: fan-outs by edge type or relation. One number holds for all
    hops. Raises ConfigError: the text has another form, or a list has another length than ``depth``."""
    found: dict[str, tuple[int, ...]] = {}
    for entry in filter(None, map(str.strip, _ENTRY_END.split(text))):
        name, equals, numbers = (part.strip() for part in entry.rpartition("="))
        try:
            hops = tuple(int(number) for number in numbers.split(","))
        except ValueError:
            hops = ()
        if not (name and equals and hops and min(hops) >= -1):
            raise ConfigError(
                f"--num-neighbors-by-type {entry!r}: give EDGE_TYPE=FAN_OUTS;..., such as writes=10,5; a fan-out is -1 "
                "(all), 0 (none) or more"
            )
        if len(hops) not in (1, depth):
            raise ConfigError(f"--num-neighbors-by-type {entry!r}: {len(hops)} hops for {depth} layers")
        if name in found:
            raise ConfigError(f"--num-neighbors-by-type: names {name} twice")
        found[name] = hops * depth if len(hops) == 1 else hops
    return found
