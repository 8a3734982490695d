"""Fetch, then split: a server's first trainer divides what was extracted, and the others get their shares as files.

The trainers of a server are processes of one machine, so a folder that all of them see is the shortest way; features are written
and read once, and only the first trainer ever holds what belongs to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from atta.errors import DataError
from atta.samplers.server import ServerGraph
from atta.train.cooperative.graph import Longs, TrainingGraph
from atta.train.cooperative.groups import ServerGroups
from atta.train.cooperative.split import split_vertices
from atta.train.cooperative.views import WorkerView, worker_view

__all__ = ["Handover", "Share", "divide"]

_SPLIT = "split/"


@dataclass(frozen=True)
class Share:
    """What one trainer gets of a server's subgraph, or of a co-batch of it.

    Attributes:
        view: its rows, edges, features and labels.
        splits: own rows by split, int64, ascending; of inner vertices only, so that every vertex is in one share of all servers.
    """

    view: WorkerView
    splits: Mapping[str, Longs]

    def save(self, path: Path) -> None:
        """Write to a file; raises DataError where it cannot be written."""
        arrays: dict[str, Any] = {f.name: np.asarray(getattr(self.view, f.name)) for f in fields(self.view)}
        arrays |= {_SPLIT + name: rows for name, rows in self.splits.items()}
        try:
            np.savez(path, **arrays)
        except OSError as error:
            raise DataError(path, f"cannot hand over a share: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Share:
        """Read what ``save`` wrote."""
        with np.load(path) as file:
            arrays: dict[str, Any] = dict(file)
        splits = {name.removeprefix(_SPLIT): arrays.pop(name) for name in list(arrays) if name.startswith(_SPLIT)}
        arrays |= {name: int(arrays[name]) for name in ("trainer", "interior")}
        return cls(WorkerView(**arrays), splits)


def divide(found: ServerGraph, trainers: int, *, seed: int = 0, tries: int = 3) -> Iterator[Share]:
    """The share of each trainer in turn (GraNNDis section 4.4), with ``x`` in single precision and the loss on ``train``.

    The same arguments give the same shares. ``seed``, ``tries``: as for ``split_vertices``. Raises what ``TrainingGraph.of`` does.
    """
    graph = TrainingGraph.of(found)
    graph = replace(graph, features=graph.features.astype(np.float32, copy=False))
    owner = split_vertices(graph, trainers, seed=seed, tries=tries)
    for trainer in range(trainers):
        view = worker_view(graph, owner, trainer, trainers)
        yield Share(view, {name: np.flatnonzero((mask & found.inner)[view.own]) for name, mask in found.splits.items()})


class Handover:
    """Shares on their way from the first trainer of a server to the others; all of them must call it equally often."""

    def __init__(self, groups: ServerGroups, folder: Path) -> None:
        """``folder``: one that all trainers of the server see; files are named by server, and gone once they are read."""
        self._groups, self._folder = groups, folder
        self._count = 0

    def give(self, shares: Iterable[Share]) -> None:
        """Hand out the shares of the other trainers, by the first one."""
        for trainer, share in enumerate(shares, 1):
            share.save(self._path(trainer))
        self._meet()

    def take(self) -> Share:
        """Wait for one's share, as any other trainer."""
        path = self._path(self._groups.place.local_rank)
        self._meet()
        share = Share.load(path)
        path.unlink()
        return share

    def _path(self, trainer: int) -> Path:
        return self._folder / f"share-{self._groups.place.server}-{trainer}-{self._count}.npz"

    def _meet(self) -> None:
        self._count += 1
        if self._groups.place.trainers > 1:
            dist.barrier(group=self._groups.inside)
