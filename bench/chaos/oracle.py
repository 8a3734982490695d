"""What a chaos run has to deliver: the batches and weights that the local sampler makes of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atta.errors import AttaError
from atta.samplers import LocalGraph, LocalSampler
from atta_bench.chaos.graph import WIDTH, ChaosGraph
from atta_bench.chaos.loaders import HOPS, SEED, LoaderKind, batch_digest, named
from atta_bench.chaos.worker import EPOCHS, stepped, weights_digest

__all__ = ["expected_batches", "expected_weights"]

Lines = Sequence[Mapping[str, Any]]


def expected_batches(graph: ChaosGraph, learnt: Lines, kind: LoaderKind, rank: int) -> list[list[str]]:
    """Digests of a rank's batches by epoch and position: from the local sampler, or as they were learnt.

    ``learnt``: the lines about all batches of all ranks. What cannot be computed without daemons is checked: in each
    epoch each seed comes once.

    Raises:
        AttaError: it does not.
    """
    lines = [line for line in learnt if line["loader"] == kind.value]
    for epoch in range(EPOCHS):
        inputs = sorted(number for line in lines if line["epoch"] == epoch for number in line["inputs"])
        if inputs != [*range(len(graph.train))]:
            raise AttaError(
                f"{kind.value}: the seeds of epoch {epoch} are not those that the loader was given, each once"
            )
    expected: list[list[str]] = [[] for _ in range(EPOCHS)]
    makes = _LocalDigests(graph, kind) if kind.local else _learnt_digest
    for line in lines:
        if line["rank"] == rank:
            expected[line["epoch"]].append(makes(line))
    return expected


def _learnt_digest(line: Mapping[str, Any]) -> str:
    return str(line["digest"])


class _LocalDigests:
    """Digests of batches of the local sampler."""

    def __init__(self, graph: ChaosGraph, kind: LoaderKind) -> None:
        self._graph, self._kind, temporal = graph, kind, kind is LoaderKind.TEMPORAL
        times = graph.times if temporal else None
        local = LocalGraph.from_edges(graph.sources, graph.targets, len(graph.ids), keys=graph.ids, time=times)
        self._sampler = LocalSampler(local, method="temporal" if temporal else "uniform")

    def __call__(self, line: Mapping[str, Any]) -> str:
        graph, seeds = self._graph, self._graph.seeds[line["inputs"]]
        batch = self._sampler.sample(
            graph.positions(seeds), list(HOPS), seed=SEED, epoch=line["epoch"], batch=line["batch_id"],
            disjoint=self._kind is LoaderKind.DISJOINT,
            input_time=graph.times_of(seeds) if self._kind is LoaderKind.TEMPORAL else None,
        )  # fmt: skip
        names, x = named(batch.n_id, batch.tree), graph.x[graph.positions(batch.n_id)]
        rows = np.column_stack([names.astype(np.float64), x.astype(np.float64)])
        return batch_digest(line["batch_id"], names[: len(seeds)], names[batch.row], names[batch.col], rows)


def expected_weights(graph: ChaosGraph, learnt: Lines, rank: int, steps: int) -> list[str]:
    """Digests of a trainer's weights after each of the first ``steps`` steps."""
    lines = [line for line in learnt if line["loader"] == LoaderKind.NEIGHBOURS.value and line["rank"] == rank]
    batches = [graph.x[graph.positions(graph.seeds[line["inputs"]])] for line in lines]
    weights, digests = np.zeros(WIDTH), list[str]()
    for step in range(steps):
        weights = stepped(weights, batches[step % len(batches)])
        digests.append(weights_digest(weights))
    return digests
