"""Few descriptors, many sessions, large requests: each client is served or told why not, and nothing piles up."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import atta
from atta.client.control import Connection
from atta.partition import GraphWriter, partition_graph
from atta.protos.v1 import session_pb2
from tests.addresses import held_port
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

SESSIONS = 256
SHAPES = 50
ROUNDS = int(os.environ.get("ATTA_SESSION_ROUNDS", "6"))
"""Number of sessions of each shape. The long version has 20, a thousand in all."""


def command(data: Path, port: int, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", "0", "--threads", "1"),
        *("--listen", f"127.0.0.1:{port}", *options),
    ]


@contextmanager
def limited(data: Path, soft: int, hard: int) -> Iterator[tuple[psutil.Process, atta.Cluster]]:
    """A daemon with limits on its open files."""
    port = held_port()
    limits = f"ulimit -Sn {soft} && ulimit -Hn {hard} && exec"
    started = subprocess.Popen(["sh", "-c", f'{limits} "$@"', "sh", *command(data, port)], stderr=subprocess.DEVNULL)
    try:
        with atta.connect(f"127.0.0.1:{port}", wait=True) as cluster:
            yield psutil.Process(started.pid), cluster
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == 0
    finally:
        started.kill()
        started.wait()


@pytest.mark.slow
def test_many_sessions_with_few_descriptors(small_graph: SmallGraph) -> None:
    """256 sessions run at once. The daemon and the consumers may have 1,024 files each. All read their epochs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with limited(small_graph.dataset(1, "random"), 128, 1024) as (daemon, cluster):
        assert daemon.rlimit(psutil.RLIMIT_NOFILE) == (1024, 1024)
        loaders = [atta.NeighborLoader(cluster, [2], batch_size=30, seed=number) for number in range(SESSIONS)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
        try:
            running = [iter(loader) for loader in loaders]
            # Nobody has read an answer yet. Renewals of sessions must not queue behind the unread answers.
            renewed = cluster._connections[0].call("SessionService.Renew", session_pb2.RenewRequest(), timeout=10)
            assert not renewed.unknown
            assert cluster.stats()[0]["sessions"] == SESSIONS
            with pytest.raises(atta.QuotaExceededError, match="--max-sessions 256"):
                iter(loaders[0])
            first = [next(batches) for batches in running]
            assert daemon.num_fds() < 128 + SESSIONS  # each consumer has a connection to ask for batches
            rest = [sum(1 for _ in batches) for batches in running]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert rest == [3] * SESSIONS
        loaders[7].set_epoch(0)
        assert np.array_equal(next(iter(loaders[7])).n_id(), first[7].n_id())  # kept, and not overwritten


def test_a_daemon_does_not_start_with_too_few_descriptors(small_graph: SmallGraph) -> None:
    run = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *command(small_graph.dataset(1, "random"), held_port())]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("atta: error: 128 files may be open, ")
    assert "--max-sessions" in line


def test_running_out_of_descriptors_is_an_error_of_that_session(small_graph: SmallGraph) -> None:
    """The daemon still answers clients that are connected."""
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        pid, options = cluster.pids[0], {"batch_size": 20}
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = psutil.Process(pid).num_fds()
        for spare, words in ((0, "split_train.*too many files are open"), (5, "memory file for another batch buffer")):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + spare, hard))
            for _ in range(3):
                with pytest.raises(atta.QuotaExceededError, match=words):
                    list(atta.NeighborLoader(cluster, [2], **options))  # type: ignore[arg-type]
        assert cluster.stats()[0]["launch_errors"] == 3
        assert cluster._connections[0].describe().pid == pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert len(list(atta.NeighborLoader(cluster, [2], **options))) == 6  # type: ignore[arg-type]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 5, hard))
        assert len(list(atta.NeighborLoader(cluster, [2, 2], **options))) == 6  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wide_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 vertices with rows of a page each, so every batch size needs buffers of a different size."""
    folder, rng, n = tmp_path_factory.mktemp("wide"), np.random.default_rng(0), 600
    with GraphWriter(folder / "graph") as graph:
        graph.add_nodes("node", n, tables={"x": rng.random((n, 1024), np.float32)}, splits={"train": np.arange(n)})
        graph.add_edges("node__to__node", rng.integers(0, n, 6000), rng.integers(0, n, 6000))
    partition_graph(folder / "graph", folder / "data", parts=1, method="random")
    return folder / "data"


@pytest.mark.slow
@pytest.mark.usefixtures("own_interpreters")
def test_sessions_of_many_shapes_leave_nothing(wide_rows: Path) -> None:
    """After many sessions of 50 shapes, the daemon's memory and descriptors are within 20 % of what they were."""
    with atta.local(wide_rows, threads=1, options=("--trace-events", "0")) as cluster:
        daemon, shapes = psutil.Process(cluster.pids[0]), np.random.default_rng(3).permutation(SHAPES * ROUNDS) % SHAPES

        def session(shape: int) -> None:
            size = 3 + shape
            found = sum(b.batch_size for b in atta.NeighborLoader(cluster, [4], np.arange(4 * size), batch_size=size))
            assert found == 4 * size

        for shape in range(3):
            session(shape)
        memory, descriptors = daemon.memory_info().rss, daemon.num_fds()
        for shape in shapes.tolist():
            session(shape)
        assert daemon.memory_info().rss < 1.2 * memory
        assert daemon.num_fds() <= 1.2 * descriptors


