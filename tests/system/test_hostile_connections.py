"""Callers that send too much, call too often or never read: a daemon's memory is bounded, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import psutil
import pytest

import atta
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import control_pb2, session_pb2, table_pb2
from atta.wire import rpc
from atta.wire.bulk import ROWS_VALUES
from atta.wire.identity import Bound
from atta.wire.pieces import MESSAGE_BYTES, pieces_of
from tests.callers import Caller, memory
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
CONNECTIONS = 24
MIB = 1 << 20
LONGEST = 60 * MIB
ANSWER = 24 * MIB


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph) -> Iterator[atta.LocalCluster]:
    """One daemon of its own process, with a table ``wide`` of 4 MiB."""
    options = ("--max-connections", str(CONNECTIONS), "--request-memory", "512MiB", "--answer-memory", "256MiB")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_VERBOSITY", "NONE")
        cluster = atta.local(small_graph.dataset(1, "random"), threads=1, options=(*options, "--max-seeds", "150"))
    with cluster:
        cluster.tables.create(MutableSpec("wide", 1024, row_shape=(1024,)))
        yield cluster


@pytest.fixture
def caller(cluster: atta.LocalCluster) -> Iterator[Caller]:
    caller = Caller(cluster)
    yield caller
    caller.close()
    assert eventually(lambda: cluster.stats()[0]["request_bytes"] == cluster.stats()[0]["answer_bytes"] == 0)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("TableService.Push", b"\x98\x06\x01"),
        ("SessionService.Open", b"\x12\x02\x12\x00"),
        ("KvService.Pull", b"\x12\x00"),
    ],
)
def test_60_mib_of_tiny_fields(cluster: atta.LocalCluster, caller: Caller, name: str, unit: bytes) -> None:
    """Before there was a bound, they took up to 99 s and 2.3 GiB."""
    before, daemon = memory(cluster), psutil.Process(cluster.pids[0])
    worked_s = sum(daemon.cpu_times()[:2])
    code, details = caller.refusal(name, pieces_of(unit * (LONGEST // len(unit))))
    assert code is FULL
    assert "has more than 8192 fields" in details
    assert sum(daemon.cpu_times()[:2]) - worked_s < 3
    assert memory(cluster) - before < 256 * MIB


def test_60_mib_of_names(caller: Caller) -> None:
    code, details = caller.refusal("SessionService.Renew", pieces_of(b"\x0a\x00" * (LONGEST // 2)))
    assert code is FULL
    assert "a RenewRequest of 62914560 bytes: at most 1048576" in details
    names = session_pb2.RenewRequest(sessions=["s"] * 4097).SerializeToString()
    assert caller.refusal("SessionService.Renew", names)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_large_requests_take_turns(cluster: atta.LocalCluster, caller: Caller) -> None:
    """A caller sends five requests of 60 MiB at once. The daemon takes two at a time at most, and serves others."""
    before = memory(cluster)
    payload = table_pb2.PushRowsRequest(name="wide", values=b"\0" * LONGEST).SerializeToString()
    calls = [caller.start("TableService.Push", pieces_of(payload), timeout=60) for _ in range(5)]
    peak = 0
    while not all(call.done() for call in calls):
        peak = max(peak, memory(cluster) - before)
        assert cluster._connections[0].call("ControlService.Stats", control_pb2.StatsRequest(), timeout=30)
        time.sleep(0.02)
    assert {call.code() for call in calls} <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT}
    assert peak < 512 * MIB


@pytest.mark.parametrize("name", ["TableService.Push", "SessionService.Renew", "KvService.Pull"])
def test_60_mib_in_one_message(cluster: atta.LocalCluster, caller: Caller, name: str) -> None:
    """gRPC refuses them when it has read how long they are, and the caller learns why."""
    before = memory(cluster)
    code, details = caller.refusal(name, b"\0" * LONGEST)
    assert code is FULL
    assert "message larger than max" in details
    assert memory(cluster) - before < 64 * MIB


def test_a_request_above_the_longest_message_is_served(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    """A push of a million rows of four bytes, a pull of as many, and a session with as many seeds, which are too many."""
    rows, table = np.arange(1 << 20), cluster.tables.create(MutableSpec("long", 1 << 20, dtype="<i4"))
    table.push(rows, rows.astype(np.int32)).wait()
    assert np.array_equal(table.pull(rows).values, rows)
    caller = Caller(cluster)
    request = table_pb2.PullRowsRequest(name="long", rows=rows.tobytes()).SerializeToString()
    assert len(request) > MESSAGE_BYTES
    chunks = [table_pb2.RowsChunk.FromString(raw) for raw in caller.call("TableService.Pull", pieces_of(request))]
    assert np.array_equal(np.concatenate([np.frombuffer(chunk.values, np.int32) for chunk in chunks]), rows)
    caller.close()
    cluster.tables.delete("long")
    with pytest.raises(atta.QuotaExceededError, match=rf"{len(rows)} seeds: .* allows 150 \(--max-seeds\)"):
        iter(atta.NeighborLoader(cluster, [2], np.resize(small_graph.ids, len(rows)), batch_size=60))


def test_daemons_send_each_other_long_requests_in_pieces(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    """Their channels are asyncio's. One request is answered by a message and one by a stream."""
    ids, rows = np.resize(small_graph.ids, 1 << 20), np.arange(1 << 20) % 1024
    identity = cluster._connections[0].describe().identity
    header = identity.header(Bound.DATA)
    locate = table_pb2.LocateRequest(dataset_id=identity.dataset_id, policy="nodes:node", ids=ids.tobytes())
    pull = table_pb2.PullRowsRequest(name="narrow", rows=rows.tobytes())
    table = cluster.tables.create(MutableSpec("narrow", 1024, dtype="<i4"))
    table.push(np.arange(1024), np.arange(1024, dtype=np.int32)).wait()

    async def asked() -> tuple[np.ndarray, np.ndarray]:
        async with grpc.aio.insecure_channel(cluster.addresses[0], options=rpc.client_options()) as channel:
            found = await rpc.stub(channel, "TableService.Locate")(locate, timeout=60, metadata=header)
            chunks = rpc.stub(channel, "TableService.Pull")(pull, timeout=60, metadata=header)
            values = [np.frombuffer(chunk.payloads[ROWS_VALUES], np.int32) async for chunk in chunks]
            return np.frombuffer(found.rows, np.int64), np.concatenate(values)

    located, values = asyncio.run(asked())
    assert np.array_equal(located, np.resize(cluster.tables.locate("nodes:node", small_graph.ids), len(ids)))
    assert np.array_equal(values, rows)
    cluster.tables.delete("narrow")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_no_compressed_messages(cluster: atta.LocalCluster, caller: Caller, compression: grpc.Compression) -> None:
    """A message of zeros would grow a thousandfold when it arrives."""
    before = memory(cluster)
    code, details = caller.refusal("TableService.Push", b"\0" * (16 * MIB), compression=compression)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "is disabled" in details
    assert memory(cluster) - before < 64 * MIB


