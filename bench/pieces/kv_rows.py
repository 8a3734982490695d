"""Measuring processes of ``atta bench kv`` for rows of an immutable table: gathered in memory, and pulled from a daemon.

    python -m atta_bench.pieces.kv_rows gather '{"dataset": ..., "system": "atta", ...}'
    python -m atta_bench.pieces.kv_rows send HOST:PORT            sends prepared bytes until its standard input ends
    python -m atta_bench.pieces.kv_rows pull '{"dataset": ...}'   measures all streams in turn

Each prints one line of JSON. The ways to gather alternate. Each gets rows that no other has just read, and puts them
into the same shared-memory slot. Pulls run beside bare gRPC streams of as many bytes: one has messages of 4 MiB, the
other messages as long as those of a pull. Both sides of all streams are grpc.aio, as daemons are.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import itertools
import json
import os
import random
import statistics
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import grpc
import numpy as np

from atta import _native
from atta.client.control import Connection
from atta.daemon.engine.slots import SlotPool
from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.peers import PULL_BYTES, Peer, moved_at_once
from atta.errors import AttaError
from atta.kvstore.store import Store
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.batch.items import FeatureItem
from atta.samplers.batch.layout import HEADER_BYTES
from atta.wire import rpc

NODE, TABLE = "node", "x"
_AHEAD = (4, 8, 16, 32, 64, 128)
_PAUSE_S = 0.02


@dataclass(frozen=True)
class GatherConfig:
    """Settings of the process.

    Attributes:
        dataset: dataset of one part, with the table ``x`` of node type ``node``.
        system: ``"atta"``: the store, reference loops and copies, and the libraries; ``"dgl"``: DGL alone.
        batch: rows per gather, distinct and random.
        threads: at most this many threads gather.
        repeats: timed gathers per way.
        seed: seed of the choice of rows.
    """

    dataset: str
    system: str
    batch: int
    threads: int
    repeats: int
    seed: int


@dataclass(frozen=True)
class _Way:
    """A way to gather.

    Attributes:
        run: what is timed; takes the result of ``prepare``.
        prepare: prepares the numbers of the rows (int64 [batch]) before the clock starts.
        result: gives the rows from the result of ``run``; None: ``run`` moves other rows, so they are not compared.
        extra: figures that say how this way works.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[np.ndarray], Any] = lambda rows: rows
    result: Callable[[Any], Any] | None = None
    extra: dict[str, float] = field(default_factory=dict)


class _GatherBuffers:
    """What all ways share: the table, the slot to gather into, and the batches of rows.

    The slot is ``out`` float32 [batch, dim], and ``raw`` uint8 [batch, row bytes] in the same memory.
    """

    def __init__(self, config: GatherConfig) -> None:
        dataset = Dataset.open(config.dataset, verify=False)
        self.store = Store(dataset, 0, threads=config.threads, resident=True)
        self.table = self.store.table(NODE, TABLE).data
        row_bytes = self.store.table(NODE, TABLE).row_bytes
        self.pool = SlotPool(quota_bytes=1 << 62)
        end = HEADER_BYTES + config.batch * row_bytes
        slot = self.pool.acquire(end)
        self.raw = slot.buffer[HEADER_BYTES:end].reshape(config.batch, row_bytes)
        self.out = self.raw.view(self.table.dtype)
        self.raw[:] = 1  # a reused slot has its pages already
        self.bytes = self.table.view(np.uint8)
        order = np.random.default_rng(config.seed).permutation(len(self.table)).astype(np.int64)
        count = len(order) // config.batch
        self._batches = itertools.cycle(list(order[: count * config.batch].reshape(count, config.batch)))

    def rows(self) -> np.ndarray:
        """The next batch, int64 [batch]: rows that were not read for as long as the size of the table allows."""
        return next(self._batches)


def measure_gather(config: GatherConfig) -> dict[str, dict[str, float]]:
    """Figures by system. Raises AttaError: a way of gathering gave wrong rows."""
    buffers = _GatherBuffers(config)
    ways = _dgl_ways(config, buffers) if config.system == "dgl" else _ways(config, buffers)
    for name, way in ways:
        _check(name, way, buffers)
    seconds: list[list[float]] = [[] for _ in ways]
    order = np.random.default_rng(config.seed)
    for _ in range(config.repeats):
        for index in order.permutation(len(ways)):
            seconds[index].append(_seconds(ways[index][1], buffers.rows()))
            # Threads of OpenMP spin while they wait for work. Without a pause they would take the core of the next way.
            time.sleep(_PAUSE_S if config.threads > 1 else 0)
    found: dict[str, dict[str, float]] = {}
    for (name, way), taken in zip(ways, seconds, strict=True):
        middle = statistics.median(taken)
        speed = buffers.raw.nbytes / middle
        if name not in found or speed > found[name]["bytes_per_s"]:
            found[name] = {"bytes_per_s": speed, "ns_per_row": 1e9 * middle / config.batch, **way.extra}
    return found


