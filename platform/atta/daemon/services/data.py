"""What a daemon answers its peers: sampled edges of its graph shard, and rows of its tables.

An answer is one message. A request says how long ago its batch was begun, so requests of different daemons compare
without a common clock: the threads that make answers take the oldest batch first, as among the daemon's own batches.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from atta.daemon.peers.peers import CHUNK_BYTES, SMALL_BYTES
from atta.daemon.services.handling import Context
from atta.daemon.services.rooms import AnswerRoom
from atta.daemon.versions import LiveVersions
from atta.errors import ConfigError, WrongDatasetError
from atta.kvstore.store import Store, known_codec, wire_bytes
from atta.observe.machine.threads import named_threads
from atta.protos.v1 import graph_pb2, kv_pb2
from atta.samplers.methods import BY_NUMBER
from atta.samplers.shard import Answer, Shard, spec_of_drawn
from atta.wire.bulk import (
    PULL_DATA,
    SAMPLE_COUNTS,
    SAMPLE_EDGE_IDS,
    SAMPLE_NEIGHBORS,
    SAMPLE_TABLES,
    as_array,
    pack,
    prefix,
)
from atta.wire.fields import ARRAYS_BYTES

MAX_FAN_OUT = 1 << 20
MAX_PAIRS = (ARRAYS_BYTES - (1 << 16)) // 8
"""Their ids are one message."""
_PROBE = graph_pb2.ProbeRequest


def began(age_ms: int) -> float:
    """When a batch of that age was begun, on this machine's monotonic clock.

    Age 0 means now: first come, first served.
    """
    return time.monotonic() - age_ms / 1e3


class TurnPool:
    """Threads that take the work of the oldest batch first, equals in order of arrival."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = named_threads(threads, name)
        self._waiting: list[tuple[float, int, Any]] = []  # ..., (future, function)
        self._arrivals, self._lock = count(), threading.Lock()

    def submit(self, since: float, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call ``function`` on a thread for a batch that was begun at ``since``."""
        future: Future[Any] = Future()
        with self._lock:
            heapq.heappush(self._waiting, (since, next(self._arrivals), (future, partial(function, *args))))
        self._pool.submit(self._next)
        return future

    def _next(self) -> None:
        with self._lock:
            _, _, (future, work) = heapq.heappop(self._waiting)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def shutdown(self) -> None:
        """Finish what was submitted, and end."""
        self._pool.shutdown(wait=True)


class DataService:
    """What services over a daemon's data share: the id of the dataset, and threads to work on."""

    def __init__(
        self, dataset_id: str, pool: TurnPool, address: str, *, answers: AnswerRoom, at_once: int = SMALL_BYTES
    ) -> None:
        """``answers``: where streamed answers have room. ``at_once``: the event loop itself makes answers of up to this
        many bytes."""
        self._dataset_id, self._pool, self.address, self._at_once = dataset_id, pool, address, at_once
        self._answers = answers

    def check_dataset(self, dataset_id: str) -> None:
        """Raise WrongDatasetError unless this daemon serves the dataset."""
        if dataset_id != self._dataset_id:
            raise WrongDatasetError(
                self.address, f"this daemon serves dataset {self._dataset_id}, not {dataset_id or '(none named)'}"
            )

    async def run(self, nbytes: int, function: Any, *args: Any, since: float | None = None) -> Any:
        """Make an answer of about ``nbytes``: on a thread, unless the hand-over would take longer than the work.

        ``since``: when the batch was begun that the answer is for. Answers for the oldest batch are made first. None:
        now.
        """
        if nbytes <= self._at_once:
            return function(*args)
        return await self.in_pool(function, *args, since=since)

    async def in_turn(
        self, jobs: Iterable[tuple[Any, ...]], connection: str, nbytes: int, since: float | None = None
    ) -> AsyncIterator[Any]:
        """Answers of ``jobs``, arguments of ``run``: ``nbytes`` in all. The next answer is made while the present one
        is sent."""
        coming: asyncio.Task[Any] | None = None
        async with self._answers.answer(connection, nbytes):
            try:
                for job in jobs:
                    ready, coming = coming, asyncio.ensure_future(self.run(*job, since=since))
                    if ready is not None:
                        yield await ready
                if coming is not None:
                    yield await coming
            finally:
                if coming is not None:
                    coming.cancel()

    async def in_pool(self, function: Any, *args: Any, since: float | None = None) -> Any:
        """Call ``function`` on a thread."""
        return await asyncio.wrap_future(self._pool.submit(since or time.monotonic(), function, *args))


def _per_row(name: str, data: bytes, dtype: np.dtype, rows: int) -> np.ndarray | None:
    """An optional array with one entry per row; None where there are no bytes."""
    if not data:
        return None
    if len(data) != rows * dtype.itemsize:
        raise ConfigError(f"{name}: {len(data)} bytes for {rows} rows of {dtype.itemsize}")
    return np.frombuffer(data, dtype=dtype)


def _joined(tables: Mapping[str, np.ndarray]) -> Any:
    """The bytes of several tables, one after another."""
    blocks = [table.reshape(-1).view(np.uint8) for table in tables.values()]
    if not blocks:
        return b""
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


class GraphService(DataService):
    """Sampling over this daemon's core vertices."""

    def __init__(
        self,
        shard: Shard,
        pool: TurnPool,
        address: str,
        *,
        answers: AnswerRoom,
        versions: LiveVersions,
    ) -> None:
        super().__init__(shard.dataset.dataset_id, pool, address, answers=answers)
        self._shard, self._versions = shard, versions

    async def sample(self, request: graph_pb2.SampleRequest, context: Context) -> bytes:
        self._shard.dataset.schema.check_edge_type(request.edge_type)
        rows = as_array(request.rows, wide=request.wide_rows)
        if not -1 <= request.fan_out <= MAX_FAN_OUT:
            raise ConfigError(f"fan-out {request.fan_out}: must be -1 (all) or 0 to {MAX_FAN_OUT}")
        method = BY_NUMBER.get(request.method)
        if method is None:
            raise ConfigError(f"unknown sampling method {request.method}")
        trees = _per_row("trees", request.trees, np.dtype(np.int32), len(rows))
        times = _per_row("times", request.times, np.dtype(np.int64), len(rows))
        shard = self._shard
        if request.version:
            shard = await self._versions.graph(request.edge_type, request.version)
        bounded = request.fan_out >= 0 and method.bounded
        first = self._that_fit(shard, request, rows, bounded=bounded)
        nbytes = 8 * first * request.fan_out if bounded else CHUNK_BYTES
        sample = partial(
            shard.sample,
            request.edge_type,
            rows[:first],
            fan_out=request.fan_out,
            replace=request.replace,
            stream_key=request.stream_key,
            renewed=request.renewed,
            method=method,
            trees=None if trees is None else trees[:first],
            times=None if times is None else times[:first],
            tables=tuple(request.tables),
            by=request.by,
        )
        await self._answers.hold(context, nbytes)
        answer: bytes = await self.run(nbytes, _sampled, sample, since=began(request.age_ms))
        return answer

    def _that_fit(self, shard: Shard, request: graph_pb2.SampleRequest, rows: np.ndarray, *, bounded: bool) -> int:
        """How many of ``rows`` make one message: one at least, if there are any. A single huge row stays whole."""
        schema = self._shard.dataset.schema
        edge_bytes = 8 + sum(spec_of_drawn(schema, request.edge_type, name).row_bytes for name in request.tables)
        if bounded:
            return min(len(rows), max(1, CHUNK_BYTES // max(4, edge_bytes * request.fan_out + 4)))
        sizes = np.cumsum(edge_bytes * shard.degrees(request.edge_type, rows) + 4)
        return min(len(rows), max(1, int(np.searchsorted(sizes, CHUNK_BYTES, side="right"))))

    async def probe(self, request: graph_pb2.ProbeRequest, context: Context) -> graph_pb2.ProbeReply:
        rows = as_array(request.rows, wide=True)
        operands = as_array(request.operands, wide=True)
        if request.question in (_PROBE.STEP, _PROBE.CONTAINS) and len(operands) != len(rows):
            raise ConfigError(f"{len(operands)} operands for {len(rows)} rows")
        work = CHUNK_BYTES if request.question == _PROBE.DIGEST else 8 * len(rows)  # a digest reads all edges
        shard = await self._versions.graph(request.edge_type, request.version)
        values = await self.run(work, _values, shard, request, rows, operands)
        return graph_pb2.ProbeReply(values=values.astype(np.int64, copy=False).tobytes())

    async def pair(self, request: graph_pb2.PairRequest, context: Context) -> graph_pb2.PairReply:
        rows = as_array(request.rows, wide=True)
        if len(rows) * request.count > MAX_PAIRS:
            raise ConfigError(f"{len(rows)} x {request.count} pairs: at most {MAX_PAIRS} in one request")

        shard = await self._versions.graph(request.edge_type, request.version)

        def draw() -> np.ndarray:
            return shard.pair(
                request.edge_type, rows, count=request.count, negative=request.negative, stream_key=request.stream_key
            )

        return graph_pb2.PairReply(ids=(await self.run(CHUNK_BYTES, draw)).tobytes())


def _sampled(sample: Callable[[], Answer]) -> bytes:
    answer = sample()
    reply = graph_pb2.SampleReply(
        wide_neighbors=answer.neighbors.dtype.itemsize == 8, wide_edge_ids=answer.edge_ids.dtype.itemsize == 8
    )
    payloads = {
        SAMPLE_COUNTS: answer.counts,
        SAMPLE_NEIGHBORS: answer.neighbors,
        SAMPLE_EDGE_IDS: answer.edge_ids,
        SAMPLE_TABLES: _joined(answer.tables),
    }
    return pack(reply, payloads)


def _values(shard: Shard, request: graph_pb2.ProbeRequest, rows: np.ndarray, operands: np.ndarray) -> np.ndarray:
    match request.question:
        case _PROBE.DEGREE:
            return shard.degrees(request.edge_type, rows)
        case _PROBE.STEP:
            return shard.step(request.edge_type, rows, operands.view(np.uint64))
        case _PROBE.CONTAINS:
            return shard.contains(request.edge_type, rows, operands)
        case _PROBE.DIGEST:
            return shard.digests(request.edge_type, rows)
    raise ConfigError(f"unknown question {request.question}")


class KvService(DataService):
    """Rows of this daemon's tables."""

    def __init__(
        self,
        store: Store,
        dataset_id: str,
        pool: TurnPool,
        *,
        address: str,
        at_once: int,
        answers: AnswerRoom,
        versions: LiveVersions | None = None,
    ) -> None:
        super().__init__(dataset_id, pool, address, at_once=at_once, answers=answers)
        self._store, self._versions = store, versions

    async def pull(self, request: kv_pb2.PullRequest, context: Context) -> bytes:
        rows = as_array(request.rows, wide=request.wide_rows)
        if request.version and self._versions is not None:
            tables = await self._versions.tables(request.node_type, request.tables, request.version)
        else:
            tables = [self._store.table(request.node_type, name, request.version) for name in request.tables]
        if not tables:
            raise ConfigError(f"a pull that names no table of {request.node_type}")
        codec = known_codec(request.codec)
        row_bytes = sum(wire_bytes(table.data[:1], codec) if len(table.data) else 1 for table in tables)
        nbytes = len(rows) * row_bytes
        if len(rows) > 1 and nbytes > CHUNK_BYTES:
            raise ConfigError(f"{len(rows)} rows of {row_bytes} bytes: at most {CHUNK_BYTES} bytes in one request")
        await self._answers.hold(context, nbytes)
        work = CHUNK_BYTES if codec and nbytes > SMALL_BYTES else nbytes  # encoding takes longer than moving
        head = prefix(kv_pb2.PullReply(), PULL_DATA, nbytes)
        answer: bytes = await self.run(work, self._store.pack, tables, rows, head, codec, since=began(request.age_ms))
        return answer

    async def list_tables(self, request: kv_pb2.ListTablesRequest, context: Context) -> kv_pb2.ListTablesReply:
        reply = kv_pb2.ListTablesReply()
        for table in self._store:
            reply.tables.add(
                node_type=table.node_type,
                name=table.name,
                dtype=table.data.dtype.str,
                row_shape=table.data.shape[1:],
                rows=table.data.shape[0],
            )
        return reply
