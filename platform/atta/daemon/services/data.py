"""What a daemon answers its peers: sampled edges of its graph shard, and rows of its tables.

Answers are streamed in chunks (``atta.daemon.peers.chunks``). Sampled edges that fit into one chunk can also be asked
for as a single message, which costs less than a stream.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.daemon.live.versions import LiveVersions
from atta.daemon.peers.chunks import CHUNK_BYTES, PULL_BYTES, SMALL_BYTES, sampled_rows
from atta.daemon.peers.peers import as_array
from atta.daemon.peers.turns import MessageTurns, TurnPool, began
from atta.daemon.services.handling import Context, Handler
from atta.daemon.services.rooms import AnswerRoom
from atta.errors import ConfigError, WrongDatasetError
from atta.kvstore.store import Store, Table, known_codec, wire_bytes
from atta.protos.v1 import graph_pb2, kv_pb2
from atta.samplers.methods import BY_NUMBER, Method
from atta.samplers.shard import Shard, spec_of_drawn
from atta.wire.messages.bulk import PULL_DATA, SAMPLE_COUNTS, SAMPLE_EDGE_IDS, SAMPLE_NEIGHBORS, SAMPLE_TABLES, prefix
from atta.wire.messages.fields import ARRAYS_BYTES
from atta.wire.rpc import METHODS, Bulk

__all__ = ["DataService", "GraphService", "KvService"]

MAX_FAN_OUT = 1 << 20
MAX_PAIRS = (ARRAYS_BYTES - (1 << 16)) // 8
"""Their ids are one message."""
_PROBE = graph_pb2.ProbeRequest


class DataService:
    """What services over a daemon's data share: the id of the dataset, and threads to work on."""

    of_peers = False
    """Whether other daemons ask, and not clients."""

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
        async with self._answers.answer(connection, nbytes, of_peers=self.of_peers):
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


