"""Partitioning methods: one file each, found by name.

A method is a function ``assign(graph, parts, *, seed, balance, progress) -> {node type: int32 [n] partition of each row}``.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def __call__(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        """Return the partition of each row per node type, int32 [n].

        ``balance`` names what each partition should get an equal share of: ``nodes``, ``edges`` or a split; None leaves it
        to the method. A method may balance more.
        """


METHODS: dict[str, Method] = {"metis": metis.assign, "random": random.assign}


def find_method(name: str) -> Method:
    """Return a method; raises UnknownNameError."""
    if name not in METHODS:
        raise UnknownNameError.of("partitioning method", name, METHODS)
    return METHODS[name]
