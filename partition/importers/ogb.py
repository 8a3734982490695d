"""Data sets of the Open Graph Benchmark that are one graph, as they are downloaded or as ``DatasetSaver`` writes them.

raw/        as text or as numpy archives, see below
split/      one folder: ``train``, ``valid`` and ``test`` of vertices as ``csv.gz`` or in ``split_dict.pt``
mapping/    ``nodeidx2id.csv.gz``: a heading, then each vertex with the user's id
meta_dict.pt  in the folder or beside it: the number of classes, and whether edges are stored once for both directions

raw/ as text    num-node-list.csv.gz, edge.csv.gz, [num-edge-list.csv.gz, node-label.csv.gz, node-feat.csv.gz, node_NAME.csv.gz,
                edge-feat.csv.gz, edge_NAME.csv.gz]; typed: num-node-dict.csv.gz, triplet-type-list.csv.gz,
                relations/SOURCE___RELATION___TARGET/edge.csv.gz, node-feat/TYPE/node-feat.csv.gz,
                nodetype-has-label.csv.gz, node-label/TYPE/node-label.csv.gz
raw/ archives   data.npz (``edge_index`` [2, E], ``num_nodes_list``, ``num_edges_list``, ``node_NAME``, ``edge_NAME``),
                node-label.npz; typed: num_nodes_dict.npz, num_edges_dict.npz, edge_index_dict.npz, node_NAME.npz by node
                type, edge_NAME.npz by ``SOURCE___RELATION___TARGET``
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.graph.exact import as_float32
from atta.partition.importers.reading.filling import EdgeFiles, add_edge_rows, add_node_rows
from atta.partition.importers.reading.pickles import load_inert
from atta.partition.importers.reading.rows import FileRows, csv_rows, npz_edges, npz_rows
from atta.partition.importers.reading.source import (
    Array,
    ImportOptions,
    distinct_ids,
    open_content,
    state_classes,
    unreadable,
)
from atta.partition.names import join_edge_type, split_edge_type


@dataclass(frozen=True)
class OgbGraph:
    """Numbers of vertices and tables by node type, edges by edge type. Tables have OGB's names, but for the labels ``y``."""

    counts: dict[str, int]
    tables: dict[str, dict[str, FileRows]]
    relations: dict[str, EdgeFiles]


_END = ".csv.gz"
_MOST = 1 << 20
"""Most bytes of a file that lists types."""
_NAMES = {"node-feat": "node_feat", "edge-feat": "edge_feat", "species": "node_species"}
_DTYPES: dict[str, npt.DTypeLike] = {"node_year": np.int64}
_FEATURES = ("node-feat", "edge-feat")


def text_graph(raw: Path, options: ImportOptions) -> OgbGraph:
    """The graph in ``edge.csv.gz``."""
    path = raw / "num-node-list.csv.gz"
    counts = csv_rows(path, np.int64).whole().reshape(-1)
    if len(counts) != 1:
        raise DataError(path, f"holds {len(counts)} graphs; only single graphs are imported")
    known = ("edge", "num-node-list", "num-edge-list", "node-label")
    tables = _tables(raw, ("node_", "edge_"), options, known)
    nodes, edges = ({n: rows for n, rows in tables.items() if n.startswith(of)} for of in ("node_", "edge_"))
    return OgbGraph({NODE_TYPE: int(counts[0])}, {NODE_TYPE: nodes | _labels(raw)}, {EDGE_TYPE: _relation(raw, edges)})


def typed_text(raw: Path, options: ImportOptions) -> OgbGraph:
    """The typed graph in ``relations/``."""
    types, *counts = _lines(raw / "num-node-dict.csv.gz")
    if len(counts) != 1 or len(counts[0]) != len(types) or not all(text.strip().isdecimal() for text in counts[0]):
        raise DataError(raw / "num-node-dict.csv.gz", "wanted are a line of node types and one of their vertices")
    tables = {t: _tables(raw / "node-feat" / t, ("node_",), options) for t in sorted(types)}
    for node_type in marked_types(raw / "nodetype-has-label.csv.gz", types):
        tables[node_type] |= _labels(raw / "node-label" / node_type)
    relations = {}
    for triplet in sorted(_lines(raw / "triplet-type-list.csv.gz")):
        here = raw / "relations" / "___".join(triplet)
        found = _tables(here, ("edge_",), options, ("edge", "num-edge-list"))
        relations[join_edge_type(*triplet)] = _relation(here, found)
    _refuse_others(raw, {"num-node-dict", "triplet-type-list", "nodetype-has-label"}, options)
    counted = {t: int(count) for t, count in sorted(zip(types, counts[0], strict=True))}
    return OgbGraph(counted, tables, relations)


