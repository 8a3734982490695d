"""Brings what batches will want from other daemons before they ask: in the background, piece by piece. Nobody ever
waits for it.

First the owners say the in-degrees of remote vertices. Then it is chosen whose in-edges to keep
(``atta.kvstore.cache.choice``). The owners say the digests of these, and then the in-edges come piece by piece. Every
piece is compared with the digests.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import structlog

from atta.daemon.peers.owners import AskedOwners, SampledRows
from atta.daemon.peers.peers import AskedPeers
from atta.errors import AttaError
from atta.kvstore.cache import EdgeCache, RowCache
from atta.kvstore.cache.choice import MOST_DEGREE, Candidates, HotVertices, choose, edge_types_into
from atta.kvstore.cache.edges import Piece, in_pieces
from atta.kvstore.cache.ranking import HaloHeat
from atta.kvstore.cache.rows import ChosenRows
from atta.partition.dataset import Dataset
from atta.protos.v1 import graph_pb2
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.methods import Method
from atta.samplers.shard import Answer

FIRST_RETRY_S = 0.05
"""How long an owner is left alone that is away, the first time. Daemons of a cluster start at about the same time."""
LAST_RETRY_S = 10.0
"""The longest of these times."""


@dataclass(frozen=True, slots=True)
class FillPiece:
    """A part of what is to be filled in that its owner answers with one message or a few.

    ``fetch`` asks the owner and puts the answer into place. It returns the bytes that came: 0 if the piece is here by
    now. It raises AttaError if the owner is away or refuses. A piece is fetched again then.
    """

    owner: int
    fetch: Callable[[], Awaitable[int]]


@dataclass(slots=True)
class _Owner:
    pieces: deque[FillPiece]
    due: float = -math.inf  # when it may be asked
    retry_s: float = FIRST_RETRY_S  # from FIRST_RETRY_S to LAST_RETRY_S


class PieceQueue:
    """The pieces that are left, by owner in the order in which they are wanted.

    ``next`` names a piece. ``came`` or ``failed`` says what became of it before ``next`` is called again.
    """

    def __init__(self, pieces: Mapping[int, Iterable[FillPiece]], *, bytes_per_s: float) -> None:
        """``pieces`` by owner, in the order in which the owners are asked first. ``bytes_per_s``: above 0."""
        self._owners = {owner: _Owner(deque(of)) for owner, of in pieces.items()}
        self._turns = deque(owner for owner, state in self._owners.items() if state.pieces)  # those with pieces left
        self._bytes_per_s = bytes_per_s
        self._due = -math.inf  # when the rate allows another piece
        self._asked: tuple[FillPiece, float] | None = None  # named by ``next``, and when: the first piece of its owner

    @property
    def left(self) -> int:
        """Number of pieces that are not here."""
        return sum(len(state.pieces) for state in self._owners.values())

    def next(self, now: float) -> FillPiece | float | None:
        """The piece to fetch now, or the seconds until there may be one; None: nothing is left."""
        if not self._turns:
            return None
        at = max(self._due, min(self._owners[owner].due for owner in self._turns))
        if at > now:
            return at - now
        while self._owners[self._turns[0]].due > now:
            self._turns.rotate(-1)
        piece = self._owners[self._turns[0]].pieces[0]
        self._asked = piece, now
        return piece

    def came(self, nbytes: int) -> None:
        """The piece is here; ``nbytes`` came for it."""
        state, asked_at = self._answered()
        state.pieces.popleft()
        state.retry_s = FIRST_RETRY_S
        self._due = asked_at + nbytes / self._bytes_per_s
        if state.pieces:
            self._turns.rotate(-1)
        else:
            self._turns.popleft()

    def failed(self, now: float) -> None:
        """The owner is away or refuses."""
        state, _ = self._answered()
        state.due, state.retry_s = now + state.retry_s, min(2 * state.retry_s, LAST_RETRY_S)
        self._turns.rotate(-1)

    def _answered(self) -> tuple[_Owner, float]:
        assert self._asked is not None, "no piece was asked for"
        (piece, at), self._asked = self._asked, None
        return self._owners[piece.owner], at


Result = TypeVar("Result")


@dataclass(frozen=True)
class FillSource:
    """The other daemons of a cluster.

    Attributes:
        owners: answer with rows and in-edges, over links where there are some.
        peers: answer with degrees and digests.
        pool: checks and copies what comes, beside the workers and below them.
    """

    owners: AskedOwners
    peers: AskedPeers
    pool: Executor

    async def work(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call ``function`` on the pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *args)


def of_one_owner(parts: int, owner: int, rows: int) -> np.ndarray:
    """The ``starts`` of an item whose ``rows`` rows all belong to ``owner``: int64 [parts + 1]."""
    return np.where(np.arange(parts + 1) <= owner, 0, rows).astype(np.int64)


FILL_BYTES = 4 << 20
"""About so many bytes of rows come at once. Larger pieces cost less Python, and need more memory on their way."""


def row_pieces(cache: RowCache, heat: HaloHeat, source: FillSource) -> Iterator[FillPiece]:
    """All chosen rows, about ``FILL_BYTES`` of an owner at a time, in the order in which they are wanted."""
    dataset = heat.dataset
    for node_type, kept in cache.chosen():
        asked = _edges_of(kept.ids, heat, node_type)
        step = max(1, FILL_BYTES // kept.row_bytes)
        bounds = np.searchsorted(kept.ids, dataset.book.offsets[node_type])
        for owner, (low, high) in enumerate(pairwise(bounds.tolist())):
            rows = _OwnedRows(node_type, kept, owner, dataset.num_parts, source)
            slots = low + np.argsort(-asked[low:high], kind="stable")
            for first in range(0, high - low, step):
                yield FillPiece(owner, partial(rows.fetch, np.sort(slots[first : first + step])))


def _edges_of(ids: np.ndarray, heat: HaloHeat, node_type: str) -> np.ndarray:
    """int64 [ids]: edges of remote vertices (ascending) into the partition; 0 of those beyond its HALO."""
    halo, edges = heat.halo(node_type), np.zeros(len(ids), dtype=np.int64)
    if len(halo):
        at = np.minimum(np.searchsorted(halo, ids), len(halo) - 1)
        near = halo[at] == ids
        edges[near] = heat.edges(node_type)[at[near]]
    return edges


@dataclass(frozen=True)
class _OwnedRows:
    """Chosen rows of one owner."""

    node_type: str
    kept: ChosenRows
    owner: int
    parts: int
    source: FillSource

    async def fetch(self, slots: np.ndarray) -> int:
        """Pull the rows of ``slots`` that batches have not brought meanwhile. Returns the bytes that came."""
        slots = self.kept.absent(slots)
        if not len(slots):
            return 0
        tables, places = tuple(self.kept.tables), np.arange(len(slots))
        blocks = [np.empty((len(slots), table[:1].nbytes), dtype=np.uint8) for table in self.kept.tables.values()]
        starts = of_one_owner(self.parts, self.owner, len(slots))
        wanted = FeatureItem(self.node_type, tables, self.kept.ids[slots], places, starts)
        await self.source.owners.pull([wanted], [blocks])
        await self.source.work(self.kept.keep, tables, slots, places, blocks)
        return len(slots) * self.kept.row_bytes


log = structlog.get_logger("atta.filling")


def pieces_by_owner(pieces: Iterable[FillPiece], home: int) -> dict[int, list[FillPiece]]:
    """``pieces`` by owner.

    Every daemon begins with the owner that follows its partition ``home``, so they do not all ask the same one.
    """
    found: dict[int, list[FillPiece]] = defaultdict(list)
    for piece in pieces:
        found[piece.owner].append(piece)
    return {owner: found[owner] for owner in sorted(found, key=lambda owner: (owner < home, owner))}


def connections(owners: Iterable[int]) -> Iterator[FillPiece]:
    """Pieces of nothing. Before the filler fetches one, it connects the owner."""
    return (FillPiece(owner, _nothing) for owner in owners)


async def _nothing() -> int:
    return 0


class Filler:
    """Fills in what batches will want from other daemons, until it is cancelled."""

    def __init__(self, reached: Callable[[int], Awaitable[bool]], queue: PieceQueue | None = None) -> None:
        """``reached``: whether an owner is there now. It does not wait for one that is away. ``queue``: for ``run``; None:
        it is set later."""
        self._reached = reached
        self.queue = PieceQueue({}, bytes_per_s=1) if queue is None else queue
        self._bytes = self._failures = 0

    @property
    def done(self) -> bool:
        """Whether all pieces are here."""
        return self.queue.left == 0

    async def run(self) -> None:
        """Fetch all pieces, then rest."""
        await self.fill(self.queue)
        await asyncio.Event().wait()

    async def fill(self, queue: PieceQueue) -> None:
        """Fetch all pieces of ``queue``."""
        began, before = time.monotonic(), self._bytes
        while (following := queue.next(time.monotonic())) is not None:
            if isinstance(following, FillPiece):
                await self._fetch(queue, following)
            else:
                await asyncio.sleep(following)
        if came := self._bytes - before:
            log.info("filled", mbytes=came // 1_000_000, seconds=round(time.monotonic() - began, 2))

    async def _fetch(self, queue: PieceQueue, piece: FillPiece) -> None:
        try:
            if not await self._reached(piece.owner):
                queue.failed(time.monotonic())
                return
            nbytes = await piece.fetch()
        except AttaError as error:
            self._failures += 1
            queue.failed(time.monotonic())
            log.info("not filled yet", owner=piece.owner, error=str(error))
            return
        self._bytes += nbytes
        queue.came(nbytes)

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
        return {
            "filled_bytes": float(self._bytes),
            "fill_failures": float(self._failures),
            "fill_pieces_left": float(self.queue.left),
        }


FetchAll = Callable[[Iterable[FillPiece]], Awaitable[None]]
_QUESTION = graph_pb2.ProbeRequest


class EdgeFilling:
    """Fills an ``EdgeCache``, once. Batches never wait for it."""

    def __init__(self, dataset: Dataset, cache: EdgeCache, source: FillSource, parts: Collection[int]) -> None:
        """``parts``: the partitions whose daemons can be asked. In-edges of the others stay away."""
        self._dataset, self._cache, self._source, self._parts = dataset, cache, source, parts
        self.done = False
        """Whether nothing more comes, be it that something failed."""

    async def run(self, asked: Sequence[Candidates], fetch_all: FetchAll) -> None:
        """Fill the cache with in-edges of some of ``asked``, then rest until cancelled. ``fetch_all`` returns when all
        pieces are here.

        The daemon works without these edges, so a failure is only logged.
        """
        try:
            if self._cache.limit_bytes > 0:
                await self._fill(asked, fetch_all)
        except Exception as error:
            log.exception("no edges kept", exc_info=error)
        self.done = True
        await asyncio.Event().wait()

    async def _fill(self, asked: Sequence[Candidates], fetch_all: FetchAll) -> None:
        degrees = await self._told(_QUESTION.DEGREE, asked, fetch_all, unknown=MOST_DEGREE + 1)
        hot = await self._source.work(choose, self._dataset, self._cache.part, asked, degrees, self._cache.limit_bytes)
        cut = [in_pieces(of_type, self._dataset.book.offsets[of_type.node_type]) for of_type in hot]
        await self._source.work(self._cache.reserve, [of_type for of_type, _ in cut])
        digests = await self._told(_QUESTION.DIGEST, [of_type for of_type, _ in cut], fetch_all)
        ordered = sorted(
            ((piece, of_type, of) for (of_type, pieces), of in zip(cut, digests, strict=True) for piece in pieces),
            key=lambda found: found[0].tier,
        )
        await fetch_all(FillPiece(p.owner, partial(self._fetch, p, of_type, of)) for p, of_type, of in ordered)
        self._cache.completed()
        figures = self._cache.stats()
        vertices, refused = int(figures["edge_cache_rows"]), int(figures["edge_cache_refused"])
        log.info("edges kept", vertices=vertices, mbytes=self._cache.nbytes // 1_000_000, refused=refused)

    def _into(self, node_type: str) -> tuple[str, ...]:
        return edge_types_into(self._dataset.schema, node_type)

    async def _told(
        self, question: Any, asked: Sequence[Candidates | HotVertices], fetch_all: FetchAll, *, unknown: int = 0
    ) -> list[np.ndarray]:
        """What the owners say of all vertices: for each of ``asked`` int64 [n, edge types]. It is ``unknown`` where no
        daemon can be asked."""
        found = [np.full((len(a.ids), len(self._into(a.node_type))), unknown, dtype=np.int64) for a in asked]
        await fetch_all(
            piece for a, out in zip(asked, found, strict=True) for piece in self._questions(question, a, out)
        )
        return found

    def _questions(self, question: Any, asked: Candidates | HotVertices, out: np.ndarray) -> Iterator[FillPiece]:
        """Pieces that put the answers for ``asked`` into ``out``, one for each owner."""
        of_owner = np.searchsorted(self._dataset.book.offsets[asked.node_type], asked.ids, side="right") - 1
        for owner in np.unique(of_owner).tolist():
            if owner in self._parts:
                mine = np.flatnonzero(of_owner == owner)
                yield FillPiece(owner, partial(self._tell, question, owner, asked, mine, out))

    async def _tell(
        self, question: Any, owner: int, asked: Candidates | HotVertices, mine: np.ndarray, out: np.ndarray
    ) -> int:
        rows = asked.ids[mine] - self._dataset.book.offsets[asked.node_type][owner]
        for column, edge_type in enumerate(self._into(asked.node_type)):
            out[mine, column] = await self._source.peers[owner].probe(edge_type, question, rows)
        return 8 * len(rows)

    async def _fetch(self, piece: Piece, hot: HotVertices, digests: np.ndarray) -> int:
        """Take one piece of in-edges. One that differs from what the owner has is left out."""
        mine = slice(piece.first, piece.stop)
        ids, of = hot.ids[mine], digests[mine]
        places, starts = np.arange(len(ids)), of_one_owner(self._dataset.num_parts, piece.owner, len(ids))
        types = self._into(piece.node_type)
        items = [SampleItem(e, ids, places, -1, False, Method.UNIFORM, 0, starts=starts) for e in types]
        found = await self._source.owners.sample(items)
        answers = [_joined_answers([piece for piece in found if piece.item is item]) for item in items]
        if not await self._source.work(self._cache.keep, piece.node_type, piece.first, answers, [*of.T]):
            log.warning("edges differ from what their owner has", owner=piece.owner, vertices=len(ids))
        return piece.nbytes


def _joined_answers(pieces: list[SampledRows]) -> Answer:
    """The in-edges of all rows of an item."""
    answers = [piece.answer for piece in sorted(pieces, key=lambda piece: piece.first_row)]
    if len(answers) == 1:
        return answers[0]
    counts, neighbors, edge_ids = (
        np.concatenate([getattr(answer, name) for answer in answers]) for name in ("counts", "neighbors", "edge_ids")
    )
    return Answer(counts, neighbors, edge_ids)
