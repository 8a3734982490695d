"""A ``.bin`` file of one graph that ``dgl.save_graphs`` wrote.

A process of its own loads it (``child.py``), because a damaged file can end the process that calls DGL. The arrays come
through a pipe.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.machine.ending import tethered
from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.tensors import TypeNames, add_tensor, edge_tensor, table_names
from atta.partition.importers.reading.edges import add_edges
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import offered_ids, state_classes

__all__ = ["read_file"]

Array = npt.NDArray[Any]


def read_file(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file of one graph ``source``."""
    with _sent(source) as stream:
        _read(source, stream, out, options)


@contextmanager
def _sent(source: Path) -> Iterator[IO[bytes]]:
    """What the child process writes; raises DataError if the process dies before the end."""
    command, null = tethered(["-m", "atta.partition.importers.dgl.child", str(source)]), subprocess.DEVNULL
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
    names = TypeNames(
        source,
        {t: number for number, (t, *_) in enumerate(said["nodes"])},
        {key: number for number, (key, *_) in enumerate(said["edges"])},
    )
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
    """The arrays by name. Refuse tensors of dtypes that numpy lacks."""
    found = {}
    for name, dtype, shape in tensors:
        if shape is None:
            options.refuse(source, name, f"there are no tables of {dtype}")
        else:
            found[name] = _array(stream, dtype, shape)
    return found


def _array(stream: IO[bytes], dtype: str, shape: list[int]) -> Array:
    """Read an array; raises EOFError."""
    rows: Array = np.empty(shape, dtype)
    if stream.readinto(rows.reshape(-1).view(np.uint8).data) < rows.nbytes:  # type: ignore[attr-defined]
        raise EOFError
    return rows
