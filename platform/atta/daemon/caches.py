"""What a daemon keeps of other daemons' partitions, and what fills it in.

What to keep is chosen in the background while the daemon serves: on a large graph that takes seconds. Batches are the
same whatever is here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from itertools import chain
from typing import Any

import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.filling import (
    EdgeFilling,
    Filler,
    FillPiece,
    FillSource,
    PieceQueue,
    connections,
    pieces_by_owner,
    row_pieces,
)
from atta.daemon.loading import OpenedData
from atta.daemon.peers.links import DaemonLinks
from atta.daemon.peers.owners import Owners
from atta.daemon.peers.peers import Peers
from atta.kvstore.cache import EdgeCache, RowCache
from atta.kvstore.cache.choice import Candidates, Division, candidates, divide
from atta.kvstore.cache.ranking import HaloHeat
from atta.kvstore.cache.rows import check_share
from atta.observe.machine.threads import aside, yield_processor, yielding_thread

log = structlog.get_logger("atta.daemon")


class DaemonCaches:
    """Rows and in-edges of other partitions, within the memory that both may take."""

    def __init__(self, config: DaemonConfig, opened: OpenedData, peers: Peers, links: DaemonLinks | None) -> None:
        """Nothing is kept before the chores run.

        Raises:
            UnknownNameError, ConfigError: as ``HaloHeat`` and ``check_share``.
        """
        self._config, self._peers, self._links = config, peers, links
        self._dataset, self._owner, self._known = opened.dataset, opened.owner, opened.peers.keys()
        self._limit_bytes, self._chosen = opened.memory.cache, False
        check_share(config.cache_share)
        self._heat = HaloHeat(self._dataset, self._owner, config.cache_rank, config.cache_fanouts)
        self.rows, self.edges = RowCache(), EdgeCache(self._dataset, self._owner)
        pool = yielding_thread("atta-fill")
        messages = Owners(peers, self._dataset, pool)
        self._source = FillSource(messages if links is None else links.owners(messages), peers, pool)
        self._filler = Filler(self._reached)
        self._connections = self._queue(connections(sorted({*self._known} - {self._owner})))
        self._edge_filling = EdgeFilling(self._dataset, self.edges, self._source, self._known)

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What connects the peers, and chooses and fills the caches, in the background."""
        return {"connect": self._connect(), "fill": self._fill()}

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
        figures, left = self._filler.stats(), self._connections.left + (not self._chosen)
        filled = not left and self._filler.done and self._edge_filling.done
        figures["fill_pieces_left"] += left
        return {**self.rows.stats(), **self.edges.stats(), **figures, "caches_filled": float(filled)}

    async def _connect(self) -> None:
        await self._filler.fill(self._connections)
        await asyncio.Event().wait()

    async def _fill(self) -> None:
        """The daemon works without caches, so a failure is only logged."""
        asked: list[Candidates] = []
        try:
            if self._limit_bytes > 0 and self._dataset.num_parts > 1:
                began = time.monotonic()
                queue, asked = await aside(self._choose, self._heat)  # a daemon that stops does not wait for it
                self._filler.queue = queue
                log.info("cache chosen", mbytes=self._limit_bytes >> 20, seconds=round(time.monotonic() - began, 2))
        except Exception as error:
            log.exception("no rows and edges kept", exc_info=error)
        del self._heat  # its arrays are as long as the HALO
        self._chosen = True
        await asyncio.gather(self._filler.run(), self._edge_filling.run(asked, self._fetch_all))

    def _choose(self, heat: HaloHeat) -> tuple[PieceQueue, list[Candidates]]:
        """Choose whose rows to keep: the pieces to fetch, and the vertices whose in-degrees are asked for."""
        yield_processor("atta-choose")
        config, share = self._config, self._config.cache_share
        division = Division(self._limit_bytes, 0)
        if config.cache_edges and config.cache_fill:  # batches do not bring in-edges
            division = divide(heat, limit_bytes=self._limit_bytes, share=share)
        self.rows.choose(heat, limit_bytes=division.rows, share=share)
        self.edges.limit_bytes = division.edges
        pieces = row_pieces(self.rows, heat, self._source) if config.cache_fill else ()
        queue = self._queue(piece for piece in pieces if piece.owner in self._known)
        return queue, candidates(heat, limit_bytes=division.edges, share=share) if division.edges else []

    async def _fetch_all(self, pieces: Iterable[FillPiece]) -> None:
        await Filler(self._reached).fill(self._queue(pieces))

    async def _reached(self, owner: int) -> bool:
        """Whether an owner is there. If so, there is a link to it, and the first batches need not wait for one."""
        there = await self._peers.reached(owner)
        if there and self._links is not None:
            await self._links.attach(owner)
        return there

    def _queue(self, *sources: Iterable[FillPiece]) -> PieceQueue:
        pieces = pieces_by_owner(chain(*sources), self._owner)
        return PieceQueue(pieces, bytes_per_s=self._config.cache_fill or 1)
