"""Executes the physical tasks of a DAG: local ones on a worker thread, remote ones by asking peers. A row that another
batch has asked for is taken from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atta.daemon.engine.access import ClusterAccess, drawn, on_pool
from atta.daemon.peers.owners import Owners, Pull, PullsUnderWay, SharedRows, all_settled, results_of
from atta.daemon.peers.peers import SMALL_BYTES, Peers
from atta.daemon.versions import VersionView
from atta.kvstore.cache import Lookup, RowCache, RowsAhead
from atta.samplers.batch.items import FeatureItem, owners_of
from atta.samplers.batch.state import BatchState
from atta.samplers.dag.instance import Kind, OwnedVertices, Task


@dataclass(frozen=True, slots=True)
class RemoteContext:
    """What a remote task works with: whom it asks, and how it takes the answers in."""

    peers: Peers
    owners: Owners
    cache: RowCache
    pool: Executor  # copies rows, so that the event loop stays free
    underway: PullsUnderWay | None = None  # None: every batch asks for all of its rows
    codec: str = ""
    """Of float32 rows on the way; empty: none. Decoded rows differ from the originals, so the cache does not keep
    them."""
    age_ms: int = 0  # since the batch was begun; 0: peers answer in order of arrival
    at_once: int = SMALL_BYTES  # the event loop itself copies up to this many bytes
    ahead: RowsAhead | None = None  # None: ``cache`` has been asked before

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

    def lacking(self, found: Lookup) -> WantedRows:
        """Those that a look-up has not found."""
        places: dict[str, Any] = {"starts": found.missing_starts, "keep": found.missing_slots}
        missing = replace(self.item, rows=found.missing_ids, positions=found.missing_positions, **places)
        return WantedRows(missing, self.outs)


class TaskResult(NamedTuple):
    """What a finished task tells the scheduler, and what it moved over the network."""

    growth: Sequence[OwnedVertices] = ()
    expand: Sequence[OwnedVertices] | None = None
    nbytes: int = 0
    remote_rows: int = 0
    remote_bytes: int = 0
    cached_rows: int = 0
    shared_rows: int = 0
    requests: int = 0  # to other daemons
    summed_rows: int = 0  # of other daemons, that came in sums; a sum is one of ``remote_rows``


async def _pull(state: BatchState, task: Task, context: RemoteContext) -> TaskResult:
    """Fetch all rows of a FEATURE task of other owners into the batch."""
    wanted, cached, copies = list[WantedRows](), 0, list[asyncio.Future[None]]()
    items, ahead = state.feature_items(task), context.ahead
    found = [None] * len(items) if ahead is None else await on_pool(context.pool, ahead.look_up_now, items)
    for item, hits in zip(items, found, strict=True):
        rows = WantedRows(item, [state.table_rows(item.node_type, name) for name in item.tables])
        if ahead is not None and hits is not None:
            copies.append(context.copied(len(hits.slots), rows.outs, ahead.fill, item, hits, rows.outs))
            cached, rows = cached + len(hits.slots), rows.lacking(hits)
        wanted.append(rows)
    try:  # nothing is awaited since the look-up: rows that earlier batches fetch were kept by then, or are on their way
        pulled = await pull_jointly(wanted, context)
    finally:
        await all_settled(copies)
    return pulled._replace(cached_rows=cached)


async def _sum(state: BatchState, task: Task, context: RemoteContext) -> TaskResult:
    """Fetch the sums of a FEATURE task of other owners, and the rows that are no part of one."""
    wanted = await on_pool(context.pool, state.sum_items, task)
    rows = [WantedRows(some.raw, some.raw_outs) for some in wanted if len(some.raw.rows)]
    asked = [(item, out) for some in wanted for item, out in zip(some.sums, some.sum_outs, strict=True) if len(out)]
    kept = context.cache.sums if state.plan.dependency > 1 else None
    lacking = [] if kept is None else await on_pool(context.pool, kept.fill, asked)
    items, outs = [lack.item for lack in lacking], [lack.out for lack in lacking]
    if kept is None:
        items, outs = [item for item, _ in asked], [out for _, out in asked]
    talks: list[Any] = [pull_jointly(rows, context), context.owners.sum(items, outs, age_ms=context.age_ms)]
    pulled: TaskResult
    pulled, received = await results_of(talks)
    if kept is not None:
        await on_pool(context.pool, kept.keep, lacking, asked)
    summed = sum(len(item.rows) for item in items)
    return pulled._replace(
        remote_rows=pulled.remote_rows + sum(len(out) for out in outs),
        summed_rows=summed,
        cached_rows=sum(len(item.rows) for item, _ in asked) - summed,
        remote_bytes=pulled.remote_bytes + received,
        requests=pulled.requests + (owners_of(items) if items else 0),
    )


async def _keep(wanted: Sequence[WantedRows], context: RemoteContext) -> None:
    """Have the cache keep what it wants of rows that have come."""
    copies = []
    for rows in wanted if not context.codec else ():
        item, outs = rows.item, rows.outs
        if item.keep is not None:
            keep = item.node_type, item.tables, item.keep, item.positions, outs
            copies.append(context.copied(len(item.rows), outs, context.cache.keep, *keep))
    await all_settled(copies)


async def pull_jointly(wanted: Sequence[WantedRows], context: RemoteContext) -> TaskResult:
    """Pull ``wanted``, but take from earlier batches what they have asked for. Later ones may rely on this pull."""
    underway = context.underway
    if underway is None:
        pulled = await _ask(wanted, context)
        await _keep(wanted, context)
        return pulled
    came = False
    pulls: list[Pull] = []
    promises: list[tuple[WantedRows, SharedRows]] = []
    try:
        asked = []
        for rows in wanted:
            item = rows.item
            key = (item.node_type, item.tables, context.codec, item.version)
            pull = underway.begin(key, item.rows, item.positions, rows.outs, always=context.ahead is not None)
            pulls.append(pull)
            promises += [(rows, promise) for promise in pull.expected]
            asked.append(rows.only(_without(len(item.rows), pull.expected)) if pull.expected else rows)
        pulled = await _ask(asked, context)
        if again := [rows.only(promise.chosen) for rows, promise in promises if not await promise.came]:
            more = await _ask(again, context)
            pulled = TaskResult(
                remote_rows=pulled.remote_rows + more.remote_rows,
                remote_bytes=pulled.remote_bytes + more.remote_bytes,
                requests=pulled.requests + more.requests,
            )
        await _keep(wanted, context)
        came = True
    finally:
        owed = [copies for pull in pulls if (copies := underway.end(pull, came=came)) is not None]
        if owed or promises:
            await asyncio.gather(*(promise.came for _, promise in promises), *owed)
    return pulled._replace(shared_rows=sum(len(rows.item.rows) for rows in wanted) - pulled.remote_rows)


def _without(count: int, promises: Sequence[SharedRows]) -> np.ndarray:
    left = np.ones(count, dtype=bool)
    for promise in promises:
        left[promise.chosen] = False
    return np.flatnonzero(left)


async def _ask(wanted: Sequence[WantedRows], context: RemoteContext) -> TaskResult:
    """Have the owners send rows, and put them in their places."""
    wanted = [rows for rows in wanted if len(rows.item.rows)]
    if not wanted:
        return TaskResult()
    items, outs = [rows.item for rows in wanted], [rows.outs for rows in wanted]
    received = await context.owners.pull(items, outs, context.codec, age_ms=context.age_ms)
    rows = sum(len(item.rows) for item in items)
    return TaskResult(remote_rows=rows, remote_bytes=received, requests=owners_of(items))


def run_local(state: BatchState, task: Task, view: VersionView, turn: int = -1) -> TaskResult:
    """Run a task whose data is at home, in the version that its session reads. Called on a worker thread; the kernels
    release the GIL. ``turn``: as for ``RowsAhead``."""
    match task.kind:
        case Kind.SEED:
            growth, expand = state.seed()
            return TaskResult(growth=growth, expand=expand)
        case Kind.POSITIVE | Kind.NEGATIVE:
            op, rows, positions, key, _ = state.pair_item(task)
            ids = view.shard.pair(op.edge_type, rows, count=op.count, negative=op.kind is Kind.NEGATIVE, stream_key=key)
            state.accept_pairs(task, positions, ids)
            return TaskResult()
        case Kind.NEIGHBORHOOD:
            kept = 0
            for item in state.sample_items(task):
                kept += len(item.rows) if item.kept else 0
                state.accept(task, item, drawn(view.shard, item, view.edges))
            return TaskResult(cached_rows=kept)
        case Kind.JOIN:
            growth, expand = state.join(task.op)
            return TaskResult(growth=growth, expand=expand)
        case Kind.FEATURE:
            if state.plan.op(task.op).reduce:  # END reads these rows where they are
                return TaskResult(cached_rows=sum(len(item.rows) for item in state.feature_items(task) if item.kept))
            return TaskResult(cached_rows=_fetched(state, task, view, turn))
        case Kind.END:
            state.reduce(partial(_rows_at_home, state, view))
            state.finish()
            return TaskResult(nbytes=state.out.nbytes)
        case Kind.BATCH:
            raise AssertionError(f"{task} is a program")


def _fetched(state: BatchState, task: Task, view: VersionView, turn: int) -> int:
    """Copy the rows of a FEATURE task at home into the batch. Returns how many of them were cached."""
    cached, items = 0, state.feature_items(task)
    own = {item.node_type for item in items if not item.kept}
    kept = {item.node_type: item for item in items if item.kept}
    for item in items:
        outs = [state.table_rows(item.node_type, name) for name in item.tables]
        if item.kept:
            cached += len(item.rows)
            if item.node_type not in own:
                view.rows.fill(item.node_type, item.tables, item.rows, item.positions, outs)
            continue
        for name, out in zip(item.tables, outs, strict=True):
            source, also = state.sources.get((item.node_type, name), 0), kept.get(item.node_type)
            beside = None if also is None else (view.rows.table(also.node_type, name), also.rows, also.positions)
            where = item.node_type, name, item.rows, out, item.positions
            view.store.gather_to(*where, source=source, beside=beside, turn=turn)
    return cached


def _rows_at_home(
    state: BatchState, view: VersionView, node_type: str, name: str
) -> tuple[np.ndarray, np.ndarray | None]:
    own = view.store.table(node_type, name, state.sources.get((node_type, name), 0)).data
    return own, view.rows.table(node_type, name) if view.rows.holds(node_type, name) else None


def is_program(task: Task, home: int) -> bool:
    """Whether a task of the network lane runs at home as a program that asks many owners (``run_program``)."""
    return task.kind is Kind.BATCH or task.owner == home


async def run_program(state: BatchState, task: Task, access: ClusterAccess, pool: Executor) -> TaskResult:
    """Run a sampler that asks about the whole graph. Its steps run on ``pool``; the owners of the vertices answer its
    questions."""
    asked = access.of(state.plan.op(task.op).edge_type)
    if task.kind is Kind.BATCH:
        sampled = await asked.run(await on_pool(pool, state.sampler, task.op))
        await on_pool(pool, state.accept_sampled, task.op, sampled)
    else:
        links = await asked.run(await on_pool(pool, state.negatives, task.op))
        state.accept_negatives(task.op, links)
    return TaskResult(remote_rows=asked.remote_rows, remote_bytes=asked.remote_bytes)


async def run_remote(state: BatchState, task: Task, context: RemoteContext) -> TaskResult:
    """Run a task whose rows other daemons own."""
    match task.kind:
        case Kind.POSITIVE | Kind.NEGATIVE:
            op, rows, positions, key, version = state.pair_item(task)
            negative, peer = op.kind is Kind.NEGATIVE, context.peers[task.owner]
            ids = await peer.pair(
                op.edge_type, rows, count=op.count, negative=negative, stream_key=key, version=version
            )
            state.accept_pairs(task, positions, ids)
            return TaskResult(remote_rows=len(rows), remote_bytes=ids.nbytes, requests=1)
        case Kind.NEIGHBORHOOD:
            return await _sample(state, task, context)
        case Kind.FEATURE:
            return await (_sum(state, task, context) if state.plan.op(task.op).reduce else _pull(state, task, context))
        case _:
            raise AssertionError(f"{task} runs at home")


async def _sample(state: BatchState, task: Task, context: RemoteContext) -> TaskResult:
    items = state.sample_items(task)
    rows = received = 0
    for item, first_row, answer, nbytes in await context.owners.sample(items, age_ms=context.age_ms) if items else ():
        state.accept(task, item, answer, first_row)
        rows, received = rows + len(answer.counts), received + nbytes
    return TaskResult(remote_rows=rows, remote_bytes=received, requests=owners_of(items))
