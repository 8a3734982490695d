"""The child process that loads a file of DGL: ``python -m atta.partition.importers.reading.dgl_child FILE``.

Standard output gets a line of JSON, and after it the bytes of all arrays in the order of the line:

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
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from atta.partition.importers.reading.dgl_tensors import require_dgl
from atta.partition.importers.reading.source import first_line

Array = npt.NDArray[Any]


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
    """Return what the line of JSON says, and append the ``arrays`` that follow it."""
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


def main(path: str) -> None:
    """Write the graph in the file ``path`` to standard output."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # that a damaged file ends this process is nothing to look into
    answer = os.dup(1)
    os.dup2(2, 1)  # the libraries print on standard output
    with os.fdopen(answer, "wb") as out:
        send(path, out)


if __name__ == "__main__":
    main(sys.argv[1])
