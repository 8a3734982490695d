"""The interface of operators: samplers of whole batches, written as programs over ``atta.samplers.requests``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from atta.errors import ConfigError
from atta.samplers.arguments import integers, whole
from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.kernels import Compactor
from atta.samplers.local.graph import LocalGraph
from atta.samplers.requests import LocalAccess, Program, run

MAX_VERTICES = 1 << 24
"""An option may ask for at most this many vertices, per batch or per seed."""
MAX_EDGES = 1 << 31
"""At most this many edges are in a batch: it numbers edges and vertices with 32 bits."""
_MAX_LAYERS = 32
_MOST = (1 << 64) - 1


@dataclass(frozen=True)
class Batch:
    """The input of an operator for one batch of a graph with one node type and one edge type.

    Attributes:
        seeds: int64 [S], different internal ids.
        keys: int64 [N], user ids by internal id. Order and randomness must depend on them, never on internal ids, which
            differ between partitionings. ``by_rank``: int32|int64 [N], internal ids in ascending order of user ids.
        seed, epoch, number: the draws are a function of these numbers and of user ids."""

    seeds: np.ndarray
    keys: np.ndarray
    by_rank: np.ndarray
    seed: int = 0
    epoch: int = 0
    number: int = 0

    def key(self, name: str, step: int = 0) -> int:
        """A stream key (64 bits) for one purpose of this batch."""
        return stream_key(self.seed, self.epoch, self.number, step, hash_string(name))


@dataclass(frozen=True)
class Sampled:
    """The output of an operator: a subgraph, or vertices alone.

    Attributes:
        vertices: int64 [n] internal ids; the seeds come first, in their order. No vertex is repeated unless ``trees``
            is given.
        row, col: int32 [E], positions in ``vertices`` of the edges' sources and targets.
        edge_ids: int64 [E], the users' edge ids.
        trees: int32 [n], or None: the seed (by position) that a vertex belongs to. With trees, one vertex may stand in
            several of them.
        extra: further arrays, as declared in ``Bounds.extra``. A vertex in them is a position in ``vertices``, -1 =
            none.
    """

    vertices: np.ndarray
    row: np.ndarray
    col: np.ndarray
    edge_ids: np.ndarray
    trees: np.ndarray | None = None
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """The largest size of a batch. Memory is reserved for it, but only the part that a batch fills is touched.

    Attributes:
        vertices, edges: largest number of each.
        extra: further arrays: name → (numpy dtype string, largest shape). The first dimension of a result may be
            shorter.
    """

    vertices: int
    edges: int
    extra: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


class Operator(Protocol):
    """A sampler of batches. Implementations are frozen dataclasses whose fields are their options (numbers, strings,
    lists). A daemon makes one operator per session from options that came over the wire: ``__post_init__`` must refuse
    bad options with ConfigError. An operator whose results have ``trees`` sets a class variable ``makes_trees = True``.
    """

    def run(self, batch: Batch) -> Program[Sampled]:
        """Sample one batch."""

    def bounds(self, seeds: int, nodes: int, edges: int) -> Bounds:
        """The largest batch of up to ``seeds`` seeds in a graph of ``nodes`` vertices and ``edges`` edges. If it
        returns no vertices for 0 seeds, the operator needs seeds: a session without seeds is refused."""


@dataclass(frozen=True)
class Subgraph:
    """What an operator has sampled, in user ids. Otherwise as ``Sampled``."""

    n_id: np.ndarray
    row: np.ndarray
    col: np.ndarray
    e_id: np.ndarray
    tree: np.ndarray | None
    extra: Mapping[str, np.ndarray]


def sample_locally(
    graph: LocalGraph, operator: Operator, seeds: Any = (), *, seed: int = 0, epoch: int = 0, number: int = 0
) -> Subgraph:
    """The batch that ``atta.BatchLoader`` would deliver for the same ``seeds`` (positions in the graph), seed, epoch
    and number. A repeated seed counts once, unless every seed grows a tree of its own. Raises ConfigError: a seed
    outside the graph; seed, epoch or number is not a whole number from 0 to 2**64 - 1."""
    at = [whole(what, n, 0, _MOST) for what, n in (("seed", seed), ("epoch", epoch), ("number", number))]
    ids, nodes = integers("seeds", seeds), graph.num_nodes
    if ids.ndim != 1 or (len(ids) and not (ids.min() >= 0 and ids.max() < nodes)):
        raise ConfigError(f"seeds: must be a list of vertices, 0 to {nodes - 1}")
    if not getattr(operator, "makes_trees", False):
        ids = first_seen(ids)
    batch = Batch(ids, graph.keys, np.argsort(graph.keys, kind="stable"), *at)
    found = run(operator.run(batch), LocalAccess(graph))
    return Subgraph(graph.keys[found.vertices], found.row, found.col, found.edge_ids, found.trees, found.extra)


def first_seen(*ids: np.ndarray) -> np.ndarray:
    """``ids`` (int64 arrays) without repeats, in the order of their first occurrence. Negative ids are left out."""
    known = Compactor()
    for some in ids:
        known.insert(some[some >= 0])
    return known.ids(0, known.size)


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Refuse an option that is not a number from ``low`` to just below ``high``. NaN compares as false."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value < high:
        raise ConfigError(f"{name} {value!r}: must be a number, at least {low:g} and below {high:g}")


def check_layers(layers: object) -> tuple[int, ...]:
    """``layers`` as a tuple. It must list 1 to 32 numbers of vertices."""
    if not isinstance(layers, Sequence) or isinstance(layers, str | bytes) or not 1 <= len(layers) <= _MAX_LAYERS:
        raise ConfigError(f"layers {layers!r}: must list a number of vertices for 1 to {_MAX_LAYERS} layers")
    return tuple(whole(f"layers[{i}]", size, 1, MAX_VERTICES) for i, size in enumerate(layers))


def checked(found: Any, *, seeds: np.ndarray, nodes: int, bounds: Bounds, trees: bool) -> Sampled:
    """The result of an operator, which is a user's code, as a valid ``Sampled`` with arrays of the documented types.
    ``seeds``: int64 [S], of the batch; ``nodes``: number of vertices of the graph; ``bounds``: what the operator has
    announced; ``trees``: whether its vertices stand in trees. Raises ConfigError: it is not valid; the message says
    why."""
    if not isinstance(found, Sampled):
        raise ConfigError(f"it returns {type(found).__name__}, not Sampled")
    if trees != (found.trees is not None):
        raise ConfigError(f"it returns {'no ' if trees else ''}trees, its class says otherwise (makes_trees)")
    vertices = _integers("vertices", found.vertices, np.int64, 0, nodes, most=bounds.vertices)
    row = _integers("row", found.row, np.int32, 0, len(vertices), most=bounds.edges)
    col = _integers("col", found.col, np.int32, 0, len(vertices), most=bounds.edges)
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
    found = {name: np.asarray(array) for name, array in given.items()}
    for name, (dtype, shape) in bounds.extra.items():
        array = found[name]
        if array.shape[1:] != tuple(shape[1:]) or len(array) > shape[0]:
            raise ConfigError(f"extra {name!r}: shape {list(array.shape)}, its bounds say at most {list(shape)}")
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ConfigError(f"extra {name!r}: {array.dtype}, its bounds say {dtype}")
    return found
