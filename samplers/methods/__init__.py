"""Neighbour methods: how the in-edges of a vertex are drawn.

A method looks at one vertex and its edges only, so the owner of a vertex can answer for it alone. Each method is described
in a file of its own (``METHOD``, a ``NeighborMethod``), which has the name of the method. Everything else asks the
description.
"""

from __future__ import annotations

import enum
from importlib import import_module

import numpy as np

from atta.errors import ConfigError
from atta.samplers.methods.base import InEdges, NeighborMethod, Tables

__all__ = ["BY_NUMBER", "Method", "tables_for"]


class Method(enum.Enum):
    """How a vertex of d in-edges gets ``fan_out`` of them. The value names the file that describes the method."""

    UNIFORM = "uniform"
    WEIGHTED = "weighted"
    TEMPORAL = "temporal"
    LAST = "last"
    LABOR = "labor"

    def __init__(self, name: str) -> None:
        self.rules: NeighborMethod = import_module(f"{__name__}.{name}").METHOD

    @property
    def number(self) -> int:
        """The number that stands for the method in messages."""
        return self.rules.number

    @property
    def table(self) -> str | None:
        """The edge table that the method reads."""
        return self.rules.table

    @property
    def needs_table(self) -> bool:
        """Whether an edge type without this table is refused."""
        return self.rules.needs_table

    @property
    def temporal(self) -> bool:
        """Whether every vertex that is expanded has a time."""
        return self.rules.temporal

    @property
    def bounded(self) -> bool:
        """Whether a vertex gets at most ``fan_out`` edges."""
        return self.rules.bounded

    @property
    def may_replace(self) -> bool:
        """Whether the method can draw with replacement."""
        return self.rules.may_replace


BY_NUMBER = {method.number: method for method in Method}
"""Methods by the number that stands for them in messages."""


def tables_for(
    method: Method,
    indptr: np.ndarray,
    indices: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    time: np.ndarray | None = None,
    source_keys: np.ndarray | None = None,
    threads: int = 1,
) -> Tables | None:
    """Prepare a method for the edges of a CSC. None means that they are drawn uniformly, which needs no preparation.

    ``weight`` and ``time`` [E] are in the order of ``indices``. ``source_keys`` int64 are the user ids of the sources; None:
    ids are user ids. Costs 16 bytes per edge (weighted), 12 (temporal), 4 (LABOR).

    Raises:
        ConfigError: the weights are missing, or one is NaN, infinite or negative; times are not integers.
    """
    try:
        return method.rules.tables(InEdges(indptr, indices, weight, time, source_keys, threads))
    except ValueError as error:
        raise ConfigError(str(error)) from error
