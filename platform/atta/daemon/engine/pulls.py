"""Table rows that a peer owns: from the cache, from pulls of other batches that are under way, and from the peer
itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from atta.daemon.peers.answers import AskedPeer
from atta.daemon.peers.chunks import SMALL_BYTES
from atta.daemon.peers.underway import Pull, PullsUnderWay, SharedRows
from atta.errors import RemoteError
from atta.kvstore import codecs
from atta.kvstore.cache import RowCache
from atta.kvstore.store import wire_bytes
from atta.samplers import kernels
from atta.samplers.batch.items import FeatureItem
from atta.samplers.batch.state import BatchState
from atta.samplers.dag.instance import Task

__all__ = ["PullCounts", "RemoteContext", "WantedRows", "pull_jointly", "pull_rows"]


@dataclass(frozen=True, slots=True)
class RemoteContext:
    """What a remote task works with: the peer that it asks, and how it takes the answers in."""

    peer: AskedPeer
    cache: RowCache
    pool: Executor  # copies rows, so that the event loop stays free
    underway: PullsUnderWay | None = None  # None: every batch asks for all of its rows
    codec: str = ""
    """Of float32 rows on the way; empty: none. Decoded rows differ from the originals, so the cache does not keep
    them."""
    age_ms: int = 0  # since the batch was begun; 0: peers answer in order of arrival
    at_once: int = SMALL_BYTES  # the event loop itself copies up to this many bytes


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Rows of one node type that a batch wants from a peer, where they go, and the cache's slots for them."""

    item: FeatureItem = field(repr=False)
    outs: list[np.ndarray] = field(repr=False)
    slots: np.ndarray | None = field(default=None, repr=False)

    def only(self, chosen: np.ndarray) -> WantedRows:
        """Some of the rows."""
        item = replace(self.item, rows=self.item.rows[chosen], positions=self.item.positions[chosen])
        return WantedRows(item, self.outs, None if self.slots is None else self.slots[chosen])


@dataclass(frozen=True, slots=True)
class PullCounts:
    """Where rows came from, and the bytes that the peer sent."""

    remote: int = 0
    nbytes: int = 0
    cached: int = 0
    shared: int = 0


async def pull_rows(state: BatchState, task: Task, context: RemoteContext) -> PullCounts:
    """Fetch all rows of a FEATURE task of another owner into the batch."""
    cache, loop = context.cache, asyncio.get_running_loop()
    wanted: list[WantedRows] = []
    copies: list[Awaitable[None]] = []
    cached = 0
    for item in state.feature_items(task):
        outs = [state.table_rows(item.node_type, name) for name in item.tables]
        found = cache.look_up(item.node_type, item.tables, task.owner, item.rows, item.positions)
        if found is None:
            wanted.append(WantedRows(item, outs))
            continue
        if len(found.slots):
            copies.append(loop.run_in_executor(context.pool, cache.fill, item.node_type, item.tables, found, outs))
            cached += len(found.slots)
        if len(found.missing_rows):
            missing = replace(item, rows=found.missing_rows, positions=found.missing_positions)
            wanted.append(WantedRows(missing, outs, found.missing_slots))
    try:
        pulled = await pull_jointly(wanted, task.owner, context)
    finally:
        await _settled(copies)
    return replace(pulled, cached=cached)


async def pull_jointly(wanted: Sequence[WantedRows], owner: int, context: RemoteContext) -> PullCounts:
    """Pull ``wanted``, but take what earlier batches have already asked for from them.

    Later batches may rely on this pull.
    """
    underway = context.underway
    if underway is None:
        return await _ask(wanted, context)
    came = False
    pulls: list[Pull] = []
    promises: list[tuple[WantedRows, SharedRows]] = []
    try:
        asked = []
        for rows in wanted:
            item = rows.item
            key = (owner, item.node_type, item.tables, context.codec)
            pull = underway.begin(key, item.rows, item.positions, rows.outs)
            pulls.append(pull)
            promises += [(rows, promise) for promise in pull.expected]
            asked.append(rows.only(_without(len(item.rows), pull.expected)) if pull.expected else rows)
        pulled = await _ask(asked, context)
        again = [rows.only(promise.chosen) for rows, promise in promises if not await promise.came]
        if again:
            more = await _ask(again, context)
            pulled = PullCounts(pulled.remote + more.remote, pulled.nbytes + more.nbytes)
        came = True
    finally:
        await asyncio.gather(
            *(promise.came for _, promise in promises), *(underway.end(pull, came=came) for pull in pulls)
        )
    return replace(pulled, shared=sum(len(rows.item.rows) for rows in wanted) - pulled.remote)


async def _settled(copies: Sequence[Awaitable[None]]) -> None:
    """Wait for all copies, even if one fails: once the task ends, another batch may get this memory."""
    for failure in await asyncio.gather(*copies, return_exceptions=True):
        if failure is not None:
            raise failure


def _without(count: int, promises: Sequence[SharedRows]) -> np.ndarray:
    """Which of ``count`` rows no promise covers."""
    left = np.ones(count, dtype=bool)
    for promise in promises:
        left[promise.chosen] = False
    return np.flatnonzero(left)


async def _ask(wanted: Sequence[WantedRows], context: RemoteContext) -> PullCounts:
    """Have the peer send rows, and put them in their places."""
    peer, cache, codec, loop = context.peer, context.cache, context.codec, asyncio.get_running_loop()
    copies: list[Awaitable[None]] = []
    wanted = [rows for rows in wanted if len(rows.item.rows)]
    due, got, received = sum(len(rows.item.rows) for rows in wanted), 0, 0
    if not due:
        return PullCounts()
    try:
        async for index, first, count, data in peer.pull([rows.item for rows in wanted], codec, age_ms=context.age_ms):
            item, outs, slots = wanted[index].item, wanted[index].outs, wanted[index].slots
            if len(data) != (nbytes := count * sum(wire_bytes(out[:1], codec) for out in outs)):
                raise RemoteError(peer.address, f"sends {len(data)} bytes for {count} rows of {nbytes} bytes")
            part = slice(first, first + count)
            keep = None if slots is None or codec else partial(cache.keep, item.node_type, item.tables, slots[part])
            scatter = partial(_scatter, outs, item.positions[part], data, codec, keep)
            if len(data) <= (SMALL_BYTES if codec else context.at_once):
                scatter()
            else:
                copies.append(loop.run_in_executor(context.pool, scatter))
            got, received = got + count, received + len(data)
    finally:
        await _settled(copies)
    if got != due:
        raise RemoteError(peer.address, f"sends {got} rows of {due}")
    return PullCounts(remote=due, nbytes=received)


def _scatter(
    outs: Sequence[np.ndarray],
    positions: np.ndarray,
    data: memoryview,
    codec: str,
    keep: Callable[[Sequence[np.ndarray]], None] | None,
) -> None:
    """Put the rows of a chunk, table by table, where the batch wants them, and hand them to the cache."""
    if not len(data):
        return
    at, received, blocks = 0, np.frombuffer(data, dtype=np.uint8), []
    for out in outs:
        row_bytes = wire_bytes(out[:1], codec)
        nbytes = len(positions) * row_bytes
        blocks.append(received[at : at + nbytes].reshape(len(positions), row_bytes))
        if codec and out.dtype == np.float32:
            codecs.decode(codec, blocks[-1], out.reshape(len(out), -1), positions)
        else:
            kernels.scatter_rows(blocks[-1], positions, out)
        at += nbytes
    if keep is not None:
        keep(blocks)
