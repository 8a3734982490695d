"""Executing the physical tasks of a DAG: local ones on a worker thread, remote ones as a conversation with a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from atta.daemon.engine.access import ClusterAccess
from atta.daemon.peers.chunks import SMALL_BYTES
from atta.daemon.peers.peers import Peer
from atta.daemon.peers.underway import Part, Pull, PullsUnderWay
from atta.errors import RemoteError
from atta.kvstore import codecs
from atta.kvstore.cache import RowCache
from atta.kvstore.store import Store, wire_bytes
from atta.samplers import kernels
from atta.samplers.batch.state import BatchState, FeatureItem
from atta.samplers.dag.instance import Kind, Share, Task
from atta.samplers.shard import Shard

__all__ = ["Outcome", "Remote", "run_local", "run_program", "run_remote"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the scheduler learns of a finished task, and what it moved over the network."""

    growth: Sequence[Share] = ()
    expand: Sequence[Share] | None = None
    nbytes: int = 0
    remote_rows: int = 0
    remote_bytes: int = 0
    cached_rows: int = 0
    shared_rows: int = 0


def run_local(state: BatchState, task: Task, shard: Shard, store: Store) -> Outcome:
    """Run a task whose data is at home. Called on a worker thread; the kernels release the GIL."""
    match task.kind:
        case Kind.SEED:
            return Outcome(growth=state.seed())
        case Kind.POSITIVE | Kind.NEGATIVE:
            op, rows, positions, key = state.pair_item(task)
            negative = op.kind is Kind.NEGATIVE
            ids = shard.pair(op.edge_type, rows, count=op.count, negative=negative, stream_key=key)
            state.accept_pairs(task, positions, ids)
            return Outcome()
        case Kind.NEIGHBORHOOD:
            for item in state.sample_items(task):
                answer = shard.sample(
                    item.edge_type,
                    item.rows,
                    fan_out=item.fan_out,
                    replace=item.replace,
                    stream_key=item.stream_key,
                    method=item.method,
                    trees=item.trees,
                    times=item.times,
                    tables=item.tables,
                )
                state.accept(task, item, 0, answer)
            return Outcome()
        case Kind.JOIN:
            growth, expand = state.join(task.op)
            return Outcome(growth=growth, expand=expand)
        case Kind.FEATURE:
            for pull in state.feature_items(task):
                for name in pull.tables:
                    out = state.table_rows(pull.node_type, name)
                    store.gather_to(pull.node_type, name, pull.rows, out, pull.positions)
            return Outcome()
        case Kind.END:
            state.finish()
            return Outcome(nbytes=state.out.nbytes)
        case Kind.BATCH:
            raise AssertionError(f"{task} is a program")


async def run_program(state: BatchState, task: Task, access: ClusterAccess, pool: Executor) -> Outcome:
    """Run a sampler that asks questions of the whole graph: its steps on ``pool``, its questions wherever the answers are."""
    op = state.plan.op(task.op)
    asked = access.of(op.edge_type)
    if task.kind is Kind.BATCH:
        sampled = await asked.run(await _on(pool, state.sampler, task.op))
        await _on(pool, state.accept_sampled, task.op, sampled)
    else:
        links = await asked.run(await _on(pool, state.negatives, task.op))
        state.accept_negatives(task.op, links)
    return Outcome(remote_rows=asked.remote_rows, remote_bytes=asked.remote_bytes)


async def _on(pool: Executor, function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, function, *args)


@dataclass(frozen=True, slots=True)
class Remote:
    """How a task's rows are asked for and taken in."""

    peer: Peer
    cache: RowCache
    pool: Executor  # does the copying, so that the event loop stays free
    underway: PullsUnderWay | None = None  # None: every batch asks for all of its rows
    codec: str = (
        ""  # of float32 rows on the way; what it has altered is not kept for sessions that want rows as they are
    )
    age_ms: int = 0  # since the batch was begun; 0: in order of arrival
    at_once: int = SMALL_BYTES  # copies up to this size are made by the event loop itself


async def run_remote(state: BatchState, task: Task, remote: Remote) -> Outcome:
    """Run a task whose rows a peer owns."""
    peer = remote.peer
    match task.kind:
        case Kind.POSITIVE | Kind.NEGATIVE:
            op, rows, positions, key = state.pair_item(task)
            negative = op.kind is Kind.NEGATIVE
            ids = await peer.pair(op.edge_type, rows, count=op.count, negative=negative, stream_key=key)
            state.accept_pairs(task, positions, ids)
            return Outcome(remote_rows=len(rows), remote_bytes=ids.nbytes)
        case Kind.NEIGHBORHOOD:
            return await _sample(state, task, remote)
        case Kind.FEATURE:
            return await _pull(state, task, remote)
        case _:
            raise AssertionError(f"{task} runs at home")


