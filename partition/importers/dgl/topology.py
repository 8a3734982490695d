"""The graph that GraphBolt writes when it preprocesses a data set: a ``FusedCSCSamplingGraph``, saved by ``torch.save``.

It is read with ``weights_only=True``. Inert stand-ins take the places of GraphBolt's class and of torch's
``ScriptObject``: they keep the pickled fields, and no code of DGL runs or needs to be installed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.importers.dgl.tensors import edge_ends
from atta.partition.importers.reading.common import first_line
from atta.partition.importers.reading.rows import FileRows, array_rows

__all__ = ["Topology", "part_edges", "read_topology"]

Array = npt.NDArray[Any]
_PLACES = ("dgl.graphbolt.impl.fused_csc_sampling_graph", "dgl.graphbolt.impl.csc_sampling_graph")
_CLASSES = ("FusedCSCSamplingGraph", "CSCSamplingGraph")
_ORIGINAL = "_ORIGINAL_EDGE_ID"
_NUMBERS = "_ID"
"""The table of vertices that parts of a partitioned graph have: their numbers in the whole."""
_NODE, _EDGE = "_N", "_N:_E:_N"


class _Pickled:
    """Stands in for an object: keeps what was pickled of it."""

    kept: Any = None

    def __setstate__(self, state: Any) -> None:
        self.kept = state


@dataclass(frozen=True)
class Topology:
    """A graph whose edges are sorted by destination.

    Attributes:
        path: the file.
        counts: number of vertices by node type.
        relations: number of each edge type (``"a:r:b"``), by which ``kinds`` tells the types of edges.
        indptr: [V + 1] where the in-edges of each vertex begin.
        indices: [E] sources. Vertices are numbered through all node types.
        kinds: [E] types of the edges; None: there is one.
        original: [E] the number of each edge in the raw files, within its type; None: it is not stored.
        node_attributes: tables of the vertices of all types.
        edge_attributes: names of further tables of edges.
    """

    path: Path
    counts: dict[str, int]
    relations: dict[str, int]
    indptr: Array
    indices: Array
    kinds: Array | None
    original: Array | None
    node_attributes: Mapping[str, Array]
    edge_attributes: list[str]

    @property
    def ordered(self) -> bool:
        """Whether edges are given in the order of the raw files."""
        return self.original is not None

    def edges(self, key: str) -> Array:
        """The edges [E, 2] of a type, numbered within their node types; raises DataError."""
        source, _, target = edge_ends(key, self.counts)
        mine = slice(None) if self.kinds is None else np.flatnonzero(self.kinds == self.relations[key])
        dst = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))[mine]
        ends = [self.indices[mine].astype(np.int64) - self._first(source), dst - self._first(target)]
        if self.original is not None:
            places = self.original[mine]
            if not np.array_equal(np.sort(places), np.arange(len(places))):
                raise DataError(self.path, f"the original ids of the edges {key!r} are not 0 to {len(places) - 1}")
            ends = [rows[np.argsort(places)] for rows in ends]
        return np.stack(ends, axis=1)

    def node_tables(self, node_type: str) -> dict[str, FileRows]:
        """The tables of a node type."""
        lo = self._first(node_type)
        hi = lo + self.counts[node_type]
        return {name: array_rows(self.path, rows[lo:hi]) for name, rows in self.node_attributes.items()}

    def _first(self, node_type: str) -> int:
        """The number of the first vertex of a type."""
        types = list(self.counts)
        return sum(self.counts[t] for t in types[: types.index(node_type)])


def read_topology(path: Path) -> Topology:
    """Read a graph of GraphBolt; raises DataError."""
    parts = _parts(path)
    plain = parts.get("independent_tensors", {})
    try:
        indptr, indices = plain["indptr"].numpy(), plain["indices"].numpy()
        kinds = plain["type_per_edge"].numpy() if "type_per_edge" in plain else None
        relations = {str(name): int(number) for name, number in parts.get("edge_type_to_id", {_EDGE: 0}).items()}
        order = {str(name): int(number) for name, number in parts.get("node_type_to_id", {_NODE: 0}).items()}
        starts = plain["node_type_offset"].numpy() if "node_type_offset" in plain else np.array([0, len(indptr) - 1])
        counts = {t: int(starts[order[t] + 1] - starts[order[t]]) for t in sorted(order, key=lambda t: order[t])}
        of_nodes = {str(n): t.numpy() for n, t in parts.get("node_attributes", {}).items()}
        of_edges = {str(n): t.numpy() for n, t in parts.get("edge_attributes", {}).items()}
    except (KeyError, AttributeError, TypeError, IndexError, ValueError) as error:
        raise DataError(path, f"not a graph of GraphBolt: {first_line(error)}") from None
    if _NUMBERS in of_nodes:
        raise DataError(path, "a part of a graph that GraphBolt partitioned: import the NAME.json of all parts")
    original = of_edges.pop(_ORIGINAL, None)
    vertices, edges = sum(counts.values()), len(indices)
    sound = len(indptr) == vertices + 1 and indptr[0] == 0 and indptr[-1] == edges and (np.diff(indptr) >= 0).all()
    if not sound or any(rows is not None and len(rows) != edges for rows in (kinds, original)):
        raise DataError(
            path, f"not a graph of GraphBolt: its {len(indptr) - 1} lists of neighbours do not fit together"
        )
    return Topology(path, counts, relations, indptr, indices, kinds, original, of_nodes, list(of_edges))


def part_edges(path: Path) -> tuple[Array, Array, Array]:
    """The edges of a part of a partitioned graph: sources, destinations and the edges' own numbers [E], in the numbering
    of the whole graph, HALO included.

    Raises DataError if the part is damaged, or its edges have no numbers.
    """
    parts = _parts(path)
    try:
        plain, nodes = parts["independent_tensors"], parts["node_attributes"][_NUMBERS].numpy().astype(np.int64)
        src, degrees = plain["indices"].numpy().astype(np.int64), np.diff(plain["indptr"].numpy())
        numbers = parts.get("edge_attributes", {}).get(_NUMBERS)
        ends = nodes[src], nodes[np.repeat(np.arange(len(degrees)), degrees)]
    except (KeyError, AttributeError, TypeError, IndexError, ValueError) as error:
        raise DataError(path, f"not a part of a graph of GraphBolt: {first_line(error)}") from None
    if numbers is None or not len(numbers) == len(ends[0]) == len(ends[1]):
        raise DataError(path, "the edges of this part have no numbers: partition with store_eids=True")
    return ends[0], ends[1], numbers.numpy().astype(np.int64)


def _parts(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """The pickled fields of the graph, by their kind."""
    torch = load("reading GraphBolt's graphs", "torch")
    admitted: list[Any] = [(_Pickled, f"{place}.{name}") for place in _PLACES for name in _CLASSES]
    try:
        with torch.serialization.safe_globals([*admitted, (_Pickled, "torch.ScriptObject"), _Pickled]):
            value = torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
    except Exception as error:  # torch raises half a dozen types for damaged or refused files
        raise DataError(path, f"refused by torch.load(weights_only=True): {first_line(error)}") from None
    fields = value.kept if isinstance(value, _Pickled) else {}
    script = fields.get("_c_csc_graph") if isinstance(fields, dict) else None
    state = script.kept[0] if isinstance(script, _Pickled) and isinstance(script.kept, tuple) and script.kept else None
    if not isinstance(state, Mapping) or not all(isinstance(part, Mapping) for part in state.values()):
        raise DataError(path, "not a graph of GraphBolt: it holds no FusedCSCSamplingGraph")
    return state
