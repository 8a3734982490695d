"""A file with a PyG ``Data`` or ``HeteroData`` object written by ``torch.save``.

It is read with ``weights_only=True``: only tensors and PyG's own data classes are admitted. torch and PyG are imported
only here, when such a file is read. Tensors with a row for every vertex or edge become tables. ``n_id`` has the user
ids if its numbers are distinct. Everything else is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.observe.extras import load
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.common import add_features, first_line
from atta.partition.importers.reading.edges import add_edges
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import as_masks, check_numbers, offered_ids, state_classes
from atta.partition.schema import is_table_name, join_edge_type, split_edge_type

__all__ = ["edge_table", "node_table", "read"]

Array = npt.NDArray[Any]
_EDGE_TABLES = {"edge_weight": "weight", "time": "time", "edge_time": "time"}
_SCALARS = {*_EDGE_TABLES, "weight"}
_WHY = {
    "e_id": "edges are identified by their positions, and it says something else",
    "batch": "it tells several graphs apart",
    "ptr": "it tells several graphs apart",
    "edge_label_index": "edges that are seeds belong to a LinkNeighborLoader",
}
_OTHER = {"edge_index", "edge_label_index", "n_id", "e_id", "num_nodes", "num_classes", "batch", "ptr"}


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import one object; the tuple that PyG's in-memory data sets save is accepted when it holds a single graph."""
    data = _load(source)
    stores = data.to_dict() if hasattr(data, "to_dict") else data
    if not isinstance(stores, Mapping):
        raise DataError(source, f"holds a {type(data).__name__} instead of Data or HeteroData")
    whole = _Source(source, options)
    nodes, edges, rest = _split_stores(source, dict(stores))
    indices = {e: whole.index(e, store) for e, store in edges.items()}
    counts = {t: _num_nodes(source, t, store, indices) for t, store in nodes.items()}
    shared = list(edges) == [EDGE_TYPE] and nodes.get(NODE_TYPE) is edges[EDGE_TYPE]
    for node_type, store in nodes.items():
        whole.add_nodes(out, node_type, counts[node_type], store, shared=shared)
    stated = (nodes[NODE_TYPE] if shared else rest).get("num_classes")
    state_classes(out, source, stated if isinstance(stated, int) else None)
    for name, value in rest.items():
        if name != "num_classes" or not _says_nothing(name, value):
            options.refuse(source, name, "it belongs to no node type and no edge type")
    for edge_type, store in edges.items():
        index = indices[edge_type]
        add_edges(
            out, edge_type, (index[0], index[1]), options, whole.edge_tables(index.shape[1], store, shared=shared)
        )


@dataclass(frozen=True)
class _Source:
    """A file and the import's options. Every value of a store is imported, skipped because it says nothing new, or
    refused."""

    path: Path
    options: ImportOptions

    def index(self, edge_type: str, store: Mapping[str, Any]) -> Array:
        """The edge index [2, E] of an edge type."""
        if "edge_index" not in store:
            raise DataError(self.path, f"edge type {edge_type!r} has no edge_index")
        index = _numpy(store["edge_index"])
        if index.ndim != 2 or len(index) != 2:
            raise DataError(
                self.path, f"edge_index of {edge_type!r} has the shape {list(index.shape)} instead of [2, E]"
            )
        for rows, side in zip(index, ("source", "destination"), strict=True):
            check_numbers(self.path, f"edge_index of {edge_type!r}, {side}", rows)
        return index

    def add_nodes(
        self, out: GraphWriter, node_type: str, count: int, store: Mapping[str, Any], *, shared: bool
    ) -> None:
        """Write a node type with its tables and splits."""
        rows = {
            str(name): values
            for name, value in store.items()
            if not (_says_nothing(name, value) or (shared and _of_edges(name, value)))
            and (values := self._rows(name, value, count, "vertex")) is not None
        }
        out.add_nodes(node_type, count, ids=offered_ids(self.path, "n_id", rows.pop("n_id", None), count, self.options))
        for name, values in rows.items():
            if name == "x":
                add_features(out, values, node_type, self.options)
            elif name == "y":
                out.add_labels(values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values, node_type)
            elif name.endswith("_mask"):
                self._add_splits(out, node_type, name, values)
            elif (table := name if name in self.options.rename else node_table(name, shared=shared)) is not None:
                out.add_table(table, values, node_type)
            else:
                self.options.refuse(self.path, name, _WHY.get(name, "tables cannot have this name"))

    def edge_tables(self, count: int, store: Mapping[str, Any], *, shared: bool) -> dict[str, Array]:
        """The tables of an edge type."""
        found: dict[str, Array] = {}
        for name, value in store.items():
            if _says_nothing(name, value) or (shared and not _of_edges(name, value)):
                continue
            rows = self._rows(name, value, count, "edge", scalar=name in _SCALARS)
            if rows is None or (name == "e_id" and np.array_equal(rows, np.arange(count))):
                continue  # the positions are these numbers already
            table = str(name) if name in self.options.rename else edge_table(name, shared=shared)
            if table is None:
                self.options.refuse(self.path, name, _WHY.get(str(name), "tables cannot have this name"))
            elif table in found:
                self.options.refuse(self.path, name, f"there is another tensor for the table {table!r}")
            else:
                found[table] = rows
        return found

    def _rows(self, name: object, value: Any, count: int, what: str, *, scalar: bool = False) -> Array | None:
        """A tensor with a row per vertex or edge of the store; None: it is refused, and the user said to drop it."""
        rows = _plain(value)
        if rows is None:
            self.options.refuse(self.path, name, f"it is {_kind(value)}, no dense tensor of numbers")
        elif scalar and rows.size == count:
            return rows.reshape(-1)
        elif rows.shape[:1] != (count,):
            self.options.refuse(self.path, name, f"{list(rows.shape)} is not one row for each {what} ({count})")
        elif scalar:
            self.options.refuse(self.path, name, f"{list(rows.shape)} is not one number for each edge")
        else:
            return rows
        return None

    def _add_splits(self, out: GraphWriter, node_type: str, name: str, values: Array) -> None:
        for split, mask in as_masks(self.path, name, name.removesuffix("_mask"), values).items():
            out.add_split(split, mask, node_type)


