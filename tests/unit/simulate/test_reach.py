"""Predicted batches of sizes and fan-outs other than the measured ones, against batches that the sampler draws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from atta.samplers import LocalBatch, LocalGraph, LocalSampler
from atta.scheduler import SchedulerConfig
from atta.simulate import HopSize, Linear, Profile, Scenario
from atta.simulate.fitting import Expanded, draws_of, expanded_by_hop
from atta.simulate.scenario import BatchModel
from tests.unit.simulate.scenarios import PROFILE

NODES, EDGES, GROUPS, SEEDS = 40_000, 400_000, 20, 4096


@dataclass
class AsMiniBatch:
    """A local batch with the array names of a daemon's batch."""

    batch: LocalBatch
    node_types: tuple[str, ...] = ("node",)
    edge_types: tuple[str, ...] = ("node__to__node",)

    def num_sampled_nodes(self, node_type: str) -> list[int]:
        return self.batch.num_sampled_nodes

    def edge_index(self, edge_type: str) -> np.ndarray:
        return np.stack([self.batch.row, self.batch.col])


@cache
def graph(kind: str) -> tuple[LocalSampler, np.ndarray]:
    """In-edges, and whether a vertex is in the first of two parts.

    Nine of ten edges stay within a group of vertices.
    """
    rng = np.random.default_rng(7)
    popularity = np.ones(NODES) if kind == "even" else rng.pareto(1.3, NODES) + 0.2
    group = np.sort(rng.integers(0, GROUPS, NODES))
    dst = rng.choice(NODES, EDGES, p=popularity / popularity.sum())
    src = rng.choice(NODES, EDGES, p=popularity / popularity.sum())
    for number in range(GROUPS):
        members = np.flatnonzero(group == number)
        stay = np.flatnonzero((group[dst] == number) & (rng.random(EDGES) < 0.9))
        src[stay] = rng.choice(members, len(stay), p=popularity[members] / popularity[members].sum())
    order = np.argsort(dst, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=NODES))])
    return LocalSampler(LocalGraph.from_csc(indptr, src[order].astype(np.int32))), group < GROUPS // 2


def sampled(kind: str, batch_size: int, fan_outs: tuple[int, ...]) -> tuple[list[HopSize], list[Expanded], int]:
    """Mean sizes of an epoch's batches at the first part's machine, their total sampled edges, and their number."""
    sampler, mine = graph(kind)
    seeds = np.random.default_rng(3).permutation(np.flatnonzero(mine))[:SEEDS]
    sizes, expanded = np.zeros((2, len(fan_outs) + 1)), [Expanded.none() for _ in fan_outs]
    batches = SEEDS // batch_size
    for number in range(batches):
        one = sampler.sample(seeds[number * batch_size : (number + 1) * batch_size], list(fan_outs), batch=number)
        hop = np.repeat(np.arange(len(fan_outs) + 1), one.num_sampled_nodes)
        own = mine[one.n_id]
        sizes += [np.bincount(hop, minlength=sizes.shape[1]), np.bincount(hop, own, sizes.shape[1])]
        found = expanded_by_hop(AsMiniBatch(one), {"node": own.astype(np.float64)})  # type: ignore[arg-type]
        expanded = [a + b for a, b in zip(expanded, found, strict=True)]
    new, home = sizes
    return [HopSize(n / batches, h / n) for n, h in zip(new, home, strict=True)], expanded, batches


@cache
def profile(kind: str) -> Profile:
    hops, expanded, _ = sampled(kind, 1024, (15, 10, 5))
    own = float(graph(kind)[1].sum())
    return Profile(
        1024, (15, 10, 5), tuple(hops), {"seed": Linear(1.0)}, parts=2, degree=10.0, mean_degree=10.0,
        draws=draws_of(expanded, (15, 10, 5)), vertices=(own, NODES - own), epoch_seeds=SEEDS,
    )  # fmt: skip


