"""Receivers of random rows, one for each way that ``bench.transport.bulk`` compares: each fills an array.

    python -m bench.transport.receivers grpc-sync|grpc-aio|flight|tcp '{"port": 7070, "pids": [123], "rows": 1000000,
    ...}'

A receiver measures for some seconds and prints one line of JSON. It has one request under way at a time. A second
thread copies rows to their place while the next message arrives. Over TCP there is no copy: the kernel writes the rows
to their place.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import grpc
import numpy as np

from atta.errors import AttaError
from atta.protos.v1 import kv_pb2
from atta.samplers import kernels
from atta.wire import rpc
from atta.wire.messages.bulk import PULL_DATA
from atta_bench.transport.senders import DEADLINE_S, HOST, ROW_COUNT, table_rows

GB = 1e9
_PULL = "KvService.Pull"
_REQUESTS = 8  # different ones, asked for in turn
_WARM_UP = 3
_CPU_CLOCK = 2  # above it stands the complement of a pid: Linux' clock of that process, see clock_getcpuclockid(3)
_CONNECTIONS = 64  # tried until every process behind a shared port has one


@dataclass(frozen=True)
class ReceiverConfig:
    """Settings of a receiver.

    Attributes:
        port: port of the senders.
        pids: process ids of the senders, whose processor time counts; several share the port and get a channel each.
        rows, dim: shape of the table.
        batch: random rows per request.
        seconds: how long to measure; at least one request.
        seed: seed of the choice of rows.
    """

    port: int
    pids: list[int]
    rows: int
    dim: int
    batch: int
    seconds: float
    seed: int


class Target:
    """The array that rows go to: ``out`` float32 [batch, dim], allocated and touched before measuring."""

    def __init__(self, batch: int, dim: int) -> None:
        self.out = np.full((batch, dim), -1, dtype=np.float32)
        self._positions = np.arange(batch)
        self._pool = ThreadPoolExecutor(1)
        self._copies: list[Future[None]] = []

    def place(self, first: int, data: Any) -> None:
        """Copy rows to ``first`` and the places after it, on the second thread, as a daemon puts rows into a batch."""
        block = np.frombuffer(data, dtype=np.float32).reshape(-1, self.out.shape[1])
        at = self._positions[first : first + len(block)]
        self._copies.append(self._pool.submit(kernels.scatter_rows, block, at, self.out))

    def wait(self) -> None:
        """Wait until all copies are made."""
        for copy in self._copies:
            copy.result()
        self._copies.clear()

    def check(self, ids: np.ndarray) -> int:
        """Compare the rows with the table and return their number; then wipe them out, for the next check.

        Raises:
            AttaError: a row is wrong.
        """
        wrong = np.flatnonzero((self.out != table_rows(ids, self.out.shape[1])).any(axis=1))
        if len(wrong):
            raise AttaError(f"{len(wrong)} of {len(ids)} rows are wrong, the first one at {wrong[0]}")
        self.out.fill(-1)
        return len(ids)


Pull = Callable[[np.ndarray], None]
"""Asks for rows (int32) and starts the copies of what arrives; returns when all has arrived."""


def _request(rows: np.ndarray) -> Any:
    request = kv_pb2.PullRequest()
    request.pulls.add(rows=rows.tobytes())
    return request


@contextmanager
def pull_sync(config: ReceiverConfig, target: Target) -> Iterator[Pull]:
    with grpc.insecure_channel(f"{HOST}:{config.port}", options=rpc.channel_options()) as channel:
        method = rpc.stub(channel, _PULL)

        def pull(rows: np.ndarray) -> None:
            for bulk in method(_request(rows), timeout=DEADLINE_S):
                target.place(bulk.message.first_row, bulk.payloads[PULL_DATA])

        yield pull


@contextmanager
def pull_aio(config: ReceiverConfig, target: Target) -> Iterator[Pull]:
    """Of several senders each gives an equal share of the rows, all at the same time."""

    async def share(channel: Any, first: int, rows: np.ndarray) -> None:
        async for bulk in rpc.stub(channel, _PULL)(_request(rows), timeout=DEADLINE_S):
            target.place(first + bulk.message.first_row, bulk.payloads[PULL_DATA])

    async def pull(channels: list[Any], rows: np.ndarray) -> None:
        bounds = np.linspace(0, len(rows), len(channels) + 1).astype(int).tolist()
        shares = zip(channels, pairwise(bounds), strict=True)
        await asyncio.gather(*(share(channel, first, rows[first:stop]) for channel, (first, stop) in shares))

    with asyncio.Runner() as runner:
        channels = runner.run(_channels(config.port, len(config.pids)))
        try:
            yield lambda rows: runner.run(pull(channels, rows))
        finally:
            runner.run(_close(channels))


async def _channels(port: int, count: int) -> list[Any]:
    """A channel to each of the ``count`` processes that share a port. The kernel chooses, so this takes several tries."""
    options = [*rpc.channel_options(), ("grpc.use_local_subchannel_pool", 1)]  # a connection for every channel
    found: dict[Any, Any] = {}
    for _ in range(_CONNECTIONS):
        channel = grpc.aio.insecure_channel(f"{HOST}:{port}", options=options)
        call = rpc.stub(channel, _PULL)(kv_pb2.PullRequest(), timeout=DEADLINE_S)
        # Initial metadata would be enough, but grpc 1.85 sometimes loses it when a stream is empty.
        who = dict(await call.trailing_metadata())["pid"]
        if who in found:
            await channel.close(grace=None)
        else:
            found[who] = channel
        if len(found) == count:
            return list(found.values())
    await _close(list(found.values()))
    raise AttaError(f"{len(found)} of {count} senders got one of {_CONNECTIONS} connections")


async def _close(channels: list[Any]) -> None:
    for channel in channels:
        await channel.close(grace=None)


@contextmanager
def pull_flight(config: ReceiverConfig, target: Target) -> Iterator[Pull]:
    from pyarrow import flight

    limits = [(name, size) for name, size in rpc.channel_options() if name.endswith("message_length")]
    options = flight.FlightCallOptions(timeout=DEADLINE_S)
    with flight.connect(f"grpc://{HOST}:{config.port}", generic_options=limits) as client:

        def pull(rows: np.ndarray) -> None:
            at = 0
            for chunk in client.do_get(flight.Ticket(rows.tobytes()), options=options):
                target.place(at, chunk.data.column(0).buffers()[1])
                at += chunk.data.num_rows

        yield pull


@contextmanager
def pull_tcp(config: ReceiverConfig, target: Target) -> Iterator[Pull]:
    with socket.create_connection((HOST, config.port), timeout=DEADLINE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as gRPC does

        def pull(rows: np.ndarray) -> None:
            connection.sendall(ROW_COUNT.pack(len(rows)) + rows.tobytes())
            rest = target.out.data.cast("B")
            while rest:
                got = connection.recv_into(rest)
                if not got:
                    raise AttaError("the sender closed the connection")
                rest = rest[got:]

        yield pull


RECEIVERS: dict[str, Callable[[ReceiverConfig, Target], AbstractContextManager[Pull]]] = {
    "grpc-sync": pull_sync,
    "grpc-aio": pull_aio,
    "flight": pull_flight,
    "tcp": pull_tcp,
}


def measure(way: str, config: ReceiverConfig) -> dict[str, float]:
    """Bytes of rows per second and per processor second, processor seconds per 10⁹ bytes at either end, rows compared.

    Raises:
        AttaError: rows are wrong.
    """
    rng, target = np.random.default_rng(config.seed), Target(config.batch, config.dim)
    requests = [rng.integers(0, config.rows, config.batch, dtype=np.int32) for _ in range(_REQUESTS)]
    with RECEIVERS[way](config, target) as pull:
        for number in range(_WARM_UP):
            pull(requests[number])
            target.wait()
        verified = target.check(requests[_WARM_UP - 1])
        gc.freeze()  # as a daemon does
        count, sent, used, start = 0, _senders_cpu_s(config.pids), time.process_time(), time.perf_counter()
        while count == 0 or time.perf_counter() - start < config.seconds:
            pull(requests[count % _REQUESTS])
            target.wait()
            count += 1
        seconds, used = time.perf_counter() - start, time.process_time() - used
        sent = _senders_cpu_s(config.pids) - sent
        verified += target.check(requests[(count - 1) % _REQUESTS])
    total = count * target.out.nbytes
    return {
        "bytes_per_s": total / seconds,
        "bytes_per_s_per_core": total / (sent + used),
        "server_cpu_s_per_gb": sent / (total / GB),
        "client_cpu_s_per_gb": used / (total / GB),
        "verified_rows": verified,
    }


def _senders_cpu_s(pids: list[int]) -> float:
    """Processor seconds of all senders so far, ended threads included."""
    return sum(time.clock_gettime(_CPU_CLOCK | (~pid << 3)) for pid in pids)


def main() -> None:
    """Measure, as the module docstring says."""
    kernels.retain_heap()  # as a daemon does
    print(json.dumps(measure(sys.argv[1], ReceiverConfig(**json.loads(sys.argv[2])))), flush=True)


if __name__ == "__main__":
    main()