@pytest.mark.usefixtures("own_interpreters")
def test_requests_for_very_many_batches_take_no_memory(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        daemon = psutil.Process(cluster.pids[0])

        def first_of(batches: int, **options: Any) -> list[int]:
            loader = atta.BatchLoader(cluster, "saint-nodes", {"budget": 30}, batches=batches, seed=3, **options)
            running = iter(loader)
            assert len(loader) == -(-batches // options.get("world_size", 1))
            return next(running).n_id().tolist()  # type: ignore[no-any-return]

        few = first_of(4, rank=0, world_size=1)
        before = daemon.memory_info().rss
        for batches in (1 << 22, 1 << 31):
            assert first_of(batches, rank=0, world_size=1) == few
            assert first_of(batches, rank=0, world_size=3) == few
        assert daemon.memory_info().rss - before < 32 << 20
        with pytest.raises(atta.ConfigError, match="batches 2147483649: must be a whole number, 1 to 2147483648"):
            first_of((1 << 31) + 1)


MOST = (1 << 64) - 1
IDS = np.arange(3, dtype=np.int64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start_batch": MOST}, "start batch 18446744073709551615 of"),
        ({"policy": 7}, "seed policy 7"),
        ({"rank": 2**32 - 1, "world_size": 2**32 - 1}, "rank 4294967295"),
        ({"batch_size": 2**32 - 1}, "batch size 4294967295"),
        ({"share": float("nan")}, "share nan"),
        ({"sizes": [-1, 1]}, "do not add up"),
        ({"sizes": [2**63 - 1, 2**63 - 1, 5]}, "do not add up"),
        ({"sizes": [2**62] * 4 + [3]}, "do not add up"),
    ],
)
def test_numbers_out_of_range(placements: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    cluster = placements["2 parts by random, 2 threads"]
    request, changes = plain_request(cluster), dict(changes)
    if "sizes" in changes:
        request.seeds.ClearField("split")
        request.seeds.ids = cluster_ids(cluster).tobytes()
        request.seeds.sizes = np.array(changes.pop("sizes"), dtype=np.int64).tobytes()
    for name, value in changes.items():
        setattr(request, name, value)
    with pytest.raises(atta.ConfigError, match=words):
        cluster._connections[0].call("SessionService.Open", request)


@pytest.mark.parametrize("changes", [{"epoch": MOST}, {"rank": 2**32 - 2, "world_size": 2**32 - 1, "policy": 1}])
def test_large_numbers_that_are_none_too_large(placements: dict[str, Any], changes: dict[str, Any]) -> None:
    cluster = placements["2 parts by random, 2 threads"]
    request = plain_request(cluster)
    for name, value in changes.items():
        setattr(request, name, value)
    reply = cluster._connections[0].call("SessionService.Open", request)
    assert reply.batches >= 1
    call = cluster._connections[0].start("SessionService.Next", session_pb2.NextRequest(session=reply.session))
    assert next(call).message.header.arrays
    call.cancel()
    cluster._connections[0].call("SessionService.Close", session_pb2.CloseRequest(session=reply.session))


def plain_request(cluster: atta.Cluster) -> Any:
    loader = atta.NeighborLoader(cluster, [2], "train", batch_size=4, rank=0, world_size=1)
    request = session_pb2.OpenRequest()
    request.CopyFrom(loader._request)
    return request


def cluster_ids(cluster: atta.Cluster) -> np.ndarray:
    """Three user ids that exist."""
    return next(iter(atta.NeighborLoader(cluster, [2], "train", batch_size=3, rank=0, world_size=1))).n_id()[:3]


def test_seeds_that_no_buffer_can_hold(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 3000
    with GraphWriter(tmp_path / "graph") as graph:
        graph.add_nodes("node", n, tables={"x": rng.random((n, 8192), np.float32)}, splits={"train": np.arange(n)})
        graph.add_edges("node__to__node", rng.integers(0, n, 10), rng.integers(0, n, 10))
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=1, method="random")
    with atta.local(tmp_path / "data", threads=1, options=("--buffer", "64MiB")) as cluster:
        with pytest.raises(
            atta.QuotaExceededError, match="seeds of one batch take 93 MiB, all buffers together 64 MiB"
        ):
            iter(atta.NeighborLoader(cluster, [1], batch_size=n))
        ids = np.repeat(np.arange(1000), 3)  # repeated ids count once
        assert len(next(iter(atta.NeighborLoader(cluster, [1], ids, batch_size=n))).n_id()) >= 1000
        assert cluster.stats()[0]["sessions_opened"] == 1


@pytest.mark.parametrize("lost", [atta.DeadlineError, atta.UnavailableError, KeyboardInterrupt])
def test_a_session_whose_answer_was_lost_is_closed(
    placements: dict[str, Any], monkeypatch: pytest.MonkeyPatch, lost: type[BaseException]
) -> None:
    """The session closes before its lease ends, and the program that gave up sends nothing."""
    cluster = placements["2 parts by random, 2 threads"]
    opened, call = cluster.stats()[0]["sessions_opened"], Connection.call

    def losing(self: Connection, name: str, request: Any, **options: Any) -> Any:
        reply = call(self, name, request, **options)
        if name == "SessionService.Open":
            raise lost() if lost is KeyboardInterrupt else lost(self.address, "lost")
        return reply

    monkeypatch.setattr(Connection, "call", losing)
    with pytest.raises(lost):
        iter(atta.NeighborLoader(cluster, [2], "train", batch_size=4, rank=0, world_size=1, reconnect=0))
    assert cluster.stats()[0]["sessions_opened"] == opened + 1
    assert eventually(lambda: cluster.stats()[0]["sessions"] == 0)
