"""A server's first trainer divides the extracted subgraph into a share for each trainer ("fetch then split")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from atta.samplers.local.server import ServerGraph
from atta.train.cooperative.graph import Longs, TrainingGraph
from atta.train.cooperative.sharing.split import split_vertices
from atta.train.cooperative.views import WorkerView, worker_view
from atta.train.tasks import LearningTask
from atta.train.tasks.classes import TASK as CLASSES

__all__ = ["TrainerShare", "divide"]


@dataclass(frozen=True)
class TrainerShare:
    """One trainer's share of a server's subgraph, or of a co-batch of it.

    Attributes:
        view: its rows, edges, features and labels.
        splits: own rows by split, int64, ascending. Only inner vertices are in it, so each vertex is in one share of
            one server.
    """

    view: WorkerView
    splits: Mapping[str, Longs]


def divide(
    found: ServerGraph,
    trainers: int,
    machines: int = 1,
    *,
    seed: int = 0,
    tries: int = 3,
    halo: bool = False,
    task: LearningTask = CLASSES,
) -> Iterator[TrainerShare]:
    """Yield the share of each trainer (GraNNDis section 4.4), with ``x`` in single precision and the loss on ``train``.

    The same arguments give the same shares. ``machines``, ``seed``, ``tries``: as for ``split_vertices``. ``halo``: the
    trainers compute the inner vertices only, and all others are HALO. ``task``: what table ``y`` holds.
    Raises the errors of ``split_vertices`` and ``TrainingGraph.of``.
    """
    graph = TrainingGraph.of(found, task=task)
    graph = replace(graph, features=graph.features.astype(np.float32, copy=False))
    owner = np.full(len(graph), -1, np.int32)
    computed = found.num_inner if halo else len(graph)  # inner vertices come first
    in_edges = np.bincount(graph.edges[1], minlength=len(graph))[:computed]
    owner[:computed] = split_vertices(
        first_vertices(graph, computed), trainers, machines, seed=seed, tries=tries, in_edges=in_edges
    )
    for trainer in range(trainers):
        view = worker_view(graph, owner, trainer, trainers)
        yield TrainerShare(
            view, {name: np.flatnonzero((mask & found.inner)[view.own]) for name, mask in found.splits.items()}
        )


def first_vertices(graph: TrainingGraph, count: int) -> TrainingGraph:
    """The subgraph induced on the vertices 0 to ``count`` - 1."""
    if count == len(graph):
        return graph
    arrays = {f.name: getattr(graph, f.name)[:count] for f in fields(graph) if f.name != "edges"}
    return TrainingGraph(edges=graph.edges[:, (graph.edges < count).all(axis=0)], **arrays)