def _ways(config: GatherConfig, buffers: _GatherBuffers) -> list[tuple[str, _Way]]:
    """(system, way) of each way to gather. Of several ways of one system the quickest counts."""
    positions = np.arange(config.batch)

    def gather(rows: np.ndarray) -> None:
        buffers.store.gather_to(NODE, TABLE, rows, buffers.out, positions)

    ways = [("atta", _Way(gather, result=lambda _: buffers.out))]
    ways += [("loop", way) for way in _loops(config, buffers)]
    ways += [("copy", way) for way in _copies(config, buffers)]
    if importlib.util.find_spec("torch") is not None:
        ways += _torch_ways(config, buffers)
    if config.threads == 1:
        take = _Way(  # with mode="raise" numpy would gather into a buffer of its own first
            lambda rows: np.take(buffers.table, rows, axis=0, out=buffers.out, mode="clip"), result=lambda found: found
        )
        ways.append(("numpy", take))
    return ways


def _loops(config: GatherConfig, buffers: _GatherBuffers) -> Iterator[_Way]:
    """The plain loop that prefetches, with several distances and with both kinds of store instructions."""
    for ahead, stream in itertools.product(_AHEAD, (False, True)):

        def run(rows: np.ndarray, ahead: int = ahead, stream: bool = stream) -> None:
            _native.reference_gather(buffers.bytes, rows, buffers.raw, ahead, stream, config.threads)

        yield _Way(run, result=lambda _: buffers.out, extra={"rows_ahead": float(ahead), "streaming": float(stream)})


def _copies(config: GatherConfig, buffers: _GatherBuffers) -> Iterator[_Way]:
    """Copies of as many bytes that lie together somewhere in the table."""
    starts = len(buffers.table) - config.batch + 1

    def piece(rows: np.ndarray) -> np.ndarray:
        first = int(rows[0]) % starts
        found: np.ndarray = buffers.bytes[first : first + config.batch]
        return found

    for stream in (False, True):

        def run(source: np.ndarray, stream: bool = stream) -> None:
            _native.reference_copy(source, buffers.raw, stream, config.threads)

        yield _Way(run, prepare=piece, extra={"streaming": float(stream)})


def _torch_ways(config: GatherConfig, buffers: _GatherBuffers) -> list[tuple[str, _Way]]:
    import torch

    torch.set_num_threads(config.threads)
    table, out = torch.from_numpy(buffers.table), torch.from_numpy(buffers.out)

    def fresh(rows: torch.Tensor) -> torch.Tensor:
        return torch.index_select(table, 0, rows)

    def reused(rows: torch.Tensor) -> torch.Tensor:
        return torch.index_select(table, 0, rows, out=out)

    return [
        ("torch", _Way(fresh, prepare=torch.from_numpy, result=lambda found: found.numpy())),
        ("torch-out", _Way(reused, prepare=torch.from_numpy, result=lambda _: buffers.out)),
    ]


def _dgl_ways(config: GatherConfig, buffers: _GatherBuffers) -> list[tuple[str, _Way]]:
    import dgl.backend
    import torch

    torch.set_num_threads(config.threads)
    table = torch.from_numpy(buffers.table)

    def gather(rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = dgl.backend.gather_row(table, rows)
        return found

    return [("dgl", _Way(gather, prepare=torch.from_numpy, result=lambda found: found.numpy()))]


def _check(name: str, way: _Way, buffers: _GatherBuffers) -> None:
    """Run a way once before it is timed, and compare its rows with the table."""
    rows = buffers.rows()
    buffers.raw[:] = 0
    found = way.run(way.prepare(rows))
    if way.result is not None and not np.array_equal(way.result(found), buffers.table[rows]):
        raise AttaError(f"{name} gathers wrong rows")


def _seconds(way: _Way, rows: np.ndarray) -> float:
    prepared = way.prepare(rows)
    start = time.perf_counter()
    kept = way.run(prepared)  # frees new memory only after the clock has stopped
    seconds = time.perf_counter() - start
    del kept
    return seconds


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


async def measure_pull(config: PullConfig) -> dict[str, dict[str, float]]:
    """Figures by system: ``"atta"``, ``"grpc"`` (messages of 4 MiB) and ``"grpc-small"`` (as long as a pull's).

    Raises AttaError: a process does not answer, or rows are wrong.
    """
    dataset = Dataset.open(config.dataset, verify=False)
    connection = Connection(config.daemon, _DEADLINE_S)
    await asyncio.to_thread(connection.describe, wait=True, timeout=_START_S)
    connection.close()
    peer = Peer(0, config.daemon, dataset, PeerSettings(_DEADLINE_S))
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
        await peer.connection.close()
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
    """Send or measure, as the module docstring says."""
    kernels.retain_heap()  # as a daemon does
    role, what = sys.argv[1:]
    if role == "send":
        asyncio.run(_serve(what))
    elif role == "pull":
        print(json.dumps(asyncio.run(measure_pull(PullConfig(**json.loads(what))))), flush=True)
    else:
        print(json.dumps(measure_gather(GatherConfig(**json.loads(what)))), flush=True)
        os._exit(0)  # some libraries take seconds to shut down


if __name__ == "__main__":
    main()
