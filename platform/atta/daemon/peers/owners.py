"""Asks all owners of a task's rows at the same time, and puts their answers together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from atta.daemon.peers.peers import CHUNK_BYTES, PULL_BYTES, SMALL_BYTES, Peer, Peers
from atta.errors import RemoteError
from atta.kvstore import codecs
from atta.kvstore.store import wire_bytes
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.shard import Answer, spec_of_drawn

UNBOUNDED_ROWS = 1 << 16
"""Rows of one request where nobody knows how many edges they have."""

Item = TypeVar("Item", SampleItem, FeatureItem)
Result = TypeVar("Result")
Outs = Sequence[np.ndarray]
"""A batch's arrays of the tables of an item."""


class SampledRows(NamedTuple):
    """Sampled edges of consecutive rows of one item."""

    item: SampleItem
    first_row: int
    answer: Answer
    nbytes: int  # on the network


class Owners:
    """All owners of a task's rows at once, asked by messages, each in pieces whose answers are one message. The items have
    ``starts`` and at least one row each, and their rows are internal ids.

    When a method returns or raises, nothing writes into the batch any more. Errors name the peer that is to blame:
    RemoteError if an owner's answer does not fit the question, or it gives none.
    """

    def __init__(self, peers: Peers, dataset: Dataset, pool: Executor, *, at_once: int = SMALL_BYTES) -> None:
        """``pool`` copies rows, so that the event loop stays free. The event loop itself copies up to ``at_once``
        bytes."""
        self._peers, self._pool, self._at_once, self._schema = peers, pool, at_once, dataset.schema
        self._offsets: Mapping[str, np.ndarray] = dataset.book.offsets

    async def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> list[SampledRows]:
        """Sampled edges of ``items``: every row once, piece by piece, in any order."""
        talks = []
        for item in items:
            row_bytes = sum(spec_of_drawn(self._schema, item.edge_type, name).row_bytes for name in item.tables)
            offsets = self._offsets[self._schema.endpoints(item.edge_type)[1]]
            for owner, at in _pieces(item, sampled_rows(item, row_bytes)):
                asked = part_of(item, at, int(offsets[owner]))
                talks.append(sampled(self._peers[owner], asked, of=item, first=at.start, age_ms=age_ms))
        return [piece for pieces in await _all(talks) for piece in pieces]

    async def pull(
        self, items: Sequence[FeatureItem], outs: Sequence[Outs], codec: str = "", *, age_ms: int = 0
    ) -> int:
        """Put the table rows of each item at its positions in its ``outs``, the batch's arrays of its tables.

        float32 rows come in ``codec``. Returns the number of bytes that came.
        """
        talks = []
        for item, out in zip(items, outs, strict=True):
            row_bytes = sum(wire_bytes(table[:1], codec) for table in out)
            for owner, at in _pieces(item, max(1, PULL_BYTES // max(1, row_bytes))):
                asked = part_of(item, at, int(self._offsets[item.node_type][owner]))
                talks.append(self._pull(self._peers[owner], asked, out, codec, age_ms))
        return sum(await _all(talks))

    async def _pull(self, peer: Peer, item: FeatureItem, outs: Outs, codec: str, age_ms: int) -> int:
        row_bytes = sum(wire_bytes(out[:1], codec) for out in outs)
        data = await peer.pull(item, codec, age_ms=age_ms)
        if len(data) != len(item.rows) * row_bytes:
            raise RemoteError(peer.address, f"sends {len(data)} bytes for {len(item.rows)} rows of {row_bytes} bytes")
        scatter = partial(_scatter, outs, item.positions, data, codec)
        if len(data) <= (SMALL_BYTES if codec else self._at_once):
            scatter()
        else:
            await all_settled([asyncio.get_running_loop().run_in_executor(self._pool, scatter)])
        return len(data)


def sampled_rows(item: SampleItem, table_bytes: int = 0) -> int:
    """Rows whose edges, with ``table_bytes`` of edge tables each, make one message."""
    if item.fan_out < 0 or not item.method.bounded:
        return UNBOUNDED_ROWS
    return max(1, CHUNK_BYTES // max(4, (8 + table_bytes) * item.fan_out + 4))


async def sampled(
    peer: Peer, item: SampleItem, *, of: SampleItem | None = None, first: int = 0, age_ms: int = 0
) -> list[SampledRows]:
    """A peer's answers to all rows of ``item``, positions in its own range, which stand from row ``first`` on in
    ``of``. Raises RemoteError: an answer does not fit the question."""
    found: list[SampledRows] = []
    at = 0
    while at < len(item.rows):
        answer, nbytes = await peer.sample(part_of(item, slice(at, None)) if at else item, age_ms=age_ms)
        rows, edges = len(answer.counts), len(answer.neighbors)
        if not 0 < rows <= len(item.rows) - at:
            raise RemoteError(peer.address, f"answers {rows} of {len(item.rows) - at} rows of {item.edge_type}")
        if int(answer.counts.sum()) != edges or len(answer.edge_ids) != edges:
            why = f"malformed answer for edge type {item.edge_type}: counts and neighbours do not match"
            raise RemoteError(peer.address, why)
        found.append(SampledRows(of or item, first + at, answer, nbytes))
        at += rows
    return found


async def all_settled(futures: Sequence[asyncio.Future[Any]]) -> None:
    """Wait until all have ended, even if one fails or the caller is cancelled: another batch may get the memory that
    they use. Then raise the first failure."""
    await _ended(futures)
    for future in futures:
        future.result()


async def _ended(futures: Sequence[asyncio.Future[Any]]) -> None:
    """Wait until all have ended. If the caller is cancelled meanwhile, it learns so afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not all(future.done() for future in futures):
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _all(talks: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all talks. If one fails, the others are cancelled, and have ended before its error is raised."""
    if len(talks) == 1:
        return [await talks[0]]
    tasks = [asyncio.ensure_future(talk) for talk in talks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await _ended(tasks)


def _pieces(item: SampleItem | FeatureItem, step: int) -> Iterator[tuple[int, slice]]:
    """(owner, at most ``step`` rows of it)."""
    assert item.starts is not None
    bounds = item.starts.tolist()
    for owner, (low, high) in enumerate(pairwise(bounds)):
        for first in range(low, high, step):
            yield owner, slice(first, min(first + step, high))


def part_of(item: Item, at: slice, first: int = 0) -> Item:
    """Some rows of an item, less the id ``first``."""
    rows, positions = item.rows[at] - first, item.positions[at]
    if isinstance(item, FeatureItem):
        return replace(item, rows=rows, positions=positions, starts=None, keep=None)
    trees, times = (None if per_row is None else per_row[at] for per_row in (item.trees, item.times))
    return replace(item, rows=rows, positions=positions, trees=trees, times=times, starts=None)


def _scatter(outs: Outs, positions: np.ndarray, data: memoryview, codec: str) -> None:
    """Put the rows of a chunk, table by table, where the batch wants them."""
    if not len(data):
        return
    at, received = 0, np.frombuffer(data, dtype=np.uint8)
    for out in outs:
        row_bytes = wire_bytes(out[:1], codec)
        nbytes = len(positions) * row_bytes
        block = received[at : at + nbytes].reshape(len(positions), row_bytes)
        if codec and out.dtype == np.float32:
            codecs.decode(codec, block, out.reshape(len(out), -1), positions)
        else:
            kernels.scatter_rows(block, positions, out)
        at += nbytes
