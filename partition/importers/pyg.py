"""A file with a PyG ``Data`` or ``HeteroData`` object written by ``torch.save``.

Read with ``weights_only=True``: only tensors and PyG's own data classes are admitted. torch and PyG are imported only
here, when such a file is read. Tensors with a row for every vertex or edge become tables; distinct numbers ``n_id`` are the
user ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.common import add_features
from atta.partition.importers.edges import add_edges
from atta.partition.importers.options import ImportOptions
from atta.partition.importers.stated import distinct_ids, state_classes
from atta.partition.schema import is_table_name

__all__ = ["edge_table", "node_table", "read"]

Array = npt.NDArray[Any]
_EDGE_TABLES = {"edge_weight": "weight", "time": "time", "edge_time": "time"}
_SCALARS = {*_EDGE_TABLES, "weight"}
_OTHER = {"edge_index", "edge_label_index", "n_id", "e_id", "num_nodes", "num_classes", "batch", "ptr"}


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import one object; the tuple that PyG's in-memory data sets save is accepted when it holds a single graph."""
    data = _load(source)
    stores = data.to_dict() if hasattr(data, "to_dict") else data
    if not isinstance(stores, Mapping):
        raise DataError(source, f"holds a {type(data).__name__} instead of Data or HeteroData")
    nodes, edges = _split_stores(source, dict(stores))
    counts = {t: _num_nodes(source, t, store, edges) for t, store in nodes.items()}
    shared = list(edges) == [EDGE_TYPE] and nodes.get(NODE_TYPE) is edges[EDGE_TYPE]
    for node_type, store in nodes.items():
        _add_nodes(source, out, node_type, counts[node_type], store, options=options)
        _add_node_tables(out, node_type, counts[node_type], store, shared=shared)
    whole = stores.get("_global_store", stores)
    state_classes(out, whole.get("num_classes") if isinstance(whole, Mapping) else None)
    for edge_type, store in edges.items():
        if "edge_index" not in store:
            raise DataError(source, f"edge type {edge_type!r} has no edge_index")
        index = _numpy(store["edge_index"])
        tables = _edge_tables(store, index.shape[1], shared=shared)
        add_edges(out, edge_type, (index[0], index[1]), options, tables)


def node_table(name: object, *, shared: bool) -> str | None:
    """Return the node table that the tensor ``name`` is read as. ``shared``: edges lie in the same store, as in ``Data``."""
    of_edges = shared and (name in _EDGE_TABLES or str(name).startswith("edge_"))
    if of_edges or name in _OTHER or str(name).endswith("_mask") or not is_table_name(name):
        return None
    return str(name)


def edge_table(name: object, *, shared: bool) -> str | None:
    """Return the edge table that the tensor ``name`` is read as; in ``Data`` PyG knows them by the prefix ``edge_``."""
    if name in _EDGE_TABLES:
        return _EDGE_TABLES[str(name)]
    if name in _OTHER or (shared and not str(name).startswith("edge_")):
        return None
    table = str(name).removeprefix("edge_") if shared and name != "edge_attr" else str(name)
    return table if is_table_name(table) else None


def _add_node_tables(out: GraphWriter, node_type: str, count: int, store: Mapping[str, Any], *, shared: bool) -> None:
    for name, value in store.items():
        if name in ("x", "y") or node_table(name, shared=shared) is None:
            continue
        if (rows := _plain(value)) is not None and rows.shape[:1] == (count,):
            out.add_table(name, rows, node_type)


def _edge_tables(store: Mapping[str, Any], count: int, *, shared: bool) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, value in store.items():
        table = edge_table(name, shared=shared)
        if table is None:
            continue
        rows = _numpy(value) if name in _EDGE_TABLES or name == "edge_attr" else _plain(value)
        if rows is not None and (rows.size == count if name in _SCALARS else rows.shape[:1] == (count,)):
            found[table] = rows.reshape(-1) if name in _SCALARS else rows
    return found


