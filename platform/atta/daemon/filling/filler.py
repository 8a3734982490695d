"""Fetches the pieces of a ``PieceQueue`` one at a time. Nobody ever waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from atta.daemon.filling.pieces import Piece, PieceQueue
from atta.errors import AttaError

__all__ = ["Filler"]

log = structlog.get_logger("atta.filling")


class Filler:
    """Fills in what batches will want from other daemons, until it is cancelled.

    ``reached``: whether an owner is there now. It does not wait for one that is away.
    """

    def __init__(self, queue: PieceQueue, reached: Callable[[int], Awaitable[bool]]) -> None:
        self._queue, self._reached = queue, reached
        self._bytes = self._failures = 0

    async def run(self) -> None:
        """Fetch all pieces, then rest."""
        began = time.monotonic()
        while (following := self._queue.next(time.monotonic())) is not None:
            if isinstance(following, Piece):
                await self._fill(following)
            else:
                await asyncio.sleep(following)
        log.info("filled", mbytes=self._bytes // 1_000_000, seconds=round(time.monotonic() - began, 2))
        await asyncio.Event().wait()

    async def _fill(self, piece: Piece) -> None:
        try:
            if not await self._reached(piece.owner):
                self._queue.failed(time.monotonic())
                return
            nbytes = await piece.fetch()
        except AttaError as error:
            self._failures += 1
            self._queue.failed(time.monotonic())
            log.info("not filled yet", owner=piece.owner, error=str(error))
            return
        self._bytes += nbytes
        self._queue.came(nbytes)

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
        return {
            "filled_bytes": float(self._bytes),
            "fill_failures": float(self._failures),
            "fill_pieces_left": float(self._queue.left),
        }