def scaled(made: Profile, batch_size: int, fan_outs: tuple[int, ...]) -> list[HopSize]:
    return BatchModel(Scenario(made, scheduler=SchedulerConfig(), batch_size=batch_size, fan_outs=fan_outs)).hops


def remote(hops: list[HopSize]) -> float:
    return sum(hop.new * (1 - hop.home) for hop in hops)


@pytest.mark.parametrize("kind", ["hubs", "even"])
@pytest.mark.parametrize(("batch_size", "fan_outs"), [
    (1024, (15, 10, 5)), (512, (15, 10, 5)), (256, (15, 10, 5)), (1024, (8, 5, 3)), (1024, (5, 5, 5)), (1024, (4, 3, 2)),
    (512, (8, 5, 3)), (256, (5, 5, 5)), (256, (4, 3, 2)), (1024, (15, 10)), (256, (10, 5)),
])  # fmt: skip
def test_smaller_batches_are_as_the_sampler_draws_them(kind: str, batch_size: int, fan_outs: tuple[int, ...]) -> None:
    true, expanded, batches = sampled(kind, batch_size, fan_outs)
    found = scaled(profile(kind), batch_size, fan_outs)
    # The traffic: rows that are fetched from others, and edges that others sample.
    assert remote(found) == pytest.approx(remote(true), rel=0.05)
    others = [hop.new * (1 - hop.home) for hop in found]
    made = draws_of(expanded, fan_outs)
    answered = sum(n * draw.other.edges[-1] for n, draw in zip(others, made, strict=False))
    assert answered == pytest.approx(sum(e.edges[0] for e in expanded) / batches, rel=0.05)
    assert sum(hop.new for hop in found) == pytest.approx(sum(hop.new for hop in true), rel=0.15)


@pytest.mark.parametrize("kind", ["hubs", "even"])
def test_what_was_measured_comes_back(kind: str) -> None:
    made = profile(kind)
    for found, measured in zip(scaled(made, 0, ()), made.hops, strict=True):
        assert found.new == pytest.approx(measured.new, rel=1e-3)
        assert found.home == pytest.approx(measured.home, abs=1e-3)


@pytest.mark.parametrize("kind", ["hubs", "even"])
def test_edges_of_smaller_fan_outs_are_those_of_the_sampler(kind: str) -> None:
    """A sample of k edges holds min(k, degree) edges, so larger samples give the figures of smaller ones."""
    draw = profile(kind).draws[0]
    _, expanded, _ = sampled(kind, 1024, (4,))
    assert draw.own.edges[3] == pytest.approx(expanded[0].side(1, 4).edges[-1], rel=1e-9)
    assert len(draw.own.edges) == 15


def test_never_more_vertices_than_there_are() -> None:
    made = profile("hubs")
    for batch_size, fan_outs in ((4096, (-1, -1, -1)), (1 << 20, (100, 100, 100, 100))):
        assert sum(hop.new for hop in scaled(made, batch_size, fan_outs)[1:]) <= NODES


def test_larger_batches_reach_more_but_less_than_in_proportion() -> None:
    made = profile("hubs")
    once, twice = (sum(h.new for h in scaled(made, size, (15, 10, 5))) for size in (1024, 2048))
    assert once < twice < 2 * once


def test_all_neighbours_are_told_from_256() -> None:
    _, expanded, _ = sampled("hubs", 1024, (-1, 5))
    side = expanded[0].side(1, -1)
    assert len(side.edges) == 257
    assert side.edges[-1] == pytest.approx(expanded[0].edges[1] / expanded[0].vertices[1])
    assert list(side.edges) == sorted(side.edges)


def test_batches_of_an_epoch() -> None:
    given = Scenario(PROFILE, machines=4, scheduler=SchedulerConfig(), batch_size=100)
    assert given.epoch_batches == 2500
    assert replace(given, profile=replace(PROFILE, epoch_seeds=0)).epoch_batches is None
