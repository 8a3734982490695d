"""Data sets of the Open Graph Benchmark that are one graph, as they are downloaded or as ``DatasetSaver`` writes them.

raw/        as text (``edge.csv.gz``, ...; typed: ``triplet-type-list.csv.gz``, ...) or as numpy archives
            (``data.npz``; typed: ``edge_index_dict.npz``, ...): ``text.py`` and ``archives.py`` list the files
split/      one folder: ``train``, ``valid`` and ``test`` of vertices as ``csv.gz`` or in ``split_dict.pt``
mapping/    ``nodeidx2id.csv.gz``: a heading, then each vertex with the user's id. Texts about papers, products, ...
            are ignored
meta_dict.pt  in the folder or beside it: the number of classes, and whether edges are stored once for both directions
              (``add_inverse_edge``)

``node_feat`` becomes ``x``, ``edge_feat`` the edge table ``edge_attr``, ``edge_weight`` and ``edge_time`` become
``weight`` and ``time``. Other ``node_NAME`` and ``edge_NAME`` keep their names. Edges that are the splits of a link
prediction stay behind, and a note says so. Other files are refused by name.
"""

from __future__ import annotations

from pathlib import Path

from atta.errors import DataError
from atta.partition.graph import GraphWriter
from atta.partition.importers.ogb import archives, text
from atta.partition.importers.ogb.layout import OgbGraph, Relation
from atta.partition.importers.ogb.splits import add_splits, read_meta
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import state_classes
from atta.partition.importers.reading.written import add_edge_rows, add_node_rows, as_labels

__all__ = ["read", "recognises"]

_LAYOUTS = {
    "data.npz": archives.homogeneous,
    "num_nodes_dict.npz": archives.typed,
    "num-node-dict.csv.gz": text.typed,
    "num-node-list.csv.gz": text.homogeneous,
}
"""Who reads ``raw/``, by the file that it has."""
_TABLES = {"node_feat": "x", "edge_feat": "edge_attr", "edge_weight": "weight", "edge_time": "time"}


def recognises(path: Path, head: bytes) -> bool:
    """Whether ``path`` is the folder of such a data set."""
    return (
        not head
        and (folder := _folder(path)) is not None
        and any((folder / "raw" / name).exists() for name in _LAYOUTS)
    )


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder of one graph, which has ``raw/`` and ``split/``, or the folder around it that ``DatasetSaver``
    makes."""
    folder = _folder(source) or source
    raw = folder / "raw"
    layout = next((name for name in _LAYOUTS if (raw / name).exists()), None)
    if layout is None:
        raise DataError(raw, f"wanted is one of the files {', '.join(_LAYOUTS)}")
    graph, meta = _LAYOUTS[layout](raw, options), read_meta(folder, options)
    for node_type, count in graph.counts.items():
        out.add_nodes(
            node_type, count, ids=text.user_ids(folder / "mapping", count) if len(graph.counts) == 1 else None
        )
    _add_tables(graph, out, options)
    state_classes(out, folder, meta.num_classes)
    add_splits(folder / "split", graph.counts, out, options)
    for edge_type, relation in graph.relations.items():
        _add_relation(edge_type, relation.both_ways(edge_type) if meta.add_inverse_edge else relation, out, options)


def _folder(path: Path) -> Path | None:
    """The folder with ``raw/``: ``path``, or the only one of its folders that has it."""
    if (path / "raw").is_dir():
        return path
    found = sorted(raw.parent for raw in path.glob("*/raw")) if path.is_dir() else []
    return found[0] if len(found) == 1 else None


def _add_tables(graph: OgbGraph, out: GraphWriter, options: ImportOptions) -> None:
    for node_type, tables in graph.tables.items():
        for name, rows in tables.items():
            table = _TABLES.get(name, name)
            if options.is_table_name(table):
                add_node_rows(out, node_type, name, rows, table, options)
            else:
                options.refuse(rows.path, name, "tables cannot have this name")
    for node_type, rows in graph.labels.items():
        out.add_labels(as_labels(rows.whole()), node_type)


def _add_relation(edge_type: str, relation: Relation, out: GraphWriter, options: ImportOptions) -> None:
    tables = {}
    for name, rows in relation.tables.items():
        if options.is_table_name(table := _TABLES.get(name, name)):
            tables[table] = rows
        else:
            options.refuse(rows.path, name, "tables cannot have this name")
    relation.check(add_edge_rows(out, edge_type, relation.edges, options, tables))
