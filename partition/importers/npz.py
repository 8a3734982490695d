"""The neutral npz layout: a folder of plain numpy files.

graph.npz                 ``edge_index`` [2, E], sources first; or one ``edge_index__SRC__REL__DST`` per relation;
                          optional: ``time`` [E], ``edge_weight`` [E], ``edge_attr`` [E, ...], ``edge_type`` [E]
edge_index.npy, ...       instead of graph.npz, the same arrays as single files, which may be larger than memory
ids.npy                   int64 user ids of the vertices; ``ids__TYPE.npy`` with several node types
x.npy or x_sparse.npz     features; ``x__TYPE.npy`` / ``x_sparse__TYPE.npz`` with several node types
y.npy                     labels of the target type
train_mask.npy, split.npz splits of the target type: masks or vertex numbers
meta.json                 ``num_nodes``, ``node_types``, ``target_type``, ``relations``, ``num_classes``

Or one ``.npz`` with a graph as CSR matrices: ``adj_data``, ``adj_indices``, ``adj_indptr``, ``adj_shape`` (or what
``scipy.sparse.save_npz`` writes) are the edges, ``attr_*`` the features, then ``labels``, ``node_names`` and ``NAME_mask``.
"""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from atta.errors import DataError
from atta.partition.disk.files import open_regular
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.graph.strings import NAME, as_strings
from atta.partition.importers.reading.filling import add_edges, add_features, add_node_array, name_bytes
from atta.partition.importers.reading.rows import as_csr, load_array, load_npz
from atta.partition.importers.reading.source import (
    Array,
    ImportOptions,
    as_ids,
    as_mask,
    as_masks,
    check_edge_index,
    check_numbers,
    distinct_ids,
    read_description,
    state_classes,
    unreadable,
)
from atta.partition.names import file_name, join_edge_type, name_of_file, split_edge_type

_PARTS = (("data", "indices", "indptr", "shape"), ("data", "row", "col", "shape"))  # CSR or CSC, COO
_OF_SCIPY = ("format", "_is_array")  # what its save_npz adds
_EDGES = ("adj_", "adj_matrix.", "")
_FEATURES = ("attr_", "attr_matrix.")
_DESCRIBING = {"node_names", "attr_names", "class_names", "idx_to_node", "idx_to_attr", "idx_to_class", "metadata"}


