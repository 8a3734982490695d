"""What the trainers of a server receive from each other, from a server's subgraph: arrays in, counts out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from atta.samplers.local.server import ServerGraph
from atta.train.planning.sizes import ServerWork

__all__ = ["largest", "received_rows", "split_trainers", "work_of"]

Owners = npt.NDArray[np.int32]


def split_trainers(graph: ServerGraph, trainers: int, *, most_edges: int) -> Owners:
    """Trainer of each vertex, int32 [n], much as training divides them.

    One result of METIS is looked at, where training takes the best of three: the difference is a few per cent of boundary rows. Of
    a large graph METIS sees ``most_edges`` at random, which cuts somewhat more; with 0 vertices are dealt out in order.
    """
    n = graph.num_nodes
    if trainers == 1 or not n:
        return np.zeros(n, np.int32)
    from atta.train import cooperative  # imports torch, which counting alone does not need

    nothing = np.zeros(n, np.int64)
    edges = np.stack([graph.row, graph.col]).astype(np.int64)
    if edges.shape[1] > most_edges:
        edges = edges[:, np.random.default_rng(0).random(edges.shape[1]) * edges.shape[1] < most_edges]
    features, targets = np.zeros((n, 0), np.float32), np.zeros(n, np.bool_)
    whole = cooperative.TrainingGraph(graph.n_id, edges, features, nothing, targets, nothing, nothing)
    return cooperative.split_vertices(whole, trainers, tries=1)


def received_rows(
    reader: npt.NDArray[np.integer], source: npt.NDArray[np.integer], readers: int
) -> npt.NDArray[np.int64]:
    """Different sources that each reader reads, int64 [readers], from one reader and source per edge."""
    width = int(source.max()) + 1 if len(source) else 1
    pairs = np.unique(reader.astype(np.int64) * width + source)
    return np.bincount(pairs // width, minlength=readers)


def work_of(graph: ServerGraph, owner: Owners, trainers: int) -> ServerWork:
    """Sizes of a server's subgraph, all of which is computed by its trainers; ``owner``: trainer of each vertex, int32 [n]."""
    cut = owner[graph.row] != owner[graph.col]
    internal = received_rows(owner[graph.col[cut]], graph.row[cut], trainers)
    n = float(graph.num_nodes)
    return ServerWork(n, float(len(graph.row)), n, float(internal.max()), preloaded=n - graph.num_inner)


def largest(found: Sequence[ServerWork]) -> ServerWork:
    """What everybody waits for: the largest of each figure over servers, and the mean number of vertices."""
    columns = {name: [getattr(s, name) for s in found] for name in vars(found[0])}
    return ServerWork(**{n: float(np.mean(v)) if n == "mean_vertices" else max(v) for n, v in columns.items()})
