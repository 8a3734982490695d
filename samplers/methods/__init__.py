"""Neighbour methods: how the in-edges of a vertex are drawn. A method reads one vertex and its edges only, so the owner
of a vertex can answer alone. Each has a file of its name with ``METHOD``, a description that all other code reads."""

from __future__ import annotations

import enum
from importlib import import_module

import numpy as np

from atta.errors import ConfigError
from atta.samplers.methods.base import InEdges, NeighborMethod, Tables


class Method(enum.Enum):
    """How ``fan_out`` of a vertex' d in-edges are drawn. The value is the name of the file that describes the method,
    and the attributes are those of its ``NeighborMethod``."""

    UNIFORM = "uniform"
    WEIGHTED = "weighted"
    TEMPORAL = "temporal"
    LAST = "last"
    LABOR = "labor"

    def __init__(self, name: str) -> None:
        self.rules: NeighborMethod = import_module(f"{__name__}.{name}").METHOD

        self.number, self.table, self.needs_table = self.rules.number, self.rules.table, self.rules.needs_table
        self.temporal, self.bounded, self.may_replace = self.rules.temporal, self.rules.bounded, self.rules.may_replace


BY_NUMBER = {method.number: method for method in Method}
"""Methods by their numbers in messages."""


def tables_for(
    method: Method,
    indptr: np.ndarray,
    indices: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    time: np.ndarray | None = None,
    source_keys: np.ndarray | None = None,
    source_time: np.ndarray | None = None,
    threads: int = 1,
) -> Tables | None:
    """Prepare a method for the edges of a CSC. None means that edges are drawn uniformly, which needs no preparation.
    Arguments are those of ``InEdges``. The tables take 16 bytes per edge (weighted), 12 (temporal) or 4 (LABOR). Raises
    ConfigError: the weights are missing, a weight is NaN, infinite or negative, or times are not integers."""
    try:
        return method.rules.tables(InEdges(indptr, indices, weight, time, source_keys, source_time, threads))
    except ValueError as error:
        raise ConfigError(str(error)) from error
