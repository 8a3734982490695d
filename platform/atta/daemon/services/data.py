"""What a daemon answers its peers and clients: sampled edges of its graph shard, rows of its tables, and string ids, which are
rows of the table ``name``. The threads that make answers take the oldest batch first, as among the daemon's own batches.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.daemon.engine.access import probed
from atta.daemon.peers.peers import CHUNK_BYTES, SMALL_BYTES
from atta.daemon.services.handling import Context
from atta.daemon.services.rooms import AnswerRoom
from atta.daemon.versions import LiveVersions
from atta.errors import ConfigError, DataError, WrongDatasetError
from atta.kvstore.store import Store, Table, known_codec, wire_bytes
from atta.observe.machine.threads import fulfil, named_threads
from atta.partition.dataset import Dataset
from atta.partition.graph.strings import NAME, string_width, to_strings
from atta.protos.v1 import graph_pb2, ids_pb2, kv_pb2
from atta.samplers.kernels.sums import NARROW, WIDE
from atta.samplers.methods import Method
from atta.samplers.shard import Answer, Shard, spec_of_drawn
from atta.wire.bulk import (
    ARRAYS_BYTES,
    PULL_DATA,
    SAMPLE_COUNTS,
    SAMPLE_EDGE_IDS,
    SAMPLE_NEIGHBORS,
    SAMPLE_TABLES,
    as_array,
    pack,
    prefix,
)

MAX_FAN_OUT = 1 << 20
MAX_SUMMED = 1 << 19
"""Most rows that are summed for one request."""
MAX_PAIRS = (ARRAYS_BYTES - (1 << 16)) // 8
"""Their ids are one message."""
_PROBE = graph_pb2.ProbeRequest


def began(age_ms: int) -> float:
    """When a batch of that age was begun, on this machine's monotonic clock. Age 0 means now: first come, first served."""
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
        if future.set_running_or_notify_cancel():
            fulfil(future, work)

    def shutdown(self) -> None:
        """Finish what was submitted, and end."""
        self._pool.shutdown(wait=True)


@dataclass(frozen=True)
class AnswerMaker:
    """How services over a daemon's data make answers: on threads, and where they have room. The event loop itself makes
    those of up to ``at_once`` bytes."""

    dataset_id: str
    address: str
    pool: TurnPool
    answers: AnswerRoom
    at_once: int = SMALL_BYTES

    def check_dataset(self, dataset_id: str) -> None:
        """Raise WrongDatasetError unless this daemon serves the dataset."""
        if dataset_id != self.dataset_id:
            raise WrongDatasetError(
                self.address, f"this daemon serves dataset {self.dataset_id}, not {dataset_id or '(none named)'}"
            )

    async def run(self, nbytes: int, function: Any, *args: Any, since: float | None = None) -> Any:
        """Make an answer of about ``nbytes``: on a thread, unless the hand-over would take longer than the work.
        ``since``: when the batch was begun that the answer is for. Answers for the oldest batch are made first. None:
        now."""
        if nbytes <= self.at_once:
            return function(*args)
        return await asyncio.wrap_future(self.pool.submit(since or time.monotonic(), function, *args))

    async def in_turn(
        self, jobs: Iterable[tuple[Any, ...]], connection: str, nbytes: int, since: float | None = None
    ) -> AsyncIterator[Any]:
        """Answers of ``jobs``, arguments of ``run``: ``nbytes`` in all. The next answer is made while the present one
        is sent."""
        coming: asyncio.Task[Any] | None = None
        async with self.answers.answer(connection, nbytes):
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


def _per_row(name: str, data: bytes, dtype: np.dtype, rows: int) -> np.ndarray | None:
    """An optional array with one entry per row; None where there are no bytes."""
    if not data:
        return None
    if len(data) != rows * dtype.itemsize:
        raise ConfigError(f"{name}: {len(data)} bytes for {rows} rows of {dtype.itemsize}")
    return np.frombuffer(data, dtype=dtype)


def _joined(tables: Mapping[str, np.ndarray]) -> Any:
    blocks = [table.reshape(-1).view(np.uint8) for table in tables.values()]
    if not blocks:
        return b""
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


