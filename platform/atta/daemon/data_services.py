"""What a daemon answers its peers: rows of its graph shard and of its tables.

Answers are streamed in chunks of about ``CHUNK_BYTES``: large enough for gRPC's best throughput, small enough that copying one
overlaps with sending another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from atta.daemon.guard import guarded, guarded_stream
from atta.daemon.peers import as_array
from atta.errors import ConfigError, WrongDatasetError
from atta.kvstore.store import Store
from atta.protos import wire
from atta.protos.v1 import graph_pb2, kv_pb2
from atta.rpc import METHODS, Bulk
from atta.samplers.shard import Shard

__all__ = ["CHUNK_BYTES", "GraphService", "KvService"]

CHUNK_BYTES = 4 << 20
SMALL_BYTES = 128 << 10
MAX_FAN_OUT = 1 << 20
MAX_PAIRS = 1 << 24


class _DataService:
    def __init__(self, dataset_id: str, pool: ThreadPoolExecutor, address: str) -> None:
        self._dataset_id, self._pool, self._address = dataset_id, pool, address

    def _check(self, dataset_id: str) -> None:
        if dataset_id != self._dataset_id:
            raise WrongDatasetError(
                self._address, f"this daemon serves dataset {self._dataset_id}, not {dataset_id or '(none named)'}"
            )

    async def _run(self, nbytes: int, function: Any, *args: Any) -> Any:
        """Make an answer of about ``nbytes``: on a thread, unless handing it over takes longer than the work."""
        if nbytes <= SMALL_BYTES:
            return function(*args)
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)


class GraphService(_DataService):
    """Sampling over this daemon's core vertices."""

    def __init__(self, shard: Shard, pool: ThreadPoolExecutor, address: str) -> None:
        super().__init__(shard.dataset.dataset_id, pool, address)
        self._shard = shard

    @guarded_stream
    async def sample(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        """``GraphService.Sample``."""
        self._check(request.dataset_id)
        for index, part in enumerate(request.edge_types):
            self._shard.dataset.schema.check_edge_type(part.edge_type)
            rows = as_array(part.rows, wide=part.wide_rows)
            if not -1 <= part.fan_out <= MAX_FAN_OUT:
                raise ConfigError(f"fan-out {part.fan_out}: must be -1 (all) or 0 to {MAX_FAN_OUT}")
            for first, chunk in self._split(part.edge_type, rows, part.fan_out):
                nbytes = 8 * len(chunk) * part.fan_out if part.fan_out >= 0 else CHUNK_BYTES
                yield await self._run(nbytes, self._answer, index, part, first, chunk)

    def _answer(self, index: int, part: Any, first: int, rows: np.ndarray) -> bytes:
        answer = self._shard.sample(
            part.edge_type,
            rows,
            fan_out=part.fan_out,
            replace=part.replace,
            weighted=part.weighted,
            stream_key=part.stream_key,
        )
        chunk = graph_pb2.SampleChunk(
            edge_type=index,
            first_row=first,
            wide_neighbors=answer.neighbors.dtype.itemsize == 8,
            wide_edge_ids=answer.edge_ids.dtype.itemsize == 8,
        )
        return METHODS["GraphService.Sample"].encode_reply(
            Bulk(chunk, {3: answer.counts, 4: answer.neighbors, 5: answer.edge_ids})
        )

    def _split(self, edge_type: str, rows: np.ndarray, fan_out: int) -> Iterator[tuple[int, np.ndarray]]:
        """Cut the rows so that no answer gets much longer than a chunk; a single huge row stays whole."""
        if fan_out >= 0:
            step = max(1, CHUNK_BYTES // max(4, 8 * fan_out + 4))
            yield from ((at, rows[at : at + step]) for at in range(0, len(rows), step))
            return
        sizes = np.cumsum(8 * self._shard.degrees(edge_type, rows) + 4)
        at = 0
        while at < len(rows):
            done = sizes[at - 1] if at else 0
            stop = max(at + 1, int(np.searchsorted(sizes, done + CHUNK_BYTES, side="right")))
            yield at, rows[at:stop]
            at = stop

    @guarded
    async def pair(self, request: Any, context: Any) -> Any:
        """``GraphService.Pair``."""
        self._check(request.dataset_id)
        rows = as_array(request.rows, wide=True)
        if len(rows) * request.count > MAX_PAIRS:
            raise ConfigError(f"{len(rows)} x {request.count} pairs: at most {MAX_PAIRS} in one request")

        def draw() -> np.ndarray:
            return self._shard.pair(
                request.edge_type, rows, count=request.count, negative=request.negative, stream_key=request.stream_key
            )

        return graph_pb2.PairReply(ids=(await self._run(CHUNK_BYTES, draw)).tobytes())


class KvService(_DataService):
    """Rows of this daemon's tables."""

    def __init__(self, store: Store, dataset_id: str, pool: ThreadPoolExecutor, address: str) -> None:
        super().__init__(dataset_id, pool, address)
        self._store = store

    @guarded_stream
    async def pull(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        """``KvService.Pull``."""
        self._check(request.dataset_id)
        for index, pull in enumerate(request.pulls):
            rows = as_array(pull.rows, wide=pull.wide_rows)
            tables = [self._store.table(pull.node_type, name) for name in pull.tables]
            if not tables:
                raise ConfigError(f"pull {index} names no table of {pull.node_type}")
            row_bytes = sum(table.row_bytes for table in tables)
            step = max(1, CHUNK_BYTES // max(1, row_bytes))
            for first in range(0, len(rows), step):
                part = rows[first : first + step]
                nbytes = len(part) * row_bytes
                prefix = wire.prefix(kv_pb2.PullChunk(pull=index, first_row=first, rows=len(part)), 4, nbytes)
                yield await self._run(nbytes, self._store.pack, tables, part, prefix)

    @guarded
    async def list_tables(self, request: Any, context: Any) -> Any:
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
