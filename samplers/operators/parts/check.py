"""Check that the result of an operator is a valid batch. Operators are users' code, and a daemon must survive their
mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.samplers.operators.base import Bounds, Sampled

__all__ = ["checked"]


def checked(found: Any, *, seeds: np.ndarray, nodes: int, bounds: Bounds, trees: bool) -> Sampled:
    """``found`` as a ``Sampled`` with arrays of the documented types.

    Args:
        seeds: int64 [S], the seeds of the batch.
        nodes: number of vertices of the graph.
        bounds: the bounds that the operator has announced.
        trees: whether the operator's vertices stand in trees.

    Raises:
        ConfigError: the result is not valid; the message says why.
    """
    if not isinstance(found, Sampled):
        raise ConfigError(f"it returns {type(found).__name__}, not Sampled")
    if trees != (found.trees is not None):
        raise ConfigError(f"it returns {'no ' if trees else ''}trees, its class says otherwise (makes_trees)")
    vertices = _integers("vertices", found.vertices, np.int64, 0, nodes, most=bounds.vertices)
    row, col = (
        _integers(name, array, np.int32, 0, len(vertices), most=bounds.edges)
        for name, array in (("row", found.row), ("col", found.col))
    )
    edge_ids = _integers("edge_ids", found.edge_ids, np.int64, -1, np.iinfo(np.int64).max, most=bounds.edges)
    if not len(row) == len(col) == len(edge_ids):
        raise ConfigError(f"row, col and edge_ids differ in length: {len(row)}, {len(col)}, {len(edge_ids)}")
    if not np.array_equal(vertices[: len(seeds)], seeds):
        raise ConfigError("its vertices do not begin with the seeds")
    of_tree = None
    if found.trees is not None:
        of_tree = _integers("trees", found.trees, np.int32, 0, max(1, len(seeds)), most=bounds.vertices)
        if len(of_tree) != len(vertices):
            raise ConfigError(f"trees: {len(of_tree)} for {len(vertices)} vertices")
        if not np.array_equal(of_tree[: len(seeds)], np.arange(len(seeds))):
            raise ConfigError("trees: every seed must stand in its own")
    return Sampled(vertices, row, col, edge_ids, of_tree, _extra(found.extra, bounds))


def _integers(name: str, given: Any, dtype: type, low: int, high: int, *, most: int) -> np.ndarray:
    array = np.asarray(given)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise ConfigError(f"{name}: must be integers in one dimension, not {array.dtype} {list(array.shape)}")
    if len(array) > most:
        raise ConfigError(f"{name}: {len(array)}, its bounds say at most {most}")
    if len(array) and not (array.min() >= low and array.max() < high):
        raise ConfigError(f"{name}: must lie in {low}..{high - 1}, but are {array.min()} to {array.max()}")
    return np.ascontiguousarray(array, dtype=dtype)


def _extra(given: Mapping[str, Any], bounds: Bounds) -> dict[str, np.ndarray]:
    if set(given) != set(bounds.extra):
        raise ConfigError(f"extra: {sorted(given)}, its bounds announce {sorted(bounds.extra)}")
    found = {}
    for name, (dtype, shape) in bounds.extra.items():
        array = np.asarray(given[name])
        if array.shape[1:] != tuple(shape[1:]) or len(array) > shape[0]:
            raise ConfigError(f"extra {name!r}: shape {list(array.shape)}, its bounds say at most {list(shape)}")
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ConfigError(f"extra {name!r}: {array.dtype}, its bounds say {dtype}")
        found[name] = array
    return found
