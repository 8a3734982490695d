"""Table rows that peers own and that are not cached: from pulls of other batches that are under way, and from the peers
themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import numpy as np

from atta.daemon.peers.owners import AskedOwners, all_settled
from atta.daemon.peers.peers import SMALL_BYTES, AskedPeers
from atta.daemon.peers.underway import Pull, PullsUnderWay, SharedRows
from atta.kvstore.cache import RowCache
from atta.samplers.batch.items import FeatureItem, owners_of
from atta.samplers.batch.state import BatchState
from atta.samplers.dag.instance import Task

__all__ = ["PullCounts", "RemoteContext", "WantedRows", "pull_jointly", "pull_rows"]


@dataclass(frozen=True, slots=True)
class RemoteContext:
    """What a remote task works with: whom it asks, and how it takes the answers in."""

    peers: AskedPeers
    owners: AskedOwners
    cache: RowCache
    pool: Executor  # copies rows, so that the event loop stays free
    underway: PullsUnderWay | None = None  # None: every batch asks for all of its rows
    codec: str = ""
    """Of float32 rows on the way; empty: none. Decoded rows differ from the originals, so the cache does not keep
    them."""
    age_ms: int = 0  # since the batch was begun; 0: peers answer in order of arrival
    at_once: int = SMALL_BYTES  # the event loop itself copies up to this many bytes

    def copied(
        self, rows: int, outs: Sequence[np.ndarray], copy: Callable[..., None], *args: object
    ) -> asyncio.Future[None]:
        """Call ``copy``, which copies so many rows of ``outs``: on the event loop if they are few, else on the pool."""
        loop = asyncio.get_running_loop()
        if rows * sum(out[:1].nbytes for out in outs) > self.at_once:
            return loop.run_in_executor(self.pool, copy, *args)
        done: asyncio.Future[None] = loop.create_future()
        copy(*args)
        done.set_result(None)
        return done


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Rows of one node type that a batch wants from peers, and where they go."""

    item: FeatureItem = field(repr=False)
    outs: Sequence[np.ndarray] = field(repr=False)

    def only(self, chosen: np.ndarray) -> WantedRows:
        """Some of the rows; ``chosen`` int64 ascends."""
        item = self.item
        assert item.starts is not None
        starts = np.searchsorted(chosen, item.starts)
        keep = None if item.keep is None else item.keep[chosen]
        return WantedRows(
            replace(item, rows=item.rows[chosen], positions=item.positions[chosen], starts=starts, keep=keep), self.outs
        )


@dataclass(frozen=True, slots=True)
class PullCounts:
    """Where rows came from, the bytes that the peers sent, and the requests that they answered."""

    remote: int = 0
    nbytes: int = 0
    shared: int = 0
    requests: int = 0


async def pull_rows(state: BatchState, task: Task, context: RemoteContext) -> PullCounts:
    """Fetch all rows of a FEATURE task of other owners into the batch."""
    wanted = []
    for item in state.feature_items(task):
        outs = [state.table_rows(item.node_type, name) for name in item.tables]
        wanted.append(WantedRows(item, outs))
    pulled = await pull_jointly(wanted, context)
    if not context.codec:
        await all_settled([_kept(rows, context) for rows in wanted if rows.item.keep is not None])
    return pulled


def _kept(rows: WantedRows, context: RemoteContext) -> asyncio.Future[None]:
    """Have the cache keep what it wants of rows that have come."""
    item, outs = rows.item, rows.outs
    return context.copied(
        len(item.rows), outs, context.cache.keep, item.node_type, item.tables, item.keep, item.positions, outs
    )


async def pull_jointly(wanted: Sequence[WantedRows], context: RemoteContext) -> PullCounts:
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
            key = (item.node_type, item.tables, context.codec, item.version)
            pull = underway.begin(key, item.rows, item.positions, rows.outs)
            pulls.append(pull)
            promises += [(rows, promise) for promise in pull.expected]
            asked.append(rows.only(_without(len(item.rows), pull.expected)) if pull.expected else rows)
        pulled = await _ask(asked, context)
        again = [rows.only(promise.chosen) for rows, promise in promises if not await promise.came]
        if again:
            more = await _ask(again, context)
            requests = pulled.requests + more.requests
            pulled = PullCounts(pulled.remote + more.remote, pulled.nbytes + more.nbytes, requests=requests)
        came = True
    finally:
        owed = [copies for pull in pulls if (copies := underway.end(pull, came=came)) is not None]
        if owed or promises:
            await asyncio.gather(*(promise.came for _, promise in promises), *owed)
    shared = sum(len(rows.item.rows) for rows in wanted) - pulled.remote
    return PullCounts(pulled.remote, pulled.nbytes, shared, pulled.requests)


def _without(count: int, promises: Sequence[SharedRows]) -> np.ndarray:
    """Which of ``count`` rows no promise covers."""
    left = np.ones(count, dtype=bool)
    for promise in promises:
        left[promise.chosen] = False
    return np.flatnonzero(left)


async def _ask(wanted: Sequence[WantedRows], context: RemoteContext) -> PullCounts:
    """Have the owners send rows, and put them in their places."""
    wanted = [rows for rows in wanted if len(rows.item.rows)]
    if not wanted:
        return PullCounts()
    items, outs = [rows.item for rows in wanted], [rows.outs for rows in wanted]
    received = await context.owners.pull(items, outs, context.codec, age_ms=context.age_ms)
    return PullCounts(sum(len(item.rows) for item in items), received, requests=owners_of(items))
