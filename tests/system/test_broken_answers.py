"""Connections that break while a peer answers, and peers that are away for a while: the batches stay the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog

import atta
from atta.client.control import Connection
from atta.daemon.peers import chunks, peers
from atta.daemon.peers.peers import Peer
from atta.daemon.services import data as data_services
from atta.daemon.services.data import GraphService, KvService
from atta.errors import RemoteError, UnavailableError
from atta.partition.dataset import Dataset
from atta.protos.v1 import control_pb2
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.methods import Method
from atta.wire import rpc
from atta.wire.clusterfile import write_cluster
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import Running, daemons

EDGE = "node__to__node"
BROKEN = [
    (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
    (grpc.StatusCode.CANCELLED, ""),
    (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
]


class Breaks:
    """Ends streams of this process's daemons after the number of messages that ``plan`` gives; None: never."""

    def __init__(self) -> None:
        self.plan: Callable[[], int | None] = lambda: None
        self.broken = 0

    def wrap(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapper(service: Any, request: Any, context: Any) -> AsyncIterator[Any]:
            most, sent = self.plan(), 0
            async for answer in handler(service, request, context):
                if sent == most:
                    self.broken += 1
                    await context.abort(*BROKEN[self.broken % len(BROKEN)])
                yield answer
                sent += 1

        return wrapper


@pytest.fixture(scope="module")
def breaks() -> Iterator[Breaks]:
    """Daemons that answer in many small messages. The stream may break off."""
    breaks = Breaks()
    with pytest.MonkeyPatch.context() as patch:
        for module in (chunks, data_services):
            patch.setattr(module, "CHUNK_BYTES", 256)
        patch.setattr(data_services, "PULL_BYTES", 512)
        patch.setattr(peers, "RETRY_S", 0.001)
        patch.setattr(peers, "LONGEST_PAUSE_S", 0.001)
        patch.setattr(GraphService, "sample", breaks.wrap(GraphService.sample))
        patch.setattr(KvService, "pull", breaks.wrap(KvService.pull))
        yield breaks


@pytest.fixture(scope="module")
def pair(small_graph: SmallGraph, breaks: Breaks) -> Iterator[tuple[Path, list[str], Running]]:
    """Two daemons that are peers of each other. They cache no rows, and messages carry what they ask each other."""
    data, addresses = small_graph.dataset(2, "random"), held_addresses(2)
    with daemons() as running:
        for part, address in enumerate(addresses):
            running.start(data, part, address, dict(enumerate(addresses)), cache_bytes=0, links=False)
        yield data, addresses, running


def sample_items(dataset: Dataset) -> list[SampleItem]:
    """One item of each kind, each with all rows of partition 1 in some order."""
    rng, count = np.random.default_rng(3), int(np.diff(dataset.book.offsets["node"])[1])
    rows = [rng.permutation(count) for _ in range(4)]
    trees = rng.integers(0, 9, count).astype(np.int32)
    times = rng.integers(0, 50, count)
    return [
        SampleItem(EDGE, rows[0], rows[0], 3, False, Method.UNIFORM, 11, tables=("note",)),
        SampleItem(EDGE, rows[1], rows[1], -1, False, Method.UNIFORM, 12),
        SampleItem(EDGE, rows[2], rows[2], 4, True, Method.UNIFORM, 13, trees=trees),
        SampleItem(EDGE, rows[3], rows[3], 4, False, Method.LABOR, 14),
        SampleItem(EDGE, rows[0], rows[0], 2, False, Method.TEMPORAL, 15, times=times),
    ]


async def sampled(peer: Peer, items: list[SampleItem]) -> list[tuple[Any, ...]]:
    """The answers of each item's rows, in one piece."""
    pieces: dict[int, list[Any]] = {id(item): [] for item in items}
    async for item, first_row, answer, _ in peer.sample(items):
        assert first_row == sum(len(piece.counts) for piece in pieces[id(item)])
        pieces[id(item)].append(answer)
    return [
        tuple(
            np.concatenate([getattr(piece, name) for piece in pieces[id(item)]]).tolist()
            for name in ("counts", "neighbors", "edge_ids")
        )
        + tuple(np.concatenate([piece.tables[name] for piece in pieces[id(item)]]).tolist() for name in item.tables)
        for item in items
    ]


async def pulled(peer: Peer, items: list[FeatureItem], codec: str) -> list[bytes]:
    got, rows = [bytearray() for _ in items], [0] * len(items)
    async for index, first_row, count, data in peer.pull(items, codec):
        assert first_row == rows[index]
        rows[index] += count
        got[index] += data
    assert rows == [len(item.rows) for item in items]
    return [bytes(data) for data in got]


def test_answers_that_break_off_are_continued(pair: Any, breaks: Breaks, rng: np.random.Generator) -> None:
    """The stream breaks after any number of messages, repeatedly, for every method and several items at once."""
    data, addresses, running = pair
    dataset = Dataset.open(data, parts=[], verify=False)
    items = sample_items(dataset)
    rows = np.random.default_rng(4).permutation(int(np.diff(dataset.book.offsets["node"])[1]))
    features = [FeatureItem("node", ("x",), rows, rows), FeatureItem("node", ("y", "x"), rows[::2], rows[::2])]

    async def ask() -> None:
        peer = Peer(1, addresses[1], dataset, 20.0)
        try:
            breaks.plan = lambda: None
            whole = await sampled(peer, items)
            plain = [await pulled(peer, features, codec) for codec in ("", "int8")]
            assert len(whole[0][1]) > 0
            before = breaks.broken
            for _ in range(5):
                breaks.plan = lambda: int(rng.integers(1, 9))
                assert await sampled(peer, items) == whole
                assert [await pulled(peer, features, codec) for codec in ("", "int8")] == plain
            assert breaks.broken > before + 20
        finally:
            await peer.close()

    running.run(ask())


def test_an_answer_that_never_gets_further_is_given_up(pair: Any, breaks: Breaks) -> None:
    data, addresses, running = pair
    dataset = Dataset.open(data, parts=[], verify=False)
    rows = np.arange(100)

    async def ask() -> None:
        peer = Peer(1, addresses[1], dataset, 20.0)
        try:
            first = True

            def plan() -> int:
                nonlocal first
                most, first = (3 if first else 0), False
                return most

            breaks.plan = plan
            before = breaks.broken
            with pytest.raises(UnavailableError, match=addresses[1]):
                await pulled(peer, [FeatureItem("node", ("x",), rows, rows)], "")
            assert breaks.broken == before + 3
        finally:
            await peer.close()

    running.run(ask())


def test_batches_are_the_same_over_connections_that_break(pair: Any, breaks: Breaks, rng: np.random.Generator) -> None:
    _, addresses, _ = pair

    def epoch(cluster: atta.Cluster) -> list[tuple[Any, ...]]:
        loader = atta.NeighborLoader(cluster, [-1, 5], "train", batch_size=30, seed=3, rank=0, world_size=1)
        return [(b.n_id().tolist(), b.edge_index().tolist(), b.table("x").tolist()) for b in loader]

    with atta.connect(addresses) as cluster:
        breaks.plan = lambda: None
        whole = epoch(cluster)
        before, breaks.plan = breaks.broken, lambda: int(rng.integers(1, 9)) if rng.random() < 0.5 else None
        assert epoch(cluster) == whole
        assert breaks.broken > before


# -- away for a while --------------------------------------------------------------------------------------------------


@pytest.fixture
def running() -> Iterator[Running]:
    with daemons() as running:
        yield running


def later(seconds: float, function: Callable[..., Any], *args: Any) -> threading.Timer:
    timer = threading.Timer(seconds, function, args)
    timer.start()
    return timer


def test_a_peer_that_comes_back_is_seen_at_once(small_graph: SmallGraph, running: Running) -> None:
    """The peer is away for three seconds of a deadline of four. No caller sees it. The log says it in two lines."""
    (address,) = held_addresses(1)
    data = small_graph.dataset(2, "random")
    dataset = Dataset.open(data, parts=[], verify=False)
    items = [FeatureItem("node", ("x",), np.arange(50), np.arange(50))]
    running.start(data, 1, address, {})

    async def ask() -> None:
        peer = Peer(1, address, dataset, 20.0, connect_s=4.0)
        try:
            whole = await pulled(peer, items, "")
            await asyncio.to_thread(running.kill, address)
            timer = later(3.0, running.start, data, 1, address, {})
            assert await asyncio.gather(*(pulled(peer, items, "") for _ in range(5))) == [whole] * 5
            timer.join()
            assert await pulled(peer, items, "") == whole
        finally:
            await peer.close()

    with structlog.testing.capture_logs() as lines:
        running.run(ask())
    said = [line for line in lines if line["event"].startswith("peer")]
    assert [line["event"] for line in said] == ["peer lost", "peer is back"]
    assert address in said[0]["error"]
    assert said[1]["restarted"] is True
    assert 1.5 < said[1]["away_s"] < 5.0


def test_a_daemon_is_killed_and_started_again(small_graph: SmallGraph, tmp_path: Path) -> None:
    """A separate process is killed by SIGKILL. Its peer waits, and the batches are the same."""

    def epoch(cluster: atta.Cluster) -> list[list[int]]:
        loader = atta.NeighborLoader(cluster, [5, 5], "train", batch_size=8, seed=3, rank=0, world_size=1)
        return [batch.n_id().tolist() for batch in loader]

    addresses, file = held_addresses(2), tmp_path / "cluster.toml"
    write_cluster(file, [(address,) for address in addresses])

    def serve(part: int) -> subprocess.Popen[bytes]:
        options = {"--data": small_graph.dataset(2, "random"), "--part": part, "--listen": addresses[part]}
        words = [str(word) for option in {**options, "--peers": file, "--threads": 1}.items() for word in option]
        return subprocess.Popen([sys.executable, "-m", "atta.cli.main", "serve", *words], stderr=subprocess.DEVNULL)

    running = [serve(part) for part in (0, 1)]
    try:
        with atta.connect(addresses, wait=True) as cluster:
            whole = epoch(cluster)
            running[1].kill()
            timer = later(3.0, lambda: running.append(serve(1)))
            try:
                assert epoch(cluster) == whole
            finally:
                timer.join()
    finally:
        for daemon in running:
            daemon.kill()
            daemon.wait()


def test_a_peer_that_stays_away_fails_all_who_wait_after_the_same_while(
    running: Running, small_graph: SmallGraph
) -> None:
    (address,) = held_addresses(1)
    dataset = Dataset.open(small_graph.dataset(2, "random"), parts=[], verify=False)
    items = [FeatureItem("node", ("x",), np.arange(5), np.arange(5))]

    async def ask() -> None:
        peer = Peer(1, address, dataset, 20.0, connect_s=0.5)
        try:
            asked = [pulled(peer, items, "") for _ in range(40)]
            errors = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)  # all at once
            assert all(isinstance(error, UnavailableError) and address in str(error) for error in errors)
        finally:
            await peer.close()

    with structlog.testing.capture_logs() as lines:
        running.run(ask())
    said = [line["event"] for line in lines if line["event"].startswith("peer")]  # daemons of other tests may say more
    assert said == ["peer lost"]


