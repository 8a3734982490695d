"""Under every launcher of this field two ranks share a split: each vertex once, by scripts that say no rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import atta
from atta.client.loaders.dag import TrainerRank
from tests.system.conftest import SmallGraph

pytest.importorskip("torch")
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
LAUNCHERS = [
    "spawn",
    pytest.param("torchrun", marks=pytest.mark.slow),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("accelerate", "lightning", "ray")),
]


@pytest.mark.parametrize("launcher", LAUNCHERS)
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
def group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
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


def test_a_group_counts_more_than_the_environment(group: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TrainerRank.of(None, None) == TrainerRank(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(atta.ConfigError, match="WORLD_SIZE is set and RANK is not"):
        TrainerRank.here()
    group.on = True
    assert TrainerRank.here() == TrainerRank(1, 3)
    assert TrainerRank.of(2, None) == TrainerRank(2, 3)
    assert TrainerRank.of(None, 2) == TrainerRank(1, 2)
    assert TrainerRank.of(0, 1) == TrainerRank(0, 1)
    group.on = False
    monkeypatch.setenv("RANK", "3")
    assert TrainerRank.here() == TrainerRank(3, 4)
    with pytest.raises(atta.ConfigError, match="rank 5 of 4"):
        TrainerRank.of(5, None)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(atta.ConfigError, match="RANK is set and WORLD_SIZE is not"):
        TrainerRank.here()


def test_loaders_and_states_of_another_rank_are_refused(small_graph: SmallGraph, group: SimpleNamespace) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        early = atta.NeighborLoader(cluster, [2], "train", batch_size=8)
        said = [atta.NeighborLoader(cluster, [2], "train", batch_size=8, rank=rank, world_size=2) for rank in (0, 1)]
        group.on = True
        with pytest.raises(
            atta.ConfigError, match=r"made for rank 0 of 1 trainers, and now this is rank 1 of 3: make it"
        ):
            next(iter(early))
        assert len(list(said[0])) == len(said[0])
        with pytest.raises(atta.ConfigError, match=r"that of rank 0 of 2 trainers, this one is rank 1 of 2"):
            said[1].load_state_dict(said[0].state_dict())
        said[0].load_state_dict(said[0].state_dict())