@dataclass(frozen=True, slots=True)
class _Question:
    """A checked ``EdgeSample``."""

    part: graph_pb2.EdgeSample
    shard: Shard
    method: Method
    rows: np.ndarray
    trees: np.ndarray | None
    times: np.ndarray | None


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

    of_peers = True

    def __init__(
        self,
        shard: Shard,
        pool: TurnPool,
        turns: MessageTurns,
        address: str,
        *,
        answers: AnswerRoom,
        versions: LiveVersions,
    ) -> None:
        super().__init__(shard.dataset.dataset_id, pool, address, answers=answers)
        self._shard, self._turns, self._versions = shard, turns, versions

    def methods(self) -> dict[str, Handler]:
        """The handlers by their names in ``graph.proto``."""
        return {
            "Sample": self.sample,
            "SampleOnce": self.sample_once,
            "Pair": self.pair,
            "Probe": self.probe,
        }

    async def sample(self, request: graph_pb2.SampleRequest, context: Context) -> AsyncIterator[bytes]:
        """``GraphService.Sample``."""
        since = began(request.age_ms)
        pieces = self._pieces(request, await self._shards(request))
        begin = list(itertools.islice(pieces, 4))  # of more pieces, so many are in memory at a time
        in_memory = sum(nbytes for nbytes, *_ in begin)
        async with self._answers.answer(context.peer(), in_memory, of_peers=self.of_peers):
            for nbytes, *piece in itertools.chain(begin, pieces):
                answer = await self.run(nbytes, self._answer, *piece, since=since)
                async with self._turns.turn(context.peer(), since):
                    yield answer

    async def sample_once(self, request: graph_pb2.SampleRequest, context: Context) -> bytes:
        """``GraphService.SampleOnce``."""
        pieces = list(itertools.islice(self._pieces(request, await self._shards(request)), 2))
        if len(pieces) != 1:
            raise ConfigError("SampleOnce: the answer is not one chunk: ask by Sample")
        ((nbytes, *piece),) = pieces
        answer: bytes = await self.run(nbytes, self._answer, *piece, since=began(request.age_ms))
        return answer

    async def _shards(self, request: graph_pb2.SampleRequest) -> list[Shard]:
        """The edges that each question is about."""
        if not any(part.version for part in request.edge_types):
            return [self._shard] * len(request.edge_types)
        return [await self._versions.graph(part.edge_type, part.version) for part in request.edge_types]

    def _pieces(
        self, request: graph_pb2.SampleRequest, shards: Sequence[Shard]
    ) -> Iterator[tuple[int, int, _Question, int, int]]:
        """The checked questions in pieces: (bytes of the answer, index of the question, question, first row, end)."""
        for index, (part, shard) in enumerate(zip(request.edge_types, shards, strict=True)):
            self._shard.dataset.schema.check_edge_type(part.edge_type)
            rows = as_array(part.rows, wide=part.wide_rows)
            if not -1 <= part.fan_out <= MAX_FAN_OUT:
                raise ConfigError(f"fan-out {part.fan_out}: must be -1 (all) or 0 to {MAX_FAN_OUT}")
            method = BY_NUMBER.get(part.method)
            if method is None:
                raise ConfigError(f"unknown sampling method {part.method}")
            question = _Question(
                part,
                shard,
                method,
                rows,
                _per_row("trees", part.trees, np.dtype(np.int32), len(rows)),
                _per_row("times", part.times, np.dtype(np.int64), len(rows)),
            )
            bounded = part.fan_out >= 0 and method.bounded
            for first, stop in self._split(question, bounded=bounded):
                nbytes = 8 * (stop - first) * part.fan_out if bounded else CHUNK_BYTES
                yield nbytes, index, question, first, stop

    def _answer(self, index: int, question: _Question, first: int, stop: int) -> bytes:
        part, chosen = question.part, slice(first, stop)
        answer = question.shard.sample(
            part.edge_type,
            question.rows[chosen],
            fan_out=part.fan_out,
            replace=part.replace,
            stream_key=part.stream_key,
            method=question.method,
            trees=None if question.trees is None else question.trees[chosen],
            times=None if question.times is None else question.times[chosen],
            tables=tuple(part.tables),
            by=part.by,
        )
        chunk = graph_pb2.SampleChunk(
            edge_type=index,
            first_row=first,
            wide_neighbors=answer.neighbors.dtype.itemsize == 8,
            wide_edge_ids=answer.edge_ids.dtype.itemsize == 8,
        )
        payloads = {
            SAMPLE_COUNTS: answer.counts,
            SAMPLE_NEIGHBORS: answer.neighbors,
            SAMPLE_EDGE_IDS: answer.edge_ids,
            SAMPLE_TABLES: _joined(answer.tables),
        }
        return METHODS["GraphService.Sample"].encode_reply(Bulk(chunk, payloads))

    def _split(self, question: _Question, *, bounded: bool) -> Iterator[tuple[int, int]]:
        """Cut the rows so that no answer is much longer than a chunk. A single huge row stays whole."""
        rows, fan_out, edge_type = question.rows, question.part.fan_out, question.part.edge_type
        schema = self._shard.dataset.schema
        table_bytes = sum(spec_of_drawn(schema, edge_type, name).row_bytes for name in question.part.tables)
        if bounded:
            step = sampled_rows(fan_out, table_bytes)
            yield from ((at, min(at + step, len(rows))) for at in range(0, len(rows), step))
            return
        sizes = np.cumsum((8 + table_bytes) * question.shard.degrees(edge_type, rows) + 4)
        at = 0
        while at < len(rows):
            done = sizes[at - 1] if at else 0
            stop = max(at + 1, int(np.searchsorted(sizes, done + CHUNK_BYTES, side="right")))
            yield at, stop
            at = stop

    async def probe(self, request: graph_pb2.ProbeRequest, context: Context) -> graph_pb2.ProbeReply:
        """``GraphService.Probe``."""
        rows = as_array(request.rows, wide=True)
        operands = as_array(request.operands, wide=True)
        if request.question in (_PROBE.STEP, _PROBE.CONTAINS) and len(operands) != len(rows):
            raise ConfigError(f"{len(operands)} operands for {len(rows)} rows")
        work = CHUNK_BYTES if request.question == _PROBE.DIGEST else 8 * len(rows)  # a digest reads all edges
        shard = await self._versions.graph(request.edge_type, request.version)
        values = await self.run(work, _values, shard, request, rows, operands)
        return graph_pb2.ProbeReply(values=values.astype(np.int64, copy=False).tobytes())

    async def pair(self, request: graph_pb2.PairRequest, context: Context) -> graph_pb2.PairReply:
        """``GraphService.Pair``."""
        rows = as_array(request.rows, wide=True)
        if len(rows) * request.count > MAX_PAIRS:
            raise ConfigError(f"{len(rows)} x {request.count} pairs: at most {MAX_PAIRS} in one request")

        shard = await self._versions.graph(request.edge_type, request.version)

        def draw() -> np.ndarray:
            return shard.pair(
                request.edge_type, rows, count=request.count, negative=request.negative, stream_key=request.stream_key
            )

        return graph_pb2.PairReply(ids=(await self.run(CHUNK_BYTES, draw)).tobytes())


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

    of_peers = True

    def __init__(
        self,
        store: Store,
        dataset_id: str,
        pool: TurnPool,
        turns: MessageTurns,
        *,
        address: str,
        at_once: int,
        answers: AnswerRoom,
        versions: LiveVersions | None = None,
    ) -> None:
        super().__init__(dataset_id, pool, address, at_once=at_once, answers=answers)
        self._store, self._turns, self._versions = store, turns, versions

    def methods(self) -> dict[str, Handler]:
        """The handlers by their names in ``kv.proto``."""
        return {
            "Pull": self.pull,
            "ListTables": self.list_tables,
        }

    async def pull(self, request: kv_pb2.PullRequest, context: Context) -> AsyncIterator[bytes]:
        """``KvService.Pull``."""
        since = began(request.age_ms)
        for index, pull in enumerate(request.pulls):
            rows = as_array(pull.rows, wide=pull.wide_rows)
            if pull.version and self._versions is not None:
                tables = await self._versions.tables(pull.node_type, pull.tables, pull.version)
            else:
                tables = [self._store.table(pull.node_type, name, pull.version) for name in pull.tables]
            if not tables:
                raise ConfigError(f"pull {index} names no table of {pull.node_type}")
            codec = known_codec(pull.codec)
            row_bytes = sum(wire_bytes(table.data[:1], codec) if len(table.data) else 1 for table in tables)
            jobs = self._jobs(index, tables, rows, codec, row_bytes)
            async for answer in self.in_turn(jobs, context.peer(), len(rows) * row_bytes, since):
                async with self._turns.turn(context.peer(), since):
                    yield answer

    def _jobs(
        self, index: int, tables: Sequence[Table], rows: np.ndarray, codec: str, row_bytes: int
    ) -> Iterator[tuple[Any, ...]]:
        """What makes the answer to a pull, piece by piece. A request may name millions of pieces."""
        step = max(1, PULL_BYTES // max(1, row_bytes))
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            nbytes = len(part) * row_bytes
            head = prefix(kv_pb2.PullChunk(pull=index, first_row=first, rows=len(part)), PULL_DATA, nbytes)
            work = CHUNK_BYTES if codec and nbytes > SMALL_BYTES else nbytes  # encoding takes longer than moving
            yield work, self._store.pack, tables, part, head, codec

    async def list_tables(self, request: kv_pb2.ListTablesRequest, context: Context) -> kv_pb2.ListTablesReply:
        """``KvService.ListTables``."""
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
