"""Asks all owners of a task's rows at the same time, a peer each, and puts their answers together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from atta.daemon.peers.answers import AskedPeer, AskedPeers, SampledRows
from atta.daemon.peers.chunks import SMALL_BYTES
from atta.errors import RemoteError
from atta.kvstore import codecs
from atta.kvstore.store import wire_bytes
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.batch.items import FeatureItem, SampleItem

__all__ = ["Owners", "all_settled"]

REQUEST_ROWS = 1 << 20
"""Largest number of rows of one request to a peer, all items together: at most 20 MiB."""

Item = TypeVar("Item", SampleItem, FeatureItem)
Result = TypeVar("Result")
Outs = Sequence[np.ndarray]
"""A batch's arrays of the tables of an item."""


class Owners:
    """Asks by gRPC messages. See ``AskedOwners``."""

    def __init__(self, peers: AskedPeers, dataset: Dataset, pool: Executor, *, at_once: int = SMALL_BYTES) -> None:
        """``pool`` copies rows, so that the event loop stays free. The event loop itself copies up to ``at_once``
        bytes."""
        self._peers, self._pool, self._at_once = peers, pool, at_once
        self._offsets: Mapping[str, np.ndarray] = dataset.book.offsets
        self._targets = {e: dataset.schema.endpoints(e)[1] for e in dataset.schema.edge_types}

    async def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> list[SampledRows]:
        """Raises RemoteError if an owner's answer does not fit the question, or it gives none."""
        parts = [_parts(item, self._offsets[self._targets[item.edge_type]]) for item in items]
        owners = sorted({owner for of_item in parts for owner in of_item})
        talks = []
        for owner in owners:
            mine = [(item, of_item[owner]) for item, of_item in zip(items, parts, strict=True) if owner in of_item]
            talks.append(_sample(self._peers[owner], owner, mine, age_ms))
        return [piece for pieces in await _all(talks) for piece in pieces]

    async def pull(
        self, items: Sequence[FeatureItem], outs: Sequence[Outs], codec: str = "", *, age_ms: int = 0
    ) -> int:
        """Raises RemoteError if an owner's answer does not fit the question, or it gives none."""
        parts = [_parts(item, self._offsets[item.node_type]) for item in items]
        owners = sorted({owner for of_item in parts for owner in of_item})
        talks = []
        for owner in owners:
            mine = [(of_item[owner], out) for of_item, out in zip(parts, outs, strict=True) if owner in of_item]
            talks.append(self._pull(self._peers[owner], mine, codec, age_ms))
        return sum(await _all(talks))

    async def _pull(self, peer: AskedPeer, wanted: Sequence[tuple[FeatureItem, Outs]], codec: str, age_ms: int) -> int:
        loop = asyncio.get_running_loop()
        copies: list[asyncio.Future[None]] = []
        due, got, received = sum(len(item.rows) for item, _ in wanted), 0, 0
        try:
            for request in _requests([item for item, _ in wanted]):
                async for index, first, count, data in peer.pull([item for _, item in request], codec, age_ms=age_ms):
                    number, item = request[index]
                    outs = wanted[number][1]
                    if len(data) != (nbytes := count * sum(wire_bytes(out[:1], codec) for out in outs)):
                        raise RemoteError(peer.address, f"sends {len(data)} bytes for {count} rows of {nbytes} bytes")
                    scatter = partial(_scatter, outs, item.positions[first : first + count], data, codec)
                    if len(data) <= (SMALL_BYTES if codec else self._at_once):
                        scatter()
                    else:
                        copies.append(loop.run_in_executor(self._pool, scatter))
                    got, received = got + count, received + len(data)
        finally:
            await all_settled(copies)
        if got != due:
            raise RemoteError(peer.address, f"sends {got} rows of {due}")
        return received


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


def _parts(item: Item, offsets: np.ndarray) -> dict[int, Item]:
    """An item's rows by owner, as positions in the owner's range. Owners ascend."""
    assert item.starts is not None
    bounds = item.starts.tolist()
    return {
        owner: _part(item, slice(bounds[owner], bounds[owner + 1]), int(offsets[owner]))
        for owner in range(len(bounds) - 1)
        if bounds[owner] < bounds[owner + 1]
    }


def _part(item: Item, at: slice, first: int = 0) -> Item:
    """Some rows of an item, less the id ``first``."""
    rows, positions = item.rows[at] - first, item.positions[at]
    if isinstance(item, FeatureItem):
        return replace(item, rows=rows, positions=positions, starts=None)
    trees, times = (None if per_row is None else per_row[at] for per_row in (item.trees, item.times))
    return replace(item, rows=rows, positions=positions, trees=trees, times=times, starts=None)


def _requests(items: Sequence[Item]) -> list[list[tuple[int, Item]]]:
    """The rows of ``items`` (of one owner) in requests of bounded size. Each piece comes with its item's number."""
    if sum(len(item.rows) for item in items) <= REQUEST_ROWS:
        return [list(enumerate(items))]
    requests: list[list[tuple[int, Item]]] = [[]]
    room = REQUEST_ROWS
    for number, item in enumerate(items):
        at = 0
        while at < len(item.rows):
            if room == 0:
                requests.append([])
                room = REQUEST_ROWS
            stop = min(len(item.rows), at + room)
            requests[-1].append((number, _part(item, slice(at, stop))))
            room -= stop - at
            at = stop
    return requests


async def _sample(
    peer: AskedPeer, owner: int, asked: Sequence[tuple[SampleItem, SampleItem]], age_ms: int
) -> list[SampledRows]:
    """A peer's answers to its part of each item. ``asked``: items and these parts."""
    found: list[SampledRows] = []
    answered = [0] * len(asked)
    for request in _requests([part for _, part in asked]):
        numbers, due = {id(part): number for number, part in request}, answered.copy()
        async for part, first_row, answer, nbytes in peer.sample([part for _, part in request], age_ms=age_ms):
            number, edges = numbers[id(part)], len(answer.neighbors)
            if due[number] + first_row != answered[number]:
                raise RemoteError(peer.address, f"answers row {first_row} of edge type {part.edge_type} out of turn")
            if int(answer.counts.sum()) != edges or len(answer.edge_ids) != edges:
                why = f"malformed answer for edge type {part.edge_type}: counts and neighbours do not match"
                raise RemoteError(peer.address, why)
            item = asked[number][0]
            assert item.starts is not None
            found.append(SampledRows(item, int(item.starts[owner]) + answered[number], answer, nbytes))
            answered[number] += len(answer.counts)
    left = [part.edge_type for (_, part), rows in zip(asked, answered, strict=True) if rows != len(part.rows)]
    if left:
        raise RemoteError(peer.address, f"left rows of {', '.join(left)} unanswered")
    return found


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
