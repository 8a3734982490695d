"""Atta's names for the types and tensors of DGL's graphs, and the original numbers of DistDGL's vertices and edges. These
are in ``nid_map`` and ``eid_map`` beside the configuration, in ``orig_nids.dgl`` and ``orig_eids.dgl`` in each part's folder,
or in ``orig_id`` of each part's graph."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.observe.extras import load
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.filling import add_node_array, add_node_rows
from atta.partition.importers.reading.pickles import load_torch
from atta.partition.importers.reading.rows import FileRows, load_array, load_npz
from atta.partition.importers.reading.source import ImportOptions, as_ids, distinct_ids, first_line
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
    """Atta's names of DGL's types, by DGL's names (``"a:r:b"`` for edges) and in the order of their numbers."""

    def __init__(self, path: Path, node_types: Mapping[str, int], edge_types: Mapping[str, int]) -> None:
        """Raise DataError naming ``path`` if these cannot be the types of a graph."""
        try:
            self._name(node_types, edge_types)
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise DataError(path, f"its types are not readable: {error}") from None

    def _name(self, node_types: Mapping[str, int], edge_types: Mapping[str, int]) -> None:
        single = len(node_types) == 1
        self.nodes = {
            t: NODE_TYPE if single and t in _ONLY else t for t in sorted(node_types, key=lambda t: node_types[t])
        }
        self.edges = {}
        for key in sorted(edge_types, key=lambda e: edge_types[e]):
            source, relation, target = edge_ends(key, self.nodes)
            plain = single and source in _ONLY and relation == "_E"
            self.edges[key] = EDGE_TYPE if plain else join_edge_type(self.nodes[source], relation, self.nodes[target])


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


Ids = npt.NDArray[np.int64]
_SUFFIXES = (".npy", ".npz", ".pt", ".dgl", ".bin")


class Folder(Protocol):
    """DistDGL's partitions."""

    @property
    def path(self) -> Path:
        """The partition configuration."""

    @property
    def names(self) -> TypeNames:
        """Names of its types."""

    @property
    def num_parts(self) -> int:
        """Number of parts."""

    def starts(self, key: str) -> Array:
        """The first number of each part within a type, then the end: [parts + 1]."""

    def part_folder(self, part: int) -> Path:
        """The folder of a part's files."""

    @property
    def of_graphbolt(self) -> bool:
        """Whether the parts' graphs are GraphBolt's, which keep no original numbers."""

    def graph(self, part: int) -> tuple[Any, Any]:
        """A part's graph and partition book."""


def original_nodes(folder: Folder, options: ImportOptions) -> dict[str, Ids] | None:
    """Return the original number of every vertex by DGL's types, None if they are not stated; raises DataError."""
    where, found = _find(folder, "nid_map", "orig_nids.dgl", folder.names.nodes, options)
    if found is None:
        return None
    return {
        t: distinct_ids(where, f"the original ids of {t!r}", values, int(folder.starts(t)[-1]))
        for t, values in found.items()
    }


def original_edges(folder: Folder, options: ImportOptions) -> dict[str, Ids] | None:
    """Return the original number of every edge by DGL's types, None if they are not stated. Raises DataError for
    numbers that are not positions: edges in graph folders are identified by their positions."""
    where, found = _find(folder, "eid_map", "orig_eids.dgl", folder.names.edges, options)
    if found is None:
        return None
    places = {}
    for key, values in found.items():
        total = int(folder.starts(key)[-1])
        ids = distinct_ids(where, f"the original edge ids of {key!r}", values, total)
        if total and (ids.min() < 0 or ids.max() >= total):
            why = f"the original edge ids of {key!r} are not 0 to {total - 1}, and edges have no ids but positions"
            options.refuse(where, where.name, why)
            return None
        places[key] = ids
    return places


def _find(
    folder: Folder, name: str, in_parts: str, known: Mapping[str, str], options: ImportOptions
) -> tuple[Path, dict[str, Array] | None]:
    """Return the place of the original numbers, and the numbers by DGL's types."""
    beside = [path for suffix in _SUFFIXES if (path := folder.path.parent / f"{name}{suffix}").exists()]
    parts = [path for p in range(folder.num_parts) if (path := folder.part_folder(p) / in_parts).exists()]
    if len(beside) > 1 or (beside and parts):
        raise DataError(
            folder.path.parent, f"holds {', '.join(p.name for p in (*beside, *parts[:1]))}; leave one of them"
        )
    if beside:
        return beside[0], _by_type(beside[0], _load(beside[0]), known)
    if parts:
        if len(parts) < folder.num_parts:
            raise DataError(folder.path.parent, f"{in_parts} is missing in some parts")
        pieces = [_by_type(path, _load(path), known) for path in parts]
        return parts[0], {key: np.concatenate([piece[key] for piece in pieces]) for key in known}
    if folder.of_graphbolt:
        return folder.path, None
    return folder.path, _in_graphs(folder, known, of_nodes="nid" in name)


def _load(path: Path) -> Any:
    if path.suffix == ".npy":
        return load_array(path)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.suffix == ".pt":
        return load_torch(path)
    try:
        return require_dgl("importing DistDGL's partitions").data.utils.load_tensors(str(path))
    except ConfigError:
        raise
    except Exception as error:  # torch and DGL raise many unrelated types
        raise DataError(path, f"not readable: {first_line(error)}") from None


def _by_type(path: Path, value: Any, known: Iterable[str]) -> dict[str, Array]:
    """Return the arrays of a file by the type names of the configuration."""
    types = list(known)
    if not isinstance(value, Mapping):
        value = {types[0]: value} if len(types) == 1 else {}
    elif len(types) == 1 == len(value):
        value = {types[0]: next(iter(value.values()))}
    found: dict[str, Array] = {}
    for key, tensor in value.items():
        name = ":".join(key) if isinstance(key, tuple) else str(key)
        if name not in types:  # a relation alone
            name = next((t for t in types if f":{name}:" in t), name)
        found[name] = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    if set(found) != set(types):
        raise DataError(path, f"holds numbers of {', '.join(found) or 'no type'}; the graph has {', '.join(types)}")
    return found


def _in_graphs(folder: Folder, known: Mapping[str, str], *, of_nodes: bool) -> dict[str, Array] | None:
    """The tensors ``orig_id`` of the parts' graphs, in the order of DistDGL's numbers."""
    numbers = {key: np.zeros(int(folder.starts(key)[-1]), np.int64) for key in known}
    for part in range(folder.num_parts):
        graph, book = folder.graph(part)
        frame = graph.ndata if of_nodes else graph.edata
        if "orig_id" not in frame:
            return None
        inner = frame["inner_node" if of_nodes else "inner_edge"].bool()
        kind, rows = (book.map_to_per_ntype if of_nodes else book.map_to_per_etype)(frame["_ID"][inner])
        values = as_ids(folder.part_folder(part) / "graph.dgl", "orig_id", frame["orig_id"][inner].numpy())
        for number, key in enumerate(known):
            mine = (kind == number).numpy()
            numbers[key][rows.numpy()[mine]] = values[mine]
    return _per_type(numbers)


def _per_type(numbers: dict[str, Array]) -> dict[str, Array]:
    """Count from 0 in each type. With several types, DGL numbers the vertices (or edges) of all types together."""
    starts = np.concatenate([[0], np.cumsum([len(values) for values in numbers.values()])])
    spans = list(zip(numbers.items(), starts, starts[1:], strict=False))
    if not all(((values >= lo) & (values < hi)).all() for (_, values), lo, hi in spans):
        return numbers
    return {key: values - lo for (key, values), lo, _ in spans}
