"""One ``.npz`` with a graph as CSR matrices, as the sets for node classification of many papers have it.

adj_data, adj_indices, adj_indptr, adj_shape   the edges, from rows to columns; values other than 1 are the edge table
                                               ``weight``. Also ``adj_matrix.data``, ..., and the file of
                                               ``scipy.sparse.save_npz``: ``data``, ...
attr_data, ..., or attr_matrix                 the features ``x``, sparse or dense; also ``attr_matrix.data``, ...
labels                                         the labels ``y``
node_names                                     strings: the table ``name``
NAME_mask                                      splits

Other arrays are refused by name. Names and metadata are often Python objects. They are never loaded, and a note names
those that are left out for it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from atta.errors import DataError
from atta.partition.disk.files import open_regular
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.graph.strings import NAME, as_strings
from atta.partition.importers.reading.common import add_features, as_csr, first_line, name_bytes
from atta.partition.importers.reading.edges import add_edges
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import as_masks, state_classes

__all__ = ["holds_csr", "read_csr"]

Array = npt.NDArray[Any]
_PARTS = ("data", "indices", "indptr", "shape")
_OF_SCIPY = ("format", "_is_array")  # what its save_npz adds
_EDGES = ("adj_", "adj_matrix.", "")
_FEATURES = ("attr_", "attr_matrix.")
_DESCRIBING = ("node_names", "attr_names", "class_names", "idx_to_node", "idx_to_attr", "idx_to_class", "metadata")


def holds_csr(path: Path) -> bool:
    """Whether a file is an archive with the edges as a CSR matrix."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except Exception:  # zipfile raises half a dozen unrelated types for what is no archive
        return False
    return any({prefix + part for part in _PARTS} <= names for prefix in _EDGES)


def read_csr(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the archive ``source``."""
    arrays, objects = _load(source)
    edges = _take_matrix(source, arrays, _EDGES)
    if edges is None:
        raise DataError(source, "holds no edges as numbers: wanted are adj_data, adj_indices, adj_indptr and adj_shape")
    if edges.shape[0] != edges.shape[1]:
        raise DataError(source, f"the edges are a matrix {list(edges.shape)}, wanted is a square one")
    out.add_nodes(NODE_TYPE, edges.shape[0])
    _add_features(source, arrays, out, options)
    _add_stated(source, arrays, out)
    _leave_out(source, arrays, objects, options)
    weights = {} if (edges.data == 1).all() else {"weight": edges.data}
    src = np.repeat(np.arange(edges.shape[0]), np.diff(edges.indptr))
    add_edges(out, EDGE_TYPE, (src, edges.indices), options, weights)


def _add_stated(source: Path, arrays: dict[str, Array], out: GraphWriter) -> None:
    """Take labels, splits and names of the vertices out of ``arrays``."""
    count = out.count()
    if (labels := arrays.pop("labels", None)) is not None:
        out.add_labels(_one_each(source, "labels", labels, count))
    for name in [name for name in arrays if name.endswith("_mask")]:
        mask = _one_each(source, name, arrays.pop(name), count)
        for split, rows in as_masks(source, name, name.removesuffix("_mask"), mask).items():
            out.add_split(split, rows)
    if (names := as_strings("node_names", arrays.get("node_names"))) is not None:
        del arrays["node_names"]
        out.add_table(NAME, name_bytes(source, _one_each(source, "node_names", names, count).tolist()))
    if "class_names" in arrays:
        state_classes(out, source, arrays["class_names"].size)


def _load(path: Path) -> tuple[dict[str, Array], list[str]]:
    """The arrays of an archive, and the names of those that are Python objects."""
    arrays, objects = {}, []
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            for name in archive.files:
                try:
                    arrays[name] = archive[name]
                except ValueError as error:
                    if "allow_pickle" not in str(error):
                        raise
                    objects.append(name)
    except Exception as error:  # zipfile, zlib and numpy raise half a dozen unrelated types here
        raise DataError(path, f"not a readable npz archive: {first_line(error)}") from None
    return arrays, objects


def _take_matrix(path: Path, arrays: dict[str, Array], prefixes: tuple[str, ...]) -> csr_array | None:
    """Take the first CSR matrix of these names out of ``arrays``; None if there is none."""
    for prefix in prefixes:
        if all(prefix + part in arrays for part in _PARTS):
            taken = {part: arrays.pop(prefix + part) for part in (*_PARTS, *_OF_SCIPY) if prefix + part in arrays}
            return as_csr(taken, path)
    return None


def _add_features(path: Path, arrays: dict[str, Array], out: GraphWriter, options: ImportOptions) -> None:
    matrix = _take_matrix(path, arrays, _FEATURES)
    if matrix is None:
        matrix = arrays.pop("attr_matrix", None)
    if matrix is not None:
        add_features(out, _one_each(path, "features", matrix, out.count()), NODE_TYPE, options)


def _one_each(path: Path, what: str, rows: Any, count: int) -> Any:
    """``rows``, if there is one for each vertex; raises DataError."""
    if not rows.shape or rows.shape[0] != count:
        raise DataError(path, f"{what} has the shape {list(rows.shape)}, the graph has {count} vertices")
    return rows


def _leave_out(path: Path, arrays: dict[str, Array], objects: list[str], options: ImportOptions) -> None:
    """Refuse what is left, but for arrays that only describe the graph."""
    for name in [*arrays, *objects]:
        if name not in _DESCRIBING:
            why = "it holds Python objects, which are never loaded" if name in objects else "nothing says what it is"
            options.refuse(path, name, why)
    described = [name for name in [*arrays, *objects] if name in _DESCRIBING]
    options.dropped.update(options.drop & set(described))
    if noted := [name for name in described if name not in options.drop]:
        options.notes.append(f"left out: {', '.join(noted)}")
