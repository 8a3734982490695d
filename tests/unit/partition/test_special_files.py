"""Pipes, devices and folders in place of files are refused by name. No read waits for a pipe without a writer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atta.errors import DataError
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.disk.files import map_array
from atta.partition.importers import import_graph
from tests.unit.partition.oracles import write_graph


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


kinds = pytest.mark.parametrize(
    ("make", "what"),
    [(pipe, "a named pipe"), (link_to_a_pipe, "a named pipe"), (link_to_a_device, "a device"), (folder, "a folder")],
)
Make = Callable[[Path], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made")
    write_graph(path / "g", [0, 1, 2, 3], [0, 1, 2], [1, 2, 3], 4)
    partition_graph(path / "g", path / "d", parts=2, method="random")
    return path


@kinds
@pytest.mark.parametrize("verify", [True, False])
def test_in_a_graph_or_a_dataset(made: Path, tmp_path: Path, make: Make, what: str, verify: bool) -> None:
    for name, read in (("g", Graph.open), ("d", Dataset.open)):
        for number, file in enumerate(sorted(p.relative_to(made / name) for p in (made / name).rglob("*.*"))):
            copy = tmp_path / f"{name}{number}"
            shutil.copytree(made / name, copy)
            (copy / file).unlink()
            make(copy / file)
            with pytest.raises(DataError, match=f"{file.name}: {what} in place of a regular file"):
                read(copy, verify=verify)


@kinds
def test_after_the_dataset_was_opened(tmp_path: Path, make: Make, what: str) -> None:
    make(tmp_path / "x.npy")
    with pytest.raises(DataError, match=f"x.npy: {what} in place of a regular file"):
        map_array(tmp_path / "x.npy")


@pytest.mark.parametrize("fmt", ["npz", "planetoid", "ogb", "dorylus", "table", "pyg", "dgl"])
def test_in_what_is_imported(tmp_path: Path, fmt: str) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for source in (tmp_path, tmp_path / "pipe.npz"):
        with pytest.raises(DataError, match=r"pipe\.npz: a named pipe in place of a regular file"):
            import_graph(fmt, source, tmp_path.parent / "never")


def test_a_link_to_a_file_is_a_file(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "d", tmp_path / "d")
    file = tmp_path / "d" / "shared" / "node" / "ids.npy"
    file.rename(tmp_path / "elsewhere.npy")
    file.symlink_to(tmp_path / "elsewhere.npy")
    assert np.array_equal(Dataset.open(tmp_path / "d").ids("node"), Dataset.open(made / "d").ids("node"))
