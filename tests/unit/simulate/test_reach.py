"""Predicted batches of sizes and fan-outs other than the measured ones, against batches that the sampler draws."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.main import cli
from atta.errors import AttaError, ConfigError
from atta.partition.cutting.run import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import BARE_BYTES
from atta.partition.graph.writing import GraphWriter
from atta.samplers import LocalBatch, LocalGraph, LocalSampler
from atta.scheduler.config import SchedulerConfig
from atta.simulate.profile import HopSize, Linear, Profile, save_profile
from atta.simulate.reach import Expanded, Reach, draws_of, expanded_by_hop
from atta.simulate.scenario import BatchModel, Scenario
from atta.simulate.sizing import (
    MOST_MACHINES,
    UNEVEN,
    USABLE,
    GraphCounts,
    Instance,
    SampleBytes,
    best,
    choices,
    fitting_counts,
    instances_of,
    sample_bytes,
)
from tests.unit.simulate.scenarios import PROFILE, scenario

NODES, EDGES, GROUPS, SEEDS = 40_000, 400_000, 20, 4096


@dataclass
class AsMiniBatch:
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
def test_what_was_measured_comes_back_also_of_smaller_fan_outs(kind: str) -> None:
    made = profile(kind)
    for found, measured in zip(scaled(made, 0, ()), made.hops, strict=True):
        assert found.new == pytest.approx(measured.new, rel=1e-3)
        assert found.home == pytest.approx(measured.home, abs=1e-3)
    draw = made.draws[0]
    _, expanded, _ = sampled(kind, 1024, (4,))
    assert draw.own.edges[3] == pytest.approx(expanded[0].side(1, 4).edges[-1], rel=1e-9)
    assert len(draw.own.edges) == 15


def test_never_more_vertices_than_there_are_and_256_neighbours_tell_all() -> None:
    made = profile("hubs")
    once, twice = (sum(h.new for h in scaled(made, size, (15, 10, 5))) for size in (1024, 2048))
    assert once < twice < 2 * once, "larger batches reach more, but less than in proportion"
    for batch_size, fan_outs in ((4096, (-1, -1, -1)), (1 << 20, (100, 100, 100, 100))):
        assert sum(hop.new for hop in scaled(made, batch_size, fan_outs)[1:]) <= NODES
    _, expanded, _ = sampled("hubs", 1024, (-1, 5))
    side = expanded[0].side(1, -1)
    assert len(side.edges) == 257
    assert side.edges[-1] == pytest.approx(expanded[0].edges[1] / expanded[0].vertices[1])
    assert list(side.edges) == sorted(side.edges)
    given = Scenario(PROFILE, machines=4, scheduler=SchedulerConfig(), batch_size=100)
    assert given.epoch_batches == 2500
    assert replace(given, profile=replace(PROFILE, epoch_seeds=0)).epoch_batches is None


GIB = 1 << 30
SAMPLE = SampleBytes(GraphCounts(1000, 20_000), 400.0, 8.0, 8.0, vertex_numbers=4.0, edge_numbers=4.0, row=392.0)
KINDS = """
[[instance]]
name = "small"
cores = 4
memory = "16GiB"
link = "10gbit"
price = 0.5

