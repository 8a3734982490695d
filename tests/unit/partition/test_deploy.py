"""Copying what one daemon needs: all of it, nothing else, whole or not at all."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError, DataError, QuotaExceededError
from atta.partition import Dataset, partition_graph
from atta.partition.deploy import deploy
from atta.partition.graph import GraphWriter


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("deploy"), np.random.default_rng(3)
    with GraphWriter(folder / "graph") as out:
        tables = {"x": rng.random((60, 4), dtype=np.float32)}
        out.add_nodes("node", 60, tables=tables, splits={"train": np.arange(20)})
        out.add_edges("node__to__node", rng.integers(0, 60, 300), rng.integers(0, 60, 300))
    partition_graph(folder / "graph", folder / "data", parts=3, method="random")
    return folder / "data"


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))


@pytest.mark.parametrize("parts", [[0], [2, 1]])
def test_exactly_what_is_needed_is_there(whole: Path, tmp_path: Path, parts: list[int]) -> None:
    seen: dict[str, int] = {}

    class Told:
        def stage(self, name: str, total: int | None) -> None:
            self.name = name
            seen[name] = 0

        def advance(self, amount: int) -> None:
            seen[self.name] += amount

    copied = deploy(whole, tmp_path / "there", parts, progress=Told())
    folders = ("shared", *(f"part-{p:04d}" for p in parts))
    wanted = {"manifest.json", *(name for name in files(whole) if name.startswith(folders))}
    assert files(tmp_path / "there") == wanted
    for name in wanted:
        assert (tmp_path / "there" / name).read_bytes() == (whole / name).read_bytes()
    assert copied == sum((whole / name).stat().st_size for name in wanted - {"manifest.json"})
    assert seen == {"copy": copied, "verify": copied}
    assert Dataset.open(tmp_path / "there", parts=parts).dataset_id == Dataset.open(whole).dataset_id
    with pytest.raises(DataError, match="part-"):
        Dataset.open(tmp_path / "there")
    again = tmp_path / "again"  # from a deployed folder to the next machine
    deploy(tmp_path / "there", again, parts[:1])
    assert (again / "manifest.json").exists()


def test_damage_is_named_and_leaves_nothing(whole: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(whole, tmp_path / "bad")
    damage(bad / "part-0001/nodes/node/x.npy")
    with pytest.raises(DataError, match=r"bad/part-0001/nodes/node/x\.npy: altered"):
        deploy(bad, tmp_path / "there", [1])
    assert {p.name for p in tmp_path.iterdir()} == {"bad"}
    deploy(bad, tmp_path / "there", [0])  # damage to unneeded files does not matter
    with pytest.raises(DataError, match="altered"):
        deploy(bad, tmp_path / "there", [1], overwrite=True)
    assert (tmp_path / "there/part-0000").exists()


def test_what_exists_is_not_overwritten_unasked(whole: Path, tmp_path: Path) -> None:
    deploy(whole, tmp_path / "there", [0])
    with pytest.raises(ConfigError, match="--overwrite"):
        deploy(whole, tmp_path / "there", [1])
    deploy(whole, tmp_path / "there", [1], overwrite=True)
    assert (tmp_path / "there/part-0001").exists()
    assert not (tmp_path / "there/part-0000").exists()


def test_nonsense_is_refused(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="partition 3 does not exist"):
        deploy(whole, tmp_path / "there", [3])
    with pytest.raises(ConfigError, match="is the dataset itself"):
        deploy(whole, whole / "." / "shared" / "..", [0], overwrite=True)
    usage = namedtuple("usage", "total used free")(10, 7, 3)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(QuotaExceededError, match="3 are free"):
        deploy(whole, tmp_path / "there", [0])
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_is_not_partitioned_comes_with_the_command(whole: Path) -> None:
    graph = whole.parent / "graph"
    with pytest.raises(DataError) as refused:
        Dataset.open(graph)
    assert str(refused.value).endswith(f"not partitioned yet: run atta partition {graph} {graph}-2p --parts 2")