async def _sample(state: BatchState, task: Task, remote: Remote) -> Outcome:
    peer, items = remote.peer, state.sample_items(task)
    if not items:
        return Outcome()
    answered, received = dict.fromkeys(map(id, items), 0), 0
    async for item, first_row, answer, nbytes in peer.sample(items, age_ms=remote.age_ms):
        try:
            state.accept(task, item, first_row, answer)
        except ValueError as error:
            raise RemoteError(peer.address, str(error)) from error
        answered[id(item)] += len(answer.counts)
        received += nbytes
    if missing := [item.edge_type for item in items if answered[id(item)] != len(item.rows)]:
        raise RemoteError(peer.address, f"left rows of {', '.join(missing)} unanswered")
    return Outcome(remote_rows=sum(len(item.rows) for item in items), remote_bytes=received)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Rows of one node type that a peer is to send: where they go, and what the cache is told of them (None: nothing)."""

    item: FeatureItem
    outs: list[np.ndarray]
    slots: np.ndarray | None

    def only(self, chosen: np.ndarray) -> _Wanted:
        """Some of the rows."""
        item = replace(self.item, rows=self.item.rows[chosen], positions=self.item.positions[chosen])
        return _Wanted(item, self.outs, None if self.slots is None else self.slots[chosen])


async def _pull(state: BatchState, task: Task, remote: Remote) -> Outcome:
    """Take rows from the cache, from pulls of other batches that are under way, and from the peer."""
    cache, loop = remote.cache, asyncio.get_running_loop()
    wanted: list[_Wanted] = []
    copies: list[Awaitable[None]] = []
    cached = 0
    for item in state.feature_items(task):
        outs = [state.table_rows(item.node_type, name) for name in item.tables]
        found = cache.look_up(item.node_type, item.tables, task.owner, item.rows, item.positions)
        if found is None:
            wanted.append(_Wanted(item, outs, None))
            continue
        if len(found.slots):
            copies.append(loop.run_in_executor(remote.pool, cache.fill, item.node_type, item.tables, found, outs))
            cached += len(found.slots)
        if len(found.missing_rows):
            missing = replace(item, rows=found.missing_rows, positions=found.missing_positions)
            wanted.append(_Wanted(missing, outs, found.missing_slots))
    try:
        outcome = await _jointly(wanted, task.owner, remote)
    finally:
        await _settled(copies)
    return replace(outcome, cached_rows=cached)


async def _jointly(wanted: Sequence[_Wanted], owner: int, remote: Remote) -> Outcome:
    """Pull ``wanted``, but what earlier batches have asked for already from them; later batches may rely on this pull too."""
    underway = remote.underway
    if underway is None:
        return await _ask(wanted, remote)
    came = False
    pulls: list[Pull] = []
    parts: list[tuple[_Wanted, Part]] = []
    try:
        asked = []
        for rows in wanted:
            item = rows.item
            pull = underway.begin(
                (owner, item.node_type, item.tables, remote.codec), item.rows, item.positions, rows.outs
            )
            pulls.append(pull)
            parts += [(rows, part) for part in pull.parts]
            asked.append(rows.only(_without(len(item.rows), pull.parts)) if pull.parts else rows)
        outcome = await _ask(asked, remote)
        again = [rows.only(part.chosen) for rows, part in parts if not await part.came]
        if again:
            more = await _ask(again, remote)
            rows_in_all, bytes_in_all = outcome.remote_rows + more.remote_rows, outcome.remote_bytes + more.remote_bytes
            outcome = Outcome(remote_rows=rows_in_all, remote_bytes=bytes_in_all)
        came = True
    finally:
        await asyncio.gather(*(part.came for _, part in parts), *(underway.end(pull, came=came) for pull in pulls))
    shared = sum(len(rows.item.rows) for rows in wanted) - outcome.remote_rows
    return replace(outcome, shared_rows=shared)


async def _settled(copies: Sequence[Awaitable[None]]) -> None:
    """Wait for all, also where one fails: as soon as the task ends, the batch's memory may be another's."""
    for failure in await asyncio.gather(*copies, return_exceptions=True):
        if failure is not None:
            raise failure


def _without(count: int, parts: Sequence[Part]) -> np.ndarray:
    """Which of ``count`` rows are in no part."""
    left = np.ones(count, dtype=bool)
    for part in parts:
        left[part.chosen] = False
    return np.flatnonzero(left)


async def _ask(wanted: Sequence[_Wanted], remote: Remote) -> Outcome:
    """Have the peer send rows, and put them in their places."""
    peer, cache, codec, loop = remote.peer, remote.cache, remote.codec, asyncio.get_running_loop()
    copies: list[Awaitable[None]] = []
    wanted = [rows for rows in wanted if len(rows.item.rows)]
    due, got, received = sum(len(rows.item.rows) for rows in wanted), 0, 0
    if not due:
        return Outcome()
    try:
        async for index, first, count, data in peer.pull([rows.item for rows in wanted], codec, age_ms=remote.age_ms):
            item, outs, slots = wanted[index].item, wanted[index].outs, wanted[index].slots
            if len(data) != (nbytes := count * sum(wire_bytes(out[:1], codec) for out in outs)):
                raise RemoteError(peer.address, f"sends {len(data)} bytes for {count} rows of {nbytes} bytes")
            part = slice(first, first + count)
            keep = None if slots is None or codec else partial(cache.keep, item.node_type, item.tables, slots[part])
            scatter = partial(_scatter, outs, item.positions[part], data, codec, keep)
            if len(data) <= (SMALL_BYTES if codec else remote.at_once):
                scatter()
            else:
                copies.append(loop.run_in_executor(remote.pool, scatter))
            got, received = got + count, received + len(data)
    finally:
        await _settled(copies)
    if got != due:
        raise RemoteError(peer.address, f"sends {got} rows of {due}")
    return Outcome(remote_rows=due, remote_bytes=received)


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