class GraphService:
    """Sampling over this daemon's core vertices."""

    def __init__(self, shard: Shard, make: AnswerMaker, versions: LiveVersions) -> None:
        self._shard, self._make, self._versions = shard, make, versions

    async def sample(self, request: graph_pb2.SampleRequest, context: Context) -> bytes:
        self._shard.dataset.schema.check_edge_type(request.edge_type)
        rows = as_array(request.rows, wide=request.wide_rows)
        if not -1 <= request.fan_out <= MAX_FAN_OUT:
            raise ConfigError(f"fan-out {request.fan_out}: must be -1 (all) or 0 to {MAX_FAN_OUT}")
        method = Method.sent(request.method, request.method_name)
        trees = _per_row("trees", request.trees, np.dtype(np.int32), len(rows))
        times = _per_row("times", request.times, np.dtype(np.int64), len(rows))
        shard = await self._versions.graph(request.edge_type, request.version)
        bounded = request.fan_out >= 0 and method.bounded
        first = self._that_fit(shard, request, rows, bounded=bounded)
        nbytes = 8 * first * request.fan_out if bounded else CHUNK_BYTES
        sample = partial(
            shard.sample, request.edge_type, rows[:first], fan_out=request.fan_out, replace=request.replace,
            stream_key=request.stream_key, renewed=request.renewed, method=method,
            trees=None if trees is None else trees[:first], times=None if times is None else times[:first],
            tables=tuple(request.tables), by=request.by,
        )  # fmt: skip
        await self._make.answers.hold(context, nbytes)
        answer: bytes = await self._make.run(nbytes, _sampled, sample, since=began(request.age_ms))
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
        values = await self._make.run(work, probed, shard, request.question, request.edge_type, rows, operands)
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

        return graph_pb2.PairReply(ids=(await self._make.run(CHUNK_BYTES, draw)).tobytes())


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


class KvService:
    """Rows of this daemon's tables."""

    def __init__(self, store: Store, make: AnswerMaker, versions: LiveVersions) -> None:
        self._store, self._make, self._versions = store, make, versions

    async def pull(self, request: kv_pb2.PullRequest, context: Context) -> bytes:
        rows = as_array(request.rows, wide=request.wide_rows)
        tables = await self._versions.tables(request.node_type, request.tables, request.version)
        if not tables:
            raise ConfigError(f"a pull that names no table of {request.node_type}")
        codec = known_codec(request.codec)
        if request.HasField("sums"):
            return await self._sums(request, tables, rows, context)
        row_bytes = sum(wire_bytes(table.data[:1], codec) if len(table.data) else 1 for table in tables)
        nbytes = len(rows) * row_bytes
        if len(rows) > 1 and nbytes > CHUNK_BYTES:
            raise ConfigError(f"{len(rows)} rows of {row_bytes} bytes: at most {CHUNK_BYTES} bytes in one request")
        await self._make.answers.hold(context, nbytes)
        work = CHUNK_BYTES if codec and nbytes > SMALL_BYTES else nbytes  # encoding takes longer than moving
        head = prefix(kv_pb2.PullReply(), PULL_DATA, nbytes)
        answer: bytes = await self._make.run(
            work, self._store.pack, tables, rows, head, codec, since=began(request.age_ms)
        )
        return answer

    async def _sums(
        self, request: kv_pb2.PullRequest, tables: Sequence[Table], rows: np.ndarray, context: Context
    ) -> bytes:
        sums, table = request.sums, tables[0]
        if len(tables) != 1 or table.data.dtype != np.float32 or request.codec:
            raise ConfigError("sums: of one table of float32, and without a codec")
        counts = _per_row("counts", sums.counts, np.dtype(np.int32), len(sums.counts) // 4)
        if counts is None or counts.min(initial=0) < 0 or int(counts.sum()) != len(rows):
            raise ConfigError(f"sums: their counts do not add up to {len(rows)} rows")
        weights = _per_row("weights", sums.weights, np.dtype(np.float32), len(rows))
        columns = prod(table.data.shape[1:])
        nbytes = len(counts) * columns * sums.width
        if sums.width not in (NARROW, WIDE) or (len(counts) > 1 and nbytes > CHUNK_BYTES) or len(rows) > MAX_SUMMED:
            raise ConfigError(
                f"{len(counts)} sums of {len(rows)} rows, {sums.width} bytes a column: too many, or an unknown width"
            )
        shifts = _per_row("shifts", sums.shifts, np.dtype(np.int16), columns)
        shifts = np.empty(0, np.int16) if shifts is None else shifts
        await self._make.answers.hold(context, nbytes)
        pack = partial(self._store.pack_sums, shifts=shifts, width=sums.width)
        head, work = prefix(kv_pb2.PullReply(), PULL_DATA, nbytes), max(nbytes, len(rows) * table.row_bytes)
        answer: bytes = await self._make.run(
            work, pack, table, rows, counts, weights, head, since=began(request.age_ms)
        )
        return answer

    async def list_tables(self, request: kv_pb2.ListTablesRequest, context: Context) -> kv_pb2.ListTablesReply:
        reply = kv_pb2.ListTablesReply()
        one, version = request.table, request.version if request.table else 0
        tables = await self._versions.tables(request.node_type, [one], version) if one else [*self._store]
        for table in tables:
            wanted = request.largest and table.data.dtype == np.float32
            reply.tables.add(
                node_type=table.node_type, name=table.name, dtype=table.data.dtype.str, row_shape=table.data.shape[1:],
                rows=table.data.shape[0],
                largest=await self._make.run(CHUNK_BYTES, self._store.largest, table, version) if wanted else (),
            )  # fmt: skip
        return reply


_CHUNK_ROWS = 1 << 18
_WORD = 8
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)

