"""The neutral npz layout: a folder of plain numpy files.

graph.npz                        ``edge_index`` [2, E], sources first; or one ``edge_index__SRC__REL__DST`` per relation;
                                 optional ``time`` [E], ``edge_weight`` [E], ``edge_type`` [E] (relation numbers)
edge_index.npy, ...              instead of graph.npz, the same arrays as files of their own: these may be larger than memory
ids.npy                          int64 user ids of the vertices; ``ids__TYPE.npy`` with several node types
x.npy or x_sparse.npz            features; ``x__TYPE.npy`` / ``x_sparse__TYPE.npz`` with several node types
y.npy                            labels of the target type
train_mask.npy ... split.npz     splits of the target type: masks or vertex numbers
meta.json                        ``num_nodes``, ``node_types``, ``target_type``, ``relations``, ``num_classes``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.common import add_features, as_csr, load_array, load_npz
from atta.partition.importers.edges import add_edges
from atta.partition.importers.options import ImportOptions
from atta.partition.importers.stated import state_classes
from atta.partition.schema import split_edge_type

__all__ = ["read"]

Array = npt.NDArray[Any]
_PREFIX = "edge_index__"
_EDGE_TABLES = {"time": "time", "edge_weight": "weight", "edge_attr": "edge_attr"}
_EDGE_ARRAYS = (*_EDGE_TABLES, "edge_type")


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder ``source`` (or its ``graph.npz``)."""
    folder = source.parent if source.is_file() else source
    meta = _read_meta(folder / "meta.json")
    path, arrays = _edge_arrays(folder)
    relations = _relations(path, arrays, meta)
    features = {t: _features(folder, t) for t in sorted({*_node_types(relations), *meta.get("node_types", {})})}
    counts = _counts(folder, relations, features, meta)
    target = _target(counts, meta)
    for node_type, count in counts.items():
        out.add_nodes(node_type, count, ids=_ids(folder, node_type, count))
        if (matrix := features.get(node_type)) is not None:
            add_features(out, matrix, node_type, options)
    if (folder / "y.npy").exists():
        out.add_labels(load_array(folder / "y.npy"), target)
        state_classes(out, meta.get("num_classes"))
    if (folder / "y.npy").exists() or "target_type" in meta:  # or else the splits may be those of edges
        _add_splits(folder, out, target, counts[target])
    for edge_type, (index, tables) in relations.items():
        add_edges(out, edge_type, (index[0], index[1]), options, tables)


def _edge_arrays(folder: Path) -> tuple[Path, dict[str, Array]]:
    """Return the arrays of ``graph.npz``, or memory-mapped those that are files of their own, and where they come from."""
    path = folder / "graph.npz"
    files = [] if path.exists() else sorted(folder.glob("edge_index*.npy"))
    if not files:
        return path, load_npz(path)
    files += [f for name in _EDGE_ARRAYS if (f := folder / f"{name}.npy").exists()]
    return folder, {f.stem: load_array(f) for f in files}


