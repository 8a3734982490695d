"""``raw/`` as text, gzipped:

num-node-list.csv.gz, edge.csv.gz, [num-edge-list.csv.gz, node-label.csv.gz]
[node-feat.csv.gz, node_NAME.csv.gz, edge-feat.csv.gz, edge_NAME.csv.gz]

num-node-dict.csv.gz               a heading of node types, then the number of vertices of each; typed graphs
triplet-type-list.csv.gz           a line with source, relation and target for each edge type
relations/SOURCE___RELATION___TARGET/edge.csv.gz   and the other files of edges
node-feat/TYPE/node-feat.csv.gz                    and ``node_NAME.csv.gz``
nodetype-has-label.csv.gz, node-label/TYPE/node-label.csv.gz
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE
from atta.partition.importers.ogb.layout import OgbGraph, Relation, edge_type
from atta.partition.importers.reading.common import as_float32, first_line
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.rows import FileRows, csv_rows
from atta.partition.importers.reading.stated import distinct_ids

__all__ = ["homogeneous", "marked_types", "typed", "user_ids"]

Array = npt.NDArray[Any]
_END = ".csv.gz"
_MOST = 1 << 20
"""Most bytes of a file that lists types."""
_NAMES = {"node-feat": "node_feat", "edge-feat": "edge_feat", "species": "node_species"}
_DTYPES: dict[str, npt.DTypeLike] = {"node_year": np.int64}
_FEATURES = ("node-feat", "edge-feat")


def homogeneous(raw: Path, options: ImportOptions) -> OgbGraph:
    """The graph in ``edge.csv.gz``."""
    path = raw / "num-node-list.csv.gz"
    counts = csv_rows(path, np.int64).whole().reshape(-1)
    if len(counts) != 1:
        raise DataError(path, f"holds {len(counts)} graphs; only single graphs are imported")
    nodes, edges = _tables(raw, "node", options), _tables(raw, "edge", options)
    _refuse_other_files(raw, {*nodes, *edges, "edge", "num-node-list", "num-edge-list", "node-label"}, options)
    relation = Relation(csv_rows(raw / "edge.csv.gz", np.int64), _named(edges), _stated(raw))
    return OgbGraph(
        {NODE_TYPE: int(counts[0])}, {NODE_TYPE: _named(nodes)}, {EDGE_TYPE: relation}, _labels(raw, NODE_TYPE)
    )


def typed(raw: Path, options: ImportOptions) -> OgbGraph:
    """The typed graph in ``relations/``."""
    types, *counts = _lines(raw / "num-node-dict.csv.gz")
    if len(counts) != 1 or len(counts[0]) != len(types) or not all(text.strip().isdecimal() for text in counts[0]):
        raise DataError(raw / "num-node-dict.csv.gz", "wanted are a line of node types and one of their vertices")
    tables: dict[str, dict[str, FileRows]] = {}
    labels: dict[str, FileRows] = {}
    relations = {}
    for node_type in sorted(types):
        here = raw / "node-feat" / node_type
        found = _tables(here, "node", options)
        _refuse_other_files(here, found, options)
        tables[node_type] = _named(found)
    for node_type in marked_types(raw / "nodetype-has-label.csv.gz", types):
        labels |= _labels(raw / "node-label" / node_type, node_type)
    for triplet in sorted(_lines(raw / "triplet-type-list.csv.gz")):
        here = raw / "relations" / "___".join(triplet)
        found = _tables(here, "edge", options)
        _refuse_other_files(here, {*found, "edge", "num-edge-list"}, options)
        relations[edge_type(triplet)] = Relation(csv_rows(here / "edge.csv.gz", np.int64), _named(found), _stated(here))
    _refuse_other_files(raw, {"num-node-dict", "triplet-type-list", "nodetype-has-label"}, options)
    counted = {t: int(count) for t, count in sorted(zip(types, counts[0], strict=True))}
    return OgbGraph(counted, tables, relations, labels)


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


def _tables(folder: Path, of: str, options: ImportOptions) -> dict[str, FileRows]:
    """The tables of vertices (``node``) or edges (``edge``) in a folder, by the names of their files."""
    stems = {path.name.removesuffix(_END) for path in folder.glob(f"*{_END}")} - options.drop
    mine = sorted(s for s in stems if _NAMES.get(s, s).startswith(f"{of}_"))
    paths = {stem: folder / f"{stem}{_END}" for stem in mine}
    return {s: _features(path) if s in _FEATURES else csv_rows(path, _DTYPES.get(s)) for s, path in paths.items()}


def _features(path: Path) -> FileRows:
    """Rows of float32; raises ConfigError for whole numbers that it rounds."""
    rows = csv_rows(path, np.float64)
    pieces = partial(map, partial(as_float32, str(path)))
    return replace(rows, dtype=np.dtype(np.float32), pieces=lambda: pieces(rows.pieces()))


def _named(tables: dict[str, FileRows]) -> dict[str, FileRows]:
    return {_NAMES.get(stem, stem): rows for stem, rows in tables.items()}


def _labels(folder: Path, node_type: str) -> dict[str, FileRows]:
    path = folder / "node-label.csv.gz"
    return {node_type: csv_rows(path, np.float64, empty="nan")} if path.exists() else {}


def _stated(folder: Path) -> tuple[Path, int] | None:
    path = folder / "num-edge-list.csv.gz"
    return (path, int(csv_rows(path, np.int64).whole().sum())) if path.exists() else None


def _lines(path: Path) -> list[list[str]]:
    """The cells of a short file; raises DataError."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            content = file.read(_MOST + 1)
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(path, f"not a readable csv.gz file: {first_line(error)}") from None
    if len(content) > _MOST or not content.strip():
        raise DataError(path, "empty, or too long for a list of types")
    return [row for row in csv.reader(content.splitlines()) if row]


def _refuse_other_files(folder: Path, known: Iterable[str], options: ImportOptions) -> None:
    for path in sorted(folder.glob(f"*{_END}")):
        if path.name.removesuffix(_END) not in known:
            options.refuse(folder, path.name, "the layout has no such file")
