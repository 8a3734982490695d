"""Files of a partition that change while a daemon serves them: no wrong row is delivered, and the daemon says so."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import atta
from atta.errors import ChangedFileError
from tests.system.conftest import SmallGraph
from tests.system.test_daemon_down import run
from tests.waiting import eventually


@pytest.fixture
def served(small_graph: SmallGraph, tmp_path: Path) -> Iterator[tuple[atta.LocalCluster, Path]]:
    """Daemons that map their files and cache nothing, and the folder of partition 1."""
    data = tmp_path / "data"
    shutil.copytree(small_graph.dataset(2, "random"), data)
    with atta.local(data, threads=1, options=("--memory", "map", "--cache", "0")) as cluster:
        yield cluster, data / "part-0001"


def write_over(path: Path) -> None:
    """Change the last byte, and hide the time of it."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def epochs(cluster: atta.LocalCluster, graph: SmallGraph) -> None:
    """Draw epochs while daemons look at their files; rows and edges of each batch are those of the graph."""
    edges = set(zip(graph.src_ids.tolist(), graph.dst_ids.tolist(), strict=True))
    until, loader = time.monotonic() + 1.6, atta.NeighborLoader(cluster, [4, 4], batch_size=8, shuffle=True)
    while time.monotonic() < until:
        for drawn in loader:
            batch = drawn.to_pyg()
            ids = batch.n_id.tolist()
            assert np.array_equal(batch.x.numpy(), graph.x[graph.rows(ids)])
            assert {(ids[s], ids[t]) for s, t in batch.edge_index.T.tolist()} <= edges
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("nodes/node/x.npy", "truncated"),
        pytest.param("edges/node__to__node/indices.npy", "truncated", marks=pytest.mark.slow),
        ("edges/node__to__node/indices.npy", "altered"),
        ("../shared/node/ids.npy", "truncated"),
        pytest.param("../shared/node/split_train.npy", "truncated", marks=pytest.mark.slow),
    ],
)
def test_a_changed_file_ends_sessions_and_not_the_daemon(
    served: tuple[atta.LocalCluster, Path], small_graph: SmallGraph, name: str, cause: str
) -> None:
    cluster, folder = served
    loader = iter(atta.NeighborLoader(cluster, [4, 4], batch_size=8))
    next(loader)
    path = (folder / name).resolve()
    if cause == "truncated":  # a page that is missing is found when it is read
        os.truncate(path, 0)
    else:  # daemons look once a second
        write_over(path)
        eventually(lambda: run("status", "--cluster", cluster.cluster_file).returncode)
    with pytest.raises(atta.DataError, match=cause) as found:
        epochs(cluster, small_graph)
    assert found.value.path == str(path)
    assert isinstance(found.value, ChangedFileError)
    assert "restart the daemon (the daemon at 127.0.0.1" in str(found.value)
    with pytest.raises(atta.AttaError):  # of a session that was open before, and may have met wrong ids
        list(loader)
    assert all(psutil.pid_exists(pid) for pid in cluster.pids)
    done = run("status", "--cluster", cluster.cluster_file, columns=400)
    assert done.returncode == 1
    assert " does not serve " in done.stdout
    assert f": does not serve: {path}: " in done.stderr


def test_a_file_with_the_same_bytes_is_no_change_and_one_with_the_name_of_another_waits_for_a_restart(
    served: tuple[atta.LocalCluster, Path], small_graph: SmallGraph
) -> None:
    cluster, folder = served
    for path in folder.rglob("*.npy"):
        path.write_bytes(path.read_bytes())
    epochs(cluster, small_graph)
    assert run("status", "--cluster", cluster.cluster_file).returncode == 0
    other = folder / "nodes/node/other.npy"
    np.save(other, np.zeros((3, 16), np.float32))
    other.replace(folder / "nodes/node/x.npy")
    epochs(cluster, small_graph)  # of the old file, which daemons still have
    done = run("status", "--cluster", cluster.cluster_file, columns=400)
    assert done.returncode == 0
    assert f"serving; {folder.parent}: other files lie there than are served: restart the daemon" in done.stdout


def test_a_dataset_that_is_served_is_not_overwritten(
    small_graph: SmallGraph, tmp_path: Path, served: tuple[atta.LocalCluster, Path]
) -> None:
    cluster, folder = served
    data, graph, other = folder.parent, small_graph.folder / "graph", small_graph.dataset(4, "random")
    before = (data / "manifest.json").read_bytes()
    for command in (
        ("partition", graph, data, "--parts", "2", "--overwrite"),
        ("deploy", other, data, "--part", "0", "--overwrite"),
    ):
        refused = run(*command)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"atta: error: {data}: is served by a daemon (process ")
        assert all(str(pid) in refused.stderr for pid in cluster.pids)
        assert len(refused.stderr.splitlines()) == 1
    assert (data / "manifest.json").read_bytes() == before
    cluster.close()
    assert run("deploy", other, data, "--part", "0", "--overwrite").returncode == 0
    assert not list(tmp_path.glob("*partial*"))
