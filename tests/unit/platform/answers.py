"""What services of the tests make their answers with, and daemons of partition 1 of dataset "d" that answer little."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc

from atta.daemon.peers.peers import CHUNK_BYTES
from atta.daemon.services.data import AnswerMaker, TurnPool
from atta.daemon.services.rooms import AnswerRoom
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from atta.wire.identity import OWN

DATASET: Any = SimpleNamespace(dataset_id="d", schema=SimpleNamespace(edge_tables={}), groups=[range(1), range(1, 2)])
ABOUT: dict[str, Any] = {"part": 1, "parts": 1, "dataset_id": "d", "incarnation": "i"}
ABOUT |= {"oldest_protocol": OWN.oldest, "newest_protocol": OWN.newest}


def maker(threads: int = 1) -> AnswerMaker:
    return AnswerMaker("d", "here", TurnPool(threads, "test"), AnswerRoom(1 << 30, 3 * CHUNK_BYTES))


def description(**about: Any) -> control_pb2.DescribeReply:
    return control_pb2.DescribeReply(**{**ABOUT, **about})


@contextlib.contextmanager
def described(**about: Any) -> Iterator[str]:
    """The address of a daemon that only says who it is."""
    server, reply = grpc.server(futures.ThreadPoolExecutor(1)), description(**about)
    server.add_generic_rpc_handlers([rpc.handlers("ControlService", {"Describe": lambda request, context: reply})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


@contextlib.asynccontextmanager
async def serving(services: Mapping[str, Mapping[str, Callable[..., Any]]]) -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(rpc.handlers(name, methods) for name, methods in services.items()))
    async with started(server, server.add_insecure_port("127.0.0.1:0")) as address:
        yield address


@contextlib.asynccontextmanager
async def started(server: grpc.aio.Server, port: int) -> AsyncIterator[str]:
    """The address of a server at a port."""
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)
