"""Runs that something else has placed: trainers in a process group that exists, loaders that choose their home, and
ranks under every launcher of this field, which share a split, each vertex once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import atta
from atta.client.cluster import Cluster
from atta.client.control import Description
from atta.client.loaders.dag import TrainerRank
from atta.errors import ConfigError
from atta.partition.schema import Schema
from atta.train import TrainConfig, fit
from atta.train.launching.worker import run
from tests.system.conftest import SmallGraph


@pytest.fixture
def cluster(pair: atta.LocalCluster) -> atta.LocalCluster:
    return pair


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_trainers", "group")
def test_a_process_group_that_exists_is_used_and_left_open(
    cluster: atta.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    given: dict[str, Any] = {"model": "sage", "layers": 2, "hidden": 8, "num_neighbors": (3, 3), "batch_size": 32}
    given |= {"epochs": 2, "trainers": 1, "device": "cpu", "task": "classes", "verbose": False}
    config = TrainConfig(cluster=str(cluster.cluster_file), **given)
    first, again = ([epoch.loss for epoch in run(config, cluster.addresses)] for _ in range(2))
    torch.distributed.barrier()
    assert len(first) == 2
    assert again == first
    assert [epoch.loss for epoch in fit(config).epochs] == first


def batches(cluster: Cluster, small: SmallGraph, **options: Any) -> tuple[list[dict[str, np.ndarray]], list[int]]:
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
        Description("", "", range(part, part + 1), 4, nothing, machine, 1, "", {})
        for part, machine in enumerate(machines)
    ]
    assert [cluster.home_daemon(rank, 8) for rank in range(8)] == homes


# -- ranks -------------------------------------------------------------------------------------------------------------


TORCHRUN = [
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "localhost:0",
]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["spawn", "torchrun", "accelerate", "lightning", "ray"])
def test_two_ranks_draw_every_seed_once(small_graph: SmallGraph, tmp_path: Path, launcher: str) -> None:
    if launcher in ("accelerate", "lightning", "ray"):
        pytest.importorskip(launcher)
    first = TORCHRUN if launcher in ("torchrun", "accelerate") else []
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        command = [sys.executable, *first, "-m", "tests.system.ranks", launcher]
        subprocess.run([*command, str(cluster.cluster_file), str(tmp_path)], check=True, timeout=150)
        whole = [atta.NeighborLoader(cluster, [2], split, batch_size=50, pad=False) for split in ("train", "val")]
        expected = [sorted(int(v) for batch in loader for v in batch.to_pyg().input_id) for loader in whole]
    seeds = [(tmp_path / f"seeds-{rank}").read_text().split("\n") for rank in (0, 1)]
    for number, every in enumerate(expected):
        of_ranks = [[int(v) for v in lines[number].split()] for lines in seeds]
        assert sorted([*of_ranks[0], *of_ranks[1]]) == every
        assert all(of_ranks)


@pytest.fixture
def said_group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What torch.distributed says, with a process group that a test can turn on."""
    state = SimpleNamespace(rank=1, world=3, on=False)
    said = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: state.on, get_rank=lambda: state.rank,
        get_world_size=lambda: state.world,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch.distributed", said)  # type: ignore[arg-type]
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return state


def test_a_group_counts_more_than_the_environment(said_group: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TrainerRank.of(None, None) == TrainerRank(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(atta.ConfigError, match="WORLD_SIZE is set and RANK is not"):
        TrainerRank.here()
    said_group.on = True
    assert TrainerRank.here() == TrainerRank(1, 3)
    assert TrainerRank.of(2, None) == TrainerRank(2, 3)
    assert TrainerRank.of(None, 2) == TrainerRank(1, 2)
    assert TrainerRank.of(0, 1) == TrainerRank(0, 1)
    said_group.on = False
    monkeypatch.setenv("RANK", "3")
    assert TrainerRank.here() == TrainerRank(3, 4)
    with pytest.raises(atta.ConfigError, match="rank 5 of 4"):
        TrainerRank.of(5, None)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(atta.ConfigError, match="RANK is set and WORLD_SIZE is not"):
        TrainerRank.here()


def test_loaders_and_states_of_another_rank_are_refused(small_graph: SmallGraph, said_group: SimpleNamespace) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        early = atta.NeighborLoader(cluster, [2], "train", batch_size=8)
        said = [atta.NeighborLoader(cluster, [2], "train", batch_size=8, rank=rank, world_size=2) for rank in (0, 1)]
        said_group.on = True
        with pytest.raises(
            atta.ConfigError, match=r"made for rank 0 of 1 trainers, and now this is rank 1 of 3: make it"
        ):
            next(iter(early))
        assert len(list(said[0])) == len(said[0])
        with pytest.raises(atta.ConfigError, match=r"that of rank 0 of 2 trainers, this one is rank 1 of 2"):
            said[1].load_state_dict(said[0].state_dict())
        said[0].load_state_dict(said[0].state_dict())