def test_a_client_waits_for_a_daemon_that_it_has_met(small_graph: SmallGraph, running: Running) -> None:
    addresses, data = held_addresses(1), small_graph.dataset(1, "random")
    with pytest.raises(UnavailableError):
        atta.connect(addresses)  # nobody ever answered here: no reason to wait
    running.start(data, 0, addresses[0], {})
    with atta.connect(addresses) as cluster:
        loader = atta.NeighborLoader(cluster, [5], "train", batch_size=50)
        before = [batch.n_id().tolist() for batch in loader]
        running.kill(addresses[0])
        timer = later(2.0, running.start, data, 0, addresses[0], {})
        assert [batch.n_id().tolist() for batch in atta.NeighborLoader(cluster, [5], "train", batch_size=50)] == before
        timer.join()
        running.kill(addresses[0])
        timer = later(2.0, running.start, data, 0, addresses[0], {})
        assert len(cluster.stats()) == 1
        timer.join()


def test_patience_ends(small_graph: SmallGraph, running: Running) -> None:
    (address,) = held_addresses(1)
    running.start(small_graph.dataset(1, "random"), 0, address, {})
    connection = Connection(address, 20.0, part=0, patience_s=0.3)
    connection.meet(connection.describe())
    running.kill(address)
    with pytest.raises(UnavailableError, match=address):
        connection.stats()
    connection.close()