def _says_nothing(name: object, value: Any) -> bool:
    """Whether a value of a store is absent, or is read elsewhere."""
    return value is None or (name in ("num_nodes", "num_classes") and isinstance(value, int)) or name == "edge_index"


def _of_edges(name: object, value: Any) -> bool:
    """Whether a value of ``Data``, where vertices and edges share a store, is about edges."""
    return name in _EDGE_TABLES or name == "e_id" or str(name).startswith("edge_")


def node_table(name: object, *, shared: bool) -> str | None:
    """Return the name of the node table for the tensor ``name``. ``shared``: whether edges are in the same store, as
    in ``Data``."""
    of_edges = shared and (name in _EDGE_TABLES or str(name).startswith("edge_"))
    if of_edges or name in _OTHER or str(name).endswith("_mask") or not is_table_name(name):
        return None
    return str(name)


def edge_table(name: object, *, shared: bool) -> str | None:
    """Return the name of the edge table for the tensor ``name``. In ``Data`` its prefix is ``edge_``."""
    if name in _EDGE_TABLES:
        return _EDGE_TABLES[str(name)]
    if name in _OTHER or (shared and not str(name).startswith("edge_")):
        return None
    table = str(name).removeprefix("edge_") if shared and name != "edge_attr" else str(name)
    return table if is_table_name(table) else None


def _load(source: Path) -> Any:
    torch = load("importing PyG files", "torch", "torch_geometric.data")
    import torch_geometric.data as pyg_data
    from torch_geometric.data import storage

    admitted: list[Any] = [
        pyg_data.Data, pyg_data.HeteroData, storage.BaseStorage, storage.NodeStorage, storage.EdgeStorage,
        storage.GlobalStorage, *(getattr(pyg_data.data, name) for name in ("DataEdgeAttr", "DataTensorAttr")),
    ]  # fmt: skip
    try:
        with torch.serialization.safe_globals(admitted):
            value = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen types for damaged or refused files
        raise DataError(source, f"refused by torch.load(weights_only=True): {first_line(error)}") from None
    if not isinstance(value, tuple):
        return value
    if len(value) > 1 and value[1] is not None:
        lengths = {len(s) for s in value[1].values()} if isinstance(value[1], Mapping) else set()
        if lengths and lengths != {2}:
            raise DataError(source, "holds several graphs; only single graphs are imported")
    return value[0]


def _split_stores(source: Path, stores: dict[Any, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the stores by node type, the stores by edge type, and all other values."""
    edges = {join_edge_type(*t): s for t, s in stores.items() if isinstance(t, tuple)}
    if not edges:
        if "edge_index" not in stores:
            raise DataError(source, "has no edge_index")
        return {NODE_TYPE: stores}, {EDGE_TYPE: stores}, {}
    rest = dict(stores.pop("_global_store", None) or {})
    nodes = {t: s for t, s in stores.items() if isinstance(t, str) and isinstance(s, Mapping)}
    rest |= {t: s for t, s in stores.items() if not isinstance(t, tuple) and t not in nodes}
    ends = {end for t in stores if isinstance(t, tuple) for end in (t[0], t[2])}
    return {t: nodes.get(t, {}) for t in sorted(ends | nodes.keys())}, edges, rest


def _num_nodes(source: Path, node_type: str, store: Mapping[str, Any], indices: Mapping[str, Array]) -> int:
    if isinstance(store.get("num_nodes"), int):
        return int(store["num_nodes"])
    for name in ("x", "y", "train_mask"):
        if name in store and hasattr(store[name], "shape"):
            return int(store[name].shape[0])
    largest = -1
    for edge_type, index in indices.items():
        first, _, last = split_edge_type(edge_type)
        for side, end in ((0, first), (1, last)):
            if end == node_type:
                largest = max(largest, int(index[side].max()) if index.size else -1)
    if largest < 0:
        raise DataError(source, f"the number of vertices of type {node_type!r} is nowhere stated")
    return largest + 1


def _kind(value: Any) -> str:
    """The kind of a value, for people."""
    if getattr(value, "is_sparse", False) or "sparse" in str(getattr(value, "layout", "")):
        return "a sparse tensor"
    return f"a tensor of {value.dtype}" if hasattr(value, "dtype") else f"a {type(value).__name__}"


def _plain(value: Any) -> Array | None:
    """Return a tensor as a numpy array, None for every value that numpy cannot hold."""
    if getattr(value, "is_sparse", False) or not hasattr(value, "numpy"):
        return None
    try:
        rows = np.asarray(value.detach().numpy())
    except (TypeError, RuntimeError):  # other layouts, bfloat16
        return None
    return rows if rows.dtype.kind in "biuf" else None


def _numpy(tensor: Any) -> Array:
    if (rows := _plain(tensor)) is None:
        raise ConfigError("sparse tensors are not imported; store edge_index and dense x")
    return rows
