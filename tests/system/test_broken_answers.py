"""Connections that break while a peer answers, and peers that are away for a while: the batches stay the same."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog

import atta
from atta.client.control import Connection
from atta.daemon.peers import owners, peers
from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.owners import Owners
from atta.daemon.peers.peers import Peer
from atta.daemon.services import data as data_services
from atta.daemon.services.data import GraphService, KvService
from atta.errors import RemoteError, UnavailableError
from atta.partition.dataset import Dataset
from atta.protos.v1 import control_pb2
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.methods import Method
from atta.wire import rpc
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
    """Ends calls of this process's daemons where ``plan`` says so, the same request ``most`` times."""

    def __init__(self) -> None:
        self.plan: Callable[[], bool] = lambda: False
        self.broken, self.most = 0, 2
        self._tries: Counter[bytes] = Counter()

    def wrap(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapper(service: Any, request: Any, context: Any) -> Any:
            key = request.SerializeToString()
            if self.plan() and self._tries[key] < self.most:
                self._tries[key] += 1
                self.broken += 1
                await context.abort(*BROKEN[self.broken % len(BROKEN)])
            self._tries.pop(key, None)
            return await handler(service, request, context)

        return wrapper


@pytest.fixture(scope="module")
def breaks() -> Iterator[Breaks]:
    """Daemons that ask each other for many small messages. A call may break off."""
    breaks = Breaks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owners, "CHUNK_BYTES", 256)
        patch.setattr(data_services, "CHUNK_BYTES", 512)
        patch.setattr(owners, "PULL_BYTES", 512)
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
    """One item of each kind, each with all vertices of partition 1 in some order."""
    rng, (first, count) = np.random.default_rng(3), of_partition_1(dataset)
    rows = [first + rng.permutation(count) for _ in range(4)]
    trees, times, at = rng.integers(0, 9, count).astype(np.int32), rng.integers(0, 50, count), np.arange(count)
    kinds: list[tuple[Any, ...]] = [
        (3, False, Method.UNIFORM, 11, None, None, ("note",)),
        (-1, False, Method.UNIFORM, 12),
        (4, True, Method.UNIFORM, 13, trees),
        (4, False, Method.LABOR, 14),
        (2, False, Method.TEMPORAL, 15, None, times),
    ]
    starts = np.array([0, 0, count])
    return [replace(SampleItem(EDGE, rows[n % 4], at, *kind), starts=starts) for n, kind in enumerate(kinds)]


def of_partition_1(dataset: Dataset) -> tuple[int, int]:
    first, stop = dataset.book.range("node", 1)
    return first, stop - first


class Asking:
    def __init__(self, address: str, dataset: Dataset, **settings: Any) -> None:
        self.peer = Peer(1, address, dataset, PeerSettings(20.0, **settings))
        self._pool = ThreadPoolExecutor(1)
        self._owners = Owners({1: self.peer}, dataset, self._pool)  # type: ignore[dict-item]

    async def __aenter__(self) -> Asking:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peer.connection.close()
        self._pool.shutdown()

    async def sampled(self, items: list[SampleItem]) -> list[tuple[Any, ...]]:
        """The answers of each item's rows, in one piece."""
        found = await self._owners.sample(items)
        joined = []
        for item in items:
            answers = [piece.answer for piece in sorted(found, key=lambda piece: piece.first_row) if piece.item is item]
            names = ("counts", "neighbors", "edge_ids")
            arrays = [np.concatenate([getattr(answer, name) for answer in answers]) for name in names]
            arrays += [np.concatenate([answer.tables[name] for answer in answers]) for name in item.tables]
            assert len(arrays[0]) == len(item.rows)
            joined.append(tuple(array.tolist() for array in arrays))
        return joined

    async def pulled(self, ids: np.ndarray, tables: tuple[str, ...] = ("x",), codec: str = "") -> list[list[Any]]:
        shapes = {"x": ((len(ids), 16), np.float32), "y": ((len(ids),), np.int64)}
        outs = [np.zeros(*shapes[name]) for name in tables]
        item = FeatureItem("node", tables, ids, np.arange(len(ids)), np.array([0, 0, len(ids)]))
        assert await self._owners.pull([item], [outs], codec) > 0
        return [out.tolist() for out in outs]


def test_calls_that_break_off_are_made_again(pair: Any, breaks: Breaks, rng: np.random.Generator) -> None:
    """For every method, and several items at once."""
    data, addresses, running = pair
    dataset = Dataset.open(data, parts=[], verify=False)
    items, (first, count) = sample_items(dataset), of_partition_1(dataset)
    ids = first + np.random.default_rng(4).permutation(count)

    async def ask() -> None:
        async with Asking(addresses[1], dataset) as asking:

            async def answers() -> list[Any]:
                features = [(ids, ("x",)), (ids[::2], ("y", "x"))]
                rows = [await asking.pulled(*of, codec) for of in features for codec in ("", "int8")]
                return [await asking.sampled(items), rows]

            breaks.plan = lambda: False
            whole = await answers()
            assert len(whole[0][0][1]) > 0
            before, breaks.plan = breaks.broken, lambda: bool(rng.random() < 0.3)
            for _ in range(3):
                assert await answers() == whole
            assert breaks.broken > before + 10

    running.run(ask())


