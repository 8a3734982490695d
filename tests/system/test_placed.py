"""Runs that something else has placed: trainers in a process group that exists, and loaders that choose their home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.cluster import Cluster
from atta.client.control import Description
from atta.errors import ConfigError
from atta.partition.schema import Schema
from atta.wire.identity import Contract
from tests.system.conftest import SmallGraph


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph) -> Iterator[atta.LocalCluster]:
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as running:
        yield running


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_trainers")
def test_a_process_group_that_exists_is_used_and_left_open(cluster: atta.LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    from atta.train import TrainConfig, fit

    config = TrainConfig(
        cluster=str(cluster.cluster_file), model="sage", layers=2, hidden=8, num_neighbors=(3, 3), batch_size=32,
        epochs=2, trainers=1, device="cpu", task="classes", verbose=False,
    )  # fmt: skip
    settings, addresses = json.dumps(config.to_dict()), json.dumps(cluster.addresses)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.in_group", str(tmp_path / "meeting"), settings, addresses],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, again = json.loads(done.stdout.splitlines()[-1])
    assert len(first) == 2
    assert again == first
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        alone = fit(config)
    assert [e.loss for e in alone.epochs] == first


def batches(cluster: Cluster, small: SmallGraph, **options: Any) -> tuple[list[dict[str, np.ndarray]], list[int]]:
    """What rank 0 of 2 gets, and by which daemons' sessions."""
    before = [s["sessions_opened"] for s in cluster.stats()]
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "rank": 0, "world_size": 2}
    loader = atta.NeighborLoader(cluster, [4, 3], "train", **settings, **options)
    found = [
        {"n_id": np.array(b.n_id()), "edge_index": np.array(b.edge_index()), "x": b.table("x").copy()} for b in loader
    ]
    return found, [int(s["sessions_opened"] - b) for s, b in zip(cluster.stats(), before, strict=True)]


def test_a_loader_is_told_its_home(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    usual, sessions = batches(cluster, small_graph)
    assert sessions == [1, 0]
    told, sessions = batches(cluster, small_graph, home=1)
    assert sessions == [0, 1]
    assert len(usual) == len(told) > 1
    for one, other in zip(usual, told, strict=True):
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])
    for wrong in (2, -1):
        with pytest.raises(ConfigError, match="home"):
            batches(cluster, small_graph, home=wrong)


@pytest.mark.parametrize(
    ("machines", "homes"),
    [
        ("mmmm", [0, 0, 1, 1, 2, 2, 3, 3]),  # all are here: the partition of the seeds decides
        ("xxxx", [0, 0, 1, 1, 2, 2, 3, 3]),  # none is here: the same
        ("xxmx", [2, 2, 2, 2, 2, 2, 2, 2]),
        ("mxxm", [0, 0, 0, 3, 0, 3, 3, 3]),  # those whose daemon is far away are divided among the near ones
    ],
)
def test_the_home_is_a_daemon_of_this_machine(monkeypatch: pytest.MonkeyPatch, machines: str, homes: list[int]) -> None:
    """Stands for machines by letters; the test runs on ``m``."""
    monkeypatch.setattr("atta.client.cluster.machine_id", lambda: "m")
    cluster = object.__new__(Cluster)
    nothing = Schema((), (), {}, {})
    cluster._descriptions = [
        Description("", "", range(part, part + 1), 4, nothing, machine, 1, "", Contract())
        for part, machine in enumerate(machines)
    ]
    assert [cluster.home_daemon(rank, 8) for rank in range(8)] == homes