def test_what_one_channel_has_tried_in_vain_does_not_keep_another_from_trying(
    small_graph: SmallGraph, running: Running
) -> None:
    """By default, gRPC shares connections of one process to one address, and also the waits between attempts."""
    (address,) = held_addresses(1)
    vain = Connection(address, 5.0)
    for _ in range(4):
        with pytest.raises(UnavailableError):
            vain.describe(timeout=1.0)
    running.start(small_graph.dataset(1, "random"), 0, address, {})
    with atta.connect([address]) as cluster:
        assert cluster.num_parts == 1
    vain.close()


def test_a_daemon_that_stops_in_the_middle_of_an_answer_is_one_that_went_away(
    running: Running, small_graph: SmallGraph
) -> None:
    """End the daemon. It cancels the calls under way: for their callers the connection breaks."""
    (address,) = held_addresses(1)
    daemon = running.start(small_graph.dataset(1, "random"), 0, address, {})
    hanging = threading.Event()

    async def hang(_request: Any, _context: Any) -> Any:
        hanging.set()
        await asyncio.sleep(60)

    daemon._server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("t", {"h": grpc.unary_unary_rpc_method_handler(hang)}),)
    )
    with grpc.insecure_channel(address, options=rpc.client_options()) as channel:
        call = channel.unary_unary("/t/h").future(b"", timeout=30)
        assert hanging.wait(10)
        running.kill(address)
        with pytest.raises(grpc.RpcError) as caught:
            call.result()
    assert isinstance(rpc.error_from(address, caught.value, 1.0), UnavailableError)


def test_a_call_that_is_given_up_here_is_no_reason_to_try_again(running: Running, small_graph: SmallGraph) -> None:
    (address,) = held_addresses(1)
    running.start(small_graph.dataset(1, "random"), 0, address, {})
    connection = Connection(address, 20.0)
    call = connection.start("ControlService.Trace", control_pb2.TraceRequest())
    call.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    error = rpc.error_from(address, caught.value, 1.0)
    assert isinstance(error, RemoteError)
    assert not isinstance(error, UnavailableError)
    connection.close()