def _load(source: Path) -> Any:
    try:
        import torch
        import torch_geometric.data as pyg_data
        from torch_geometric.data import storage
    except ImportError as error:
        raise ConfigError(
            f"importing PyG files needs torch and torch_geometric: pip install atta[train] ({error})"
        ) from None
    admitted: list[Any] = [
        pyg_data.Data, pyg_data.HeteroData, storage.BaseStorage, storage.NodeStorage, storage.EdgeStorage,
        storage.GlobalStorage, *(getattr(pyg_data.data, name) for name in ("DataEdgeAttr", "DataTensorAttr")),
    ]  # fmt: skip
    try:
        with torch.serialization.safe_globals(admitted):
            value = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen types for damaged or refused files
        raise DataError(source, f"refused by torch.load(weights_only=True): {str(error).splitlines()[0]}") from None
    if not isinstance(value, tuple):
        return value
    if len(value) > 1 and value[1] is not None:
        lengths = {len(s) for s in value[1].values()} if isinstance(value[1], Mapping) else set()
        if lengths and lengths != {2}:
            raise DataError(source, "holds several graphs; only single graphs are imported")
    return value[0]


def _split_stores(source: Path, stores: dict[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the stores by node type and by edge type."""
    nodes = {t: s for t, s in stores.items() if isinstance(t, str) and isinstance(s, Mapping) and t != "_global_store"}
    edges = {"__".join(t): s for t, s in stores.items() if isinstance(t, tuple)}
    if edges:
        ends = {end for t in stores if isinstance(t, tuple) for end in (t[0], t[2])}
        return {t: nodes.get(t, {}) for t in sorted(ends | nodes.keys())}, edges
    if "edge_index" not in stores:
        raise DataError(source, "has no edge_index")
    return {NODE_TYPE: stores}, {EDGE_TYPE: stores}


def _num_nodes(source: Path, node_type: str, store: Mapping[str, Any], edges: Mapping[str, Any]) -> int:
    if isinstance(store.get("num_nodes"), int):
        return int(store["num_nodes"])
    for name in ("x", "y", "train_mask"):
        if name in store and hasattr(store[name], "shape"):
            return int(store[name].shape[0])
    largest = -1
    for edge_type, edge_store in edges.items():
        ends = edge_type.split("__")
        for side, end in ((0, ends[0]), (1, ends[-1])):
            if end == node_type and "edge_index" in edge_store:
                largest = max(largest, int(_numpy(edge_store["edge_index"])[side].max(initial=-1)))
    if largest < 0:
        raise DataError(source, f"the number of vertices of type {node_type!r} is nowhere stated")
    return largest + 1


def _add_nodes(
    source: Path, out: GraphWriter, node_type: str, count: int, store: Mapping[str, Any], *, options: ImportOptions
) -> None:
    out.add_nodes(node_type, count, ids=distinct_ids(_plain(store.get("n_id")), count))
    if "x" in store:
        add_features(out, _numpy(store["x"]), node_type, options)
    if "y" in store:
        labels = _numpy(store["y"])
        out.add_labels(labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels, node_type)
    for name, value in store.items():
        if not str(name).endswith("_mask") or not hasattr(value, "shape"):
            continue
        mask, split = _numpy(value), str(name).removesuffix("_mask")
        if mask.shape[:1] != (count,):
            raise DataError(source, f"{name!r} does not have one entry per vertex of type {node_type!r}")
        columns = {split: mask} if mask.ndim == 1 else {f"{split}_{i}": mask[:, i] for i in range(mask.shape[1])}
        for column, chosen in columns.items():
            out.add_split(column, chosen.astype(bool), node_type)


def _plain(value: Any) -> Array | None:
    """Return a tensor that numpy can hold, None for everything else that a store may hold."""
    if getattr(value, "is_sparse", False) or not hasattr(value, "numpy"):
        return None
    try:
        rows = _numpy(value)
    except (TypeError, RuntimeError):  # other layouts, bfloat16
        return None
    return rows if rows.dtype.kind in "biuf" else None


def _numpy(tensor: Any) -> Array:
    if getattr(tensor, "is_sparse", False) or not hasattr(tensor, "numpy"):
        raise ConfigError("sparse tensors are not imported; store edge_index and dense x")
    return np.asarray(tensor.detach().numpy())
