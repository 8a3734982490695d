"""How the edges of a row are drawn. Every method is a function of the row alone, so an owner can answer for its rows."""

from __future__ import annotations

import enum

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.samplers.arguments import integers

__all__ = ["Method", "tables_for"]


class Method(enum.Enum):
    """How a row of d in-edges is reduced to ``fan_out`` of them."""

    UNIFORM = "uniform"
    """Each ``fan_out``-subset is equally likely, or ``fan_out`` independent draws."""
    WEIGHTED = "weighted"
    """By weight: independent draws, or one after another, each by its weight among those left. Weight 0 never comes."""
    TEMPORAL = "temporal"
    """Uniformly among the edges that are not later than the row's time."""
    LAST = "last"
    """The ``fan_out`` latest of those."""
    LABOR = "labor"
    """LABOR-0 (Balin and Catalyurek, NeurIPS 2023): each source with probability ``fan_out`` / d, all rows of a hop sharing the
    random number of a source, so that fewer different vertices come for the same variance."""

    @property
    def temporal(self) -> bool:
        """Whether rows have a time."""
        return self in (Method.TEMPORAL, Method.LAST)

    @property
    def table(self) -> str | None:
        """The edge table that the method reads."""
        return "weight" if self is Method.WEIGHTED else "time" if self.temporal else None


def tables_for(
    method: Method,
    indptr: np.ndarray,
    indices: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    time: np.ndarray | None = None,
    source_keys: np.ndarray | None = None,
    threads: int = 1,
) -> _native.Method | None:
    """Prepare a method for the rows of a CSC; None where nothing needs to be prepared (the uniform one).

    ``weight`` and ``time`` [E] in the order of ``indices``, ``source_keys`` int64: user ids of the sources (None: ids are
    their own). Costs 16 bytes per edge (weighted), 12 (temporal), 4 (LABOR). A temporal method for edges without times is the
    uniform one: such edges have always been there.

    Raises:
        ConfigError: the weights are missing, or one is NaN, infinite or negative; times are no integers.
    """
    try:
        if method is Method.WEIGHTED:
            if weight is None:
                raise ConfigError("the edges have no weights to draw by")
            return _native.Method.weighted(indptr, np.ascontiguousarray(weight, dtype=np.float64), threads)
        if method.temporal and time is not None:
            times = integers("edge times", time)
            return _native.Method.temporal(indptr, indices, times, method is Method.LAST, threads)
        if method is Method.LABOR:
            return _native.Method.labor(indices, source_keys, threads)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return None
