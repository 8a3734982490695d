"""In which order a daemon answers its peers: the oldest batch first, as among its own batches.

A request says how long ago its batch was begun, so requests of different daemons compare without a common clock. The
threads that make answers take the oldest batch first, and so do the connections that carry them. If several answers
shared a link evenly, all batches would be finished late and none early.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any

from atta.observe.machine.threads import named_threads

__all__ = ["MessageTurns", "TurnPool", "began"]


def began(age_ms: int) -> float:
    """When a batch of that age was begun, on this machine's monotonic clock.

    Age 0 means now: first come, first served.
    """
    return time.monotonic() - age_ms / 1e3


class TurnPool:
    """Threads that take the work of the oldest batch first, equals in order of arrival."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = named_threads(threads, name)
        self._waiting: list[tuple[float, int, Any]] = []  # ..., (future, function)
        self._arrivals, self._lock = count(), threading.Lock()

    def submit(self, since: float, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call ``function`` on a thread for a batch that was begun at ``since``."""
        future: Future[Any] = Future()
        with self._lock:
            heapq.heappush(self._waiting, (since, next(self._arrivals), (future, partial(function, *args))))
        self._pool.submit(self._next)
        return future

    def _next(self) -> None:
        with self._lock:
            _, _, (future, work) = heapq.heappop(self._waiting)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def shutdown(self) -> None:
        """Finish what was submitted, and end."""
        self._pool.shutdown(wait=True)


class MessageTurns:
    """Turns of large messages on every connection: at most ``width`` are being sent, and the oldest batch's is next."""

    def __init__(self, width: int = 2) -> None:
        """``width`` of 1 would leave the connection idle between two messages."""
        self._width = width
        self._sending: dict[str, int] = {}  # by connection: messages being sent, from 1 to ``width``
        self._waiting: dict[str, list[tuple[float, int, asyncio.Future[None]]]] = {}
        """By connection, a heap. A message waits only while ``width`` others are being sent."""
        self._arrivals = count()

    def __len__(self) -> int:
        """Number of connections on which messages are being sent."""
        return len(self._sending)

    @contextlib.asynccontextmanager
    async def turn(self, connection: str, since: float) -> AsyncIterator[None]:
        """Wait for a turn on ``connection``; it ends with the block. ``since``: when the batch was begun."""
        if self._sending.get(connection, 0) < self._width:
            self._sending[connection] = self._sending.get(connection, 0) + 1
        else:
            mine = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting.setdefault(connection, []), (since, next(self._arrivals), mine))
            try:
                await mine  # a message that ends hands its place over
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._end(connection)
                raise
        try:
            yield
        finally:
            self._end(connection)

    def _end(self, connection: str) -> None:
        waiting = self._waiting.get(connection, [])
        while waiting:
            _, _, following = heapq.heappop(waiting)
            if not following.done():
                following.set_result(None)
                return
        self._waiting.pop(connection, None)
        self._sending[connection] -= 1
        if not self._sending[connection]:
            del self._sending[connection]

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold; for tests."""
        for connection, sending in self._sending.items():
            assert 1 <= sending <= self._width, f"connection {connection}: {sending} messages are being sent"
        for connection, waiting in self._waiting.items():
            left = sum(not future.done() for _, _, future in waiting)
            full = self._sending.get(connection, 0) == self._width
            assert full or not left, f"connection {connection}: {left} messages wait for a free place"
