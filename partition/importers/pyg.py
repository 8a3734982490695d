"""A file with a PyG ``Data``, ``HeteroData``, ``TemporalData`` or ``Batch`` object written by ``torch.save``. PyG itself
decides which attributes belong to vertices and which to edges, and how many vertices there are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.filling import add_edges, add_node_array
from atta.partition.importers.reading.pyg_objects import (
    as_array,
    is_matrix,
    kind_of,
    load_graph,
    sparse_ends,
    whole_number,
)
from atta.partition.importers.reading.source import Array, ImportOptions, check_edge_index, offered_ids, state_classes
from atta.partition.names import is_table_name, join_edge_type, split_edge_type

_EDGE_TABLES = {"edge_weight": "weight", "time": "time", "edge_time": "time"}
_COUNTS = {"num_nodes", "num_edges", "num_classes"}
_OF_NODES = {"x", "n_id", "batch", "ptr", *_COUNTS}
_OF_EDGES = {"edge_index", "edge_weight", "edge_attr", "edge_type", "e_id"}
_WHY = {
    "e_id": "edges are identified by their positions, and it says something else",
    "batch": "it tells several graphs apart; without it they are one graph of several components",
    "ptr": "it tells several graphs apart",
}
_NO_TABLES = {"edge_index", "edge_label_index", "n_id", "e_id", "batch", "ptr", *_COUNTS}


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the only graph of a file. Raises DataError if it holds none, or several."""
    data = load_graph(source, options)
    whole = _Source(source, options)
    shared = not hasattr(data, "edge_items")  # Data has one store
    nodes, edges, rest = _stores(data, shared=shared)
    indices = {e: whole.index(e, store, shared=shared) for e, store in edges.items()}
    for node_type, store in nodes.items():
        least = max((_needed(node_type, e, edges[e], index) for e, index in indices.items()), default=0)
        store.num_nodes = _num_nodes(source, node_type, store, least)
        of_nodes = {name: v for name, v in store.items() if not (shared and _belongs_to_edges(store, name))}
        whole.add_nodes(out, node_type, of_nodes, edges=indices[EDGE_TYPE].shape[1] if shared else None)
    state_classes(out, source, whole_number(rest.get("num_classes")))
    for name, value in rest.items():
        if not shared and (name != "num_classes" or whole_number(value) is None):
            options.refuse(source, name, "it belongs to no node type and no edge type")
    for edge_type, store in edges.items():
        src, dst = indices[edge_type]
        of_edges = {name: v for name, v in store.items() if not shared or _belongs_to_edges(store, name)}
        add_edges(out, edge_type, (src, dst), options, whole.edge_tables(len(src), of_edges, shared=shared))


def _stores(data: Any, *, shared: bool) -> tuple[dict[str, Any], dict[str, Any], Any]:
    whole = data.stores[0]
    if shared:
        return {NODE_TYPE: whole}, {EDGE_TYPE: whole}, whole
    edges = {join_edge_type(*t): store for t, store in data.edge_items()}
    ends = {end for t in data.edge_types for end in (t[0], t[2])}
    return {t: data.get_node_store(t) for t in sorted(ends | set(data.node_types))}, edges, whole


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a file of ``torch.save`` with an object of PyG."""
    return head.startswith(b"PK") and b"torch_geometric" in head


@dataclass(frozen=True)
class _Source:
    """A file and the import's options. Every value of a store is imported, skipped because it says nothing new, or
    refused."""

    path: Path
    options: ImportOptions

    def index(self, edge_type: str, store: Mapping[str, Any], *, shared: bool) -> Array:
        if "edge_index" not in store:
            if shared:
                return np.empty((2, 0), np.int64)
            raise DataError(self.path, f"edge type {edge_type!r} has no edge_index")
        index: Array | None = as_array(store["edge_index"])
        if index is None:
            raise DataError(self.path, f"edge_index of {edge_type!r} is {kind_of(store['edge_index'])}, no [2, E]")
        check_edge_index(self.path, edge_type, index)
        return index

    def add_nodes(self, out: GraphWriter, node_type: str, store: Mapping[str, Any], *, edges: int | None) -> None:
        """Write a node type with its tables and splits. ``edges``: their number if they share the store."""
        count = int(store["num_nodes"])
        other = "" if edges is None else f", nor for each edge ({edges})"
        found = dict(self._found(store, count, f"each vertex ({count}){other}"))
        out.add_nodes(
            node_type, count, ids=offered_ids(self.path, "n_id", found.pop("n_id", None), count, self.options)
        )
        for name, values in found.items():
            known = name in self.options.rename or name in ("x", "y") or name.endswith("_mask")
            if known or node_table(name, shared=edges is not None) is not None:
                rows = values[:, 0] if name == "y" and values.shape[1:] == (1,) else values
                add_node_array(out, node_type, name, rows, self.options, where=self.path)
            else:
                self.options.refuse(self.path, name, _WHY.get(name, "tables cannot have this name"))

    def edge_tables(self, count: int, store: Mapping[str, Any], *, shared: bool) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name, rows in self._found(store, count, f"each edge ({count})"):
            if name == "e_id" and np.array_equal(rows, np.arange(count)):
                continue  # the positions are these numbers already
            table = str(name) if name in self.options.rename else edge_table(name, shared=shared)
            if table is None:
                self.options.refuse(self.path, name, _WHY.get(name, "tables cannot have this name"))
            elif table in found:
                self.options.refuse(self.path, name, f"there is another tensor for the table {table!r}")
            elif table in ("weight", "time") and rows.size != count:
                self.options.refuse(self.path, name, f"{list(rows.shape)} is not one number for each edge")
            else:
                found[table] = rows.reshape(-1) if table in ("weight", "time") else rows
        return found

    def _found(self, store: Mapping[str, Any], count: int, of: str) -> Iterator[tuple[str, Any]]:
        for name, value in store.items():
            if _says_nothing(name, value, store):
                continue
            if why := _of_seeds(name, store):
                self.options.refuse(self.path, name, why)
            elif name == "x" and is_matrix(value) and value.ndim == 2 and len(value) == count:
                yield name, _csr(value)
            elif (rows := as_array(value)) is None or (isinstance(value, list | tuple) and len(value) != count):
                self.options.refuse(self.path, name, f"it is {kind_of(value)}, no dense tensor of numbers")
            elif rows.shape[:1] != (count,):
                self.options.refuse(self.path, name, _WHY.get(name) or f"{list(rows.shape)} is not one row for {of}")
            else:
                yield name, rows


def _says_nothing(name: str, value: Any, store: Mapping[str, Any]) -> bool:
    """Whether an attribute is read elsewhere, or says nothing new: where the only graph of a batch begins."""
    if name in ("batch", "ptr") and (rows := as_array(value)) is not None and "num_nodes" in store:
        alone = [0, store["num_nodes"]]
        return not rows.any() if name == "batch" else "batch" in store or np.array_equal(rows, alone)
    return name == "edge_index" or (name in _COUNTS and whole_number(value) is not None)


def _of_seeds(name: str, store: Mapping[str, Any]) -> str | None:
    """Why an attribute is refused that says which edges are seeds, as PyG's ``RandomLinkSplit`` adds them."""
    if name.endswith("label_index"):
        return "edges that are seeds belong to a LinkNeighborLoader"
    if name.endswith("label") and f"{name}_index" in store:
        return f"it belongs to the seeds {name}_index, which belong to a LinkNeighborLoader"
    return None