def test_connections_beyond_the_bound(cluster: atta.LocalCluster) -> None:
    """Those that are open go on; further ones are closed, until others end."""
    callers = [Caller(cluster, ("grpc.enable_retries", 0)) for _ in range(CONNECTIONS + 10)]
    served = []
    for caller in callers:
        with contextlib.suppress(grpc.RpcError):
            caller.call("ControlService.Describe", timeout=2)
            served.append(caller)
    assert CONNECTIONS // 2 < len(served) < CONNECTIONS
    for caller in served:
        caller.call("ControlService.Describe")
    assert cluster._connections[0].describe().pid == cluster.pids[0]
    for caller in callers:
        caller.close()

    def served_again() -> bool:
        fresh = Caller(cluster)
        with contextlib.suppress(grpc.RpcError):
            return bool(fresh.call("ControlService.Describe", timeout=2))
        return False

    assert eventually(served_again)


@pytest.mark.slow
def test_3000_calls_at_once_reset_nobody(cluster: atta.LocalCluster) -> None:
    """They come over ten connections. Another client's calls are all answered meanwhile."""
    callers, other = [Caller(cluster) for _ in range(10)], Caller(cluster)
    other.call("ControlService.Describe")
    calls = [caller.start("ControlService.Describe", timeout=120) for _ in range(300) for caller in callers]
    answered = 0
    while not all(call.done() for call in calls):
        other.call("ControlService.Describe", timeout=60)
        answered += 1
    assert answered
    assert {call.code() for call in calls} == {grpc.StatusCode.OK}
    for caller in (*callers, other):
        caller.close()


def test_answers_that_nobody_reads(cluster: atta.LocalCluster) -> None:
    """Two connections ask for 40 answers of 24 MiB each and read none. Others go on reading theirs."""
    table = cluster.tables.open("wide")
    rows = np.arange(ANSWER // 4096) % 1024
    request = table_pb2.PullRowsRequest(name="wide", rows=rows.tobytes()).SerializeToString()
    table.pull(rows[:1024])
    before = memory(cluster)
    idle = [Caller(cluster) for _ in range(2)]
    calls = [caller.start("TableService.Pull", request, timeout=None) for caller in idle for _ in range(40)]
    assert eventually(lambda: cluster.stats()[0]["answer_bytes"] == 48 * MIB)  # two of 12 MiB for each connection
    for _ in range(5):
        assert table.pull(rows[:1024]).values.shape == (1024, 1024)
    assert memory(cluster) - before < 128 * MIB
    for call in calls[:40]:
        call.cancel()
    # Who reads gets all of it, and then the next ones are sent.
    with ThreadPoolExecutor(40) as readers:
        assert all(nbytes >= ANSWER for nbytes in readers.map(lambda call: sum(map(len, call)), calls[40:]))
    assert eventually(lambda: cluster.stats()[0]["answer_bytes"] == 0)
    for caller in idle:
        caller.close()


def test_every_method_names_whom_it_means_before_it_sends(cluster: atta.LocalCluster, caller: Caller) -> None:
    """A request that is meant for another daemon is refused before it has been read: its bytes stay at the sender."""
    before = memory(cluster)
    for name in ("TableService.Push", "SessionService.Open", "KvService.Pull"):
        assert rpc.METHODS[name].bound in (Bound.DATA, Bound.PROCESS)
        make = caller.channel.unary_stream if rpc.METHODS[name].streams else caller.channel.unary_unary
        with pytest.raises(grpc.RpcError) as caught:
            [*make(rpc.METHODS[name].path)(b"\0" * LONGEST, timeout=30)]
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert memory(cluster) - before < 64 * MIB


def test_a_consumer_that_stops_reading_holds_its_queue_only(small_graph: SmallGraph) -> None:
    """One session stays within the queue's bound while another session of the same daemon runs through epochs."""
    options = ("--queue", "1MiB", "--buffer", "64MiB")
    with (
        atta.local(small_graph.dataset(1, "random"), threads=1, options=options) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        stalled = iter(atta.NeighborLoader(cluster, [5, 5], "train", batch_size=4))
        next(stalled)
        loader = atta.NeighborLoader(cluster, [5, 5], "train", batch_size=4)
        assert pool.submit(lambda: sum(len(list(loader)) for _ in range(5))).result(60) == 5 * len(loader)
        assert cluster.stats()[0]["buffer_bytes"] < 64 << 20
        assert len(list(stalled)) == len(loader) - 1
