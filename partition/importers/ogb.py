"""The raw layout of the Open Graph Benchmark's node property graphs (homogeneous).

raw/edge.csv.gz, num-node-list.csv.gz, node-feat.csv.gz, node-label.csv.gz, [node_year.csv.gz]
split/<scheme>/train.csv.gz, valid.csv.gz, test.csv.gz
[mapping/nodeidx2id.csv.gz]      a heading, then each vertex with the user's id
"""

from __future__ import annotations

import gzip
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.edges import EdgeStream
from atta.partition.importers.options import ImportOptions

__all__ = ["read"]

_SPLITS = {"train": "train", "valid": "val", "test": "test"}
_ROWS = 1 << 16

Array = npt.NDArray[Any]


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder of one graph (that holds ``raw/`` and ``split/``)."""
    raw = source / "raw"
    if (raw / "num-node-dict.csv.gz").exists():
        raise DataError(raw, "a heterogeneous OGB graph; only homogeneous ones are imported")
    counts = _read(raw / "num-node-list.csv.gz", np.int64).reshape(-1)
    if len(counts) != 1:
        raise DataError(raw / "num-node-list.csv.gz", f"holds {len(counts)} graphs; only single graphs are imported")
    out.add_nodes(NODE_TYPE, int(counts[0]), ids=_ids(source / "mapping"))
    _stream_features(raw / "node-feat.csv.gz", out, options, int(counts[0]))
    _add_columns(raw, out)
    for name, rows in _splits(source / "split").items():
        out.add_split(name, rows)
    with EdgeStream(out, EDGE_TYPE, options) as edges:
        for rows in _blocks(raw / "edge.csv.gz", np.dtype(np.int64)):
            if rows.shape[1] != 2:
                raise DataError(raw / "edge.csv.gz", f"{rows.shape[1]} columns instead of 2")
            edges.append(rows[:, 0], rows[:, 1])


def _ids(folder: Path) -> Array | None:
    """The users' ids, where the mapping folder has them as numbers; other mappings (of papers, of products) are left alone."""
    path = folder / "nodeidx2id.csv.gz"
    if not path.exists():
        return None
    pairs = np.concatenate(list(_blocks(path, np.dtype(np.int64), skip=1)) or [np.empty((0, 2), np.int64)])
    if pairs.shape[1] != 2 or not np.array_equal(pairs[:, 0], np.arange(len(pairs))):
        raise DataError(path, "wanted are two columns, the vertices in order and their ids")
    return np.asarray(pairs[:, 1])


def _add_columns(raw: Path, out: GraphWriter) -> None:
    if (raw / "node-label.csv.gz").exists():
        labels = _read(raw / "node-label.csv.gz", np.float64)
        labels = labels[:, 0] if labels.shape[1] == 1 else labels
        # Unlabelled vertices are written as nan.
        out.add_labels(np.nan_to_num(labels, nan=-1).astype(np.int64))
    if (raw / "node_year.csv.gz").exists():
        out.add_table("node_year", _read(raw / "node_year.csv.gz", np.int64)[:, 0])


def _stream_features(path: Path, out: GraphWriter, options: ImportOptions, count: int) -> None:
    if not path.exists():
        return
    options.progress.stage("features", count)
    table = None
    for rows in _blocks(path, np.dtype(np.float32)):
        if table is None:
            table = out.open_table("x", np.float32, rows.shape[1:])
        values = rows
        if options.normalize_features:
            total = np.abs(rows).sum(axis=1, keepdims=True)
            values = rows / np.where(total == 0, np.float32(1), total)
        table.append(values)
        options.progress.advance(len(rows))


def _splits(folder: Path) -> dict[str, Array]:
    schemes = sorted(p for p in folder.glob("*") if p.is_dir()) if folder.is_dir() else []
    if not schemes:
        return {}
    if len(schemes) > 1:
        raise DataError(folder, f"holds {len(schemes)} splitting schemes; leave one")
    found = {name: schemes[0] / f"{theirs}.csv.gz" for theirs, name in _SPLITS.items()}
    return {name: _read(path, np.int64)[:, 0] for name, path in found.items() if path.exists()}


def _read(path: Path, dtype: Any) -> Array:
    blocks = list(_blocks(path, np.dtype(dtype)))
    return np.concatenate(blocks) if blocks else np.empty((0, 2), dtype)


def _blocks(path: Path, dtype: np.dtype[Any], *, skip: int = 0) -> Iterator[Array]:
    """Yield rows [n, columns] of a gzipped csv file, its first ``skip`` lines left out; raises DataError."""
    try:
        with gzip.open(path, "rb") as raw, io.TextIOWrapper(raw, "ascii") as text, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data", category=UserWarning)
            for _ in range(skip):
                text.readline()
            while True:
                rows = np.loadtxt(text, dtype=dtype, delimiter=",", ndmin=2, max_rows=_ROWS, comments=None)
                if len(rows):
                    yield rows
                if len(rows) < _ROWS:
                    return
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(path, f"not a readable csv.gz file: {error}") from None
