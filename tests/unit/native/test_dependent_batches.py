"""Batches with ``dependency``: each alone is drawn as ever, neighbours share most draws, those far apart share none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from atta.errors import ConfigError
from atta.samplers import LocalGraph, LocalSampler

VERTICES, DEGREE, FAN_OUT, BATCHES = 600, 24, 6, 8
APART = VERTICES // DEGREE
"""The first vertices have no in-neighbour in common."""
Edges = set[tuple[int, int]]


@pytest.fixture(scope="module")
def graph() -> LocalGraph:
    """All vertices have the same degree, and weights of edges are random."""
    rng = np.random.default_rng(0)
    sources = np.stack([np.sort(rng.choice(VERTICES, DEGREE, replace=False)) for _ in range(VERTICES)])
    sources[:APART] = np.sort(rng.permutation(VERTICES).reshape(APART, DEGREE))
    sources = sources.ravel()
    targets = np.repeat(np.arange(VERTICES), DEGREE)
    return LocalGraph.from_edges(
        sources, targets, VERTICES, weight=rng.random(len(sources)), time=np.zeros(len(sources))
    )


def drawn(sampler: LocalSampler, batch: int, **options: Any) -> Edges:
    found = sampler.sample(np.arange(VERTICES), [FAN_OUT], batch=batch, **options)
    return set(zip(found.n_id[found.row].tolist(), found.n_id[found.col].tolist(), strict=True))


@pytest.mark.parametrize("method", ["uniform", "labor", "weighted"])
def test_neighbours_share_draws_and_others_do_not(graph: LocalGraph, method: str) -> None:
    sampler = LocalSampler(graph, method=method)
    batches = [drawn(sampler, batch, dependency=BATCHES) for batch in range(4 * BATCHES)]
    by_chance = np.mean([len(drawn(sampler, 2 * i) & drawn(sampler, 2 * i + 1)) for i in range(8)])
    size = np.mean([len(batch) for batch in batches])
    for apart in range(1, 2 * BATCHES):
        pairs = zip(batches, batches[apart:], strict=False)
        shared = np.mean([len(one & other) for one, other in pairs])
        kept = max(0, 1 - apart / BATCHES)
        assert shared == pytest.approx(kept * size + (1 - kept) * by_chance, abs=0.06 * size), apart


@pytest.mark.parametrize(("method", "vertices"), [("uniform", 40), ("labor", APART)])
def test_each_batch_alone_has_the_same_distribution(graph: LocalGraph, method: str, vertices: int) -> None:
    """Whatever the place of a batch, each in-edge of a vertex comes equally often over many seeds. LABOR's edges from a
    source come together, so vertices are looked at there that have no source in common."""
    sampler, seeds, share = LocalSampler(graph, method=method), 12_000 // vertices, FAN_OUT / DEGREE
    fixed = method == "uniform"  # the number of a vertex' edges
    for batch in (0, 3, BATCHES - 1, 5 * BATCHES + 5):
        counts = np.zeros(len(graph.indices))
        for seed in range(seeds):
            found = sampler.sample(np.arange(vertices), [FAN_OUT], seed=seed, batch=batch, dependency=BATCHES)
            counts[found.e_id] += 1
        variance = seeds * share * (1 - share) * (DEGREE / (DEGREE - 1) if fixed else 1)
        statistic = ((counts[: vertices * DEGREE] - seeds * share) ** 2 / variance).sum()
        assert 1e-4 < stats.chi2.sf(statistic, vertices * (DEGREE - fixed)) < 1 - 1e-4, batch


def test_one_draws_as_without_and_impossible_numbers_are_refused(graph: LocalGraph) -> None:
    sampler = LocalSampler(graph)
    for batch in (0, 1, 17):
        assert drawn(sampler, batch, dependency=1) == drawn(sampler, batch)
    for bad in (0, -1, 2.5, 1 << 21):
        with pytest.raises(ConfigError, match="dependency"):
            drawn(sampler, 0, dependency=bad)
