"""The raw layout of the Open Graph Benchmark's node property graphs (homogeneous).

raw/edge.csv.gz, num-node-list.csv.gz, [num-edge-list.csv.gz]
[raw/node-feat.csv.gz, node-label.csv.gz, node_year.csv.gz, edge-feat.csv.gz]
split/<scheme>/train.csv.gz, valid.csv.gz, test.csv.gz
[mapping/nodeidx2id.csv.gz]      a heading, then each vertex with the user's id

Features of edges become the edge table ``edge_attr``. Other files in ``raw`` and ``split`` are refused by name. Texts
about papers and products in ``mapping`` are ignored.
"""

from __future__ import annotations

import gzip
import io
import itertools
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.common import as_float32, first_line
from atta.partition.importers.reading.edges import EdgeStream
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import distinct_ids
from atta.partition.schema import TableSpec

__all__ = ["read"]

_SPLITS = {"train": "train", "valid": "val", "test": "test"}
_RAW = {
    f"{name}.csv.gz"
    for name in ("edge", "num-node-list", "num-edge-list", "node-feat", "node-label", "node_year", "edge-feat")
}
_ROWS = 1 << 16

Array = npt.NDArray[Any]


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder of one graph, which has ``raw/`` and ``split/``."""
    raw = source / "raw"
    if (raw / "num-node-dict.csv.gz").exists():
        raise DataError(raw, "a heterogeneous OGB graph; only homogeneous ones are imported")
    counts = _read(raw / "num-node-list.csv.gz", np.int64).reshape(-1)
    if len(counts) != 1:
        raise DataError(raw / "num-node-list.csv.gz", f"holds {len(counts)} graphs; only single graphs are imported")
    for path in sorted(raw.glob("*.csv.gz")):
        if path.name not in _RAW:
            options.refuse(raw, path.name, "the layout has no such file")
    out.add_nodes(NODE_TYPE, int(counts[0]), ids=_ids(source / "mapping", int(counts[0])))
    _stream_features(raw / "node-feat.csv.gz", out, options, int(counts[0]))
    _add_columns(raw, out)
    for name, rows in _splits(source / "split", options).items():
        out.add_split(name, rows)
    _stream_edges(raw, out, options)


def _stream_edges(raw: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Write the edges, and their features if there are any."""
    path, beside = raw / "edge.csv.gz", raw / "edge-feat.csv.gz"
    features = _floats(beside) if beside.exists() else None
    first = next(features, None) if features is not None else None
    specs = {} if first is None else {"edge_attr": TableSpec("<f4", first.shape[1:])}
    rest = itertools.chain([] if first is None else [first], features or ())
    total = 0
    with EdgeStream(out, EDGE_TYPE, options, specs) as edges:
        for rows in _blocks(path, np.dtype(np.int64)):
            if rows.shape[1] != 2:
                raise DataError(path, f"{rows.shape[1]} columns instead of 2")
            tables = {}
            if features is not None:
                tables["edge_attr"] = next(rest, np.empty((0, 1), np.float32))
                if len(tables["edge_attr"]) != len(rows):
                    raise DataError(beside, f"ends before the edges: {total + len(tables['edge_attr'])} rows")
            edges.append(rows[:, 0], rows[:, 1], **tables)
            total += len(rows)
        if next(rest, None) is not None:
            raise DataError(beside, f"has more rows than the {total} edges")
    if (count := raw / "num-edge-list.csv.gz").exists() and int(_read(count, np.int64).sum()) != total:
        raise DataError(count, f"states {int(_read(count, np.int64).sum())} edges, edge.csv.gz has {total}")


def _ids(folder: Path, count: int) -> Array | None:
    """The users' ids, if the mapping folder has them as numbers. Other mappings (of papers, of products) are
    ignored."""
    path = folder / "nodeidx2id.csv.gz"
    if not path.exists():
        return None
    pairs = np.concatenate(list(_blocks(path, np.dtype(np.int64), skip=1)) or [np.empty((0, 2), np.int64)])
    if pairs.shape[1] != 2 or not np.array_equal(pairs[:, 0], np.arange(len(pairs))):
        raise DataError(path, "wanted are two columns, the vertices in order and their ids")
    return distinct_ids(path, "ids", pairs[:, 1], count)


