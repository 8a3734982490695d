"""A disk fills up during writing: the error names it, nothing is left, and the old file is untouched."""

from __future__ import annotations

import contextlib
import gc
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from atta.cli.figures import save_figure
from atta.errors import DiskFullError
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.exporters import EXPORTERS, export_graph
from atta.simulate import HopSize, Profile, save_profile
from tests.unit.partition.exports import need, target

NAMES = ["graph", "dataset", "snapshot", "figure", "profile", *sorted(EXPORTERS), "pyg-parts"]


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Writing past a limit in one file fails, as on a file system with such a limit (EFBIG)."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path_factory.mktemp("disk")
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", path], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("mounting a small file system needs root")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def write_graph(path: Path, n: int) -> None:
    rng = np.random.default_rng(1)
    with GraphWriter(path, overwrite=True) as out:
        x, y = rng.normal(size=(n, 8)).astype(np.float32), rng.integers(0, 3, n)
        splits = {"train": np.arange(n // 2), "val": np.arange(n // 2, n), "test": np.arange(0)}
        out.add_nodes("node", n, tables={"x": x, "y": y}, splits=splits)
        out.add_edges("node__to__node", rng.integers(0, n, 2 * n), rng.integers(0, n, 2 * n))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``few`` fits on the small disk in every format, ``many`` in none."""
    folder = tmp_path_factory.mktemp("sources")
    for name, count in (("few", 60), ("many", 20_000)):
        write_graph(folder / name, count)
        partition_graph(folder / name, folder / f"{name}-2p", parts=2, method="random")
    return folder


@dataclass
class Canvas:
    """A figure of the given size."""

    size: int

    def savefig(self, path: Path, **_: object) -> None:
        path.write_bytes(bytes(self.size))


def writer(name: str, sources: Path) -> Callable[[str, Path], object]:
    """A function that writes ``few`` or ``many`` to a path and replaces what is there."""
    if name == "graph":
        return lambda size, dst: write_graph(dst, Graph.open(sources / size).schema.node_counts["node"])
    if name == "dataset":
        return lambda size, dst: partition_graph(sources / size, dst, parts=2, method="random", overwrite=True)
    if name == "snapshot":
        tables = Tables(1 << 30)

        def snapshot(size: str, dst: Path) -> None:
            tables.delete("t")
            tables.create(MutableSpec("t", 60 if size == "few" else 20_000, "<f4", (8,)))
            tables.snapshot(dst, overwrite=True)

        return snapshot
    if name == "figure":
        return lambda size, dst: save_figure(Canvas(1000 if size == "few" else 1 << 20), dst)
    if name == "profile":
        few = Profile(1, (), (HopSize(1.0),), {})
        return lambda size, dst: save_profile(
            dst, replace(few, measured={"by": "x" * (1 if size == "few" else 1 << 20)})
        )
    if name == "pyg-parts":
        return lambda size, dst: export_graph(name, sources / f"{size}-2p", dst, overwrite=True)
    return lambda size, dst: export_graph(name, sources / size, dst, overwrite=True)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_the_disk_is_full(name: str, sources: Path, small_disk: Path) -> None:
    need("pyg" if name == "pyg-parts" else name)
    dst = target(name, small_disk)
    write = writer(name, sources)
    write("few", dst)
    before = content(small_disk)
    assert before
    try:
        with pytest.raises(DiskFullError, match=f"{dst}: no space left"):
            write("many", dst)
        assert content(small_disk) == before
        assert [p.name for p in small_disk.iterdir()] == [dst.name]
        gc.collect()  # the error's traceback holds torch's writer, which keeps its removed file open
        write("few", dst)
    finally:
        subprocess.run(["rm", "-rf", *small_disk.iterdir()], check=True)


@pytest.mark.parametrize("name", ["graph", "dataset", "snapshot"])
def test_a_file_is_larger_than_files_may_be(name: str, sources: Path, tmp_path: Path) -> None:
    write = writer(name, sources)
    write("few", tmp_path / "d")
    before = content(tmp_path)
    with files_up_to(10_000), pytest.raises(DiskFullError, match="d: no space left"):
        write("many", tmp_path / "d")
    assert content(tmp_path) == before
    if name == "dataset":
        assert Dataset.open(tmp_path / "d", verify=True)