def test_an_answer_that_never_comes_is_given_up(pair: Any, breaks: Breaks, monkeypatch: pytest.MonkeyPatch) -> None:
    data, addresses, running = pair
    dataset = Dataset.open(data, parts=[], verify=False)

    async def ask() -> None:
        async with Asking(addresses[1], dataset) as asking:
            before = breaks.broken
            with pytest.raises(UnavailableError, match=addresses[1]):
                await asking.pulled(np.arange(of_partition_1(dataset)[0], of_partition_1(dataset)[0] + 5))
            assert breaks.broken >= before + 3  # gRPC itself repeats some

    monkeypatch.setattr(breaks, "plan", lambda: True)
    monkeypatch.setattr(breaks, "most", 100)
    running.run(ask())


# -- away for a while --------------------------------------------------------------------------------------------------


def later(seconds: float, function: Callable[..., Any], *args: Any) -> threading.Timer:
    timer = threading.Timer(seconds, function, args)
    timer.start()
    return timer


def test_a_peer_that_comes_back_is_seen_at_once(small_graph: SmallGraph, running: Running) -> None:
    """The peer is away for two seconds of a deadline of three. No caller sees it. The log says it in two lines."""
    (address,) = held_addresses(1)
    data = small_graph.dataset(2, "random")
    dataset = Dataset.open(data, parts=[], verify=False)
    ids = of_partition_1(dataset)[0] + np.arange(50)
    running.start(data, 1, address, {})

    async def ask() -> None:
        async with Asking(address, dataset, connect_s=3.0) as asking:
            whole = await asking.pulled(ids)
            await asyncio.to_thread(running.kill, address)
            timer = later(2.0, running.start, data, 1, address, {})
            assert await asyncio.gather(*(asking.pulled(ids) for _ in range(5))) == [whole] * 5
            timer.join()
            assert await asking.pulled(ids) == whole

    with structlog.testing.capture_logs() as lines:
        running.run(ask())
    said = [line for line in lines if line["event"].startswith("peer")]
    assert [line["event"] for line in said] == ["peer lost", "peer is back"]
    assert address in said[0]["error"]
    assert said[1]["restarted"] is True
    assert 0.7 < said[1]["away_s"] < 4.0


def test_a_peer_that_stays_away_fails_all_who_wait_at_once(running: Running, small_graph: SmallGraph) -> None:
    (address,) = held_addresses(1)
    dataset = Dataset.open(small_graph.dataset(2, "random"), parts=[], verify=False)
    ids = of_partition_1(dataset)[0] + np.arange(5)

    async def ask() -> None:
        async with Asking(address, dataset, connect_s=0.5) as asking:
            asked = [asking.pulled(ids) for _ in range(40)]
            errors = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)  # all at once
            assert all(isinstance(error, UnavailableError) and address in str(error) for error in errors)

    with structlog.testing.capture_logs() as lines:
        running.run(ask())
    said = [line["event"] for line in lines if line["event"].startswith("peer")]  # daemons of other tests may say more
    assert said == ["peer lost"]


def test_a_client_waits_for_a_daemon_that_it_has_met(small_graph: SmallGraph, running: Running) -> None:
    (address,), data = held_addresses(1), small_graph.dataset(1, "random")
    with pytest.raises(UnavailableError):
        atta.connect([address])  # nobody ever answered here: no reason to wait
    running.start(data, 0, address, {})
    connection = Connection(address, 20.0, part=0)
    connection.meet(connection.describe())
    running.kill(address)
    timer = later(0.5, running.start, data, 0, address, {})
    assert connection.stats()["parts"] == 1
    timer.join()
    running.kill(address)
    connection._patience_s = 0.3
    with pytest.raises(UnavailableError, match=address):
        connection.stats()
    connection.close()


def test_what_one_channel_has_tried_in_vain_another_may_try(small_graph: SmallGraph, running: Running) -> None:
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


def test_a_daemon_that_stops_in_mid_answer_is_one_that_went_away(running: Running, small_graph: SmallGraph) -> None:
    """End the daemon. It cancels the calls under way: for their callers the connection breaks."""
    (address,) = held_addresses(1)
    daemon = running.start(small_graph.dataset(1, "random"), 0, address, {})
    hanging = threading.Event()

    async def hang(_request: Any, _context: Any) -> Any:
        hanging.set()
        await asyncio.sleep(60)

    daemon.front.server.add_generic_rpc_handlers(
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
