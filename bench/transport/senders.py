"""Senders of random rows of one table, one for each way that ``bench.transport.bulk`` compares.

    python -m bench.transport.senders grpc-sync|grpc-aio|flight|tcp '{"rows": 1000000, "dim": 100, "chunk_bytes":
    4194304}'

A sender prints "ready PORT" and answers until its standard input ends. All gather with Atta's kernel on one thread,
which makes the next message while one is being sent. Those of gRPC answer ``KvService.Pull`` as daemons do, in messages
packed by hand.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from atta.daemon.peers.chunks import CHUNK_BYTES
from atta.daemon.peers.peers import as_array
from atta.daemon.peers.turns import TurnPool
from atta.daemon.services.data import DataService
from atta.daemon.services.rooms import AnswerRoom
from atta.protos.v1 import kv_pb2
from atta.samplers import kernels
from atta.wire import rpc
from atta.wire.messages import bulk

HOST = "127.0.0.1"
DEADLINE_S = 60.0
ROW_COUNT = struct.Struct("<Q")  # stands before the rows of a request over TCP; the answer has only their bytes
_TABLE_BLOCK = 1 << 16  # rows made at a time
_HANDLERS = 4  # threads of the sender of grpc-sync


@dataclass(frozen=True)
class SenderConfig:
    """Settings of a sender.

    Attributes:
        rows, dim: shape of the float32 table.
        chunk_bytes: at most this many bytes of rows per message, but at least one row.
        port: port to listen on; 0: any.
        share_port: whether other processes may listen on that port (SO_REUSEPORT); gRPC only.
    """

    rows: int
    dim: int
    chunk_bytes: int
    port: int = 0
    share_port: bool = False


def table_rows(ids: np.ndarray, dim: int) -> np.ndarray:
    """float32 [len(ids), dim]: the rows of the table, by a formula, so that a receiver can check them."""
    mixed = ids.astype(np.uint32)[:, None] * np.uint32(2654435761) + np.arange(dim, dtype=np.uint32) * np.uint32(40503)
    return (mixed >> np.uint32(8)).astype(np.float32)  # 24 bits: exact in float32


class Source:
    """The table in memory, and the messages with its rows."""

    def __init__(self, config: SenderConfig) -> None:
        self.table = np.empty((config.rows, config.dim), dtype=np.float32)
        self.row_bytes = 4 * config.dim
        kernels.advise_huge(self.table)
        for first in range(0, config.rows, _TABLE_BLOCK):
            ids = np.arange(first, min(first + _TABLE_BLOCK, config.rows))
            self.table[ids[0] : ids[-1] + 1] = table_rows(ids, config.dim)
        self._step = max(1, config.chunk_bytes // self.row_bytes)
        self.pool = ThreadPoolExecutor(1)

    def parts(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """(first position, rows) of every message that answers a request for ``rows``."""
        return ((at, rows[at : at + self._step]) for at in range(0, len(rows), self._step))

    def chunk(self, first: int, rows: np.ndarray) -> bytes:
        """A serialised ``PullChunk``, put together with one copy."""
        head = kv_pb2.PullChunk(pull=0, first_row=first, rows=len(rows))
        return kernels.pack_rows(bulk.prefix(head, bulk.PULL_DATA, len(rows) * self.row_bytes), [self.table], rows)

    def plain(self, _: int, rows: np.ndarray) -> bytes:
        """The bytes of the rows."""
        return kernels.pack_rows(b"", [self.table], rows)

    def in_turn(self, make: Callable[[int, np.ndarray], bytes], rows: np.ndarray) -> Iterator[bytes]:
        """What ``make`` gives for every part; as ``DataService.in_turn`` without asyncio."""
        coming: Future[bytes] | None = None
        for part in self.parts(rows):
            ready, coming = coming, self.pool.submit(make, *part)
            if ready is not None:
                yield ready.result()
        if coming is not None:
            yield coming.result()


def _ready(port: int) -> None:
    gc.freeze()  # as a daemon does
    print("ready", port, flush=True)


def _options(config: SenderConfig) -> list[tuple[str, Any]]:
    return [*rpc.channel_options(), ("grpc.so_reuseport", int(config.share_port))]


def _asked(request: Any) -> np.ndarray:
    return as_array(request.pulls[0].rows if request.pulls else b"", wide=False)


def send_sync(source: Source, config: SenderConfig) -> None:
    """grpc's server with a pool of threads."""

    def pull(request: Any, context: Any) -> Iterator[bytes]:
        return source.in_turn(source.chunk, _asked(request))

    server = grpc.server(ThreadPoolExecutor(_HANDLERS), options=_options(config))
    server.add_generic_rpc_handlers((rpc.handlers("KvService", {"Pull": pull}),))
    port = server.add_insecure_port(f"{HOST}:{config.port}")
    server.start()
    _ready(port)
    sys.stdin.read()
    server.stop(grace=None).wait()


