"""What an inference computes, by how many processes, and how many vertices that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.client.inference.block import Floats
from atta.client.inference.stages import Stage, Targets
from atta.errors import ConfigError, UnknownNameError
from atta.partition.schema import Schema

__all__ = ["INNER_PRODUCTS", "InferenceTask", "PairScore", "TopTargets", "feature_width", "target_count"]


@dataclass(frozen=True)
class PairScore:
    """Scores of pairs from the rows of their ends.

    Attributes:
        pairs: gives each row of sources [n, width] and its partner in targets [n, width] a number, float32 [n], or a
            row.
        grid: gives each row of sources [n, width] with each of targets [m, width] a number, float32 [n, m].
    """

    pairs: Callable[[Floats, Floats], Floats]
    grid: Callable[[Floats, Floats], Floats]


INNER_PRODUCTS = PairScore(
    lambda sources, targets: np.asarray(np.einsum("nd,nd->n", sources, targets)),
    lambda sources, targets: np.asarray(sources @ targets.T),
)


@dataclass(frozen=True)
class TopTargets:
    """The question for the best targets of each source.

    Attributes:
        count: how many targets a source gets; fewer where fewer are left.
        sources: the vertices that get them.
        edge_type: the relation. Targets that a source has an edge to are left out.
    """

    count: int
    sources: Targets
    edge_type: str


@dataclass(frozen=True)
class InferenceTask:
    """What is computed, and by how many.

    Attributes:
        types: node type of the vertices that are asked for; of pairs, those of sources and of targets.
        stages: first to last (see ``atta.client.inference.stages``).
        key: digest of everything that rows depend on, and of where the results go; processes with the same one share
            tables.
        shares: number of shares.
        features: node table with the input.
        rank, world: number of this process, and of all.
        batch_size: vertices per block; None: what ``block_size`` says, or 1024 of sampled batches.
        seed: of sampled batches.
        pairs: int64 [n, 2], user ids of sources and targets to score, if the last stage is about given pairs.
        top: if it looks for the best targets.
        finish: turns rows of the last stage, or scores of pairs, into what is written.
        score: what gives pairs their scores.
        version: of the dataset's tables.
    """

    types: tuple[str, ...]
    stages: Sequence[Stage]
    key: str
    shares: int
    features: str = "x"
    rank: int = 0
    world: int = 1
    batch_size: int | None = None
    seed: int = 0
    pairs: npt.NDArray[np.int64] | None = None
    top: TopTargets | None = None
    finish: Callable[[Floats], npt.NDArray[Any]] = np.asarray
    score: PairScore = INNER_PRODUCTS
    version: int = 0


def feature_width(schema: Schema, features: str) -> int:
    """Numbers per vertex of the table ``features``.

    Raises:
        ConfigError: the graph has several types, or the table is not rows of numbers.
        UnknownNameError: there is no such table.
    """
    if len(schema.node_types) != 1 or len(schema.edge_types) != 1:
        raise ConfigError("inference takes graphs with one node type and one edge type")
    spec = schema.table(schema.node_types[0], features)
    if len(spec.row_shape) != 1:
        raise ConfigError(
            f"inference needs one row of features per vertex, {features} has rows of shape {spec.row_shape}"
        )
    return spec.row_shape[0]


def target_count(schema: Schema, nodes: Targets, node_type: str) -> int:
    """How many vertices of a type ``nodes`` are; raises UnknownNameError for an unknown split, ConfigError for none."""
    if nodes is None:
        count = schema.node_counts[node_type]
    elif isinstance(nodes, str):
        if nodes not in schema.splits[node_type]:
            raise UnknownNameError.of("split", nodes, schema.splits[node_type])
        count = schema.split_size(node_type, nodes)
    else:
        count = len(nodes)
    if not count:
        raise ConfigError("there are no vertices to predict: the list of ids is empty")
    return count
