"""Partitioning methods: one file each, found by name.

A method is a function ``assign(graph, parts, *, seed, progress) -> {node type: int32 [n] partition of each row}``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from atta.errors import UnknownNameError
from atta.partition.graph import Graph
from atta.partition.methods import metis, random
from atta.partition.progress import Progress

__all__ = ["METHODS", "Method", "find_method"]


class Method(Protocol):
    """Assigns every vertex to a partition."""

    def __call__(self, graph: Graph, parts: int, *, seed: int, progress: Progress) -> dict[str, npt.NDArray[np.int32]]:
        """Return the partition of each row per node type, int32 [n]."""


METHODS: dict[str, Method] = {"metis": metis.assign, "random": random.assign}


def find_method(name: str) -> Method:
    """Return a method; raises UnknownNameError."""
    if name not in METHODS:
        raise UnknownNameError.of("partitioning method", name, METHODS)
    return METHODS[name]