Rows = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


class StringIndex:
    """Positions of rows by their content. It takes 16 bytes per row. Rows are sorted by a hash of 64 bits. A search
    compares the bytes, too, so equal hashes do no harm."""

    def __init__(self, rows: Rows) -> None:
        """``rows``: uint8 [n, w], kept and not copied."""
        self._rows = rows
        hashes = _hashes(rows)
        self._order = np.argsort(hashes, kind="stable").astype(np.int64)
        self._hashes = hashes[self._order]

    def twice(self) -> int | None:
        """The position of a row whose content another row has as well; None if there is none. Empty rows do not count."""
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        first, second = self._order[same], self._order[same + 1]
        alike = (self._rows[first] == self._rows[second]).all(axis=1)
        equal = first[alike & self._rows[first].any(axis=1)]
        return int(equal[0]) if len(equal) else None

    def find(self, wanted: Rows) -> Places:
        """int64 [m]: the position of the first row with the content of each row of ``wanted`` [m, v]; -1: none has it.
        Rows of different widths are compared as if zeros filled the shorter one."""
        width = self._rows.shape[1]
        fits = ~wanted[:, width:].any(axis=1)
        asked = np.zeros((len(wanted), width), np.uint8)
        asked[:, : wanted.shape[1]] = wanted[:, :width]
        hashes, found = _hashes(asked), np.full(len(wanted), -1, np.int64)
        at = np.searchsorted(self._hashes, hashes)
        left = np.flatnonzero(fits)
        while len(left := self._equal_hashes(left, at, hashes)):
            row = self._order[at[left]]
            same = (self._rows[row] == asked[left]).all(axis=1)
            found[left[same]] = row[same]
            left = left[~same]
            at[left] += 1
        return found

    def _equal_hashes(self, left: Places, at: Places, hashes: npt.NDArray[np.uint64]) -> Places:
        left = left[at[left] < len(self._hashes)]
        equal: Places = left[self._hashes[at[left]] == hashes[left]]
        return equal