def _relation(folder: Path, tables: dict[str, FileRows]) -> EdgeFiles:
    path = folder / "num-edge-list.csv.gz"
    stated = (path, int(csv_rows(path, np.int64).whole().sum())) if path.exists() else None
    return EdgeFiles(csv_rows(folder / "edge.csv.gz", np.int64), tables, stated)


def user_ids(folder: Path, count: int) -> Array | None:
    """The users' ids, if the mapping folder has them as numbers. Other mappings (of papers, of products) are
    ignored."""
    path = folder / "nodeidx2id.csv.gz"
    if not path.exists():
        return None
    pairs = csv_rows(path, np.int64, skip=1).whole()
    if pairs.shape[1:] != (2,) or not np.array_equal(pairs[:, 0], np.arange(len(pairs))):
        raise DataError(path, "wanted are two columns, the vertices in order and their ids")
    return distinct_ids(path, "ids", pairs[:, 1], count)


def marked_types(path: Path, types: Iterable[str]) -> list[str]:
    """The node types under which a file says True; raises DataError for one that is not among ``types``."""
    if not path.exists():
        return []
    heading, *marks = _lines(path)
    if len(marks) != 1 or len(marks[0]) != len(heading) or not set(heading) <= set(types):
        raise DataError(path, "wanted are a line of node types, and a line of True and False")
    return [name for name, mark in zip(heading, marks[0], strict=True) if mark.strip() == "True"]


def _tables(
    folder: Path, prefixes: tuple[str, ...], options: ImportOptions, others: Collection[str] = ()
) -> dict[str, FileRows]:
    """The tables of vertices (``node_``) or edges (``edge_``) in a folder, by OGB's names. Refuse files that are neither
    tables nor ``others``."""
    stems = {path.name.removesuffix(_END) for path in folder.glob(f"*{_END}")} - options.drop
    mine = [stem for stem in sorted(stems) if _NAMES.get(stem, stem).startswith(prefixes)]
    _refuse_others(folder, {*mine, *others}, options)
    paths = {stem: folder / f"{stem}{_END}" for stem in mine}
    return {
        _NAMES.get(stem, stem): _features(path) if stem in _FEATURES else csv_rows(path, _DTYPES.get(stem))
        for stem, path in paths.items()
    }


def _features(path: Path) -> FileRows:
    rows = csv_rows(path, np.float64)
    pieces = partial(map, partial(as_float32, str(path)))
    return replace(rows, dtype=np.dtype(np.float32), pieces=lambda: pieces(rows.pieces()))


def _labels(folder: Path) -> dict[str, FileRows]:
    path = folder / "node-label.csv.gz"
    return {"y": csv_rows(path, np.float64, empty="nan")} if path.exists() else {}


def _lines(path: Path) -> list[list[str]]:
    with unreadable(path, "not a readable csv.gz file", ValueError), open_content(path) as file:
        content = file.read(_MOST + 1).decode()
    if len(content) > _MOST or not content.strip():
        raise DataError(path, "empty, or too long for a list of types")
    return [row for row in csv.reader(content.splitlines()) if row]


def _refuse_others(folder: Path, known: Iterable[str], options: ImportOptions, what: str = "file") -> None:
    options.refuse_others(folder, f"*{_END}", {f"{stem}{_END}" for stem in known}, what)


_LABELS = "node-label.npz"
_COUNTED = {"num_nodes_list", "num_edges_list", "edge_index"}
_TYPED = {"num_nodes_dict.npz", "num_edges_dict.npz", "edge_index_dict.npz", _LABELS}


def archived_graph(raw: Path, options: ImportOptions) -> OgbGraph:
    """The graph in ``data.npz``."""
    path = raw / "data.npz"
    found = npz_rows(path)
    if lost := sorted(_COUNTED - found.keys()):
        raise DataError(path, f"has no array {lost[0]!r}")
    tables = {name: rows for name, rows in found.items() if name not in _COUNTED}
    nodes, edges = ({n: rows for n, rows in tables.items() if n.startswith(of)} for of in ("node_", "edge_"))
    for name in [name for name in tables if name not in nodes | edges]:
        options.refuse(path, name, "the layout has no such array")
    options.refuse_others(raw, "*.npz", {"data.npz", _LABELS})
    stated = path, _number(found["num_edges_list"], "num_edges_list")
    relation = EdgeFiles(npz_edges(path, "edge_index"), edges, stated)
    _add_archived_labels(raw, {"node_label": nodes}, options)
    counts = {NODE_TYPE: _number(found["num_nodes_list"], "num_nodes_list")}
    return OgbGraph(counts, {NODE_TYPE: nodes}, {EDGE_TYPE: relation})


