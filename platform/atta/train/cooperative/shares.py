"""Fetch, then split: a server's first trainer divides what was extracted into a share for each trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from atta.samplers.local.server import ServerGraph
from atta.train.cooperative.graph import Longs, TrainingGraph
from atta.train.cooperative.split import split_vertices
from atta.train.cooperative.views import WorkerView, worker_view

__all__ = ["TrainerShare", "divide"]


@dataclass(frozen=True)
class TrainerShare:
    """What one trainer gets of a server's subgraph, or of a co-batch of it.

    Attributes:
        view: its rows, edges, features and labels.
        splits: own rows by split, int64, ascending; of inner vertices only, so that every vertex is in one share of all servers.
    """

    view: WorkerView
    splits: Mapping[str, Longs]


def divide(
    found: ServerGraph, trainers: int, machines: int = 1, *, seed: int = 0, tries: int = 3
) -> Iterator[TrainerShare]:
    """The share of each trainer in turn (GraNNDis section 4.4), with ``x`` in single precision and the loss on ``train``.

    The same arguments give the same shares. ``machines``, ``seed``, ``tries``: as for ``split_vertices``. Raises what that and
    ``TrainingGraph.of`` do.
    """
    graph = TrainingGraph.of(found)
    graph = replace(graph, features=graph.features.astype(np.float32, copy=False))
    owner = split_vertices(graph, trainers, machines, seed=seed, tries=tries)
    for trainer in range(trainers):
        view = worker_view(graph, owner, trainer, trainers)
        yield TrainerShare(
            view, {name: np.flatnonzero((mask & found.inner)[view.own]) for name, mask in found.splits.items()}
        )
