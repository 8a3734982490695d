"""Atta's names for the types and tensors of DGL's graphs; and ``python -m atta.partition.importers.reading.dgl_tensors
FILE``, the process that loads a file of DGL.

Its standard output gets a line of JSON, and after it the bytes of all arrays in the order of the line:

    {"nodes": [[TYPE, VERTICES, TENSORS], ...], "edges": [["SOURCE:RELATION:TARGET", EDGES, TENSORS], ...],
     "whole": TENSORS}

TENSORS are ``[NAME, DTYPE, SHAPE]`` each. SHAPE is null if numpy lacks the dtype; no bytes follow for such a tensor. The
arrays of an edge type begin with int64 sources and destinations [EDGES]. The line is ``{"error": CAUSE}`` if DGL refuses
the file.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from atta.errors import DataError
from atta.observe.machine.ending import tethered
from atta.observe.packages import load
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.filling import add_edges, add_node_array, add_node_rows
from atta.partition.importers.reading.rows import FileRows
from atta.partition.importers.reading.source import Array, ImportOptions, first_line, offered_ids, state_classes
from atta.partition.names import join_edge_type

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
    with these. Raises DataError naming ``path`` if these cannot be the types of a graph."""

    def __init__(self, path: Path, node_types: Iterable[str], edge_types: Iterable[str]) -> None:
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


def add_tensors(
    where: Path, out: GraphWriter, node_type: str, tensors: Mapping[str, Array], options: ImportOptions
) -> None:
    """Write the tensors of a node type as tables, and masks as splits. Refuse those whose name no table can have."""
    named = table_names({name: rows.dtype for name, rows in tensors.items()})
    for name, rows in tensors.items():
        table = named.get(name, name)
        if name.endswith("_mask") or options.is_table_name(table):
            add_node_array(out, node_type, name, rows, options, where=where, table=table)
        else:
            options.refuse(where, name, _NO_NAME)


def edge_tables(where: Path | None, tables: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """The arrays or ``FileRows`` among ``tables`` that become edge tables. Refuse those whose name none can have, as
    what ``where`` holds, or the file of the rows. An array of weights or times in a column becomes a vector."""
    found = {}
    for name, rows in tables.items():
        if not options.is_table_name(name):
            why = _NO_NAME if name != "_ID" else "edges are identified by their positions"
            options.refuse(where or rows.path, name, why)
        elif name in _SCALARS and isinstance(rows, np.ndarray) and rows.size == len(rows):
            found[name] = rows.reshape(-1)
        else:
            found[name] = rows
    return found


def read_file(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file of one graph ``source``, which a process of its own loads."""
    with _sent(source) as stream:
        _take(source, stream, out, options)


@contextmanager
def _sent(source: Path) -> Iterator[IO[bytes]]:
    command, null = tethered(["-m", "atta.partition.importers.reading.dgl_tensors", str(source)]), subprocess.DEVNULL
    with subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null) as child:
        assert child.stdout is not None
        try:
            yield child.stdout
        except EOFError:
            cause = f"not readable: it ended the process that called dgl.load_graphs (exit status {child.wait()})"
            raise DataError(source, cause) from None
        except BaseException:
            child.kill()
            raise


def _take(source: Path, stream: IO[bytes], out: GraphWriter, options: ImportOptions) -> None:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    said = json.loads(line)
    if "error" in said:
        raise DataError(source, said["error"])
    names = TypeNames(source, [t for t, *_ in said["nodes"]], [key for key, *_ in said["edges"]])
    for theirs, count, tensors in said["nodes"]:
        node_type, frame = names.nodes[theirs], _frame(source, stream, tensors, options)
        out.add_nodes(node_type, count, ids=offered_ids(source, "_ID", frame.pop("_ID", None), count, options))
        add_tensors(source, out, node_type, frame, options)
    for key, count, tensors in said["edges"]:
        src, dst = (_array(stream, "<i8", [count]) for _ in range(2))
        frame = _frame(source, stream, tensors, options)
        if "_ID" in frame and np.array_equal(frame["_ID"], np.arange(count)):
            del frame["_ID"]  # the positions are these numbers already
        add_edges(out, names.edges[key], (src, dst), options, edge_tables(source, frame, options))
    whole = _frame(source, stream, said["whole"], options)
    if (stated := whole.pop("num_classes", None)) is not None:
        state_classes(out, source, stated.item() if stated.size == 1 else stated.tolist())
    for name in whole:
        options.refuse(source, name, "it is a tensor of the whole graph")


def _frame(source: Path, stream: IO[bytes], tensors: list[Any], options: ImportOptions) -> dict[str, Array]:
    found = {}
    for name, dtype, shape in tensors:
        if shape is None:
            options.refuse(source, name, f"there are no tables of {dtype}")
        else:
            found[name] = _array(stream, dtype, shape)
    return found


def _array(stream: IO[bytes], dtype: str, shape: list[int]) -> Array:
    rows: Array = np.empty(shape, dtype)
    if stream.readinto(rows.reshape(-1).view(np.uint8).data) < rows.nbytes:  # type: ignore[attr-defined]
        raise EOFError
    return rows


def require_dgl(what: str) -> Any:
    """Import DGL; raises ConfigError naming the extra that ``what`` needs."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    return load(what, "dgl", "torch")


def send(path: str, out: BinaryIO) -> None:
    """Write the graph in the file ``path``, or why it is not read."""
    arrays: list[Array] = []
    try:
        said = _described(path, arrays)
    except Exception as error:  # DGL's own errors have no common base, and their messages are stack traces
        said = {"error": f"not readable by dgl.load_graphs: {first_line(error)}"}
    out.write(json.dumps(said).encode() + b"\n")
    arrays.reverse()
    while arrays:  # each is freed once it is written, because the reader keeps it
        out.write(arrays.pop().reshape(-1).view(np.uint8).data)


def _described(path: str, arrays: list[Array]) -> dict[str, Any]:
    graphs, whole = require_dgl("importing DGL's graphs").load_graphs(path)
    if len(graphs) != 1:
        return {"error": f"holds {len(graphs)} graphs; only single graphs are imported"}
    graph = graphs[0]
    nodes = [[t, graph.num_nodes(t), _tensors(graph.nodes[t].data, arrays)] for t in graph.ntypes]
    edges = []
    for relation in graph.canonical_etypes:
        ends = [rows.numpy().astype(np.int64, copy=False) for rows in graph.edges(etype=relation, order="eid")]
        arrays += ends
        edges.append([":".join(relation), len(ends[0]), _tensors(graph.edges[relation].data, arrays)])
    return {"nodes": nodes, "edges": edges, "whole": _tensors(whole, arrays)}


def _tensors(frame: Mapping[str, Any], arrays: list[Array]) -> list[tuple[str, str, tuple[int, ...] | None]]:
    """Return name, dtype and shape of the tensors of a frame, and append those that numpy can hold to ``arrays``."""
    found: list[tuple[str, str, tuple[int, ...] | None]] = []
    for name, tensor in frame.items():
        try:
            rows = np.ascontiguousarray(tensor.numpy())
        except (TypeError, RuntimeError):
            found.append((str(name), str(tensor.dtype), None))
        else:
            arrays.append(rows)
            found.append((str(name), rows.dtype.str, tuple(tensor.shape)))
    return found


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # that a damaged file ends this process is nothing to look into
    answer = os.dup(1)
    os.dup2(2, 1)  # the libraries print on standard output
    with os.fdopen(answer, "wb") as stream:
        send(sys.argv[1], stream)
