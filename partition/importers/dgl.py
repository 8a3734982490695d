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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from atta.errors import DataError
from atta.observe.extras import need
from atta.observe.machine.ending import tethered
from atta.partition.graph import GraphWriter
from atta.partition.importers.reading.dgl_folder import called_parts, described_parts, read_parts
from atta.partition.importers.reading.dgl_sets import describes_chunks, describes_csv_set, read_chunks, read_csv_set
from atta.partition.importers.reading.dgl_tensors import TypeNames, add_tensors, edge_tables
from atta.partition.importers.reading.filling import add_edges
from atta.partition.importers.reading.graphbolt import describes_graphbolt, read_graphbolt
from atta.partition.importers.reading.source import Array, ImportOptions, head_of, offered_ids, state_classes

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
        with _sent(source) as stream:
            _read(source, stream, out, options)
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


def _read(source: Path, stream: IO[bytes], out: GraphWriter, options: ImportOptions) -> None:
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
