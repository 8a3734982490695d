"""Asks all owners of a task's rows at the same time, and puts their answers together. Rows that a batch has asked for, and
that the next one wants too, cross the network once: the next one gets a copy from the memory of the earlier batch, before
that goes to its consumer. Nothing is kept for this, so it is not a cache.

A pull waits only for pulls that began before it, so never in a circle. If one fails, the others ask for their rows
themselves. All of it runs on the event loop; threads only copy rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
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
from atta.samplers.batch.items import FeatureItem, SampleItem, SumItem
from atta.samplers.shard import Answer, spec_of_drawn

UNBOUNDED_ROWS = 1 << 16
"""Rows of one request where nobody knows how many edges they have."""
SUM_ROWS = 1 << 18
"""Rows of one request for sums, unless a single sum has more."""

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
    RemoteError if an owner's answer does not fit the question, or it gives none."""

    def __init__(self, peers: Peers, dataset: Dataset, pool: Executor, *, at_once: int = SMALL_BYTES) -> None:
        """``pool`` copies rows, so that the event loop stays free, which copies up to ``at_once`` bytes itself."""
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
        return [piece for pieces in await results_of(talks) for piece in pieces]

    async def pull(
        self, items: Sequence[FeatureItem], outs: Sequence[Outs], codec: str = "", *, age_ms: int = 0
    ) -> int:
        """Put the table rows of each item at its positions in its ``outs``, the batch's arrays of its tables. float32
        rows come in ``codec``. Returns the number of bytes that came."""
        talks = []
        for item, out in zip(items, outs, strict=True):
            row_bytes = sum(wire_bytes(table[:1], codec) for table in out)
            for owner, at in _pieces(item, max(1, PULL_BYTES // max(1, row_bytes))):
                asked = part_of(item, at, int(self._offsets[item.node_type][owner]))
                talks.append(self._pull(self._peers[owner], asked, out, codec, age_ms))
        return sum(await results_of(talks))

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

    async def sum(self, items: Sequence[SumItem], outs: Outs, *, age_ms: int = 0) -> int:
        """Put the sums of each item into its array of ``outs`` (uint8 [sums, bytes of a sum]), in order. Returns the
        number of bytes that came."""
        talks = []
        for item, out in zip(items, outs, strict=True):
            offsets, ends = self._offsets[item.node_type], np.cumsum(item.counts)
            most = max(1, PULL_BYTES // max(1, out[:1].nbytes))
            for owner, (low, high) in enumerate(pairwise(item.starts.tolist())):
                at = low
                while at < high:
                    before = int(ends[at] - item.counts[at])
                    stop = min(
                        at + most, high, max(at + 1, int(np.searchsorted(ends, before + SUM_ROWS, side="right")))
                    )
                    asked = sums_of(item, slice(at, stop), slice(before, int(ends[stop - 1])), int(offsets[owner]))
                    talks.append(self._sum(self._peers[owner], asked, out[at:stop], age_ms))
                    at = stop
        return sum(await results_of(talks))

    async def _sum(self, peer: Peer, item: SumItem, out: np.ndarray, age_ms: int) -> int:
        data = await peer.sum(item, age_ms=age_ms)
        if len(data) != out.nbytes:
            raise RemoteError(peer.address, f"sends {len(data)} bytes for {len(out)} sums of {out[:1].nbytes} bytes")
        out.reshape(-1)[:] = np.frombuffer(data, np.uint8)
        return len(data)


def sums_of(item: SumItem, sums: slice, rows: slice, first: int) -> SumItem:
    """Some sums of an item, and their rows less the id ``first``."""
    weights = None if item.weights is None else item.weights[rows]
    return replace(
        item, rows=item.rows[rows] - first, counts=item.counts[sums], targets=item.targets[sums], weights=weights
    )


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


async def results_of(talks: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
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
    assert item.starts is not None
    for owner, (low, high) in enumerate(pairwise(item.starts.tolist())):
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


LEAST_ROWS = 256
"""Least number of rows to share. Fewer are asked for again, as waiting for another batch costs more."""
MOST_ROWS = 1 << 22
"""Most rows remembered per choice of tables, 20 bytes each. Beyond that, all of them are forgotten."""
LOOKS, RESTS = 16, 112
"""Pulls that look for rows of others before it is decided anew, and pulls that do not look where it did not pay."""
LEAST_SHARE = 1 / 32
"""Least share of the rows that must come from other pulls. Looking costs about a tenth of what a row of 400 bytes takes
over a link, but it also spares the network."""

Key = tuple[str, tuple[str, ...], str, int]
"""Node type, tables, codec, version of the tables: pulls of different keys have nothing in common."""


@dataclass(eq=False, slots=True)
class SharedRows:
    """Rows that an earlier pull promises to a later one.

    Attributes:
        chosen: int64 [n], positions in the later pull's rows.
        sources: int64 [n], where the rows lie in the earlier batch's arrays.
        positions: int64 [n], where they belong in ``outs``.
        outs: the later batch's arrays of the tables.
        came: True once the rows are there, False if the earlier pull failed. Not done before that pull has ended.
    """

    chosen: np.ndarray = field(repr=False)
    sources: np.ndarray = field(repr=False)
    positions: np.ndarray = field(repr=False)
    outs: Sequence[np.ndarray] = field(repr=False)
    came: asyncio.Future[bool]


@dataclass(eq=False, slots=True)
class Pull:
    """Rows of peers that a batch waits for; ``outs``: its arrays of the tables. ``expected`` are disjoint parts of the
    rows that earlier pulls promised; ``promised`` is what this pull owes to later ones."""

    key: Key
    number: int
    outs: Sequence[np.ndarray] = field(repr=False)
    expected: list[SharedRows] = field(default_factory=list)
    promised: list[SharedRows] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Habit:
    """Whether pulls of a node type look for rows of others. It follows from what the last stretch of pulls has found.
    ``left`` pulls, at least one, follow in this stretch. ``rows`` were looked for, and ``shared`` of them found."""

    rests: bool = False
    left: int = field(default_factory=lambda: LOOKS)
    rows: int = 0
    shared: int = 0

    def rest(self) -> bool:
        """Whether the next pull does not look; else ``looked`` must follow."""
        if self.rests:
            self._passed(then_rests=False)
            return True
        return False

    def looked(self, rows: int, shared: int) -> None:
        """A pull of ``rows`` has found that others bring ``shared`` of them."""
        self.rows, self.shared = self.rows + rows, self.shared + shared
        self._passed(then_rests=self.shared < LEAST_SHARE * self.rows)

    def _passed(self, *, then_rests: bool) -> None:
        self.left -= 1
        if not self.left:
            self.rests, self.left, self.rows, self.shared = then_rests, RESTS if then_rests else LOOKS, 0, 0


class _LastPulls:
    """For each vertex the last pull that asked for its row, and where the row will lie in that pull's batch."""

    def __init__(self, num_ids: int) -> None:
        """``num_ids``: all ids are below this number (0 = unknown)."""
        self.open: dict[int, Pull] = {}  # by number, the earliest first
        self._index = kernels.Compactor(num_ids)
        self._pull = np.empty(0, dtype=np.int64)  # by row: a number, or -1; as long as ``_position``
        self._position = np.empty(0, dtype=np.int64)

    def replace(self, rows: np.ndarray, number: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pulls that asked for ``rows`` last (-1: none), and the positions there. From now on it is pull
        ``number``."""
        if self._index.size > MOST_ROWS:
            self.forget()
        local = self._index.insert(rows)
        if (more := self._index.size - len(self._pull)) > 0:
            more = max(more, len(self._pull))
            self._pull = np.concatenate([self._pull, np.full(more, -1)])
            self._position = np.concatenate([self._position, np.zeros(more, dtype=np.int64)])
        before = self._pull[local], self._position[local]
        self._pull[local], self._position[local] = number, positions
        return before

    def forget(self) -> None:
        """Forget all rows, but keep the memory."""
        self._pull[: self._index.size] = -1
        self._index.reset()


class PullsUnderWay:
    """The pulls of all batches of a daemon that are under way."""

    # Invariants: a key is kept only while a pull is open. Numbers ascend, and a pull expects rows only of earlier ones.

    def __init__(self, pool: Executor, node_counts: Mapping[str, int] | None = None) -> None:
        """``pool`` copies rows. ``node_counts``: vertices by node type, if known: small graphs need no hashing then."""
        self._pool, self._node_counts = pool, node_counts or {}
        self._last: dict[Key, _LastPulls] = {}
        self._spare: dict[str, _LastPulls] = {}  # by node type: the memory of a key that is not kept any more
        self._habits: dict[str, _Habit] = {}  # by node type
        self._count = 0

    def begin(
        self, key: Key, rows: np.ndarray, positions: np.ndarray, outs: Sequence[np.ndarray], *, always: bool = False
    ) -> Pull:
        """A batch wants ``rows`` (int64 [n], internal ids) at ``positions`` of ``outs``; ``end`` must follow. The
        result's ``expected`` says what earlier pulls will bring. Await each of them, and ask the owners for all other
        rows and for those that did not come. ``always``: look even if there was little to share lately."""
        self._count += 1
        pull = Pull(key, self._count, outs)
        if len(rows) < LEAST_ROWS:
            return pull
        habit = self._habits.get(key[0])
        if habit is None:
            habit = self._habits[key[0]] = _Habit()
        if habit.rest() and not always:
            return pull
        last = self._last.get(key)
        if last is None:
            spare = self._spare.pop(key[0], None)
            last = self._last[key] = spare if spare is not None else _LastPulls(self._node_counts.get(key[0], 0))
        askers, sources = last.replace(rows, pull.number, positions)
        for number, earlier in last.open.items():
            if len(chosen := np.flatnonzero(askers == number)) >= LEAST_ROWS:
                came: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                shared = SharedRows(chosen, sources[chosen], positions[chosen], outs, came)
                earlier.promised.append(shared)
                pull.expected.append(shared)
        last.open[pull.number] = pull
        habit.looked(len(rows), sum(len(shared.chosen) for shared in pull.expected))
        return pull

    def end(self, pull: Pull, *, came: bool) -> Coroutine[Any, Any, None] | None:
        """All rows of ``pull`` have come (or, ``came`` False, will not). Returns what hands out the rows that it
        promised, for the caller to await; None: it promised nothing."""
        last = self._last.get(pull.key)
        if last is not None and last.open.pop(pull.number, None) is not None and not last.open:
            del self._last[pull.key]
            last.forget()
            self._spare[pull.key[0]] = last
        return self._hand_out(pull, came=came) if pull.promised else None

    async def _hand_out(self, pull: Pull, *, came: bool) -> None:
        handed = [False] * len(pull.promised)
        try:
            if came:
                run: Callable[..., asyncio.Future[None]] = asyncio.get_running_loop().run_in_executor
                copies = (run(self._pool, _copy, pull.outs, shared) for shared in pull.promised)
                # Wait for all, even if one fails: another batch may soon get the memory that they read.
                handed = [failure is None for failure in await asyncio.gather(*copies, return_exceptions=True)]
        finally:
            for shared, done in zip(pull.promised, handed, strict=True):
                if not shared.came.done():
                    shared.came.set_result(done)


def _copy(outs: Sequence[np.ndarray], shared: SharedRows) -> None:
    for source, target in zip(outs, shared.outs, strict=True):
        kernels.gather_rows(source, shared.sources, target, positions=shared.positions)
