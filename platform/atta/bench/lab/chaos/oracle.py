"""What a chaos run has to deliver: the graph, and the batches and weights that the local sampler makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.bench.lab.chaos.worker import EPOCHS, HOPS, SEED, WIDTH, batch_digest, stepped, weights_digest
from atta.errors import AttaError
from atta.partition import GraphWriter, partition_graph
from atta.samplers import LocalGraph, LocalSampler

__all__ = ["ChaosGraph", "expected_batches", "expected_weights"]

VERTICES, EDGES, TRAIN = 2000, 24_000, 960


@dataclass(frozen=True)
class ChaosGraph:
    """A small graph: user ids and float32 features of its vertices, edges and training vertices by position."""

    ids: np.ndarray
    x: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    train: np.ndarray

    @classmethod
    def drawn(cls) -> ChaosGraph:
        """Always the same one."""
        rng = np.random.default_rng(5)
        return cls(
            rng.permutation(9 * VERTICES)[:VERTICES].astype(np.int64),
            rng.standard_normal((VERTICES, WIDTH)).astype(np.float32),
            rng.integers(0, VERTICES, EDGES),
            rng.integers(0, VERTICES, EDGES),
            np.sort(rng.permutation(VERTICES)[:TRAIN]),
        )

    def write(self, folder: Path, parts: int) -> Path:
        """The folder of the partitioned dataset."""
        with GraphWriter(folder / "graph") as out:
            out.add_nodes("node", VERTICES, ids=self.ids, tables={"x": self.x}, splits={"train": self.train})
            out.add_edges("node__to__node", self.sources, self.targets)
        partition_graph(folder / "graph", folder / "parts", parts=parts, method="random", seed=1)
        return folder / "parts"

    def positions(self, ids: Any) -> np.ndarray:
        """Positions of user ids."""
        order = np.argsort(self.ids)
        found: np.ndarray = order[np.searchsorted(self.ids[order], np.asarray(ids))]
        return found


def expected_batches(graph: ChaosGraph, learnt: Sequence[Mapping[str, Any]], rank: int) -> list[list[str]]:
    """Digests of a rank's batches by epoch and position, from the local sampler.

    ``learnt``: the seeds of all batches of all ranks. What cannot be computed without daemons is checked: each epoch
    has all training vertices, and no others.

    Raises:
        AttaError: it has not.
    """
    for epoch in range(EPOCHS):
        seeds = [seed for line in learnt if line["epoch"] == epoch for seed in line["seeds"]]
        if {*seeds} != {*graph.ids[graph.train].tolist()}:
            raise AttaError(f"the seeds of epoch {epoch} are not the training vertices")
    sampler = LocalSampler(LocalGraph.from_edges(graph.sources, graph.targets, VERTICES, keys=graph.ids))
    expected: list[list[str]] = [[] for _ in range(EPOCHS)]
    for line in learnt:
        if line["rank"] == rank:
            where = {"seed": SEED, "epoch": line["epoch"], "batch": line["batch_id"]}
            found = sampler.sample(graph.positions(line["seeds"]), list(HOPS), **where)
            ids = found.n_id
            rows = np.column_stack([ids.astype(np.float64), graph.x[graph.positions(ids)].astype(np.float64)])
            made = batch_digest(line["batch_id"], ids[: len(line["seeds"])], ids[found.row], ids[found.col], rows)
            expected[line["epoch"]].append(made)
    return expected


def expected_weights(graph: ChaosGraph, learnt: Sequence[Mapping[str, Any]], rank: int, steps: int) -> list[str]:
    """Digests of a trainer's weights after each of the first ``steps`` steps."""
    batches = [graph.x[graph.positions(line["seeds"])] for line in learnt if line["rank"] == rank]
    weights, digests = np.zeros(WIDTH), list[str]()
    for step in range(steps):
        weights = stepped(weights, batches[step % len(batches)])
        digests.append(weights_digest(weights))
    return digests
