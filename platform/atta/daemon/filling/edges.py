"""In-edges of hot vertices of other partitions, as pieces.

First the owners say the in-degrees of remote vertices. Then it is chosen whose in-edges to keep
(``atta.kvstore.cache.choice``). The owners say the digests of these, and then the in-edges come piece by piece. Every
piece is compared with the digests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import structlog

from atta.daemon.filling.pieces import FillPiece
from atta.daemon.filling.source import FillSource, of_one_owner
from atta.daemon.peers.owners import SampledRows
from atta.kvstore.cache import EdgeCache
from atta.kvstore.cache.choice import MOST_DEGREE, Candidates, HotVertices, choose, edge_types_into
from atta.kvstore.cache.pieces import Piece, in_pieces
from atta.partition.dataset import Dataset
from atta.protos.v1 import graph_pb2
from atta.samplers.batch.items import SampleItem
from atta.samplers.methods import Method
from atta.samplers.shard import Answer

__all__ = ["EdgeFilling"]

FetchAll = Callable[[Iterable[FillPiece]], Awaitable[None]]
_QUESTION = graph_pb2.ProbeRequest
log = structlog.get_logger("atta.filling")


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
        answers = [_joined([piece for piece in found if piece.item is item]) for item in items]
        if not await self._source.work(self._cache.keep, piece.node_type, piece.first, answers, [*of.T]):
            log.warning("edges differ from what their owner has", owner=piece.owner, vertices=len(ids))
        return piece.nbytes


def _joined(pieces: list[SampledRows]) -> Answer:
    """The in-edges of all rows of an item."""
    answers = [piece.answer for piece in sorted(pieces, key=lambda piece: piece.first_row)]
    if len(answers) == 1:
        return answers[0]
    counts, neighbors, edge_ids = (
        np.concatenate([getattr(answer, name) for answer in answers]) for name in ("counts", "neighbors", "edge_ids")
    )
    return Answer(counts, neighbors, edge_ids)
