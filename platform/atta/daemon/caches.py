"""What a daemon keeps of other daemons' partitions, and what fills it in."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from functools import partial
from itertools import chain
from typing import Any

from atta.daemon.config import DaemonConfig
from atta.daemon.filling.edges import EdgeFilling
from atta.daemon.filling.filler import Filler, connections, pieces_by_owner
from atta.daemon.filling.pieces import FillPiece, PieceQueue
from atta.daemon.filling.rows import row_pieces
from atta.daemon.filling.source import FillSource
from atta.daemon.links.links import DaemonLinks
from atta.daemon.loading import OpenedData
from atta.daemon.peers.owners import Owners
from atta.daemon.peers.peers import Peers
from atta.kvstore.cache import EdgeCache, RowCache
from atta.kvstore.cache.choice import Division, candidates, divide
from atta.observe.machine.threads import named_threads

__all__ = ["DaemonCaches"]


class DaemonCaches:
    """Rows and in-edges of other partitions, within the memory that the configuration gives to both."""

    def __init__(self, config: DaemonConfig, opened: OpenedData, peers: Peers, links: DaemonLinks | None) -> None:
        self._config, self._peers, self._links = config, peers, links
        self._dataset, self._owner, self._known = opened.dataset, opened.owner, opened.peers.keys()
        self._how: dict[str, Any] = {
            "share": config.cache_share,
            "rank": config.cache_rank,
            "fan_outs": config.cache_fanouts,
        }
        memory = Division(config.cache_bytes, 0)
        if config.cache_edges and config.cache_fill:  # batches do not bring in-edges
            memory = divide(self._dataset, self._owner, limit_bytes=config.cache_bytes, **self._how)
        self.rows = RowCache(self._dataset, self._owner, limit_bytes=memory.rows, **self._how)
        self.edges = EdgeCache(self._dataset, self._owner, limit_bytes=memory.edges)
        pool = named_threads(1, "atta-fill")
        messages = Owners(peers, self._dataset, pool)
        self._source = FillSource(messages if links is None else links.owners(messages), peers, pool)
        self._filler = self._row_filler()
        self._edge_filling = EdgeFilling(self._dataset, self.edges, self._source, self._known)

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What fills the caches in the background, and connects the peers."""
        chosen_from = partial(candidates, self._dataset, self._owner, limit_bytes=self.edges.limit_bytes, **self._how)

        filler = Filler(self._reached, self._queue())

        async def fetch_all(pieces: Iterable[FillPiece]) -> None:
            await filler.fill(self._queue(pieces))

        return {"fill": self._filler.run(), "fill_edges": self._edge_filling.run(chosen_from, fetch_all)}

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
        filled = {"caches_filled": float(self._filler.done and self._edge_filling.done)}
        return {**self.rows.stats(), **self.edges.stats(), **self._filler.stats(), **filled}

    def _row_filler(self) -> Filler:
        """What fills in rows and connects the peers; without a rate it only connects them."""
        others = sorted({*self._known} - {self._owner})

        rows = row_pieces(self.rows, self._dataset, self._owner, self._source) if self._config.cache_fill else ()
        reachable = (piece for piece in rows if piece.owner in self._known)
        return Filler(self._reached, self._queue(connections(others), reachable))

    async def _reached(self, owner: int) -> bool:
        """Whether an owner is there. If so, there is a link to it, and the first batches need not wait for one."""
        there = await self._peers.reached(owner)
        if there and self._links is not None:
            await self._links.attach(owner)
        return there

    def _queue(self, *sources: Iterable[FillPiece]) -> PieceQueue:
        pieces = pieces_by_owner(chain(*sources), self._owner)
        return PieceQueue(pieces, bytes_per_s=self._config.cache_fill or 1)
