"""The graph of a chaos run. Every process draws the same one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.partition import GraphWriter, partition_graph

__all__ = ["WIDTH", "ChaosGraph"]

VERTICES, EDGES, TRAIN, WIDTH = 2000, 24_000, 960, 16
TIMES = 50
"""Edges and seeds have times from 0 to this."""


@dataclass(frozen=True)
class ChaosGraph:
    """A small graph: user ids and float32 features of its vertices, edges and training vertices by position.

    Attributes:
        ids: int64 [vertices].
        x: float32 [vertices, WIDTH].
        sources, targets: int64 [edges].
        times: int64 [edges].
        train: int64 [TRAIN], ascending.
    """

    ids: np.ndarray
    x: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    times: np.ndarray
    train: np.ndarray

    @classmethod
    def drawn(cls) -> ChaosGraph:
        """Always the same one."""
        rng = np.random.default_rng(5)
        return cls(
            ids=rng.permutation(9 * VERTICES)[:VERTICES].astype(np.int64),
            x=rng.standard_normal((VERTICES, WIDTH)).astype(np.float32),
            sources=rng.integers(0, VERTICES, EDGES),
            targets=rng.integers(0, VERTICES, EDGES),
            times=rng.integers(0, TIMES, EDGES),
            train=np.sort(rng.permutation(VERTICES)[:TRAIN]),
        )

    def write(self, folder: Path, parts: int) -> Path:
        """The folder of the partitioned dataset."""
        with GraphWriter(folder / "graph") as out:
            out.add_nodes("node", VERTICES, ids=self.ids, tables={"x": self.x}, splits={"train": self.train})
            out.add_edges("node__to__node", self.sources, self.targets, tables={"time": self.times})
        partition_graph(folder / "graph", folder / "parts", parts=parts, method="random", seed=1)
        return folder / "parts"

    @property
    def seeds(self) -> np.ndarray:
        """int64 [TRAIN]: ascending user ids of the training vertices, the seeds of loaders of vertices."""
        found: np.ndarray = np.sort(self.ids[self.train])
        return found

    @property
    def links(self) -> np.ndarray:
        """int64 [2, TRAIN]: user ids of the edges that are the seeds of loaders of links."""
        return np.stack([self.ids[self.sources[:TRAIN]], self.ids[self.targets[:TRAIN]]])

    def times_of(self, seeds: Any) -> np.ndarray:
        """int64 [seeds]: the time of each seed, a user id."""
        return np.asarray(seeds, dtype=np.int64) % TIMES

    def positions(self, ids: Any) -> np.ndarray:
        """Positions of user ids."""
        order = np.argsort(self.ids)
        found: np.ndarray = order[np.searchsorted(self.ids[order], np.asarray(ids))]
        return found
