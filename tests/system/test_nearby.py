"""Consumers on the daemon's machine ask it over a Unix socket: the batches are those of gRPC, and nothing is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import atta
from atta.wire import memfiles
from tests.forking import in_fork
from tests.system.conftest import SmallGraph
from tests.waiting import eventually


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph):  # type: ignore[no-untyped-def]
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as running:
        yield running


def counted(cluster: atta.Cluster, name: str) -> float:
    return sum(stats.get(name, 0.0) for stats in cluster.stats())


def content(cluster: atta.Cluster) -> list[list[bytes]]:
    loader = atta.NeighborLoader(cluster, [4, 3], batch_size=16, shuffle=True, rank=0, world_size=1)
    return [
        [np.ascontiguousarray(part).tobytes() for part in (b.n_id(), *b.edge_index(), b.table("x"))] for b in loader
    ]


def test_batches_are_those_of_grpc(cluster: atta.Cluster, small_graph: SmallGraph) -> None:
    before = counted(cluster, "requests_nearby"), counted(cluster, "requests_SessionService.Next")
    found = content(cluster)
    asked = counted(cluster, "requests_nearby") - before[0]
    assert asked >= len(found)
    assert counted(cluster, "requests_SessionService.Next") == before[1]
    assert eventually(lambda: counted(cluster, "consumers_nearby") == 0)
    with atta.local(small_graph.dataset(2, "metis"), threads=1, options=("--no-links",)) as by_grpc:
        assert content(by_grpc) == found
        assert counted(by_grpc, "requests_nearby") == 0
        assert counted(by_grpc, "requests_SessionService.Next") >= len(found)


def test_a_consumer_that_keeps_its_batches(cluster: atta.Cluster) -> None:
    """From the fifth on they do not lie in shared memory, and come by gRPC."""
    before = counted(cluster, "requests_SessionService.Next")
    kept = list(atta.NeighborLoader(cluster, [4, 3], batch_size=16, rank=0, world_size=1))
    assert counted(cluster, "requests_SessionService.Next") > before
    again = atta.NeighborLoader(cluster, [4, 3], batch_size=16, rank=0, world_size=1)
    for batch, other in zip(kept, again, strict=True):
        assert np.array_equal(batch.table("x"), other.table("x"))
        assert np.array_equal(batch.n_id(), other.n_id())


def check_forked_child(data: str) -> None:
    with atta.local(data, threads=1, options=("--no-links",)) as cluster:
        loader = atta.NeighborLoader(cluster, [4, 3], batch_size=16, rank=0, world_size=1)
        iterator = iter(loader)
        first = next(iterator).batch_id

        def child() -> None:
            with pytest.raises(atta.ConfigError, match="connections do not survive a fork"):
                next(iterator)
            iterator.close()  # type: ignore[attr-defined]

        assert in_fork(child)
        assert [first, *(batch.batch_id for batch in iterator)] == [*range(len(loader))]
        assert counted(cluster, "sessions_opened") == 1


def test_a_forked_child_leaves_its_parents_session_alone(small_graph: SmallGraph) -> None:
    """In a process of its own: amid the calls of other tests' clusters gRPC may abort a fork."""
    code = "import sys; from tests.system.test_nearby import check_forked_child; check_forked_child(sys.argv[1])"
    words = [sys.executable, "-c", code, str(small_graph.dataset(1, "metis"))]
    subprocess.run(words, check=True, timeout=120, cwd=Path(__file__).parents[2])


def test_a_consumer_on_another_machine_is_not_told_of_it(
    cluster: atta.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, before = content(cluster), counted(cluster, "requests_nearby")
    monkeypatch.setattr("atta.client.cluster.machine_id", lambda: "another")
    assert content(cluster) == here
    assert counted(cluster, "requests_nearby") == before


def test_sessions_and_strangers_leave_no_descriptor(cluster: atta.LocalCluster) -> None:
    def descriptors() -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in [os.getpid(), *cluster.pids])

    content(cluster)
    assert eventually(lambda: counted(cluster, "consumers_nearby") == 0)
    before = descriptors()
    for _ in range(5):
        content(cluster)
    iterator = iter(atta.NeighborLoader(cluster, [4, 3], batch_size=16))
    next(iterator)
    del iterator
    sockets = [line.split() for line in Path("/proc/net/unix").read_text(encoding="ascii").splitlines()]
    of_packets = {words[7] for words in sockets if words[4] == "0005" and len(words) > 7}  # links are streams
    names = [name for name in of_packets if name.startswith(tuple(f"@atta-{pid}-" for pid in cluster.pids))]
    assert len(names) == len(cluster.pids)
    for name in names:
        with memfiles.packets() as stranger:
            stranger.connect("\0" + name[1:])
            stranger.send(b"let me in")
            stranger.settimeout(10)
            with pytest.raises((ConnectionResetError, _EndError)):
                _received(stranger)
    assert eventually(lambda: descriptors() <= before)


class _EndError(Exception):
    pass


def _received(sock: socket.socket) -> bytes:
    if not (packet := sock.recv(100)):
        raise _EndError
    return packet


def test_edges_are_viewed_where_the_daemon_wrote_them(pair: atta.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In shared memory, ids are as wide as PyTorch wants. Over a network they are narrow, and the client widens them."""
    for shared in (True, False):
        batch = next(iter(atta.NeighborLoader(pair, [4, 3], batch_size=16)))
        edges, e_id = batch.edge_index(), batch.e_id()
        assert edges.dtype == e_id.dtype == np.int64
        assert edges.shape == (2, len(e_id)) == (2, batch.num_edges)
        assert np.shares_memory(edges[1], batch._raw.arrays["col/" + batch.edge_types[0]]) == shared
        assert np.shares_memory(e_id, batch._raw.arrays["e_id/" + batch.edge_types[0]]) == shared
        monkeypatch.setattr("atta.client.cluster.machine_id", lambda: "another machine")
