"""A measuring process of ``atta bench kv``: pulls rows from a daemon, beside bare gRPC streams of as many bytes.

    python -m atta_bench.kv.pull send HOST:PORT              sends prepared bytes until its standard input ends
    python -m atta_bench.kv.pull receive '{"dataset": ...}'  measures all streams in turn, prints one line of JSON

One bare stream has messages of 4 MiB, the other messages as long as those of a pull. Both sides of all streams are
grpc.aio, as daemons are.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import statistics
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import grpc
import numpy as np

from atta.client.control import Connection
from atta.daemon.engine.slots import SlotPool
from atta.daemon.peers.peers import PULL_BYTES, Peer, moved_at_once
from atta.errors import AttaError
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.batch.items import FeatureItem
from atta.samplers.batch.layout import HEADER_BYTES
from atta.wire import rpc

__all__ = ["PullConfig", "main", "measure"]

NODE, TABLE = "node", "x"
GB = 1e9
_METHOD = "/atta_bench.Bytes/Send"
_REQUEST = struct.Struct("<QQ")  # bytes in all, bytes per message
_CPU_CLOCK = 2  # above it stands the complement of a pid: Linux' clock of that process, see clock_getcpuclockid(3)
_START_S = 120.0
_DEADLINE_S = 120.0
_BARE_BYTES = 4 << 20


@dataclass(frozen=True)
class PullConfig:
    """Settings of the receiver.

    Attributes:
        dataset: dataset that the daemon serves.
        daemon, sender: addresses of the two processes that answer.
        daemon_pid, sender_pid: their process ids; their processor time counts.
        batch: rows per pull, distinct and random.
        threads: number of threads that put rows into place.
        repeats: timed blocks of pulls.
        together: pulls per block. They follow each other as those of a daemon do, and so find their own data in the CPU
            caches.
        seed: seed of the choice of rows.
    """

    dataset: str
    daemon: str
    sender: str
    daemon_pid: int
    sender_pid: int
    batch: int
    threads: int
    repeats: int
    together: int
    seed: int


@dataclass
class _Stream:
    """One measured stream.

    Attributes:
        pull: asks for a batch, and returns when all of it is in its place.
        sender: process id of the process that answers.
        together: number of pulls that are timed as one.
        seconds: time per pull of each block.
        cpu_s, sender_s: processor seconds of the receiver and of the sender, summed over the blocks.
    """

    pull: Callable[[], Awaitable[None]]
    sender: int
    together: int
    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    sender_s: float = 0.0

    async def timed(self) -> None:
        await self.pull()
        cpu, sent, start = time.process_time(), self._sender_cpu_s(), time.perf_counter()
        for _ in range(self.together):
            await self.pull()
        self.seconds.append((time.perf_counter() - start) / self.together)
        self.cpu_s += time.process_time() - cpu
        self.sender_s += self._sender_cpu_s() - sent

    def _sender_cpu_s(self) -> float:
        """Processor seconds of the sender so far, ended threads included; finer than the hundredths of ``psutil``."""
        return time.clock_gettime(_CPU_CLOCK | (~self.sender << 3))


async def measure(config: PullConfig) -> dict[str, dict[str, float]]:
    """Figures by system: ``"atta"``, ``"grpc"`` (messages of 4 MiB) and ``"grpc-small"`` (as long as a pull's).

    Raises:
        AttaError: a process does not answer, or rows are wrong.
    """
    dataset = Dataset.open(config.dataset, verify=False)
    connection = Connection(config.daemon, _DEADLINE_S)
    await asyncio.to_thread(connection.describe, wait=True, timeout=_START_S)
    connection.close()
    peer = Peer(0, config.daemon, dataset, _DEADLINE_S)
    with ThreadPoolExecutor(config.threads) as pool:
        async with grpc.aio.insecure_channel(config.sender, options=rpc.channel_options()) as channel:
            await asyncio.wait_for(channel.channel_ready(), _START_S)
            receiver = _RowReceiver(config, dataset, pool)
            streams = {
                "atta": _Stream(lambda: receiver.pull(peer), config.daemon_pid, config.together),
                "grpc": _Stream(lambda: receiver.receive(channel, _BARE_BYTES), config.sender_pid, config.together),
                "grpc-small": _Stream(
                    lambda: receiver.receive(channel, PULL_BYTES), config.sender_pid, config.together
                ),
            }
            await _warm_up(streams, receiver)
            await _alternate(streams, config.repeats)
        await peer.close()
    total = receiver.nbytes * config.repeats * config.together / GB
    return {
        name: {
            "bytes_per_s": receiver.nbytes / statistics.median(stream.seconds),
            "client_cpu_s_per_gb": stream.cpu_s / total,
            "server_cpu_s_per_gb": stream.sender_s / total,
        }
        for name, stream in streams.items()
    }


class _RowReceiver:
    """Draws batches of random rows and receives them in a shared-memory slot."""

    def __init__(self, config: PullConfig, dataset: Dataset, pool: ThreadPoolExecutor) -> None:
        self._pool, self._at_once = pool, moved_at_once(config.threads)
        self.table = dataset.part(0).table(NODE, TABLE)
        self._row_bytes = self.table.dtype.itemsize * self.table.shape[1]
        self.nbytes = config.batch * self._row_bytes
        self._slots = SlotPool(quota_bytes=1 << 62)
        slot = self._slots.acquire(HEADER_BYTES + self.nbytes)
        self.out = slot.buffer[HEADER_BYTES : HEADER_BYTES + self.nbytes].reshape(config.batch, self._row_bytes)
        self.out[:] = 1
        self._rng, self._batch = np.random.default_rng(config.seed), config.batch
        self.step()

    def step(self) -> None:
        """Draw the next batch. Every stream moves one of its size."""
        rows = self._rng.choice(len(self.table), self._batch, replace=False)
        self.item = FeatureItem(NODE, (TABLE,), rows, np.arange(self._batch))

    async def pull(self, peer: Peer) -> None:
        """Pull a batch as a daemon does: messages are put into place while others arrive."""
        step = max(1, PULL_BYTES // self._row_bytes)
        await asyncio.gather(*(self._pull(peer, slice(at, at + step)) for at in range(0, len(self.item.rows), step)))

    async def _pull(self, peer: Peer, at: slice) -> None:
        positions = self.item.positions[at]
        data = await peer.pull(FeatureItem(NODE, (TABLE,), self.item.rows[at], positions))
        if len(data) <= self._at_once:
            self._place(positions, data)
        else:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._place, positions, data)

    def _place(self, positions: np.ndarray, data: memoryview) -> None:
        block = np.frombuffer(data, dtype=np.uint8).reshape(len(positions), self._row_bytes)
        kernels.scatter_rows(block, positions, self.out)

    async def receive(self, channel: Any, most: int) -> None:
        """Receive as many bytes in messages of whole rows, at most ``most`` bytes each, without looking at them."""
        message = max(1, most // self._row_bytes) * self._row_bytes
        method: Any = channel.unary_stream(_METHOD, None, None)  # no serializers: the bytes as they are
        got = 0
        async for data in method(_REQUEST.pack(self.nbytes, message), timeout=_DEADLINE_S):
            got += len(data)
        if got != self.nbytes:
            raise AttaError(f"the byte stream brought {got} bytes of {self.nbytes}")


async def _warm_up(streams: dict[str, _Stream], receiver: _RowReceiver) -> None:
    for _ in range(3):
        for stream in streams.values():
            await stream.pull()
    if not np.array_equal(receiver.out, receiver.table[receiver.item.rows].view(np.uint8)):
        raise AttaError("the daemon sends wrong rows")
    gc.freeze()  # as a daemon does


async def _alternate(streams: dict[str, _Stream], repeats: int) -> None:
    for number in range(repeats):
        for stream in list(streams.values())[:: 1 if number % 2 == 0 else -1]:
            await stream.timed()


# -- the sender --------------------------------------------------------------------------------------------------------


@cache
def _prepared(nbytes: int) -> bytes:
    # Random bytes have pages of their own. Zeroes would all come from one page of the kernel.
    return random.Random(0).randbytes(nbytes)


async def _send(request: bytes, context: Any) -> AsyncIterator[bytes]:
    total, message = _REQUEST.unpack(request)
    for at in range(0, total, message):
        yield _prepared(min(message, total - at))


async def _serve(address: str) -> None:
    server = grpc.aio.server(options=[*rpc.channel_options(), ("grpc.so_reuseport", 0)])
    service, method = _METHOD.strip("/").split("/")
    handler = grpc.unary_stream_rpc_method_handler(_send)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(address)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(grace=None)


def main() -> None:
    """Send or receive, as the module docstring says."""
    kernels.retain_heap()  # as a daemon does
    role, what = sys.argv[1:]
    if role == "send":
        asyncio.run(_serve(what))
    else:
        print(json.dumps(asyncio.run(measure(PullConfig(**json.loads(what))))), flush=True)


if __name__ == "__main__":
    main()
