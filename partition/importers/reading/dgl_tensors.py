"""Atta's names for the types and tensors of DGL's graphs."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.filling import add_node_array, add_node_rows
from atta.partition.importers.reading.rows import FileRows
from atta.partition.importers.reading.source import ImportOptions
from atta.partition.schema import join_edge_type

Array = npt.NDArray[Any]
_TABLES = {"feat": "x", "label": "y", "labels": "y"}
_ONLY = ("_N", "_V")
"""DGL's names of the only node type: of graphs, and of its CSV files."""
_SCALARS = ("weight", "time")
_NO_NAME = "tables cannot have this name"


def table_names(dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, str]:
    """Return the names of the node tables for the tensors of a node type, masks aside. ``feat`` is the table ``x``, and
    ``label`` or ``labels`` the table ``y``, unless another tensor is. ``feat`` of whole numbers keeps its name: they
    are codes, which the float32 of ``x`` would round."""
    named = {name: name for name in dtypes if not name.endswith("_mask")}
    for name, table in _TABLES.items():
        if name in named and table not in named.values() and not (table == "x" and dtypes[name].kind in "iub"):
            named[name] = table
    return named


class TypeNames:
    """Atta's names of DGL's types, by DGL's names (``"a:r:b"`` for edges). They are given in the order of their numbers, or
    with these."""

    def __init__(self, path: Path, node_types: Iterable[str], edge_types: Iterable[str]) -> None:
        """Raise DataError naming ``path`` if these cannot be the types of a graph."""
        try:
            nodes, edges = map(_in_order, (node_types, edge_types))
            self.nodes = {t: NODE_TYPE if len(nodes) == 1 and t in _ONLY else t for t in nodes}
            self.edges = {key: self._edge_type(key) for key in edges}
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise DataError(path, f"its types are not readable: {error}") from None

    def _edge_type(self, key: str) -> str:
        source, relation, target = edge_ends(key, self.nodes)
        plain = len(self.nodes) == 1 and source in _ONLY and relation == "_E"
        return EDGE_TYPE if plain else join_edge_type(self.nodes[source], relation, self.nodes[target])


def _in_order(types: Iterable[str]) -> list[str]:
    return sorted(types, key=lambda t: types[t]) if isinstance(types, Mapping) else list(dict.fromkeys(types))


def edge_ends(key: str, node_types: Container[str]) -> tuple[str, str, str]:
    """The three names in DGL's ``"a:r:b"``; raises ValueError unless these are told apart by the node types."""
    words = key.split(":")
    cuts = [(i, j) for j in range(2, len(words)) for i in range(1, j)]
    split = [(":".join(words[:i]), ":".join(words[i:j]), ":".join(words[j:])) for i, j in cuts]
    (found,) = [ends for ends in split if ends[0] in node_types and ends[2] in node_types]
    return found


def arrays(source: Path, frame: Mapping[str, Any], options: ImportOptions) -> dict[str, Array]:
    """Return the tensors of a frame as numpy arrays. Refuse tensors of dtypes that numpy lacks."""
    found = {}
    for name, rows in frame.items():
        try:
            found[str(name)] = rows.numpy()
        except (TypeError, RuntimeError):
            options.refuse(source, name, f"there are no tables of {rows.dtype}")
    return found


def add_node_tables(
    where: Path, out: GraphWriter, node_type: str, tables: Mapping[str, FileRows], options: ImportOptions
) -> bool:
    """Write the tensors of a node type that are read block by block; returns whether labels are among them. Refuse those
    whose name no table can have."""
    named = table_names({name: rows.dtype for name, rows in tables.items()})
    for name, rows in tables.items():
        table = named.get(name, name)
        if options.is_table_name(table):
            add_node_rows(out, node_type, name, rows, table, options)
        else:
            options.refuse(where, name, _NO_NAME)
    return "y" in named.values()


def add_tensor(  # noqa: PLR0917 - the tensor, and where it goes
    where: Path, out: GraphWriter, node_type: str, name: str, rows: Array, table: str | None, *, options: ImportOptions
) -> None:
    """Write the tensor ``name`` of a node type as ``table`` or, if it is a mask, as splits."""
    if name.endswith("_mask") or (table is not None and options.is_table_name(table)):
        add_node_array(out, node_type, name, rows, options, where=where, table=table or name)
    else:
        options.refuse(where, name, _NO_NAME)


def edge_table(where: Path, name: str, options: ImportOptions) -> bool:
    """Whether the tensor ``name`` of edges becomes a table of this name. Refuse it if it cannot."""
    if not options.is_table_name(name):
        options.refuse(where, name, _NO_NAME if name != "_ID" else "edges are identified by their positions")
        return False
    return True


def edge_tensor(where: Path, name: str, rows: Array, options: ImportOptions) -> Array | None:
    """Return the rows of an edge table, None for a tensor that is left out. A weight or time in a column becomes a
    vector."""
    if not edge_table(where, name, options):
        return None
    return rows.reshape(-1) if name in _SCALARS and rows.size == len(rows) else rows


def require_dgl(what: str) -> Any:
    """Import DGL; raises ConfigError naming the extra that ``what`` needs."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    return load(what, "dgl", "torch")
