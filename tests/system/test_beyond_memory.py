"""Daemons with ``--memory SIZE``: batches from the disk are those from memory, and what they take stays bounded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.daemon.daemon import Daemon
from atta.errors import AttaError, ConfigError
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph import GraphWriter, needs
from atta.partition.graph.needs import DiskPlan, plan_disk
from tests.addresses import held_addresses
from tests.system.running import Running
from tests.system.test_batches_stay import digests_of, expected_digests, write_graphs

MIB = 1 << 20


def everything_on_disk(dataset: Dataset, part: int, bound: int, **_: Any) -> DiskPlan:
    """A few rows and blocks of each file stay in memory."""
    return DiskPlan({name: 5 for name in dataset.files if name.startswith(f"part-{part:04d}/")}, 4096)


def served(running: Running, data: Path, parts: int, **settings: Any) -> tuple[list[str], list[Daemon]]:
    addresses = held_addresses(parts)
    peers = dict(enumerate(addresses))
    return addresses, [running.start(data, part, peers[part], peers, memory="1GiB", **settings) for part in peers]


def summed(daemons: list[Daemon]) -> Mapping[str, float]:
    every = [daemon.graph.stats() for daemon in daemons]
    return {name: sum(stats[name] for stats in every) for name in every[0] if name.startswith("disk_")}


@pytest.mark.parametrize(
    ("settings", "every"),
    [
        ({}, 12),
        ({"links": False, "cache_rank": "recent", "window": 2}, 14),
        pytest.param({}, 1, marks=pytest.mark.slow),
        pytest.param({"links": False, "cache_rank": "recent"}, 1, marks=pytest.mark.slow),
    ],
)
def test_batches_are_those_from_memory(
    tmp_path: Path, running: Running, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], every: int
) -> None:
    """Rows and in-edges, of all loaders, at home and asked by peers."""
    monkeypatch.setattr(needs, "plan_disk", everything_on_disk)
    write_graphs(tmp_path)
    plain, of_plain = served(running, tmp_path / "plain-3", 3, **settings)
    typed, of_typed = served(running, tmp_path / "typed-2", 2, **settings)
    with ExitStack() as stack:
        clusters = [stack.enter_context(atta.connect(addresses)) for addresses in (plain, typed)]
        found = digests_of(*clusters, every=every)
    assert [
        name
        for (name, digest), known in zip(found.items(), expected_digests()[::every], strict=True)
        if digest != known
    ] == []
    for daemons in (of_plain, of_typed):
        stats = summed(daemons)
        assert stats["disk_reads"] > 0
        assert stats["disk_read_bytes"] >= 4096 * stats["disk_reads"]
        assert 0 < stats["disk_rows_hit"] < stats["disk_rows_asked"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of 60 MiB of features each."""
    folder, rng = tmp_path_factory.mktemp("wide"), np.random.default_rng(3)
    n = 60_000
    with GraphWriter(folder / "graph") as writer:
        x = rng.random((n, 512), dtype=np.float32)
        writer.add_nodes("node", n, tables={"x": x, "y": np.arange(n) % 10}, splits={"train": np.arange(0, n, 40)})
        writer.add_edges("node__to__node", rng.integers(0, n, 4 * n), rng.integers(0, n, 4 * n))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=1)
    return folder / "parts"


def least(data: Path, buffer: int) -> int:
    """The least memory, which the error names."""
    dataset = Dataset.open(data, verify=False)
    with pytest.raises(ConfigError, match=r"--memory 100 MiB: this partition needs \d+MiB at least") as refused:
        plan_disk(dataset, 0, 100 * MIB, cache=0, buffer=buffer)
    return int(str(refused.value).split("needs ")[1].split("MiB")[0]) * MIB


def test_a_bound_is_divided(wide: Path) -> None:
    dataset, buffer = Dataset.open(wide, verify=False), 64 * MIB
    bound = least(wide, buffer)
    plan = plan_disk(dataset, 0, bound, cache=0, buffer=buffer)
    ((file, slots),) = plan.slots.items()
    assert file == "part-0000/nodes/node/x.npy"
    assert 4 * MIB <= slots * 2048 < 8 * MIB
    assert plan_disk(dataset, 0, bound + 200 * MIB, cache=0, buffer=buffer).slots == {}
    assert plan_disk(dataset, 0, bound + 40 * MIB, cache=None, buffer=buffer).cache == pytest.approx(5 * MIB, rel=0.2)


def test_the_plan_measures_the_disk(wide: Path) -> None:
    probe = pytest.importorskip("atta.train.planning.probe")
    dataset = Dataset.open(wide, verify=False)
    assert probe.disk_rows_per_s(dataset, 1 << 30) == float("inf")
    rates = [probe.disk_rows_per_s(dataset, least(wide, 64 * MIB) + more * MIB, reads=2000) for more in (0, 55)]
    assert 1000 < rates[0] < rates[1] < float("inf")


@pytest.mark.usefixtures("own_interpreters")
def test_memory_stays_within_the_bound(wide: Path) -> None:
    """The rows of a whole epoch take several times what the bound leaves for them."""
    bound = least(wide, 64 * MIB)
    seen = []
    for memory in ("copy", str(bound)):
        options = "--memory", memory, "--buffer", "64MiB", "--cache", "0"
        with atta.local(wide, threads=2, options=options) as cluster:
            loader = atta.NeighborLoader(cluster, [5, 5], "train", batch_size=100, seed=4)
            seen.append([(batch.n_id().tobytes(), batch.table("x").tobytes()) for batch in loader])
            for pid, stats in zip(cluster.pids, cluster.stats(), strict=True):
                anonymous = int((Path("/proc") / str(pid) / "status").read_text().split("RssAnon:")[1].split()[0]) << 10
                if memory != "copy":
                    assert anonymous < bound
                    assert stats["disk_read_bytes"] > 2 * stats["disk_cache_bytes"] > 0
    assert seen[0] == seen[1]


def test_too_little_memory_is_refused(wide: Path, running: Running) -> None:
    for memory, words in (("100MiB", r"needs \d+MiB at least"), ("1GB/s", "memory '1GB/s'"), ("0", "memory '0'")):
        with pytest.raises(AttaError, match=words):
            running.start(wide, 0, held_addresses(1)[0], {}, memory=memory)
    with pytest.raises(ConfigError, match="--memory 1GiB: partitions 0-1 of one daemon are loaded"):
        running.start(wide, range(2), held_addresses(1)[0], {}, memory="1GiB")


def test_a_damaged_file_fails_a_session_and_the_daemon_goes_on(
    tmp_path: Path, wide: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "plan_disk", everything_on_disk)
    monkeypatch.setattr("atta.daemon.daemon.WATCH_S", 3600.0)
    shutil.copytree(wide, tmp_path / "parts")
    addresses, _ = served(running, tmp_path / "parts", 2)
    table = tmp_path / "parts/part-0000/nodes/node/x.npy"
    with atta.connect(addresses) as cluster:
        loader = atta.NeighborLoader(cluster, [5], "train", batch_size=100)
        expected = next(iter(loader)).n_id()
        os.truncate(table, 10_000)
        with pytest.raises(AttaError, match=r"x\.npy"):
            list(loader)
        graphs = atta.NeighborLoader(cluster, [5], "train", batch_size=100, tables=[])
        with pytest.raises(AttaError, match=r"x\.npy"):  # its files have changed: the daemon answers, and says so
            next(iter(graphs))
    assert len(expected) > 100