def _read_meta(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        meta = json.loads(path.read_bytes())
    except ValueError:
        raise DataError(path, "not valid JSON") from None
    if not isinstance(meta, dict):
        raise DataError(path, "not a JSON object")
    return meta


def _relations(path: Path, arrays: dict[str, Array], meta: dict[str, Any]) -> dict[str, tuple[Array, dict[str, Array]]]:
    """Return edge type -> (edge index [2, E], edge tables)."""
    found = {name.removeprefix(_PREFIX): a for name, a in arrays.items() if name.startswith(_PREFIX)}
    if not found and "edge_index" in arrays:
        declared = list(meta.get("relations", {}))
        found = {declared[0] if len(declared) == 1 and "node_types" in meta else EDGE_TYPE: arrays["edge_index"]}
    if not found:
        raise DataError(path, "holds no edge_index")
    for name, index in found.items():
        if index.ndim != 2 or len(index) != 2 or (index.dtype.kind not in "iu"):
            raise DataError(
                path, f"edge_index of {name!r} is {index.dtype}{list(index.shape)} instead of integers [2, E]"
            )
    if "edge_type" in arrays and list(found) == [EDGE_TYPE]:
        return _by_relation(path, found[EDGE_TYPE], arrays["edge_type"])
    tables = {}
    if len(found) == 1:
        tables = {table: arrays[name] for name, table in _EDGE_TABLES.items() if name in arrays}
        for name, values in tables.items():
            if values.shape[:1] != (next(iter(found.values())).shape[1],):
                raise DataError(path, f"{name!r} does not have one row per edge")
    return {edge_type: (index, tables) for edge_type, index in found.items()}


def _by_relation(path: Path, index: Array, kind: Array) -> dict[str, tuple[Array, dict[str, Array]]]:
    """Give each relation number of a knowledge graph its own edge type."""
    if kind.shape != index.shape[1:]:
        raise DataError(path, "'edge_type' does not have one value per edge")
    return {f"{NODE_TYPE}__r{r}__{NODE_TYPE}": (index[:, kind == r], {}) for r in np.unique(kind)}


def _node_types(relations: dict[str, Any]) -> list[str]:
    return sorted({t for e in relations for t in (split_edge_type(e)[0], split_edge_type(e)[2])})


def _suffixes(node_type: str) -> tuple[str, ...]:
    """What the names of a node type's files end with."""
    return ("", f"__{node_type}") if node_type == NODE_TYPE else (f"__{node_type}",)


def _ids(folder: Path, node_type: str, count: int) -> Array | None:
    for suffix in _suffixes(node_type):
        if (path := folder / f"ids{suffix}.npy").exists():
            ids = load_array(path)
            if ids.shape != (count,) or ids.dtype.kind not in "iu":
                raise DataError(path, f"{ids.dtype}{list(ids.shape)} instead of integers [{count}]")
            return ids
    return None


def _features(folder: Path, node_type: str) -> Any:
    """Return the dense or sparse features of a node type, None when there are none."""
    for suffix in _suffixes(node_type):
        dense, sparse = folder / f"x{suffix}.npy", folder / f"x_sparse{suffix}.npz"
        if dense.exists():
            return load_array(dense)
        if sparse.exists():
            return as_csr(load_npz(sparse), sparse)
    return None


def _counts(folder: Path, relations: dict[str, Any], features: dict[str, Any], meta: dict[str, Any]) -> dict[str, int]:
    """Find the number of vertices of each type: stated, or the rows of the features, or what the edges need."""
    counts: dict[str, int] = {t: int(n) for t, n in meta.get("node_types", {}).items()}
    for t in _node_types(relations):
        if t in counts:
            continue
        if features[t] is not None:
            counts[t] = features[t].shape[0]
        elif t == NODE_TYPE and "num_nodes" in meta:
            counts[t] = int(meta["num_nodes"])
        else:
            ends = [i[side] for e, (i, _) in relations.items() for side in (0, 1) if split_edge_type(e)[2 * side] == t]
            counts[t] = max((int(rows.max(initial=-1)) + 1 for rows in ends), default=0)
    for t, matrix in features.items():
        if matrix is not None and matrix.shape[0] != counts[t]:
            raise DataError(folder, f"{matrix.shape[0]} feature rows for {counts[t]} vertices of type {t!r}")
    return counts


def _target(counts: dict[str, int], meta: dict[str, Any]) -> str:
    """Return the node type that labels and splits belong to."""
    target = str(meta.get("target_type", next(iter(counts))))
    return target if target in counts else next(iter(counts))


def _add_splits(folder: Path, out: GraphWriter, target: str, count: int) -> None:
    splits: dict[str, Array] = {}
    for name in ("train", "val", "test"):
        if (path := folder / f"{name}_mask.npy").exists():
            splits[name] = np.asarray(load_array(path))
    if (folder / "split.npz").exists():
        for name, values in load_npz(folder / "split.npz").items():
            stem = name.removesuffix("_masks").removesuffix("_mask").replace("__", "_")
            if values.ndim == 2:
                splits.update({f"{stem}_{i}": row for i, row in enumerate(values)})
            else:
                splits.setdefault(stem, values)
    for name, values in splits.items():
        if len(values) > count:
            raise DataError(folder, f"split {name!r} has {len(values)} entries for {count} vertices")
        out.add_split(name, values, target)