def send_aio(source: Source, config: SenderConfig) -> None:
    """grpc.aio's server, as in a daemon. Receivers tell senders on a shared port apart by the process id."""
    service = DataService("", TurnPool(1, "serve"), "", answers=AnswerRoom(1 << 30, 3 * CHUNK_BYTES))
    identity = (("pid", str(os.getpid())),)

    async def pull(request: Any, context: Any) -> AsyncIterator[bytes]:
        context.set_trailing_metadata(identity)
        parts = source.parts(_asked(request))
        async for message in service.in_turn(
            ((len(p) * source.row_bytes, source.chunk, at, p) for at, p in parts), "", 3 * CHUNK_BYTES
        ):
            yield message

    async def serve() -> None:
        server = grpc.aio.server(options=_options(config))
        server.add_generic_rpc_handlers((rpc.handlers("KvService", {"Pull": pull}),))
        port = server.add_insecure_port(f"{HOST}:{config.port}")
        await server.start()
        _ready(port)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(grace=None)

    asyncio.run(serve())


def send_flight(source: Source, config: SenderConfig) -> None:
    """Arrow Flight's server, which is gRPC in C++: a record batch per message, rows in one column, no copy."""
    import pyarrow as pa
    from pyarrow import flight

    kind = pa.binary(source.row_bytes)
    schema = pa.schema([("x", kind)])

    class Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
        def do_get(self, context: Any, ticket: Any) -> Any:
            """The rows that the ticket names."""
            return flight.GeneratorStream(schema, self._batches(as_array(ticket.ticket, wide=False)))

        def _batches(self, rows: np.ndarray) -> Iterator[Any]:
            for data in source.in_turn(source.plain, rows):
                count = len(data) // source.row_bytes
                yield pa.record_batch([pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])], schema=schema)

    with Server(f"grpc://{HOST}:{config.port}") as server:
        _ready(server.port)
        sys.stdin.read()


def send_tcp(source: Source, config: SenderConfig) -> None:
    """One connection at a time, one request after the other."""

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            while head := requests.read(ROW_COUNT.size):
                rows = as_array(requests.read(4 * ROW_COUNT.unpack(head)[0]), wide=False)
                for data in source.in_turn(source.plain, rows):
                    connection.sendall(data)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            connection.settimeout(DEADLINE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer(connection)

    listener = socket.create_server((HOST, config.port))
    threading.Thread(target=accept, daemon=True).start()
    _ready(listener.getsockname()[1])
    sys.stdin.read()


SENDERS = {"grpc-sync": send_sync, "grpc-aio": send_aio, "flight": send_flight, "tcp": send_tcp}


def main() -> None:
    """Send, as the module docstring says."""
    kernels.retain_heap()  # as a daemon does
    way, config = sys.argv[1], SenderConfig(**json.loads(sys.argv[2]))
    SENDERS[way](Source(config), config)


if __name__ == "__main__":
    main()
