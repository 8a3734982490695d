"""The Planetoid files ``ind.NAME.{x,y,tx,ty,allx,ally,graph,test.index}`` (Yang et al., 2016), or a folder in the neutral
npz layout. Edges become undirected: both directions, each once, without self-loops."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from atta.errors import DataError, blaming
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers import npz
from atta.partition.importers.reading.filling import add_edges, add_features
from atta.partition.importers.reading.pickles import load_inert
from atta.partition.importers.reading.source import Array, Ids, ImportOptions

# The public split: the 500 vertices after the training vertices are for validation.
_VAL = 500
_MATRIX = (csr_array, np.ndarray)
_KINDS = {"y": np.ndarray, "tx": _MATRIX, "ty": np.ndarray, "allx": _MATRIX, "ally": np.ndarray, "graph": dict}
"""What the files hold, by the ends of their names."""


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import a folder of ``ind.NAME.*`` files, or the path ``FOLDER/ind.NAME`` where a folder holds several graphs."""
    folder = source if source.is_dir() else source.parent
    if source.is_dir() and (folder / "graph.npz").exists():
        npz.read(source, out, options)
        return
    stem = _stem(source)
    parts = {name: _part(folder / f"{stem}.{name}", kinds) for name, kinds in _KINDS.items()}
    test_rows = _test_index(folder / f"{stem}.test.index")
    path = folder / f"{stem}.graph"
    features, labels, split_rows = _assemble(folder / f"{stem}.tx", parts, test_rows)
    count = features.shape[0]
    out.add_nodes(NODE_TYPE, count)
    add_features(out, features, NODE_TYPE, options)
    out.add_labels(labels)
    train = len(parts["y"])
    out.add_split("train", np.arange(train))
    out.add_split("val", np.arange(train, min(train + _VAL, len(parts["ally"]))))
    out.add_split("test", split_rows)
    add_edges(out, EDGE_TYPE, _edges(path, parts["graph"], count), options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a folder with ``ind.NAME.graph``, or that file."""
    return fnmatch(path.name, "ind.*.graph") if head else any(path.glob("ind.*.graph"))


def _stem(source: Path) -> str:
    if not source.is_dir():
        return source.name.removesuffix(".graph")
    names = sorted(p.name.removesuffix(".graph") for p in source.glob("ind.*.graph"))
    if len(names) != 1:
        raise DataError(source, f"holds {len(names)} graphs named ind.NAME.graph; name one as {source}/ind.NAME")
    return names[0]


def _part(path: Path, kinds: Any) -> Any:
    part = load_inert(path)
    if not isinstance(part, kinds):
        raise DataError(path, f"refused: it holds a {type(part).__name__}")
    return part


def _test_index(path: Path) -> Ids:
    try:
        rows = np.array([int(line) for line in path.read_text().split()], dtype=np.int64)
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except (ValueError, OverflowError) as error:
        raise DataError(path, f"not a list of numbers: {error}") from None
    if len(rows) == 0 or rows.min() < 0 or len(np.unique(rows)) != len(rows):
        raise DataError(path, "the test rows are not distinct non-negative numbers")
    return rows


def _assemble(path: Path, parts: dict[str, Any], test_rows: Ids) -> tuple[csr_array, Ids, Ids]:
    """Put the test vertices at their rows; vertices of the test range that have no data get zeros and the label -1."""
    allx, tx, ally, ty = parts["allx"], parts["tx"], parts["ally"], parts["ty"]
    first, last = allx.shape[0], int(test_rows.max())
    if tx.shape[0] != len(test_rows) or len(ty) != len(test_rows) or len(ally) != first or test_rows.min() < first:
        raise DataError(path, "the numbers of features, labels and test rows do not fit together")
    place = np.full(last + 1 - first, -1)
    place[test_rows - first] = np.arange(len(test_rows))
    padded = vstack([tx, csr_array((1, tx.shape[1]), dtype=tx.dtype)], format="csr")[place]
    labels = np.full(last + 1, -1, np.int64)
    for name, one_hot in (("ally", ally), ("ty", ty)):
        if (np.count_nonzero(one_hot, axis=1) > 1).any():
            raise DataError(path.with_suffix(f".{name}"), "a vertex has several labels; only single ones are imported")
    labels[:first] = _classes(ally)
    labels[test_rows] = _classes(ty)
    return csr_array(vstack([allx, padded], format="csr")), labels, test_rows


def _classes(one_hot: Array) -> Ids:
    return np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1).astype(np.int64)


def _edges(path: Path, lists: dict[Any, Any], count: int) -> tuple[Ids, Ids]:
    with blaming(DataError, path, "not a dictionary of adjacency lists", of=(TypeError, ValueError, OverflowError)):
        sizes, near, far = [len(v) for v in lists.values()], list(lists), [u for v in lists.values() for u in v]
        if any(type(vertex) is not int for vertex in (*near, *far)):  # numpy would cut fractions
            raise TypeError("a vertex that is not a number")
        one, other = np.repeat(np.array(near, np.int64), sizes), np.array(far, np.int64)
    if len(one) and (min(one.min(), other.min()) < 0 or max(one.max(), other.max()) >= count):
        raise DataError(path, f"names vertices outside 0..{count - 1}")
    keys = np.unique(np.concatenate([one * count + other, other * count + one])[np.tile(one != other, 2)])
    return keys // count, keys % count
