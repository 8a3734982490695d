"""What importers share: edges made undirected, feature matrices dense or sparse, arrays read without pickles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from atta.errors import ConfigError, DataError
from atta.partition.files import chunks
from atta.partition.graph import GraphWriter
from atta.partition.importers.options import ImportOptions
from atta.partition.schema import split_edge_type

__all__ = ["add_edges", "add_features", "as_csr", "load_array", "load_npz", "reverse_relation", "reverses_to_add"]

Array = npt.NDArray[Any]
_CHUNK_VALUES = 8 << 20


def load_array(path: Path) -> Array:
    """Memory-map an ``.npy`` file that holds no objects; raises DataError."""
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(path, f"not a readable array: {error}") from None
    return array


def load_npz(path: Path) -> dict[str, Array]:
    """Read an ``.npz`` file whose arrays hold no objects; raises DataError."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    except Exception as error:  # zipfile, zlib and numpy raise half a dozen unrelated types here
        raise DataError(path, f"not a readable npz archive: {error}") from None


def as_csr(arrays: Mapping[str, Array], path: Path) -> csr_array:
    """Check the arrays of a saved scipy CSR matrix and build it; raises DataError."""
    try:
        shape = tuple(int(n) for n in arrays["shape"])
        kind = arrays["format"].item() if "format" in arrays else b"csr"
        if kind not in (b"csr", "csr"):
            raise DataError(path, f"a sparse matrix in the format {kind!r}; only csr is read")
        matrix = csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        # Indices are used unchecked by compiled code later on.
        matrix.check_format(full_check=True)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(path, f"not a sparse matrix: {error}") from None
    return matrix


def add_features(out: GraphWriter, matrix: Any, node_type: str, options: ImportOptions, name: str = "x") -> None:
    """Write a dense array or a CSR matrix [n, d] as float32 rows, chunk by chunk."""
    rows, columns = matrix.shape[0], int(np.prod(matrix.shape[1:], dtype=np.int64))
    table = out.open_table(name, np.float32, matrix.shape[1:], node_type)
    options.progress.stage(f"features {node_type}", rows)
    dense: Callable[[int, int], Array] = (
        (lambda lo, hi: np.asarray(matrix[lo:hi], dtype=np.float32))
        if isinstance(matrix, np.ndarray)
        else (lambda lo, hi: matrix[lo:hi].toarray().astype(np.float32))
    )
    for lo, hi in chunks(rows, max(1, _CHUNK_VALUES // max(1, columns))):
        values = dense(lo, hi)
        if options.normalize_features and values.ndim == 2:
            total = np.abs(values).sum(axis=1, keepdims=True)
            values = values / np.where(total == 0, np.float32(1), total)
        table.append(values)
        options.progress.advance(hi - lo)


def add_edges(
    out: GraphWriter,
    edge_type: str,
    ends: tuple[Array, Array],
    options: ImportOptions,
    tables: Mapping[str, Array] | None = None,
) -> None:
    """Write an edge type from its (sources, destinations), and the reverses that ``options`` ask for.

    ``undirected``: edges inside one node type get their missing reverses appended (so that edge ids of the stored ones stay);
    edges between two types get a second edge type with the relation ``rev_<relation>``. ``reverse``: all get that.
    """
    (src, dst), tables = ends, dict(tables or {})
    options.progress.stage(f"edges {edge_type}", len(src))
    source, _, target = split_edge_type(edge_type)
    if options.undirected and source == target:
        extra = reverses_to_add(src, dst, tables.get("time"))
        src, dst = np.concatenate([src, dst[extra]]), np.concatenate([dst, src[extra]])
        tables = {name: np.concatenate([values, values[extra]]) for name, values in tables.items()}
    out.add_edges(edge_type, src, dst, **tables)
    if options.reverse or (options.undirected and source != target):
        out.add_edges(reverse_relation(edge_type), dst, src, **tables)
    options.progress.advance(len(src))


def reverse_relation(edge_type: str) -> str:
    """Return the edge type that holds the reverses of ``edge_type``."""
    source, relation, target = split_edge_type(edge_type)
    return f"{target}__rev_{relation}__{source}"


def reverses_to_add(src: Array, dst: Array, time: Array | None = None) -> npt.NDArray[np.int64]:
    """Return the positions of edges whose reverse is stored nowhere, each missing reverse once.

    With ``time`` edges are told apart by time as well: an event counts as reversed only by one of the same instant.
    """
    if len(src) == 0:
        return np.empty(0, np.int64)
    n = int(max(src.max(), dst.max())) + 1
    instants, moment = (1, 0) if time is None else _ranks(time)
    if n * n * instants >= 2**63:
        raise ConfigError(f"{n} vertices at {instants} instants are too many to add reverse edges")
    u, v = src.astype(np.int64), dst.astype(np.int64)
    forward, backward = (u * n + v) * instants + moment, (v * n + u) * instants + moment
    missing = np.flatnonzero((u != v) & ~np.isin(backward, forward))
    _, first = np.unique(backward[missing], return_index=True)
    return np.sort(missing[first])


def _ranks(time: Array) -> tuple[int, npt.NDArray[np.int64]]:
    values, ranks = np.unique(time, return_inverse=True)
    return len(values), ranks.astype(np.int64)
