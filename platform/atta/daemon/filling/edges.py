"""In-edges of hot vertices of other partitions, as pieces.

First the owners say the in-degrees of remote vertices. Then it is chosen whose in-edges to keep
(``atta.kvstore.cache.choice``), and these come piece by piece. Every piece is compared with the owner's digests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import structlog

from atta.daemon.filling.pieces import FillPiece
from atta.daemon.peers.answers import AskedPeers
from atta.kvstore.cache import EdgeCache
from atta.kvstore.cache.choice import MOST_DEGREE, Candidates, HotVertices, choose, edge_types_into
from atta.kvstore.cache.pieces import Piece, in_pieces
from atta.partition.dataset import Dataset
from atta.protos.v1 import graph_pb2
from atta.samplers.batch.items import SampleItem
from atta.samplers.methods import Method
from atta.samplers.shard import Answer

__all__ = ["EdgeFilling"]

_QUESTION = graph_pb2.ProbeRequest
log = structlog.get_logger("atta.filling")


class EdgeFilling:
    """Fills an ``EdgeCache``, once. Batches never wait for it."""

    def __init__(self, dataset: Dataset, cache: EdgeCache, peers: AskedPeers, owners: Collection[int]) -> None:
        """``owners``: the partitions whose daemons can be asked. In-edges of the others stay away."""
        self._dataset, self._cache, self._peers, self._owners = dataset, cache, peers, owners

    async def run(
        self, candidates: Callable[[], list[Candidates]], fetch_all: Callable[[Iterable[FillPiece]], Awaitable[None]]
    ) -> None:
        """Fill the cache, then rest until cancelled. ``fetch_all`` returns when all pieces are here.

        The daemon works without these edges, so a failure is only logged.
        """
        try:
            if self._cache.limit_bytes > 0:
                await self._fill(await asyncio.to_thread(candidates), fetch_all)
        except Exception as error:
            log.exception("no edges kept", exc_info=error)
        await asyncio.Event().wait()

    async def _fill(
        self, asked: Sequence[Candidates], fetch_all: Callable[[Iterable[FillPiece]], Awaitable[None]]
    ) -> None:
        degrees = [np.full((len(c.ids), len(self._into(c.node_type))), MOST_DEGREE + 1) for c in asked]
        await fetch_all(
            piece for of_type, out in zip(asked, degrees, strict=True) for piece in self._degree_pieces(of_type, out)
        )
        hot = await asyncio.to_thread(choose, self._dataset, self._cache.part, asked, degrees, self._cache.limit_bytes)
        cut = [in_pieces(of_type, self._dataset.book.offsets[of_type.node_type]) for of_type in hot]
        await asyncio.to_thread(self._cache.reserve, [of_type for of_type, _ in cut])
        ordered = sorted(
            ((piece, of_type) for of_type, pieces in cut for piece in pieces), key=lambda found: found[0].tier
        )
        await fetch_all(FillPiece(p.owner, partial(self._fetch, p, of_type)) for p, of_type in ordered)
        self._cache.completed()
        figures = self._cache.stats()
        vertices, refused = int(figures["edge_cache_rows"]), int(figures["edge_cache_refused"])
        log.info("edges kept", vertices=vertices, mbytes=self._cache.nbytes // 1_000_000, refused=refused)

    def _into(self, node_type: str) -> tuple[str, ...]:
        return edge_types_into(self._dataset.schema, node_type)

    def _degree_pieces(self, of_type: Candidates, out: np.ndarray) -> Iterator[FillPiece]:
        """Pieces that put the in-degrees of ``of_type`` into ``out``, one for each owner."""
        offsets = self._dataset.book.offsets[of_type.node_type]
        of_owner = np.searchsorted(offsets, of_type.ids, side="right") - 1
        for owner in np.unique(of_owner).tolist():
            if owner in self._owners:
                mine = np.flatnonzero(of_owner == owner)
                yield FillPiece(owner, partial(self._degrees, owner, of_type, mine, out))

    async def _degrees(self, owner: int, of_type: Candidates, mine: np.ndarray, out: np.ndarray) -> int:
        peer = self._peers[owner]
        rows = of_type.ids[mine] - self._dataset.book.offsets[of_type.node_type][owner]
        for column, edge_type in enumerate(self._into(of_type.node_type)):
            out[mine, column] = await peer.probe(edge_type, _QUESTION.DEGREE, rows)
        return 8 * len(mine)

    async def _fetch(self, piece: Piece, hot: HotVertices) -> int:
        """Take one piece of in-edges. One that differs from what the owner has is left out."""
        peer, types = self._peers[piece.owner], self._into(piece.node_type)
        rows = hot.ids[piece.first : piece.stop] - self._dataset.book.offsets[piece.node_type][piece.owner]
        items = [SampleItem(e, rows, np.arange(len(rows)), -1, False, Method.UNIFORM, 0) for e in types]
        parts: dict[str, list[Answer]] = {e: [] for e in types}
        async for item, _, answer, _ in peer.sample(items):
            parts[item.edge_type].append(answer)
        digests = [await peer.probe(e, _QUESTION.DIGEST, rows) for e in types]
        answers = [_joined(parts[e]) for e in types]
        if not await asyncio.to_thread(self._cache.keep, piece.node_type, piece.first, answers, digests):
            log.warning("edges differ from what their owner has", owner=piece.owner, vertices=len(rows))
        return piece.nbytes


def _joined(parts: Sequence[Answer]) -> Answer:
    """Consecutive answers as one."""
    if len(parts) == 1:
        return parts[0]
    empty = np.empty(0, dtype=np.int32)
    counts, neighbors, edge_ids = (
        np.concatenate([empty, *(getattr(part, name) for part in parts)])
        for name in ("counts", "neighbors", "edge_ids")
    )
    return Answer(counts, neighbors, edge_ids)