def _belongs_to_edges(store: Any, name: str) -> bool:
    """Whether an attribute of ``Data``, where vertices and edges share a store, is about edges: PyG's own rule. Where
    PyG calls it neither, the first dimension decides."""
    if name in _OF_NODES or name in _OF_EDGES or _of_seeds(name, store):
        return name not in _OF_NODES
    if store.is_node_attr(name) or store.is_edge_attr(name):
        return bool(store.is_edge_attr(name))
    rows = getattr(store[name], "shape", ())[:1]
    return rows == (store.num_edges,) and (rows != (store.num_nodes,) or "edge" in name)


def node_table(name: object, *, shared: bool) -> str | None:
    """Return the name of the node table for the tensor ``name``. ``shared``: whether edges are in the same store, as
    in ``Data``."""
    elsewhere = name in _NO_TABLES or (shared and name in _OF_EDGES)
    if elsewhere or str(name).endswith(("_mask", "label_index")) or not is_table_name(name):
        return None
    return str(name)


def edge_table(name: object, *, shared: bool) -> str | None:
    """Return the name of the edge table for the tensor ``name``. In ``Data`` its prefix is ``edge_``."""
    if name in _EDGE_TABLES:
        return _EDGE_TABLES[str(name)]
    if name in _NO_TABLES or str(name).endswith("label_index"):
        return None
    table = str(name).removeprefix("edge_") if shared and name != "edge_attr" else str(name)
    return table if is_table_name(table) else None


def _needed(node_type: str, edge_type: str, store: Any, index: Array) -> int:
    ends = split_edge_type(edge_type)
    sizes = getattr(store.get("edge_index"), "sparse_size", lambda: (None, None))()
    of_type = [
        size or (int(rows.max()) + 1 if rows.size else 0)
        for end, size, rows in zip((ends[0], ends[-1]), sizes, index, strict=True)
        if end == node_type
    ]
    return max(of_type, default=0)


def _num_nodes(source: Path, node_type: str, store: Any, least: int) -> int:
    """The number of vertices by PyG's rule. Where PyG warns that it guesses, labels and masks tell it, and then the
    edges (``least``)."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = store.num_nodes
    if count is not None and not said:
        return int(count)
    for name in ("y", "train_mask"):
        rows = (*getattr(store.get(name), "shape", ()), 0)[0]
        if rows >= max(least, 1):
            return int(rows)
    if least == 0:
        raise DataError(source, f"the number of vertices of type {node_type!r} is nowhere stated")
    return least


def _csr(matrix: Any) -> csr_array:
    row, col, values = sparse_ends(matrix.detach())
    return csr_array((np.asarray(values), (np.asarray(row), np.asarray(col))), shape=tuple(matrix.shape))
