"""What a daemon keeps of other daemons' partitions, and what brings it before batches ask: in the background, piece by
piece. Nobody ever waits for it, and batches are the same whatever is here."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.peers.links import DaemonLinks
from atta.daemon.peers.owners import Owners, SampledRows
from atta.daemon.peers.peers import Peers
from atta.errors import AttaError
from atta.kvstore.cache import EdgeCache, RowCache
from atta.kvstore.cache.choice import (
    MOST_DEGREE,
    Candidates,
    Division,
    HaloHeat,
    HotVertices,
    candidates,
    choose,
    divide,
    edge_types_into,
)
from atta.kvstore.cache.edges import Piece, in_pieces
from atta.kvstore.cache.rows import ChosenRows, check_share
from atta.observe.machine.threads import aside, yield_processor, yielding_thread
from atta.partition.dataset import Dataset
from atta.protos.v1 import graph_pb2
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.methods import Method
from atta.samplers.shard import Answer, Shard

FIRST_RETRY_S = 0.05
"""How long an owner is left alone that is away, the first time. Daemons of a cluster start at about the same time."""
LAST_RETRY_S = 10.0
"""The longest of these times."""


@dataclass(frozen=True, slots=True)
class FillPiece:
    """A part of what is to be filled in that its owner answers with one message or a few. ``fetch`` asks the owner and
    puts the answer into place. It returns the bytes that came: 0 if the piece is here by now. It raises AttaError if
    the owner is away or refuses. A piece is fetched again then."""

    owner: int
    fetch: Callable[[], Awaitable[int]]


Result = TypeVar("Result")


@dataclass(frozen=True)
class FillSource:
    """The other daemons of a cluster: owners answer with rows and in-edges, over links where there are some, peers with
    degrees and digests. ``pool`` checks and copies what comes, beside the workers and below them."""

    owners: Owners
    peers: Peers
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

    async def fetch(node_type: str, kept: ChosenRows, owner: int, slots: np.ndarray) -> int:
        """Pull the rows that batches have not brought meanwhile."""
        slots = kept.absent(slots)
        if not len(slots):
            return 0
        tables, places = tuple(kept.tables), np.arange(len(slots))
        blocks = [np.empty((len(slots), table[:1].nbytes), dtype=np.uint8) for table in kept.tables.values()]
        starts = of_one_owner(dataset.num_parts, owner, len(slots))
        await source.owners.pull([FeatureItem(node_type, tables, kept.ids[slots], places, starts)], [blocks])
        await source.work(kept.keep, tables, slots, places, blocks)
        return len(slots) * kept.row_bytes

    for node_type, kept in cache.chosen():
        asked = _edges_of(kept.ids, heat, node_type)
        step = max(1, FILL_BYTES // kept.row_bytes)
        bounds = np.searchsorted(kept.ids, dataset.book.offsets[node_type])
        for owner, (low, high) in enumerate(pairwise(bounds.tolist())):
            slots = low + np.argsort(-asked[low:high], kind="stable")
            for first in range(0, high - low, step):
                yield FillPiece(owner, partial(fetch, node_type, kept, owner, np.sort(slots[first : first + step])))


def _edges_of(ids: np.ndarray, heat: HaloHeat, node_type: str) -> np.ndarray:
    """int64 [ids]: edges of remote vertices (ascending) into the partition; 0 of those beyond its HALO."""
    halo, edges = heat.halo(node_type), np.zeros(len(ids), dtype=np.int64)
    if len(halo):
        at = np.minimum(np.searchsorted(halo, ids), len(halo) - 1)
        near = halo[at] == ids
        edges[near] = heat.edges(node_type)[at[near]]
    return edges


log = structlog.get_logger("atta.filling")


class Filler:
    """Fetches pieces from their owners, which take turns. An owner that is away or refuses is left alone for a time that
    doubles, while the others go on."""

    def __init__(self, reached: Callable[[int], Awaitable[bool]], *, home: int, bytes_per_s: float) -> None:
        """``reached``: whether an owner is there now. It does not wait for one that is away. ``home``: the own partition.
        ``bytes_per_s``: above 0."""
        self._reached, self._home, self._bytes_per_s = reached, home, bytes_per_s
        self.left = 0
        """Number of pieces that are not here."""
        self._bytes = self._failures = 0
        self._said: dict[int, str] = {}
        """What was logged of each owner since a piece of it came."""

    async def fill(self, pieces: Iterable[FillPiece]) -> None:
        """Fetch all pieces, those of an owner in the order in which they are wanted."""
        queues: dict[int, deque[FillPiece]] = defaultdict(deque)
        for piece in pieces:
            queues[piece.owner].append(piece)
            self.left += 1
        # Every daemon begins with the owner that follows its partition, so they do not all ask the same one.
        turns = deque(sorted(queues, key=lambda owner: (owner < self._home, owner)))
        due, waits = dict.fromkeys(turns, -math.inf), dict.fromkeys(turns, FIRST_RETRY_S)
        began, before, next_at = time.monotonic(), self._bytes, -math.inf
        while turns:
            now = time.monotonic()
            if (wait := max(next_at, min(due[owner] for owner in turns)) - now) > 0:
                await asyncio.sleep(wait)
                continue
            while due[turns[0]] > now:
                turns.rotate(-1)
            owner = turns[0]
            turns.rotate(-1)
            if (nbytes := await self._fetched(queues[owner][0])) is None:
                due[owner], waits[owner] = time.monotonic() + waits[owner], min(2 * waits[owner], LAST_RETRY_S)
                continue
            queues[owner].popleft()
            if not queues[owner]:
                turns.pop()
            self.left -= 1
            self._bytes += nbytes
            waits[owner], next_at = FIRST_RETRY_S, now + nbytes / self._bytes_per_s
        if came := self._bytes - before:
            log.debug("filled", mbytes=came // 1_000_000, seconds=round(time.monotonic() - began, 2))

    async def _fetched(self, piece: FillPiece) -> int | None:
        """The bytes that came; None: the owner is away or refuses."""
        try:
            came = await piece.fetch() if await self._reached(piece.owner) else None
        except AttaError as error:
            self._failures += 1
            if self._said.get(piece.owner) != (said := str(error)):
                self._said[piece.owner] = said
                log.debug("not filled yet", owner=piece.owner, error=said)
            return None
        if came is not None:
            self._said.pop(piece.owner, None)
        return came

    def stats(self) -> dict[str, float]:
        return {
            "filled_bytes": float(self._bytes),
            "fill_failures": float(self._failures),
            "fill_pieces_left": float(self.left),
        }


async def connected() -> int:
    """What fetches a piece of nothing: before the filler does so, it connects the owner."""
    return 0


FetchAll = Callable[[Iterable[FillPiece]], Awaitable[None]]
_QUESTION = graph_pb2.ProbeRequest


class EdgeFilling:
    """Fills an ``EdgeCache``, once. Batches never wait for it."""

    def __init__(
        self, dataset: Dataset, cache: EdgeCache, source: FillSource, parts: Collection[int], fetch_all: FetchAll
    ) -> None:
        """``parts``: the partitions whose daemons can be asked. In-edges of the others stay away. ``fetch_all`` returns
        when all pieces are here."""
        self._dataset, self._cache, self._source, self._parts = dataset, cache, source, parts
        self._fetch_all, self.done = fetch_all, False
        """Whether nothing more comes, be it that something failed."""

    async def run(self, asked: Sequence[Candidates]) -> None:
        """Fill the cache with in-edges of some of ``asked``. The daemon works without: a failure is only logged."""
        try:
            if self._cache.limit_bytes > 0:
                await self._fill(asked)
        except Exception as error:
            log.exception("no edges kept", exc_info=error)
        self.done = True

    async def _fill(self, asked: Sequence[Candidates]) -> None:
        degrees = await self._answers(_QUESTION.DEGREE, asked, unknown=MOST_DEGREE + 1)
        hot = await self._source.work(choose, self._dataset, self._cache.part, asked, degrees, self._cache.limit_bytes)
        cut = [in_pieces(of_type, self._dataset.book.offsets[of_type.node_type]) for of_type in hot]
        await self._source.work(self._cache.reserve, [of_type for of_type, _ in cut])
        digests = await self._answers(_QUESTION.DIGEST, [of_type for of_type, _ in cut])
        ordered = sorted(
            ((piece, of_type, of) for (of_type, pieces), of in zip(cut, digests, strict=True) for piece in pieces),
            key=lambda found: found[0].tier,
        )
        await self._fetch_all(FillPiece(p.owner, partial(self._fetch, p, of_type, of)) for p, of_type, of in ordered)
        self._cache.completed()
        figures = self._cache.stats()
        vertices, refused = int(figures["edge_cache_rows"]), int(figures["edge_cache_refused"])
        log.debug("edges kept", vertices=vertices, mbytes=self._cache.nbytes // 1_000_000, refused=refused)

    def _into(self, node_type: str) -> tuple[str, ...]:
        return edge_types_into(self._dataset.schema, node_type)

    async def _answers(
        self, question: Any, asked: Sequence[Candidates | HotVertices], *, unknown: int = 0
    ) -> list[np.ndarray]:
        """What the owners say of all vertices: for each of ``asked`` int64 [n, edge types]. It is ``unknown`` where no
        daemon can be asked."""
        found = [np.full((len(a.ids), len(self._into(a.node_type))), unknown, dtype=np.int64) for a in asked]
        await self._fetch_all(
            piece for a, out in zip(asked, found, strict=True) for piece in self._questions(question, a, out)
        )
        return found

    def _questions(self, question: Any, asked: Candidates | HotVertices, out: np.ndarray) -> Iterator[FillPiece]:
        """Pieces that put the answers for ``asked`` into ``out``, one for each owner."""
        offsets = self._dataset.book.offsets[asked.node_type]
        of_owner = np.searchsorted(offsets, asked.ids, side="right") - 1

        async def ask(owner: int, mine: np.ndarray) -> int:
            rows = asked.ids[mine] - offsets[owner]
            for column, edge_type in enumerate(self._into(asked.node_type)):
                out[mine, column] = await self._source.peers[owner].probe(edge_type, question, rows)
            return 8 * len(rows)

        for owner in np.unique(of_owner).tolist():
            if owner in self._parts:
                yield FillPiece(owner, partial(ask, owner, np.flatnonzero(of_owner == owner)))

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
    answers = [piece.answer for piece in sorted(pieces, key=lambda piece: piece.first_row)]
    if len(answers) == 1:
        return answers[0]
    counts, neighbors, edge_ids = (
        np.concatenate([getattr(answer, name) for answer in answers]) for name in ("counts", "neighbors", "edge_ids")
    )
    return Answer(counts, neighbors, edge_ids)


class DaemonCaches:
    """Rows and in-edges of other partitions, within the memory that both may take."""

    def __init__(
        self,
        config: DaemonConfig,
        shard: Shard,
        peers: Peers,
        links: DaemonLinks | None,
        *,
        known: Collection[int],
        limit_bytes: int,
    ) -> None:
        """Nothing is kept before the chores run. ``known``: the owners whose daemons can be asked. Raises UnknownNameError,
        ConfigError: as ``HaloHeat`` and ``check_share``."""
        self._config, self._peers, self._links = config, peers, links
        self._dataset, self._owner, self._known = shard.dataset, shard.part, known
        self._limit_bytes, self._chosen = limit_bytes, False
        check_share(config.cache_share)
        self._heat = HaloHeat(self._dataset, self._owner, config.cache_rank, config.cache_fanouts)
        self.rows, self.edges = RowCache(), EdgeCache(self._dataset, self._owner)
        pool = yielding_thread("atta-fill")
        owners = Owners(peers, self._dataset, pool) if links is None else links.owners(pool)
        self._source = FillSource(owners, peers, pool)
        # What is counted is rows: in-edges have a filler of their own.
        self._filler, edges = (
            Filler(self._reached, home=self._owner, bytes_per_s=config.cache_fill or 1) for _ in range(2)
        )
        self._edge_filling = EdgeFilling(self._dataset, self.edges, self._source, self._known, edges.fill)

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What connects the peers, and chooses and fills the caches, in the background."""
        return {"connect": self._connect(), "fill": self._fill()}

    def stats(self) -> dict[str, float]:
        figures = self._filler.stats()
        figures["fill_pieces_left"] += not self._chosen
        filled = not figures["fill_pieces_left"] and self._edge_filling.done
        return {**self.rows.stats(), **self.edges.stats(), **figures, "caches_filled": float(filled)}

    async def _connect(self) -> None:
        await self._filler.fill(FillPiece(owner, connected) for owner in sorted({*self._known} - {self._owner}))
        await asyncio.Event().wait()

    async def _fill(self) -> None:
        """The daemon works without caches, so a failure is only logged."""
        pieces: list[FillPiece] = []
        asked: list[Candidates] = []
        try:
            if self._limit_bytes > 0 and self._dataset.num_parts > 1:
                began = time.monotonic()
                pieces, asked = await aside(self._choose, self._heat)  # a daemon that stops does not wait for it
                log.debug("cache chosen", mbytes=self._limit_bytes >> 20, seconds=round(time.monotonic() - began, 2))
        except Exception as error:
            log.exception("no rows and edges kept", exc_info=error)
        del self._heat  # its arrays are as long as the HALO
        self._chosen = True
        await asyncio.gather(self._filler.fill(pieces), self._edge_filling.run(asked))
        await asyncio.Event().wait()

    def _choose(self, heat: HaloHeat) -> tuple[list[FillPiece], list[Candidates]]:
        """Choose whose rows to keep: the pieces to fetch, and the vertices whose in-degrees are asked for."""
        yield_processor("atta-choose")
        config, share = self._config, self._config.cache_share
        division = Division(self._limit_bytes, 0)
        if config.cache_edges and config.cache_fill:  # batches do not bring in-edges
            division = divide(heat, limit_bytes=self._limit_bytes, share=share)
        self.rows.choose(heat, limit_bytes=division.rows, share=share)
        self.edges.limit_bytes = division.edges
        pieces = row_pieces(self.rows, heat, self._source) if config.cache_fill else ()
        known = [piece for piece in pieces if piece.owner in self._known]
        return known, candidates(heat, limit_bytes=division.edges, share=share) if division.edges else []

    async def _reached(self, owner: int) -> bool:
        """Whether an owner is there. If so, there is a link to it, and the first batches need not wait for one."""
        there = await self._peers[owner].connection.reached()
        if there and self._links is not None:
            await self._links.attach(owner)
        return there
