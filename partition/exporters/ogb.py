"""The raw layout of the Open Graph Benchmark's node property graphs (homogeneous), as ``importers/ogb.py`` describes it."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from atta.observe.progress import Progress
from atta.partition.disk.files import chunks
from atta.partition.exporters.common import lost_classes, lost_tables, row_chunks
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, Graph
from atta.partition.importers.reading.source import Array
from atta.partition.schema import TableSpec

MARKER: str | None = "raw/num-node-list.csv.gz"
_SPLITS = {"train": "train", "val": "valid", "test": "test"}
_VALUES = 1 << 18  # number of values formatted at a time
_LEVEL = 4  # of gzip; higher levels make files of numbers hardly smaller
_DIGITS = {2: "%.5g", 4: "%.9g"}  # enough digits to tell any two floats of that many bytes apart


def lost(graph: Graph) -> list[str]:
    """Name what the layout lacks: types, edge tables, tables besides x, y and node_year, splits of other names."""
    schema = graph.schema
    if schema.typed:
        types = ", ".join((*schema.node_types, *schema.edge_types))
        return [f"several or named types ({types}): it is homogeneous"]
    found = lost_tables(schema, lambda _, name, spec: _holds(name, spec), lambda *_: False)
    found += [f"the split {name!r}" for name in schema.splits[NODE_TYPE] if name not in _SPLITS]
    if not schema.node_counts[NODE_TYPE]:
        found.append("a graph without vertices")
    return found + lost_classes(graph)


def _holds(name: str, spec: TableSpec) -> bool:
    """Whether the layout holds the table. Features are a matrix, labels one or more int64 per vertex, years one."""
    shape = spec.row_shape
    if name == "x":
        return len(shape) == 1 and shape[0] > 0 and np.dtype(spec.dtype).itemsize <= 8
    if name == "y":
        return spec.dtype == "<i8" and (not shape or (len(shape) == 1 and shape[0] > 1))
    return name == "node_year" and spec.dtype == "<i8" and not shape


def write(graph: Graph, dst: Path, progress: Progress) -> None:
    """Write the folder ``dst``, chunk by chunk."""
    schema, raw = graph.schema, dst / "raw"
    count = schema.node_counts[NODE_TYPE]
    tables = {name: graph.table(NODE_TYPE, name) for name in schema.node_tables[NODE_TYPE]}
    edges = graph.edges(EDGE_TYPE)
    _write(raw / "num-node-list.csv.gz", [np.array([count])])
    _write(raw / "num-edge-list.csv.gz", [np.array([len(edges)])])
    progress.stage("features", count)
    if (x := tables.get("x")) is not None:
        _write(raw / "node-feat.csv.gz", (x[lo:hi] for lo, hi in row_chunks(count, x)), progress)
    if (y := tables.get("y")) is not None:
        # Unlabelled vertices are written as nan.
        labels = (np.where(y[lo:hi] == -1, np.nan, y[lo:hi]) for lo, hi in row_chunks(count, y))
        _write(raw / "node-label.csv.gz", labels)
    if (year := tables.get("node_year")) is not None:
        _write(raw / "node_year.csv.gz", [year])
    for name in schema.splits[NODE_TYPE]:
        _write(dst / f"split/given/{_SPLITS[name]}.csv.gz", [graph.split(NODE_TYPE, name)])
    if (ids := graph.user_ids(NODE_TYPE)) is not None:
        pairs = (np.stack([np.arange(lo, hi), ids[lo:hi]], axis=1) for lo, hi in row_chunks(count))
        _write(dst / "mapping/nodeidx2id.csv.gz", pairs, heading="node idx,id\n")
    progress.stage("edges", len(edges))
    ends = (np.stack([edges.src[lo:hi], edges.dst[lo:hi]], axis=1) for lo, hi in row_chunks(len(edges)))
    _write(raw / "edge.csv.gz", ends, progress)


def _write(path: Path, pieces: Iterable[Array], progress: Progress | None = None, *, heading: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=_LEVEL, encoding="ascii", newline="\n") as out:
        out.write(heading)
        for piece in pieces:
            rows = piece if piece.ndim > 1 else piece[:, None]
            for lo, hi in chunks(len(rows), max(1, _VALUES // rows.shape[1])):
                out.write(_text(rows[lo:hi]))
            if progress is not None:
                progress.advance(len(rows))


def _text(rows: Array) -> str:
    value = "%d" if rows.dtype.kind in "biu" else _DIGITS.get(rows.dtype.itemsize, "%.17g")
    line = ",".join([value] * rows.shape[1]) + "\n"
    return (line * len(rows)) % tuple(rows.ravel().tolist())
