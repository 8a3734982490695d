"""Sizes of clusters for a larger graph: memory by hand, the least number of machines by trying, the price by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
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
from atta.simulate import save_profile
from atta.simulate.reach import Reach
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
from tests.unit.simulate.test_reach import profile as drawn

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
    wider = SAMPLE.daemon(GraphCounts(10**8, 1 << 31), 1, 0, 0) - SAMPLE.daemon(
        GraphCounts(10**8, (1 << 31) - 1), 1, 0, 0
    )
    assert wider == pytest.approx(4 * 2**31, rel=1e-6)  # edge ids become twice as wide, their ends do not
    assert SAMPLE.daemon(graph, 1, GIB, 0) == math.ceil(BARE_BYTES + 4 * part + 8 * 10**8)  # one machine has no others


def test_bytes_of_a_dataset_are_those_of_its_files(tmp_path: Path) -> None:
    rng, n, edges = np.random.default_rng(1), 200, 3000
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", n, tables={"x": rng.random((n, 6), dtype=np.float32)})
        out.add_edges("node__to__node", *rng.integers(0, n, (2, edges)))
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    dataset = Dataset.described(tmp_path / "d")
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
    assert [(one.instance.name, one.machines) for one in found] == [
        ("a", 1),
        ("a", 2),
        ("a", 4),
        ("b", 1),
        ("b", 2),
        ("b", 4),
    ]
    for one in found:
        assert one.epoch_s == pytest.approx(PROFILE.epoch_seeds * 10**4 / one.outcome.seeds_per_s)
        assert one.epoch_price == pytest.approx(one.machines * one.instance.price * one.epoch_s / 3600)
    cheapest, fastest = min(found, key=lambda one: one.epoch_price), min(found, key=lambda one: one.epoch_s)
    assert best(found, None) is cheapest
    assert best(found, fastest.epoch_s) is fastest
    assert best(found, 0.9 * fastest.epoch_s) is None
    with pytest.raises(ConfigError, match="epoch_seeds"):
        list(
            choices(
                replace(base, profile=replace(PROFILE, epoch_seeds=0)),
                SAMPLE,
                GraphCounts(1, 1),
                kinds,
                cache=0,
                buffer=0,
            )
        )


def test_batches_of_a_larger_graph_meet_fewer_vertices_twice() -> None:
    made = drawn("hubs")
    sizes = [sum(map(sum, Reach(made, growth).sizes(1024, (15, 10, 5)))) for growth in (1.0, 10.0, 1000.0)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert Reach(made).sizes(1024, (15, 10, 5)) == Reach(made, 1.0).sizes(1024, (15, 10, 5))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ({}, "needs a table"),
        ({"instance": [{"name": "a"}]}, "instance 1: needs name, cores"),
        ({"instance": [{"name": "a", "cores": 0, "memory": "1GiB", "link": "1gbit", "price": 1}]}, "cores is 0"),
        ({"instance": [{"name": "a", "cores": 1, "memory": "much", "link": "1gbit", "price": 1}]}, "memory"),
        ({"instance": [{"name": "a", "cores": 1, "memory": "1GiB", "link": "1gbit", "price": -1}]}, "price is -1"),
        ({"instance": 2 * [{"name": "a", "cores": 1, "memory": "1GiB", "link": "1gbit", "price": 1}]}, "listed twice"),
    ],
)
def test_bad_lists_of_machines_are_named(text: dict[str, Any], cause: str) -> None:
    def read(value: str) -> int:
        if not value[0].isdigit():
            raise ValueError(f"{value} is no quantity")
        return 1

    with pytest.raises(ConfigError, match=cause):
        instances_of(text, "kinds.toml", size=read, rate=read)


def test_on_the_command_line(tmp_path: Path) -> None:
    rng, n, edges = np.random.default_rng(1), 200, 2400
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", n, tables={"x": rng.random((n, 66), dtype=np.float32)})
        out.add_edges("node__to__node", *rng.integers(0, n, (2, edges)))
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
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
        assert failed is not None
        assert cause in (failed.format_message() if hasattr(failed, "format_message") else str(failed))
        assert isinstance(failed, AttaError) or hasattr(failed, "format_message")
    alone = CliRunner().invoke(cli, [*words[:3], "--vertices", "1e9"], standalone_mode=False).exception
    assert "--vertices: goes with --instances" in alone.format_message()  # type: ignore[union-attr]