[[instance]]
name = "large"
cores = 16
memory = "128GiB"
link = "25gbit"
price = 4
"""


def test_memory_by_hand() -> None:
    graph = GraphCounts(10**8, 2 * 10**9)
    rows = 10**8 * 0.75 * 392
    part = (10**8 * 400 + 2 * 10**9 * 8) / 4
    wanted = BARE_BYTES + UNEVEN * part + 8 * 10**8 + min(GIB, rows) + 5
    assert SAMPLE.daemon(graph, 4, GIB, 5) == math.ceil(wanted)
    narrow, wide = (SAMPLE.daemon(GraphCounts(10**8, edges), 1, 0, 0) for edges in ((1 << 31) - 1, 1 << 31))
    assert wide - narrow == pytest.approx(4 * 2**31, rel=1e-6)  # edge ids become twice as wide, their ends do not
    assert SAMPLE.daemon(graph, 1, GIB, 0) == math.ceil(BARE_BYTES + 4 * part + 8 * 10**8)  # one machine has no others


def cut(folder: Path, n: int, edges: int, columns: int) -> Dataset:
    rng = np.random.default_rng(1)
    with GraphWriter(folder / "g") as out:
        out.add_nodes("node", n, tables={"x": rng.random((n, columns), dtype=np.float32)})
        out.add_edges("node__to__node", *rng.integers(0, n, (2, edges)))
    partition_graph(folder / "g", folder / "d", parts=2, method="random")
    return Dataset.described(folder / "d")


def test_bytes_of_a_dataset_are_those_of_its_files(tmp_path: Path) -> None:
    n, edges = 200, 3000
    dataset = cut(tmp_path, n, edges, 6)
    found = sample_bytes(dataset)
    whole = sum(record.size for name, record in dataset.files.items() if name.startswith("part-"))
    assert found.size == GraphCounts(n, edges)
    assert n * found.per_vertex + edges * found.per_edge == pytest.approx(whole)
    assert found.row == 24
    assert found.vertex_numbers == pytest.approx(4, rel=0.2)  # and the headers of small files
    assert found.edge_numbers == pytest.approx(4, rel=0.2)


@given(st.integers(1, 10**10), st.integers(1, 10**11), st.sampled_from([4, 64, 512]))
def test_the_least_number_of_machines_that_fits(vertices: int, edges: int, gib: int) -> None:
    graph, kind = GraphCounts(vertices, edges), Instance("x", 8, gib * GIB, 1e9, 1.0)

    def fits(machines: int) -> bool:
        return SAMPLE.daemon(graph, machines, GIB, 0) <= USABLE * kind.memory

    counts = fitting_counts(SAMPLE, graph, kind, GIB, 0)
    if not counts:
        assert not any(map(fits, (1, 2, 10, 100, MOST_MACHINES)))
        return
    assert fits(counts[0])
    assert counts[0] == 1 or not fits(counts[0] - 1)
    assert counts == [counts[0] << i for i in range(3) if counts[0] << i <= MOST_MACHINES]


def test_price_and_time_of_an_epoch() -> None:
    kinds = [Instance("a", 4, 16 * GIB, 1e9, 0.5), Instance("b", 8, 16 * GIB, 1e9, 2.0)]
    base = scenario(batches=5)
    found = list(choices(base, SAMPLE, GraphCounts(10**7, 2 * 10**8), kinds, cache=GIB, buffer=0))
    assert [(one.instance.name, one.machines) for one in found] == [(name, n) for name in "ab" for n in (1, 2, 4)]
    for one in found:
        assert one.epoch_s == pytest.approx(PROFILE.epoch_seeds * 10**4 / one.outcome.seeds_per_s)
        assert one.epoch_price == pytest.approx(one.machines * one.instance.price * one.epoch_s / 3600)
    cheapest, fastest = min(found, key=lambda one: one.epoch_price), min(found, key=lambda one: one.epoch_s)
    assert best(found, None) is cheapest
    assert best(found, fastest.epoch_s) is fastest
    assert best(found, 0.9 * fastest.epoch_s) is None
    unknown = replace(base, profile=replace(PROFILE, epoch_seeds=0))
    with pytest.raises(ConfigError, match="epoch_seeds"):
        list(choices(unknown, SAMPLE, GraphCounts(1, 1), kinds, cache=0, buffer=0))


def test_batches_of_a_larger_graph_meet_fewer_vertices_twice() -> None:
    made = profile("hubs")
    sizes = [sum(map(sum, Reach(made, growth).sizes(1024, (15, 10, 5)))) for growth in (1.0, 10.0, 1000.0)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert Reach(made).sizes(1024, (15, 10, 5)) == Reach(made, 1.0).sizes(1024, (15, 10, 5))


def test_bad_lists_of_machines_are_named() -> None:
    def read(value: str) -> int:
        if not value[0].isdigit():
            raise ValueError(f"{value} is no quantity")
        return 1

    good = {"name": "a", "cores": 1, "memory": "1GiB", "link": "1gbit", "price": 1}
    for found, cause in (
        (None, "needs a table"),
        ([{"name": "a"}], "instance 1: needs name, cores"),
        ([good | {"cores": 0}], "cores is 0"),
        ([good | {"memory": "much"}], "memory"),
        ([good | {"price": -1}], "price is -1"),
        ([good, good], "listed twice"),
    ):
        with pytest.raises(ConfigError, match=cause):
            instances_of({} if found is None else {"instance": found}, "kinds.toml", size=read, rate=read)


def test_on_the_command_line(tmp_path: Path) -> None:
    cut(tmp_path, 200, 2400, 66)
    save_profile(tmp_path / "profile.json", PROFILE)
    (tmp_path / "kinds.toml").write_text(KINDS)
    words = ["simulate", "--profile", str(tmp_path / "profile.json"), "--instances", str(tmp_path / "kinds.toml")]
    words += ["--sample", str(tmp_path / "d"), "--vertices", "1e8", "--edges", "1.2e9", "--batches", "3"]

    def run(*more: str) -> Any:
        return CliRunner().invoke(cli, [*words, *more], standalone_mode=False)

    shown = run("--within", "1s").output
    assert "small" in shown
    assert "none with an epoch of at most 1 s; the fastest takes" in shown
    document = json.loads(run("--json", "-").output)
    cheapest = min(document["clusters"], key=lambda one: one["epoch_price"])
    assert document["best"] == {"instance": cheapest["instance"]["name"], "machines": cheapest["machines"]}
    assert {one["instance"]["name"] for one in document["clusters"]} == {"small", "large"}
    assert document["too_small"] == []
    (tmp_path / "kinds.toml").write_text(KINDS.replace("16GiB", "1GiB"))
    assert "small: no number of these machines has the memory for 100,000,000 vertices" in run().output
    document = json.loads(run("--json", "-").output)
    assert {one["instance"]["name"] for one in document["clusters"]} == {"large"}
    assert document["too_small"] == ["small"]
    for more, cause in [
        (("--machines", "3"), "--machines: --instances says that"),
        (("--vertices", "1e99"), "1e15"),
        (("--vertices", "1e15"), "no number of these machines"),
        (("--sample", str(tmp_path / "none")), "none"),
    ]:
        failed = run(*more).exception
        assert cause in (failed.format_message() if hasattr(failed, "format_message") else str(failed))
        assert isinstance(failed, AttaError) or hasattr(failed, "format_message")
    alone = CliRunner().invoke(cli, [*words[:3], "--vertices", "1e9"], standalone_mode=False).exception
    assert "--vertices: goes with --instances" in alone.format_message()  # type: ignore[union-attr]
