"""A daemon that says nothing any more: every remote procedure ends by its deadline, and the error says whose and which."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import atta
from atta.client.control import Connection
from atta.daemon.peers.connection import Channel
from atta.errors import AttaError, DeadlineError
from atta.wire import rpc
from tests.soak.proxy import Proxy
from tests.system.conftest import SmallGraph

DEADLINE_S = 0.3
LONGEST_S = 30.0
"""Far more than any call may take: what hangs must fail, what is slow must not."""
OF_PEERS = [name for name in rpc.METHODS if name.startswith(("Graph", "Kv", "Backup", "Link", "Control"))]


@pytest.fixture(scope="module")
def frozen(small_graph: SmallGraph) -> Iterator[Connection]:
    """A connection to a daemon that has answered once, and is silent since."""
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        proxy = Proxy(cluster.addresses[0])
        connection = Connection(proxy.address, DEADLINE_S)
        connection.meet(connection.describe(wait=True, timeout=LONGEST_S))
        proxy.freeze()
        yield connection
        connection.close()
        proxy.close()


def request_of(name: str) -> Any:
    method = rpc.METHODS[name]
    return rpc.Bulk(method.request()) if method.request_payload else method.request()


def check(found: dict[str, AttaError], names: list[str], address: str, began: float) -> None:
    assert list(found) == names
    for name, error in found.items():
        assert (type(error), str(error)) == (DeadlineError, f"{address}: no answer within {DEADLINE_S:g} s"), name
        assert isinstance(error, DeadlineError)
        assert error.peer == address
    assert time.monotonic() - began < LONGEST_S


def test_a_client_names_the_daemon_and_the_deadline(frozen: Connection) -> None:
    """All remote procedures at once, each in a thread of its own."""

    def failed(name: str) -> AttaError:
        try:
            if rpc.METHODS[name].streams:
                next(frozen.start(name, request_of(name)))
            else:
                frozen.call(name, request_of(name))
        except grpc.RpcError as failure:
            return frozen.error_from(failure)
        except AttaError as error:
            return error
        raise AssertionError(f"{name} has an answer")

    began, names = time.monotonic(), list(rpc.METHODS)
    with ThreadPoolExecutor(len(names)) as pool:
        found = dict(zip(names, pool.map(failed, names), strict=True))
    check(found, names, frozen.address, began)


def test_a_daemon_names_its_peer_and_the_deadline(frozen: Connection) -> None:
    """The same over the connections that daemons have to each other."""

    async def failed(link: Channel, name: str) -> AttaError:
        try:
            call = link.ask(name, request_of(name), DEADLINE_S)
            await (call.read() if rpc.METHODS[name].streams else call)
        except grpc.aio.AioRpcError as failure:
            return rpc.error_from(frozen.address, failure, DEADLINE_S)
        raise AssertionError(f"{name} has an answer")

    async def main() -> dict[str, AttaError]:
        link = Channel(frozen.address, frozen._meant)
        try:
            answers = await asyncio.gather(*(failed(link, name) for name in OF_PEERS))
            return dict(zip(OF_PEERS, answers, strict=True))
        finally:
            await link.channel.close(grace=None)

    began = time.monotonic()
    check(asyncio.run(main()), OF_PEERS, frozen.address, began)