def _holds_csr(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except Exception:  # zipfile raises half a dozen unrelated types for what is no archive
        return False
    return any({prefix + part for part in parts} <= names for prefix in _EDGES for parts in _PARTS)


def _read_csr(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the archive ``source``. Arrays that only describe the graph are left out with a note."""
    arrays, objects = _load(source)
    edges = _take_matrix(source, arrays, _EDGES)
    if edges is None:
        raise DataError(source, "holds no edges as numbers: wanted are adj_data, adj_indices, adj_indptr and adj_shape")
    count = edges.shape[0]
    if count != edges.shape[1]:
        raise DataError(source, f"the edges are a matrix {list(edges.shape)}, wanted is a square one")
    out.add_nodes(NODE_TYPE, count)
    features = _take_matrix(source, arrays, _FEATURES)
    if (features := arrays.pop("attr_matrix", None) if features is None else features) is not None:
        add_features(out, _one_each(source, "features", features, count), NODE_TYPE, options)
    for name in [name for name in arrays if name == "labels" or name.endswith("_mask")]:
        rows = _one_each(source, name, arrays.pop(name), count)
        add_node_array(out, NODE_TYPE, name, rows, options, where=source, table="y" if name == "labels" else name)
    if (names := as_strings("node_names", arrays.get("node_names"))) is not None:
        del arrays["node_names"]
        out.add_table(NAME, name_bytes(source, _one_each(source, "node_names", names, count).tolist()))
    if "class_names" in arrays:
        state_classes(out, source, arrays["class_names"].size)
    for name in [name for name in (*arrays, *objects) if name not in _DESCRIBING]:
        why = "it holds Python objects, which are never loaded" if name in objects else "nothing says what it is"
        options.refuse(source, name, why)
    described = [name for name in [*arrays, *objects] if name in _DESCRIBING]
    options.dropped.update(options.drop & set(described))
    if noted := [name for name in described if name not in options.drop]:
        options.notes.append(f"left out: {', '.join(noted)}")
    weights = {} if (edges.data == 1).all() else {"weight": edges.data}
    src = np.repeat(np.arange(count), np.diff(edges.indptr))
    add_edges(out, EDGE_TYPE, (src, edges.indices), options, weights)


def _load(path: Path) -> tuple[dict[str, Array], list[str]]:
    arrays, objects = {}, []
    # zipfile, zlib and numpy raise half a dozen unrelated types here
    no_archive = unreadable(path, "not a readable npz archive", Exception)
    with no_archive, open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
        for name in archive.files:
            try:
                arrays[name] = archive[name]
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                objects.append(name)
    return arrays, objects


def _take_matrix(path: Path, arrays: dict[str, Array], prefixes: tuple[str, ...]) -> csr_array | None:
    for prefix, parts in itertools.product(prefixes, _PARTS):
        if all(prefix + part in arrays for part in parts):
            taken = {part: arrays.pop(prefix + part) for part in (*parts, *_OF_SCIPY) if prefix + part in arrays}
            return as_csr(taken, path)
    return None


def _one_each(path: Path, what: str, rows: Any, count: int) -> Any:
    if not rows.shape or rows.shape[0] != count:
        raise DataError(path, f"{what} has the shape {list(rows.shape)}, the graph has {count} vertices")
    return rows


_PREFIX = "edge_index__"
_EDGE_TABLES = {"time": "time", "edge_weight": "weight", "edge_attr": "edge_attr"}
_EDGE_ARRAYS = (*_EDGE_TABLES, "edge_type")
_MASKS = ("train", "val", "test")


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder ``source`` (or its ``graph.npz``), or one file with CSR matrices."""
    if source.is_file() and (_holds_csr(source) or not recognises(source.parent, b"")):
        _read_csr(source, out, options)
        return
    folder = source.parent if source.is_file() else source
    meta = _read_meta(folder / "meta.json")
    path, arrays = _edge_arrays(folder, options)
    relations = _relations(path, arrays, meta, options)
    features = {t: _features(folder, t) for t in sorted({*_node_types(relations), *meta.get("node_types", {})})}
    counts = _counts(folder, relations, features, meta)
    target = str(meta.get("target_type", next(iter(counts))))
    if target not in counts:
        raise DataError(folder / "meta.json", f"target_type {target!r} is not one of {', '.join(counts)}")
    _refuse_other_files(folder, counts, options)
    for node_type, count in counts.items():
        out.add_nodes(node_type, count, ids=_ids(folder, node_type, count))
        if (matrix := features.get(node_type)) is not None:
            add_features(out, matrix, node_type, options)
    if (folder / "y.npy").exists():
        out.add_labels(_numbers(folder / "y.npy"), target)
    state_classes(out, folder / "meta.json", meta.get("num_classes"))
    _add_splits(folder, out, target, options, known=(folder / "y.npy").exists() or "target_type" in meta)
    for edge_type, (index, tables) in relations.items():
        add_edges(out, edge_type, (index[0], index[1]), options, tables)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a folder with ``graph.npz`` or arrays ``edge_index*.npy``, or that file, or one with a CSR matrix."""
    if head:
        return path.name == "graph.npz" or (head.startswith(b"PK") and _holds_csr(path))
    return (path / "graph.npz").is_file() or any(path.glob("edge_index*.npy"))


def _refuse_other_files(folder: Path, counts: dict[str, int], options: ImportOptions) -> None:
    known = {"graph.npz", "split.npz", "y.npy", *(f"{n}_mask.npy" for n in _MASKS), *(f"{n}.npy" for n in _EDGE_ARRAYS)}
    for stem, ending in (("ids", ".npy"), ("x", ".npy"), ("x_sparse", ".npz")):
        known |= {path.name for t in counts for path in _files(folder, t, stem, ending)}
    if not (folder / "graph.npz").exists():
        known |= {f.name for f in folder.glob("edge_index*.npy")}
    options.refuse_others(folder, "*.np[yz]", known)


def _edge_arrays(folder: Path, options: ImportOptions) -> tuple[Path, dict[str, Array]]:
    path = folder / "graph.npz"
    alone = sorted(folder.glob("edge_index*.npy"))
    alone += [f for name in _EDGE_ARRAYS if (f := folder / f"{name}.npy").exists()]
    if path.exists():
        for file in alone:
            options.refuse(folder, file.name, "the edges are those of graph.npz")
    elif any(f.stem.startswith("edge_index") for f in alone):
        return folder, {f.stem: load_array(f) for f in alone}
    return path, load_npz(path)


def _read_meta(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    meta = read_description(path, "a description of a graph")
    types, relations = meta.get("node_types", {}), meta.get("relations", {})
    if not isinstance(types, dict):
        raise DataError(path, f"'node_types' is {types!r}, wanted is an object with the vertices of each type")
    if not isinstance(relations, dict | list) or not all(isinstance(name, str) for name in relations):
        raise DataError(path, f"'relations' is {relations!r}, wanted are names of edge types")
    for name, count in (types | {"num_nodes": meta.get("num_nodes", 0)}).items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise DataError(path, f"{name!r} is {count!r}, wanted is a number of vertices")
    return meta


def _relations(
    path: Path, arrays: dict[str, Array], meta: dict[str, Any], options: ImportOptions
) -> dict[str, tuple[Array, dict[str, Array]]]:
    declared = list(meta.get("relations", ()))
    names = {edge_array(e): e for e in declared}
    found = {
        names.get(name) or name_of_file(name.removeprefix(_PREFIX)): a
        for name, a in arrays.items()
        if name.startswith(_PREFIX)
    }
    if not found and "edge_index" in arrays:
        found = {declared[0] if len(declared) == 1 and "node_types" in meta else EDGE_TYPE: arrays["edge_index"]}
    elif "edge_index" in arrays:
        options.refuse(path, "edge_index", "there is an edge_index__SRC__REL__DST for every relation")
    if not found:
        raise DataError(path, "holds no edge_index")
    for name, index in found.items():
        check_edge_index(path, name, index)
    numbered = "edge_type" in arrays and list(found) == [EDGE_TYPE]
    for name in sorted(n for n in arrays if n != "edge_index" and not n.startswith(_PREFIX)):
        if name not in _EDGE_ARRAYS:
            options.refuse(path, name, "the layout has no such array")
        elif len(found) > 1 or (name == "edge_type" and not numbered):
            options.refuse(path, name, "it does not say which relation it belongs to")
    if len(found) > 1:
        return {edge_type: (index, {}) for edge_type, index in found.items()}
    ((edge_type, index),) = found.items()
    tables = {table: arrays[name] for name, table in _EDGE_TABLES.items() if name in arrays}
    for name, values in tables.items():
        if values.shape[:1] != (index.shape[1],):
            raise DataError(path, f"{name!r} does not have one row per edge")
    return _by_relation(path, index, arrays["edge_type"], tables) if numbered else {edge_type: (index, tables)}


def _by_relation(
    path: Path, index: Array, kind: Array, tables: dict[str, Array]
) -> dict[str, tuple[Array, dict[str, Array]]]:
    if kind.shape != index.shape[1:]:
        raise DataError(path, "'edge_type' does not have one value per edge")
    check_numbers(path, "edge_type", kind)
    if not kind.size:
        return {EDGE_TYPE: (index, tables)}
    return {
        join_edge_type(NODE_TYPE, f"r{r}", NODE_TYPE): (
            index[:, kind == r],
            {name: t[kind == r] for name, t in tables.items()},
        )
        for r in np.unique(kind)
    }


def _node_types(relations: dict[str, Any]) -> list[str]:
    return sorted({t for e in relations for t in (split_edge_type(e)[0], split_edge_type(e)[2])})


def edge_array(edge_type: str) -> str:
    """The name of an edge type's array, as the exporter writes it."""
    return file_name(edge_type, ".npy", prefix=_PREFIX).removesuffix(".npy")


def _files(folder: Path, node_type: str, stem: str, ending: str) -> list[Path]:
    names = [f"{stem}{ending}"] if node_type == NODE_TYPE else []
    names.append(file_name(node_type, ending, prefix=f"{stem}__"))
    if "/" not in node_type:
        names.append(f"{stem}__{node_type}{ending}")
    return [path for name in dict.fromkeys(names) if (path := folder / name).exists()]


def _ids(folder: Path, node_type: str, count: int) -> Array | None:
    path = next(iter(_files(folder, node_type, "ids", ".npy")), None)
    return None if path is None else distinct_ids(path, "ids", load_array(path), count)


def _features(folder: Path, node_type: str) -> Any:
    found = [*_files(folder, node_type, "x", ".npy"), *_files(folder, node_type, "x_sparse", ".npz")]
    if len(found) > 1:
        raise DataError(folder, f"features of {node_type!r} are in {' and in '.join(p.name for p in found)}: leave one")
    if not found:
        return None
    return _numbers(found[0]) if found[0].suffix == ".npy" else as_csr(load_npz(found[0]), found[0])


def _numbers(path: Path) -> Array:
    """Memory-map the array [n, ...] of a file; raises DataError if it holds anything but rows of numbers."""
    values = load_array(path)
    if not values.ndim or values.dtype.kind not in "biuf":
        raise DataError(path, f"holds {values.dtype}{list(values.shape)}, wanted are rows of numbers")
    return values


def _counts(folder: Path, relations: dict[str, Any], features: dict[str, Any], meta: dict[str, Any]) -> dict[str, int]:
    """Find the number of vertices of each type: the stated one, the rows of the features, or what the edges need."""
    counts: dict[str, int] = dict(meta.get("node_types", {}))
    for t in _node_types(relations):
        if t in counts:
            continue
        if features[t] is not None:
            counts[t] = features[t].shape[0]
        elif t == NODE_TYPE and "num_nodes" in meta:
            counts[t] = meta["num_nodes"]
        else:
            ends = [i[side] for e, (i, _) in relations.items() for side in (0, 1) if split_edge_type(e)[2 * side] == t]
            counts[t] = max((int(rows.max()) + 1 for rows in ends if rows.size), default=0)
    for t, matrix in features.items():
        if matrix is not None and matrix.shape[0] != counts[t]:
            raise DataError(folder, f"{matrix.shape[0]} feature rows for {counts[t]} vertices of type {t!r}")
    return counts


def _add_splits(folder: Path, out: GraphWriter, target: str, options: ImportOptions, *, known: bool) -> None:
    splits: dict[str, tuple[str, Array]] = {}  # file and rows by name
    for name in _MASKS:
        if (path := folder / f"{name}_mask.npy").exists():
            splits |= {s: (path.name, m) for s, m in as_masks(path, name, name, load_array(path)).items()}
    path = folder / "split.npz"
    for name, values in (load_npz(path) if path.exists() else {}).items():
        for stem, chosen in _columns(path, name, values):
            if stem in splits and not np.array_equal(_rows(splits[stem][1]), _rows(chosen)):
                raise DataError(folder, f"split {stem!r} differs between {splits[stem][0]} and split.npz: leave one")
            splits[stem] = path.name, chosen
    count = out.count(target)
    for name, (file, values) in splits.items():
        if len(values) > count or (values.dtype == bool and len(values) != count):
            what = f"split {name!r} has {len(values)} entries for {count} vertices"
            if known:
                raise DataError(folder, what)
            options.refuse(folder, file, f"{what}: it does not belong to vertices")
        elif not known:
            why = "nothing says that it is of vertices: there are no labels, and meta.json has no target_type"
            options.refuse(folder, file, why)
        else:
            out.add_split(name, values, target)


def _columns(path: Path, name: str, values: Array) -> list[tuple[str, Array]]:
    """The splits in an array of split.npz: masks (one, or several as rows), or the numbers of vertices."""
    stem = name.removesuffix("_masks").removesuffix("_mask").replace("__", "_")
    if values.ndim == 2:
        return [(f"{stem}_{i}", as_mask(path, name, row)) for i, row in enumerate(values)]
    if values.dtype == bool or name.endswith("_mask"):
        return [(stem, as_mask(path, name, values))]
    rows, times = np.unique(as_ids(path, name, values), return_counts=True)
    if len(twice := rows[times > 1]):
        raise DataError(path, f"{name}: the vertex {twice[0]} occurs twice; a mask of numbers is called {stem}_mask")
    return [(stem, rows)]


def _rows(split: Array) -> Array:
    return np.flatnonzero(split) if split.dtype == bool else np.unique(split)
