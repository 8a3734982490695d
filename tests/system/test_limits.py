"""Few descriptors, many sessions, large requests: each client is served or told why not, and nothing piles up."""

from __future__ import annotations

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
from atta.protos.v1 import session_pb2
from tests.addresses import held_port
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

SESSIONS = 256


def command(data: Path, port: int, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", "0", "--threads", "1"),
        *("--listen", f"127.0.0.1:{port}", *options),
    ]


@contextmanager
def limited(data: Path, soft: int, hard: int) -> Iterator[tuple[psutil.Process, atta.Cluster]]:
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


def test_running_out_of_descriptors_is_an_error_of_that_session(small_graph: SmallGraph) -> None:
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


MOST = (1 << 64) - 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start_batch": MOST}, "start batch 18446744073709551615 of"),
        ({"policy": 7}, "seed policy 7"),
        ({"rank": 2**32 - 1, "world_size": 2**32 - 1}, "rank 4294967295"),
        ({"batch_size": 2**32 - 1}, "batch size 4294967295"),
        ({"share": float("nan")}, "share nan"),
    ],
)
def test_numbers_out_of_range(placements: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    cluster = placements["2 parts by random, 2 threads"]
    with pytest.raises(atta.ConfigError, match=words):
        cluster._connections[0].call("SessionService.Open", request_with(cluster, changes))


@pytest.mark.parametrize("changes", [{"epoch": MOST}, {"rank": 2**32 - 2, "world_size": 2**32 - 1, "policy": 1}])
def test_large_numbers_that_are_none_too_large(placements: dict[str, Any], changes: dict[str, Any]) -> None:
    cluster = placements["2 parts by random, 2 threads"]
    reply = cluster._connections[0].call("SessionService.Open", request_with(cluster, changes))
    assert reply.batches >= 1
    call = cluster._connections[0].start("SessionService.Next", session_pb2.NextRequest(session=reply.session))
    assert next(call).message.header.arrays
    call.cancel()
    cluster._connections[0].call("SessionService.Close", session_pb2.CloseRequest(session=reply.session))


def request_with(cluster: atta.Cluster, changes: dict[str, Any]) -> Any:
    loader = atta.NeighborLoader(cluster, [2], "train", batch_size=4, rank=0, world_size=1)
    request = session_pb2.OpenRequest()
    request.CopyFrom(loader._request)
    for name, value in changes.items():
        setattr(request, name, value)
    return request


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