def _add_columns(raw: Path, out: GraphWriter) -> None:
    if (raw / "node-label.csv.gz").exists():
        labels = _read(raw / "node-label.csv.gz", np.float64, empty="nan")
        labels = labels[:, 0] if labels.shape[1] == 1 else labels
        if (labels[~np.isnan(labels)] % 1 != 0).any():
            raise DataError(raw / "node-label.csv.gz", "labels are whole numbers, or nan")
        # Unlabelled vertices are written as nan; pandas leaves their cells empty.
        out.add_labels(np.nan_to_num(labels, nan=-1).astype(np.int64))
    if (raw / "node_year.csv.gz").exists():
        out.add_table("node_year", _column(raw / "node_year.csv.gz"))


def _stream_features(path: Path, out: GraphWriter, options: ImportOptions, count: int) -> None:
    if not path.exists():
        return
    options.progress.stage("features", count)
    table = None
    for rows in _floats(path):
        if table is None:
            table = out.open_table("x", np.float32, rows.shape[1:])
        values: Array = rows
        if options.normalize_features:
            total = np.abs(rows).sum(axis=1, keepdims=True)
            values = rows / np.where(total == 0, np.float32(1), total)
        table.append(values)
        options.progress.advance(len(rows))


def _column(path: Path) -> Array:
    rows = _read(path, np.int64)
    if len(rows) and rows.shape[1] != 1:
        raise DataError(path, f"{rows.shape[1]} columns instead of 1")
    return rows[:, 0]


def _splits(folder: Path, options: ImportOptions) -> dict[str, Array]:
    schemes = sorted(p for p in folder.glob("*") if p.is_dir()) if folder.is_dir() else []
    if not schemes:
        return {}
    if len(schemes) > 1:
        raise DataError(folder, f"holds {len(schemes)} splitting schemes; leave one")
    for path in sorted(schemes[0].glob("*.csv.gz")):
        if path.name.removesuffix(".csv.gz") not in _SPLITS:
            options.refuse(schemes[0], path.name, "the layout has no such split")
    found = {name: schemes[0] / f"{theirs}.csv.gz" for theirs, name in _SPLITS.items()}
    return {name: _column(path) for name, path in found.items() if path.exists()}


def _read(path: Path, dtype: Any, empty: str | None = None) -> Array:
    blocks = list(_blocks(path, np.dtype(dtype), empty=empty))
    return np.concatenate(blocks) if blocks else np.empty((0, 2), dtype)


def _blocks(path: Path, dtype: np.dtype[Any], *, skip: int = 0, empty: str | None = None) -> Iterator[Array]:
    """Yield rows [n, columns] of a gzipped csv file without its first ``skip`` lines; raises DataError.

    ``empty``: what an empty cell means; None: it is an error, and empty lines are none.
    """
    try:
        with gzip.open(path, "rb") as raw, io.TextIOWrapper(raw, "ascii") as text, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data", category=UserWarning)
            for _ in range(skip):
                text.readline()
            lines = text if empty is None else _filled(text, empty)
            while True:
                rows = np.loadtxt(lines, dtype=dtype, delimiter=",", ndmin=2, max_rows=_ROWS, comments=None)
                if len(rows):
                    yield rows
                if len(rows) < _ROWS:
                    return
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(path, f"not a readable csv.gz file: {first_line(error)}") from None


def _floats(path: Path) -> Iterator[npt.NDArray[np.float32]]:
    """Yield rows [n, columns] of a gzipped csv file; raises DataError, and ConfigError for numbers that are no
    float32."""
    for rows in _blocks(path, np.dtype(np.float64)):
        yield as_float32(str(path), rows)


def _filled(lines: Iterable[str], empty: str) -> Iterator[str]:
    """Lines of a csv file with ``empty`` in empty cells."""
    for line in lines:
        yield ",".join(cell.strip().strip('"') or empty for cell in line.split(","))
