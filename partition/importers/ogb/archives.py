"""``raw/`` as numpy archives, such as that of ``ogbn-papers100M`` and those of ``DatasetSaver``:

data.npz              ``edge_index`` [2, E], ``num_nodes_list``, ``num_edges_list``, ``node_NAME``, ``edge_NAME``
node-label.npz        ``node_label``

num_nodes_dict.npz    number of vertices by node type; the layout of typed graphs
edge_index_dict.npz   by ``SOURCE___RELATION___TARGET``, as ``num_edges_dict.npz``
node_NAME.npz         by node type, as ``node-label.npz``; OGB's names end in ``_dict``
edge_NAME.npz         by relation
"""

from __future__ import annotations

from pathlib import Path

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE
from atta.partition.importers.ogb.layout import OgbGraph, Relation, edge_type
from atta.partition.importers.reading.archive import npz_edges, npz_rows
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.rows import FileRows

__all__ = ["homogeneous", "typed"]

_LABELS = "node-label.npz"
_COUNTED = {"num_nodes_list", "num_edges_list", "edge_index"}
_TYPED = {"num_nodes_dict.npz", "num_edges_dict.npz", "edge_index_dict.npz", _LABELS}


def homogeneous(raw: Path, options: ImportOptions) -> OgbGraph:
    """The graph in ``data.npz``."""
    path = raw / "data.npz"
    found = npz_rows(path)
    if lost := sorted(_COUNTED - found.keys()):
        raise DataError(path, f"has no array {lost[0]!r}")
    nodes, edges = {}, {}
    for name, rows in found.items():
        if name in _COUNTED:
            continue
        if name.startswith("node_"):
            nodes[name] = rows
        elif name.startswith("edge_"):
            edges[name] = rows
        else:
            options.refuse(path, name, "the layout has no such array")
    _refuse_other_files(raw, {"data.npz", _LABELS}, options)
    stated = path, _number(found["num_edges_list"], "num_edges_list")
    relation = Relation(npz_edges(path, "edge_index"), edges, stated)
    labels = _labels(raw, {"node_label": NODE_TYPE}, options)
    counts = {NODE_TYPE: _number(found["num_nodes_list"], "num_nodes_list")}
    return OgbGraph(counts, {NODE_TYPE: nodes}, {EDGE_TYPE: relation}, labels)


def typed(raw: Path, options: ImportOptions) -> OgbGraph:
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
    _refuse_other_files(raw, _TYPED | known, options)
    relations = {}
    for key, tables in edges.items():
        number = (raw / "num_edges_dict.npz", _number(stated[key], key)) if key in stated else None
        relations[edge_type(key.split("___"))] = Relation(npz_edges(path, key), tables, number)
    return OgbGraph(counts, nodes, relations, _labels(raw, {t: t for t in counts}, options))


def _labels(raw: Path, types: dict[str, str], options: ImportOptions) -> dict[str, FileRows]:
    """The labels by node type. ``types``: node types by the names of the arrays."""
    path, found = raw / _LABELS, {}
    for name, rows in (npz_rows(path) if path.exists() else {}).items():
        if name in types:
            found[types[name]] = rows
        else:
            options.refuse(path, name, "the layout has no such array")
    return found


def _number(rows: FileRows, name: str) -> int:
    """The only number of a list with one for each graph; raises DataError."""
    if rows.count != 1 or rows.dtype.kind not in "iu" or rows.row_shape:
        raise DataError(rows.path, f"{name!r} holds {rows.count} graphs; only single graphs are imported")
    return int(rows.whole()[0])


def _refuse_other_files(raw: Path, known: set[str], options: ImportOptions) -> None:
    for path in sorted(raw.glob("*.npz")):
        if path.name not in known:
            options.refuse(raw, path.name, "the layout has no such file")