def _hashes(rows: Rows) -> npt.NDArray[np.uint64]:
    """uint64 [n]: a hash of each row, word by word (multiply and shift, as in Fibonacci hashing)."""
    n, width = rows.shape
    out = np.full(n, _ODD, np.uint64)
    words = np.zeros((min(n, _CHUNK_ROWS), -(-width // _WORD) * _WORD), np.uint8)
    for first in range(0, n, _CHUNK_ROWS):
        part = out[first : first + _CHUNK_ROWS]
        words[: len(part), :width] = rows[first : first + len(part)]
        for word in words[: len(part)].view("<u8").T:
            part ^= word
            part *= _ODD
            part ^= part >> _SHIFT
    return out


MAX_WIDTH = 4096
"""Longest string in a request, in bytes."""
_REPLY_BYTES = ARRAYS_BYTES - (1 << 16)


class IdService:
    """``IdService`` of a daemon."""

    def __init__(self, dataset: Dataset, part: int, versions: LiveVersions, make: AnswerMaker) -> None:
        self._dataset, self._part, self._versions, self._make = dataset, part, versions, make
        self._indexes: dict[tuple[str, bool], tuple[int, Places, StringIndex]] = {}
        self._indexing = threading.Lock()

    async def numbers(self, request: ids_pb2.NumbersRequest, context: Context) -> ids_pb2.NumbersReply:
        self._width(request.node_type)
        if not 1 <= request.width <= MAX_WIDTH or len(request.strings) % request.width:
            raise ConfigError(f"{len(request.strings)} bytes are no strings of {request.width} bytes, 1 to {MAX_WIDTH}")
        wanted = np.frombuffer(request.strings, np.uint8).reshape(-1, request.width)
        newest = await self._names(request.node_type)
        at, numbers = await self._make.run(CHUNK_BYTES, self._found, request.node_type, newest, wanted)
        return ids_pb2.NumbersReply(at=at.tobytes(), numbers=numbers.tobytes())

    async def strings(self, request: ids_pb2.StringsRequest, context: Context) -> ids_pb2.StringsReply:
        width, numbers = self._width(request.node_type), as_array(request.numbers, wide=True)
        if len(numbers) * width > _REPLY_BYTES:
            raise ConfigError(f"{len(numbers)} strings of {width} bytes: at most {_REPLY_BYTES} bytes in one request")
        _, names = await self._names(request.node_type)
        at, rows = await self._make.run(CHUNK_BYTES, self._named, request.node_type, names, numbers)
        return ids_pb2.StringsReply(width=width, at=at.tobytes(), strings=rows.tobytes())

    def _width(self, node_type: str) -> int:
        width = string_width(self._dataset.schema, node_type)
        if not width:
            raise ConfigError(f"the vertices of node type {node_type!r} have no string ids")
        return width

    async def _names(self, node_type: str) -> tuple[int, Rows]:
        """The strings of this daemon's vertices, as the newest version has them, and which one has brought them."""
        newest = self._versions.book.newest
        source = self._versions.book.sources(newest).get((node_type, NAME), 0)
        return source, (await self._versions.tables(node_type, [NAME], newest))[0].data

    def _found(self, node_type: str, newest: tuple[int, Rows], wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = 0, self._versions.own.store.table(node_type, NAME).data
        rows = np.full(len(wanted), -1, np.int64)
        for source, names in (own, newest) if newest[0] else (own,):
            places, index = self._index(node_type, source, names)
            found = index.find(wanted)
            rows[found >= 0] = places[found[found >= 0]] if source else found[found >= 0]
        (lo, _), ids = self._dataset.book.range(node_type, self._part), self._dataset.ids(node_type)
        at = np.flatnonzero((rows >= 0) & (wanted.any(axis=1) | (not self._dataset.schema.room.get(node_type))))
        return at.astype(np.int32), np.asarray(ids[lo + rows[at]])

    def _named(self, node_type: str, names: Rows, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        internal = self._versions.now.to_used(node_type, numbers)
        lo, hi = self._dataset.book.range(node_type, self._part)
        at = np.flatnonzero((internal >= lo) & (internal < hi)).astype(np.int32)
        return at, names[internal[at] - lo]

    def _index(self, node_type: str, source: int, names: Rows) -> tuple[Places, StringIndex]:
        """The index of this daemon's strings, made when it is first used; of a later version ``source`` that of the room's, and
        the places of these among ``names``."""
        with self._indexing:
            known = self._indexes.get((node_type, source > 0))
            if known is not None and known[0] == source:
                return known[1:]
            (lo, hi), places = self._dataset.book.range(node_type, self._part), np.empty(0, np.int64)
            if source:
                ids, used = self._dataset.ids(node_type), self._dataset.schema.in_use(node_type)
                new = ids[lo:hi] >= ids[self._dataset.sorted_internal(node_type)[used]]
                places = np.flatnonzero(new & names.any(axis=1))
            index = StringIndex(rows := names[places] if source else names)
            if (twice := index.twice()) is not None:
                name = str(to_strings(rows[twice : twice + 1])[0])
                raise DataError(
                    self._dataset.path, f"two vertices of node type {node_type!r} have the string id {name!r}"
                )
            self._indexes[node_type, source > 0] = source, places, index
            return places, index
