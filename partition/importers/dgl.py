"""A file of one graph that ``dgl.save_graphs`` wrote, the ``NAME.json`` of DistDGL's partitions, the ``metadata.json``
of a graph in chunks, the ``meta.yaml`` of a ``CSVDataset``, or the ``metadata.yaml`` of GraphBolt's data sets; of all but the
first also their folder. ``reading/dgl_sets.py`` and ``reading/graphbolt.py`` describe the last three.

A process of its own loads a file of ``dgl.save_graphs``, because a damaged one can end the process that calls DGL.
``ndata["_ID"]`` has the user ids if its numbers are distinct. Edges of DistDGL's parts return to their original order. If no
file has the original numbers, the import takes DistDGL's (per type) and tells the user. The partition of each vertex becomes
the node table ``part``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.observe.extras import need
from atta.observe.machine.ending import tethered
from atta.partition.graph import EdgeAppender, GraphWriter
from atta.partition.importers.reading.dgl_folder import (
    PartsFolder,
    called_parts,
    described_parts,
    original_edges,
    original_nodes,
)
from atta.partition.importers.reading.dgl_sets import describes_chunks, describes_csv_set, read_chunks, read_csv_set
from atta.partition.importers.reading.dgl_tensors import TypeNames, add_tensor, edge_tensor, table_names
from atta.partition.importers.reading.filling import add_edges
from atta.partition.importers.reading.graphbolt import describes_graphbolt, read_graphbolt
from atta.partition.importers.reading.source import ImportOptions, head_of, offered_ids, state_classes
from atta.partition.schema import TableSpec

_GRAPHS = 0xDD2E4FF046B4A13F.to_bytes(8, "little")
"""What files of ``dgl.save_graphs`` begin with."""
_DESCRIBED: dict[Callable[[Path, GraphWriter, ImportOptions], None], Callable[[Path], bool]] = {
    read_chunks: describes_chunks,
    read_csv_set: describes_csv_set,
    read_graphbolt: describes_graphbolt,
}
"""Who reads descriptions of graphs, and whether one is of its kind. None of them needs DGL."""


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file or folder of one graph."""
    for reader, recognised in _DESCRIBED.items():
        if recognised(source):
            reader(source, out, options)
            return
    need("importing DGL's graphs", "dgl", "torch")
    if source.is_file() and (source.suffix == ".bin" or head_of(source).startswith(_GRAPHS)):
        read_file(source, out, options)
    else:
        read_parts(described_parts(source) or source, out, options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a file of ``dgl.save_graphs``, or the description of DistDGL's partitions or of a data set."""
    if head.startswith(_GRAPHS) or any(recognised(path) for recognised in _DESCRIBED.values()):
        return True
    return described_parts(path) is not None


def called(path: Path) -> str | None:
    """What ``path`` is, for people, where the sign of the format says less."""
    return None if (parts := described_parts(path)) is None else called_parts(parts)


Array = npt.NDArray[Any]


def read_file(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file of one graph ``source``."""
    with _sent(source) as stream:
        _read(source, stream, out, options)


@contextmanager
def _sent(source: Path) -> Iterator[IO[bytes]]:
    """What the child process writes; raises DataError if the process dies before the end."""
    command, null = tethered(["-m", "atta.partition.importers.reading.dgl_child", str(source)]), subprocess.DEVNULL
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


def _read(source: Path, stream: IO[bytes], out: GraphWriter, options: ImportOptions) -> None:
    """Write the graph that ``child.py`` sends; raises EOFError if it ends too early."""
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
        tables = table_names({name: rows.dtype for name, rows in frame.items()})
        for name, rows in frame.items():
            add_tensor(source, out, node_type, name, rows, tables.get(name), options=options)
    for key, count, tensors in said["edges"]:
        src, dst = (_array(stream, "<i8", [count]) for _ in range(2))
        columns = {}
        for name, rows in _frame(source, stream, tensors, options).items():
            if name == "_ID" and np.array_equal(rows, np.arange(count)):
                continue  # the positions are these numbers already
            if (values := edge_tensor(source, name, rows, options)) is not None:
                columns[name] = values
        add_edges(out, names.edges[key], (src, dst), options, columns)
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


PART = "part"
"""The node table that has the partition of each vertex."""


def read_parts(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the partition configuration ``source``, part after part."""
    if options.undirected or options.reverse:
        raise ConfigError("dgl: a partitioned graph is taken as it is, without reverse edges added")
    folder = PartsFolder.open(source)
    _declare_nodes(folder, out, options)
    originals = original_edges(folder, options)
    if originals is None:
        options.notes.append("edges are numbered as DistDGL has renumbered them: no eid_map beside the parts")
    sinks = {
        key: _Edges(source, out, edge_type, folder.starts(key), None if originals is None else originals[key])
        for key, edge_type in folder.names.edges.items()
    }
    tables: dict[tuple[str, str], list[Array]] = {}
    options.progress.stage("parts", folder.num_parts)
    for part in range(folder.num_parts):
        of_nodes, of_edges = folder.features(part, options)
        for key, rows in of_nodes.items():
            tables.setdefault(key, []).append(rows)
        _add_edges(folder, part, of_edges, sinks, options)
        options.progress.advance(1)
    for sink in sinks.values():
        sink.close()
    named = {
        t: table_names({name: pieces[0].dtype for (of, name), pieces in tables.items() if of == t})
        for t in folder.names.nodes
    }
    for (node_type, name), pieces in tables.items():
        mine = folder.names.nodes[node_type]
        if name == PART:
            options.refuse(source, name, "the table of this name has the partitions")
            continue
        try:
            rows = np.concatenate(pieces)
        except ValueError as error:
            raise DataError(source, f"{name!r} of {node_type!r} differs between parts: {error}") from None
        if len(rows) != out.count(mine):
            raise DataError(source, f"{name!r} of {node_type!r} has {len(rows)} rows for {out.count(mine)} vertices")
        add_tensor(source, out, mine, name, rows, named[node_type].get(name), options=options)


def _declare_nodes(folder: PartsFolder, out: GraphWriter, options: ImportOptions) -> None:
    originals = original_nodes(folder, options)
    if originals is None:
        options.notes.append("vertex ids are the numbers that DistDGL has given: no nid_map beside the parts")
    for theirs, node_type in folder.names.nodes.items():
        starts = folder.starts(theirs)
        out.add_nodes(node_type, int(starts[-1]), ids=None if originals is None else originals[theirs])
        out.add_table(PART, np.repeat(np.arange(folder.num_parts, dtype=np.int32), np.diff(starts)), node_type)


class _Edges:
    """Takes the edges of one type part after part. Writes them in the order of their original numbers, if these are
    known."""

    def __init__(self, path: Path, out: GraphWriter, edge_type: str, starts: Array, original: Array | None) -> None:
        self._path, self._out, self._type = path, out, edge_type
        self._starts, self._original = starts, original
        self._appender: EdgeAppender | None = None
        self._ends: dict[str, Array] = {}
        self._whole: dict[str, Array] = {}
        self._specs: dict[str, TableSpec] | None = None

    def add(self, part: int, numbers: Array, columns: dict[str, Array], rows_of: dict[str, Array]) -> None:
        """Take a part's edges: their ``numbers`` within the type, ``src`` and ``dst`` by edge, and tables by number."""
        first, last = int(self._starts[part]), int(self._starts[part + 1])
        order = np.argsort(numbers, kind="stable")
        if not np.array_equal(numbers[order], np.arange(first, last)):
            raise DataError(self._path, f"part {part}: its edges {self._type!r} are not numbered {first} to {last - 1}")
        if first == last:
            return
        for name, rows in rows_of.items():
            if len(rows) != last - first:
                raise DataError(self._path, f"part {part}: {name!r} has {len(rows)} rows for {last - first} edges")
        specs = {name: TableSpec(rows.dtype.newbyteorder("<").str, rows.shape[1:]) for name, rows in rows_of.items()}
        if self._specs not in (None, specs):
            raise DataError(
                self._path, f"part {part}: the tensors of the edges {self._type!r} differ from other parts'"
            )
        self._specs = specs
        ends = {name: rows[order] for name, rows in columns.items()}
        if self._original is None:
            self._append(ends, rows_of)
        else:
            self._scatter(self._original[first:last], ends, self._ends)
            self._scatter(self._original[first:last], rows_of, self._whole)

    def _append(self, ends: dict[str, Array], tables: dict[str, Array]) -> None:
        if self._appender is None:
            self._appender = self._out.open_edges(self._type, self._specs)
        self._appender.append(ends["src"], ends["dst"], tables)

    def _scatter(self, places: Array, columns: dict[str, Array], whole: dict[str, Array]) -> None:
        for name, rows in columns.items():
            if name not in whole:
                whole[name] = np.empty((int(self._starts[-1]), *rows.shape[1:]), rows.dtype)
            whole[name][places] = rows

    def close(self) -> None:
        """Write what has been collected."""
        if self._ends:
            self._append(self._ends, self._whole)
        elif self._appender is None:
            self._out.open_edges(self._type)


def _add_edges(
    folder: PartsFolder,
    part: int,
    tables: Mapping[tuple[str, str], Array],
    sinks: Mapping[str, _Edges],
    options: ImportOptions,
) -> None:
    """Pass the edges that a part owns to the sinks of their types."""
    where = folder.part_folder(part)
    kind, numbers, source, target = folder.owned_edges(part, options)
    for number, (key, sink) in enumerate(sinks.items()):
        mine = kind == number
        rows_of = {}
        for (of_type, name), rows in tables.items():
            if of_type == key and (values := edge_tensor(where, name, rows, options)) is not None:
                rows_of[name] = values
        columns = {"src": source[mine], "dst": target[mine]}
        sink.add(part, numbers[mine], columns, rows_of)
