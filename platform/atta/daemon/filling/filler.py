"""Fetches the pieces of a ``PieceQueue`` one at a time. Nobody ever waits for it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator

import structlog

from atta.daemon.filling.pieces import FillPiece, PieceQueue
from atta.errors import AttaError

__all__ = ["Filler", "connections", "pieces_by_owner"]

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
