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

__all__ = ["InferenceTask", "PairScore", "feature_width", "inner_products", "target_count"]

PairScore = Callable[[Floats, Floats], Floats]
"""Gives pairs a number each, float32 [n], or a row each, from the rows [n, width] of sources and of targets."""


def inner_products(sources: Floats, targets: Floats) -> Floats:
    """float32 [n]: the inner product of each row [n, width] with its partner."""
    products: Floats = np.einsum("nd,nd->n", sources, targets)
    return products


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
        pairs: int64 [n, 2], user ids of sources and targets to score, if the last stage is about pairs.
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
    finish: Callable[[Floats], npt.NDArray[Any]] = np.asarray
    score: PairScore = inner_products
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
        count = schema.splits[node_type][nodes]
    else:
        count = len(nodes)
    if not count:
        raise ConfigError("there are no vertices to predict: the split or list of ids is empty")
    return count
