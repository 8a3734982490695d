"""Peers and daemons that are away for a while, and calls that break off: who asks waits, or is told who is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
import structlog

import atta
from atta.client.control import Connection
from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.owners import Owners
from atta.daemon.peers.peers import Peer
from atta.errors import RemoteError, UnavailableError
from atta.partition.dataset import Dataset
from atta.protos.v1 import control_pb2
from atta.samplers.batch.items import FeatureItem
from atta.wire import rpc
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import Running


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

    async def pulled(self, ids: np.ndarray) -> list[Any]:
        out = np.zeros((len(ids), 16), np.float32)
        item = FeatureItem("node", ("x",), ids, np.arange(len(ids)), np.array([0, 0, len(ids)]))
        assert await self._owners.pull([item], [[out]]) > 0
        return out.tolist()


def later(seconds: float, function: Callable[..., Any], *args: Any) -> threading.Timer:
    timer = threading.Timer(seconds, function, args)
    timer.start()
    return timer


def test_a_peer_that_comes_back_is_seen_at_once(small_graph: SmallGraph, running: Running) -> None:
    """The peer is away for two seconds of a deadline of three. No caller sees it. The log says it in two lines."""
    (address,) = held_addresses(1)
    data = small_graph.dataset(2, "random")
    dataset = Dataset.open(data, parts=[], verify=False)
    ids = dataset.book.range("node", 1)[0] + np.arange(50)
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
    ids = dataset.book.range("node", 1)[0] + np.arange(5)

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
