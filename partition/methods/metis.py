"""METIS k-way partitioning of the union graph: all node types together, edges without direction, no self-loops.

The constraints are those of DistDGL (section 4.1 of its description): vertices, in-edges and training vertices are
balanced together. METIS runs in a child process: its memory is returned at once, and a crash of the
library becomes an error message.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from atta.errors import AttaError, UnknownNameError
from atta.partition.files import map_array, write_array
from atta.partition.graph import Graph, index_dtype
from atta.partition.progress import Progress

__all__ = ["assign", "constraints", "union_graph"]

DEFAULT_BALANCE = ("nodes", "edges", "train")


def assign(
    graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
) -> dict[str, npt.NDArray[np.int32]]:
    """Minimise the edge cut; int32 [n] per node type.

    Raises:
        UnknownNameError: ``balance`` (None: nodes, edges and training vertices) names an unknown split.
        AttaError: METIS fails.
    """
    balance = _known(graph, balance)
    counts = graph.schema.node_counts
    total = sum(counts.values())
    if parts == 1 or total == 0:
        return {t: np.zeros(n, np.int32) for t, n in counts.items()}
    progress.stage("union graph", None)
    with tempfile.TemporaryDirectory(prefix="atta-metis-") as folder:
        union = union_graph(graph)
        write_array(Path(folder, "xadj.npy"), union.indptr.astype(np.int64))
        write_array(Path(folder, "adjncy.npy"), union.indices.astype(np.int64))
        if union.nnz and union.data.min() != union.data.max():
            write_array(Path(folder, "adjwgt.npy"), union.data.astype(np.int64))
        del union
        write_array(Path(folder, "vwgt.npy"), constraints(graph, balance))
        progress.stage("metis", None)
        owners = _run(Path(folder), parts, seed)
    starts = np.cumsum([0, *counts.values()])
    return {t: owners[lo:hi] for t, lo, hi in zip(counts, starts[:-1], starts[1:], strict=True)}


def union_graph(graph: Graph) -> csr_array:
    """Return the symmetric adjacency of all node types one after another, [N, N].

    An entry is the number of stored edges between the two vertices, in either direction, of any type.
    """
    counts = graph.schema.node_counts
    total = sum(counts.values())
    starts = dict(zip(counts, np.cumsum([0, *counts.values()]), strict=False))
    index = index_dtype(total)
    adjacency = csr_array((total, total), dtype=np.int32)
    for edge_type in graph.schema.edge_types:
        source, target = graph.schema.endpoints(edge_type)
        edges = graph.edges(edge_type)
        src, dst = edges.src.astype(index) + index.type(starts[source]), edges.dst.astype(index)
        dst += index.type(starts[target])
        loops = src == dst
        if loops.any():
            src, dst = src[~loops], dst[~loops]
        one_way = coo_array((np.ones(len(src), np.int32), (src, dst)), shape=(total, total)).tocsr()
        adjacency = adjacency + one_way + one_way.T.tocsr()
    return adjacency


def constraints(graph: Graph, balance: Sequence[str] = DEFAULT_BALANCE) -> npt.NDArray[np.int64]:
    """Return the vertex weights [N, C], one column per thing to balance.

    ``nodes`` gives each vertex the weight 1, ``edges`` its in-degree, a split 1 to its vertices. Columns that say nothing
    (no edges, an empty split) are left out. Raises UnknownNameError for a split that no node type has.
    """
    columns = [_column(graph, name) for name in dict.fromkeys(balance)]
    useful = [column for column in columns if column.any()]
    return np.ascontiguousarray(np.stack(useful or [_column(graph, "nodes")], axis=1))


def _column(graph: Graph, name: str) -> npt.NDArray[np.int64]:
    schema = graph.schema
    weights = {t: np.zeros(n, np.int64) for t, n in schema.node_counts.items()}
    if name == "nodes":
        weights = {t: np.ones(n, np.int64) for t, n in schema.node_counts.items()}
    elif name == "edges":
        for edge_type in schema.edge_types:
            target = schema.endpoints(edge_type)[1]
            weights[target] += np.bincount(graph.edges(edge_type).dst, minlength=schema.node_counts[target])
    else:
        for node_type, splits in schema.splits.items():
            if name in splits:
                weights[node_type][graph.split(node_type, name)] = 1
    return np.concatenate([weights[t] for t in schema.node_counts])


def _known(graph: Graph, balance: Sequence[str] | None) -> Sequence[str]:
    """Check the names in ``balance``; the default leaves out a training split that does not exist."""
    splits = {name for per_type in graph.schema.splits.values() for name in per_type}
    known = {"nodes", "edges", *splits}
    if balance is None:
        return [name for name in DEFAULT_BALANCE if name in known]
    for name in balance:
        if name not in known:
            raise UnknownNameError.of("name in --balance:", name, known)
    return balance


def _run(folder: Path, parts: int, seed: int) -> npt.NDArray[np.int32]:
    command = [sys.executable, "-m", "atta.partition.methods.metis_child", str(folder), str(parts), str(seed)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        lines = child.stderr.strip().splitlines()
        raise AttaError(f"METIS failed (exit status {child.returncode}): {lines[-1] if lines else 'no message'}")
    return np.array(map_array(folder / "part.npy"), dtype=np.int32)
