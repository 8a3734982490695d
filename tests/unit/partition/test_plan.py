"""The formulas of ``atta plan`` against measurements and datasets, and one machine's memory among its daemons."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.main import cli
from atta.errors import ConfigError, UnknownNameError
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.cutting import plan
from atta.partition.cutting.plan import GraphSize, estimate
from atta.partition.graph.needs import DEFAULT_CACHE, LEAST_BYTES, MachineRoom, MemoryWish, Needs, plan_memory
from tests.unit.partition.oracles import refuses

RESULTS = Path(__file__).parents[3] / "bench" / "results"


@pytest.mark.parametrize("name", ["partition-245k", "partition-2m"])
@pytest.mark.parametrize("method", ["metis", "metis:tame=no"])  # the others were faster when they were last recorded
def test_formulas_fit_what_was_recorded_of_metis(name: str, method: str) -> None:
    document = json.loads((RESULTS / f"{name}.json").read_text())
    config, figures = document["config"], document["results"][method]
    found = estimate(GraphSize(config["nodes"], config["edges"]), method, config["parts"])
    assert 0.75 < found.memory / 2**30 / figures["peak_gib"]["median"] < 1.3
    assert 0.5 < found.seconds / figures["seconds"]["median"] < 2.1


def test_formulas_fit_graphs_of_a_billion_edges_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads((RESULTS / "partition-billion.json").read_text())
    monkeypatch.setattr(plan, "thread_count", lambda: document["machine"]["cores"])
    for case in document["results"]:
        size = GraphSize(case["nodes"], case["edges"], row_bytes=document["config"]["row_bytes"])
        found = estimate(size, case["method"], document["config"]["parts"])
        assert 1 / 1.3 < found.memory / 2**30 / case["peak_gib"] < 1.3, case
        assert 1 / 1.3 < found.seconds / case["seconds"] < 1.3, case
    assert max(case["edges"] for case in document["results"]) == 10**9


def test_memory_is_that_of_all_processes_within_a_factor_of_1_3(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads((RESULTS / "partition-plan.json").read_text())
    monkeypatch.setattr(plan, "thread_count", lambda: document["machine"]["cores"])
    for case in document["results"]:
        size = GraphSize(case["nodes"], case["edges"], row_bytes=document["config"]["row_bytes"])
        found = estimate(size, case["method"], case["parts"]).memory / 2**30
        assert 1 / 1.3 < found / case["all_gib"] < 1.3, case
        assert 1 / 1.3 < found / case["largest_gib"] < 1.3, case
    assert {case["method"] for case in document["results"]} == {"metis", "metis:tame=yes", "metis:tame=no", "ldg"}


@pytest.mark.parametrize("parts", [1, 3])
def test_bytes_on_disk(tmp_path: Path, parts: int) -> None:
    rng, n, m = np.random.default_rng(0), 20_000, 200_000
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", n, tables={"x": rng.random((n, 5), dtype=np.float32)}, splits={"train": np.arange(100)})
        out.add_edges("node__to__node", rng.integers(0, n, m), rng.integers(0, n, m), tables={"weight": rng.random(m)})
    partition_graph(tmp_path / "g", tmp_path / "d", parts=parts, method="random")
    dataset = Dataset.open(tmp_path / "d")
    size = GraphSize(n, m, 20, 8, symmetric=False, halo_ratio=dataset.quality["halo_ratio"])
    graph_bytes = sum(record.size for record in Graph.open(tmp_path / "g").files.values())
    assert abs(size.folder_bytes / graph_bytes - 1) < 0.02
    assert abs(size.dataset_bytes / sum(record.size for record in dataset.files.values()) - 1) < 0.02


def test_wide_ids_count_twice() -> None:
    small, large = GraphSize(2**31 - 1, 10**9), GraphSize(2**31 + 1, 10**9)
    assert large.folder_bytes == 2 * small.folder_bytes
    assert estimate(large, "ldg", 8).memory > estimate(small, "ldg", 8).memory


def test_what_is_wrong_is_named() -> None:
    refuses(UnknownNameError, "metis", estimate, GraphSize(1, 1), "metiss", 2)
    refuses(ConfigError, "parts 0", estimate, GraphSize(1, 1), "ldg", 0)
    refuses(ConfigError, "negative", GraphSize, -1, 1)
    for ratio in (-1.0, math.inf, math.nan):
        refuses(ConfigError, f"the HALO ratio is {ratio}, must be finite", GraphSize, 1, 1, halo_ratio=ratio)


def test_command_line(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = ["plan", "--nodes", "111000000", "--edges", "3200000000", "--row-bytes", "512", "--parts", "16"]
    done = CliRunner().invoke(cli, [*arguments, "--json", str(out)])
    assert done.exit_code == 0, done.output
    document = json.loads(out.read_text())
    by_method = {e["method"]: e for e in document["methods"]}
    assert by_method["ldg"]["memory"] < by_method["metis:tame=no"]["memory"] / 3
    assert document["dataset_bytes"] > 3_200_000_000 * 12  # edge ids need 8 bytes here
    assert "ldg" in done.output
    assert CliRunner().invoke(cli, ["plan", "--nodes", "-1", "--edges", "5"]).exit_code != 0


MIB, GIB = 1 << 20, 1 << 30
BILLION = [Needs(1500 * MIB, 600 * MIB, 500 * MIB, 800 * MIB, 9 * GIB, 1.1)] * 8
"""About 50 million vertices and a billion edges in eight partitions."""
SMALL = [Needs(10 * MIB, MIB, 5 * MIB, 5 * MIB, 10 * MIB, 0.5)] * 2


def machine(gib: float, *, free: float = 1.0) -> MachineRoom:
    return MachineRoom(int(gib * GIB), int(free * gib * GIB))


sizes = st.integers(0, 1 << 36)
needs = st.lists(
    st.builds(Needs, sizes, sizes, sizes, sizes, sizes, st.floats(0, 4)), min_size=1, max_size=9
)  # fmt: skip
rooms = st.builds(lambda limit, share: MachineRoom(limit, int(share * limit)), st.integers(0, 1 << 38), st.floats(0, 1))
given_sizes = st.none() | st.integers(0, 1 << 34)
wishes = st.builds(
    MemoryWish, st.sampled_from(["auto", "copy", "map", "disk"]), given_sizes, given_sizes, given_sizes, st.integers(1, 3),
    st.integers(0, 8),
)  # fmt: skip


@given(needs, rooms, wishes)
def test_nobody_takes_more_than_nine_tenths(needs: list[Needs], room: MachineRoom, wish: MemoryWish) -> None:
    try:
        plan = plan_memory(needs, room, wish)
    except ConfigError:
        least = wish.replicas * sum(LEAST_BYTES + need.cached(wish.cache or 0) for need in needs)
        least += wish.replicas * sum(need.partition for need in needs) if wish.memory == "copy" else 0
        assert least > room.free - room.limit // 10
        return
    assert plan.total <= room.free - room.limit // 10
    each = [LEAST_BYTES + need.cached(plan.cache) + (need.partition if plan.copies else 0) for need in needs]
    assert wish.replicas * sum(each) <= plan.total


@given(needs, rooms, wishes, st.integers(0, 1 << 36))
def test_what_the_user_says_stays_and_more_memory_leaves_no_less(needs, room, wish, more):
    try:
        plan = plan_memory(needs, room, wish)
    except ConfigError:
        return
    assert wish.cache is None or plan.cache == wish.cache
    assert wish.memory in ("auto", plan.way)
    roomier = plan_memory(needs, MachineRoom(room.limit, room.free + more), wish)
    assert (roomier.copies, not roomier.pages, roomier.cache) >= (plan.copies, not plan.pages, plan.cache)
    assert roomier.cache >= plan.cache
    assert roomier.total >= plan.total
    assert plan.short or not roomier.short
    busier = plan_memory(needs, room, replace(wish, readers=wish.readers + 1))
    assert busier.cache <= plan.cache
    assert busier.copies <= plan.copies


@pytest.mark.parametrize(
    ("gib", "way", "least", "most"),
    [(8, "disk", 0, 0), (16, "map", 0, 0), (24, "map", 256, 256), (32, "copy", 512, 1024), (256, "copy", 1024, 1024)],
)
def test_a_billion_edges(gib: int, way: str, least: int, most: int) -> None:
    """Files come before caches: without them in memory, nothing is quick."""
    plan = plan_memory(BILLION, machine(gib), MemoryWish(readers=1))
    assert plan.way == way
    assert least * MIB <= plan.cache <= most * MIB
    assert plan.short == (gib < 256), "more memory would make the caches larger"


def test_a_small_graph_is_loaded_with_all_it_wants() -> None:
    plan = plan_memory(SMALL, machine(8), MemoryWish(readers=2))
    assert (plan.copies, plan.cache, plan.short) == (True, DEFAULT_CACHE, False)
    assert plan.line == (
        "memory: 2 daemons may take 7.2 GiB (8.0 GiB of 8.0 GiB are free, a tenth of all stays so) and want 3.0 GiB for "
        "themselves, batches and their readers, and 20 MiB for partitions. So each daemon loads its partition, and keeps up "
        "to 1.0 GiB of other partitions"
    )


def test_what_cannot_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_memory(BILLION, machine(16, free=0.9), MemoryWish("copy", cache=512 * MIB))
    assert str(caught.value) == (
        "daemons do not fit into memory: they need 21.1 GiB (1.0 GiB for themselves, 8.4 GiB for caches, 11.7 GiB for their "
        "partitions); 8 daemons may take 12.8 GiB (14.4 GiB of 16.0 GiB are free, a tenth of all stays so): start fewer, let "
        "--memory map files, or give less to --cache"
    )


def test_tables_and_buffers_that_the_user_asks_for_leave_less_for_caches() -> None:
    alone = plan_memory(BILLION, machine(32), MemoryWish())
    assert plan_memory(BILLION, machine(32), MemoryWish(tables=256 * MIB)).cache < alone.cache
    assert plan_memory(BILLION, machine(32), MemoryWish(buffer=64 * MIB)).cache > alone.cache


def test_replicas_map_the_same_files() -> None:
    one, two = (plan_memory(BILLION[:2], machine(16), MemoryWish("map", replicas=n)) for n in (1, 2))
    assert one.cache >= two.cache > 0