def typed_archives(raw: Path, options: ImportOptions) -> OgbGraph:
    """The typed graph in ``edge_index_dict.npz`` and the archives beside it."""
    counts = {t: _number(rows, t) for t, rows in sorted(npz_rows(raw / "num_nodes_dict.npz").items())}
    stated, path = npz_rows(raw / "num_edges_dict.npz"), raw / "edge_index_dict.npz"
    nodes: dict[str, dict[str, FileRows]] = {t: {} for t in counts}
    edges: dict[str, dict[str, FileRows]] = {key: {} for key in sorted(npz_rows(path))}
    for file in sorted(raw.glob("*.npz")):
        name = file.stem.removesuffix("_dict")
        into = nodes if name.startswith("node_") else edges if name.startswith("edge_") else None
        if file.name in _TYPED or into is None:
            continue
        for key, rows in npz_rows(file).items():
            if key not in into:
                raise DataError(file, f"names the type {key!r}; there are: {', '.join(into)}")
            into[key][name] = rows
    known = {file.name for file in raw.glob("*.npz") if file.name.startswith(("node_", "edge_"))}
    options.refuse_others(raw, "*.npz", _TYPED | known)
    relations = {}
    for key, tables in edges.items():
        number = (raw / "num_edges_dict.npz", _number(stated[key], key)) if key in stated else None
        relations[join_edge_type(*key.split("___"))] = EdgeFiles(npz_edges(path, key), tables, number)
    _add_archived_labels(raw, nodes, options)
    return OgbGraph(counts, nodes, relations)


def _add_archived_labels(raw: Path, tables: Mapping[str, dict[str, FileRows]], options: ImportOptions) -> None:
    path = raw / _LABELS
    for name, rows in (npz_rows(path) if path.exists() else {}).items():
        if name in tables:
            tables[name]["y"] = rows
        else:
            options.refuse(path, name, "the layout has no such array")


def _number(rows: FileRows, name: str) -> int:
    if rows.count != 1 or rows.dtype.kind not in "iu" or rows.row_shape:
        raise DataError(rows.path, f"{name!r} holds {rows.count} graphs; only single graphs are imported")
    return int(rows.whole()[0])


_SPLITS = {"train": "train", "valid": "val", "test": "test"}


def read_meta(folder: Path) -> tuple[int | None, bool]:
    """What the ``meta_dict.pt`` in the folder or beside it says, if there is one: the number of classes, and whether the
    reverse of each edge belongs to the graph. Raises DataError."""
    path = next((p for p in (folder / "meta_dict.pt", folder.parent / "meta_dict.pt") if p.exists()), None)
    if path is None:
        return None, False
    said = load_inert(path)
    if not isinstance(said, Mapping):
        raise DataError(path, "holds no dictionary")
    typed = any((folder / "raw" / name).exists() for name in ("num_nodes_dict.npz", "num-node-dict.csv.gz"))
    if (stated := str(said.get("is hetero", ""))) == str(not typed):
        raise DataError(path, f"'is hetero' is {stated}, but {folder / 'raw'} says otherwise")
    classes = said.get("num classes")
    if isinstance(classes, str) and classes.isdecimal():
        classes = int(classes)
    known = isinstance(classes, int) and classes > 0
    return classes if known else None, str(said.get("add_inverse_edge")) == "True"


def add_splits(folder: Path, types: Collection[str], out: GraphWriter, options: ImportOptions) -> None:
    """Add the splits of vertices, of the node ``types``, of the only scheme in the folder. A note says which splits of
    edges are left."""
    schemes = sorted(p for p in folder.glob("*") if p.is_dir()) if folder.is_dir() else []
    if not schemes:
        return
    if len(schemes) > 1:
        raise DataError(folder, f"holds {len(schemes)} splitting schemes; leave one")
    scheme = schemes[0]
    if (path := scheme / "split_dict.pt").exists():
        _add_dictionary(path, types, out, options)
    elif marked := marked_types(scheme / "nodetype-has-split.csv.gz", types):
        for node_type in marked:
            _add_texts(scheme / node_type, out, options, node_type)
    else:
        _add_texts(scheme, out, options, NODE_TYPE)
        if found := sorted(path.name for path in scheme.glob("*.pt")):
            options.notes.append(_left(scheme, found))


def _left(where: Path, names: list[str]) -> str:
    return (
        f"{where.parent.name}/{where.name}: {', '.join(names)} hold edges, which are no splits of vertices and are not "
        "imported; give them to a LinkNeighborLoader"
    )


def _add_texts(folder: Path, out: GraphWriter, options: ImportOptions, node_type: str) -> None:
    _refuse_others(folder, _SPLITS, options, "split")
    for theirs, name in _SPLITS.items():
        if (path := folder / f"{theirs}.csv.gz").exists():
            out.add_split(name, csv_rows(path, np.int64).column("split"), node_type)


def _add_dictionary(path: Path, types: Collection[str], out: GraphWriter, options: ImportOptions) -> None:
    said = load_inert(path)
    if not isinstance(said, Mapping):
        raise DataError(path, "holds no dictionary of splits")
    edges = []
    for theirs, value in said.items():
        if theirs not in _SPLITS:
            options.refuse(path, theirs, "the layout has no such split")
            continue
        by_type: Mapping[str, Any] = value if isinstance(value, Mapping) else {NODE_TYPE: value}
        if not set(by_type) <= set(types):
            edges.append(theirs)
            continue
        for node_type, rows in by_type.items():
            if not isinstance(rows, np.ndarray):
                raise DataError(path, f"{theirs!r} holds no array of numbers")
            out.add_split(_SPLITS[theirs], rows, node_type)
    if edges:
        options.notes.append(_left(path.parent, edges))


_LAYOUTS = {
    "data.npz": archived_graph,
    "num_nodes_dict.npz": typed_archives,
    "num-node-dict.csv.gz": typed_text,
    "num-node-list.csv.gz": text_graph,
}
"""Who reads ``raw/``, by the file that it has."""
_NAMED = {"node_feat": "x", "edge_feat": "edge_attr", "edge_weight": "weight", "edge_time": "time"}


def recognises(path: Path, head: bytes) -> bool:
    """Whether ``path`` is the folder of such a data set."""
    folder = None if head else _folder(path)
    return folder is not None and any((folder / "raw" / name).exists() for name in _LAYOUTS)


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder of one graph, which has ``raw/`` and ``split/``, or the folder around it that ``DatasetSaver``
    makes."""
    folder = _folder(source) or source
    raw = folder / "raw"
    layout = next((name for name in _LAYOUTS if (raw / name).exists()), None)
    if layout is None:
        raise DataError(raw, f"wanted is one of the files {', '.join(_LAYOUTS)}")
    graph, (classes, both) = _LAYOUTS[layout](raw, options), read_meta(folder)
    for node_type, count in graph.counts.items():
        out.add_nodes(node_type, count, ids=user_ids(folder / "mapping", count) if len(graph.counts) == 1 else None)
    for node_type, tables in graph.tables.items():
        for table, (name, rows) in _named_tables(tables, options).items():
            add_node_rows(out, node_type, name, rows, table, options)
    state_classes(out, folder, classes)
    add_splits(folder / "split", graph.counts, out, options)
    for edge_type, relation in graph.relations.items():
        source_type, _, target_type = split_edge_type(edge_type)
        if both and source_type != target_type:
            cause = f"'add_inverse_edge' asks for reverses of {edge_type!r} between two types"
            raise DataError(relation.edges.path, cause)
        found = {table: rows for table, (_, rows) in _named_tables(relation.tables, options).items()}
        add_edge_rows(out, edge_type, replace(relation, tables=found, mirrored=both), options)


def _folder(path: Path) -> Path | None:
    """The folder with ``raw/``: ``path``, or the only one of its folders that has it."""
    if (path / "raw").is_dir():
        return path
    found = sorted(raw.parent for raw in path.glob("*/raw")) if path.is_dir() else []
    return found[0] if len(found) == 1 else None


def _named_tables(tables: Mapping[str, FileRows], options: ImportOptions) -> dict[str, tuple[str, FileRows]]:
    """By Atta's name of a table: OGB's, and its rows. Refuse those that no table can be called."""
    found = {}
    for name, rows in tables.items():
        if options.is_table_name(table := _NAMED.get(name, name)):
            found[table] = name, rows
        else:
            options.refuse(rows.path, name, "tables cannot have this name")
    return found
