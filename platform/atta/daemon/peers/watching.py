"""What is known of a peer from its answers: whether it is silent, or late."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from atta.errors import AttaError
from atta.wire.retries import WATCH_S, DaemonSilence

WINDOW = 64
"""Number of latest answers that define what is late."""
ENOUGH = 16
"""Number of answers of a kind before any of its requests is repeated."""
QUANTILE = 0.95
"""Share of the latest answers whose time counts as usual."""
FACTOR = 4.0
"""How many times the usual time an answer takes when it is late. A busy peer is not a reason to ask twice."""
LEAST_S = 0.1
"""Least time after which an answer is late, in seconds."""
SHARE = 0.02
"""Largest share of requests that are sent twice. A cluster under load must not get more load."""
MOST = 8.0
"""Largest number of second requests that may be saved up."""


class PeerWatch:
    """The answers that one peer owes. If it is silent, those who wait are cancelled. All of it runs on the event loop.

    Attributes:
        silences: how often the peer was silent. Who is cancelled learns from it whether that is the reason.
    """

    def __init__(self, ask: Callable[[], Awaitable[Any]], lost: Callable[[AttaError], None]) -> None:
        """``ask``: asks the peer a small question and raises AttaError if it does not answer in time; ``lost``: is told
        that the peer is silent, before those who wait."""
        self._ask, self._lost = ask, lost
        self._awaited: set[asyncio.Future[Any]] = set()
        self._since = 0.0
        self._silence, self.silences = DaemonSilence(), 0
        self._watching: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[bool] | None = None

    def awaits(self, answer: asyncio.Future[Any]) -> None:
        """Watch until ``answer`` is there. It is cancelled if the peer is silent."""
        if not self._awaited:
            self._since = time.monotonic()
        self._awaited.add(answer)
        answer.add_done_callback(self._came)
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())

    async def answers(self) -> bool:
        """Ask now, whatever is awaited; False: the peer is silent. All that ask at the same time share the question."""
        return await asyncio.shield(self._question())

    def close(self) -> None:
        """Ask no more."""
        for task in (self._watching, self._asking):
            if task is not None:
                task.cancel()

    def _came(self, answer: asyncio.Future[Any]) -> None:
        self._awaited.discard(answer)
        if not answer.cancelled() and answer.exception() is None:
            self._silence.heard(time.monotonic())

    async def _watch(self) -> None:
        try:
            while self._awaited:
                await asyncio.sleep(WATCH_S)
                if self._awaited and self._silence.due(self._since, time.monotonic()):
                    self._question()
        finally:
            self._watching = None

    def _question(self) -> asyncio.Task[bool]:
        if self._asking is None:
            self._silence.asked(time.monotonic())
            self._asking = asyncio.ensure_future(self._answered())
        return self._asking

    async def _answered(self) -> bool:
        failed: AttaError | None = None
        try:
            await self._ask()
        except AttaError as error:
            failed = error
        finally:
            self._asking = None
        if self._silence.ended(answered=failed is None, now=time.monotonic()):
            assert failed is not None
            self.silences += 1
            self._lost(failed)
            for answer in [*self._awaited]:
                answer.cancel()
            return False
        return True


class Hedges:
    """When a request to a peer is sent a second time, as its answer is late (Dean and Barroso, The Tail at Scale,
    2013). Answers depend only on the request, so the first of the two is as good as the second. The second request
    takes a connection of its own, because it is mostly the connection that delays a single request. Pure: the caller
    measures and sends."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}  # by kind, seconds of the latest WINDOW answers
        self._patience: dict[str, float] = {}  # by kind with ENOUGH answers, at least LEAST_S
        self._allowed = 1.0  # second requests that may be sent now, from 0 to MOST
        self.sent, self.won = 0, 0  # second requests, and those that were answered first

    def patience(self, kind: str) -> float | None:
        """Seconds to wait for the first answer before asking again; None: do not ask again."""
        return self._patience.get(kind) if self._allowed >= 1 else None

    def answered(self, kind: str, seconds: float) -> None:
        """A request of this kind has got its first answer after ``seconds``."""
        self._allowed = min(MOST, self._allowed + SHARE)
        seen = self._seen.setdefault(kind, deque(maxlen=WINDOW))
        seen.append(seconds)
        if len(seen) >= ENOUGH:
            usual = sorted(seen)[int(QUANTILE * (len(seen) - 1))]
            self._patience[kind] = max(LEAST_S, FACTOR * usual)

    def take(self) -> bool:
        """Whether a second request may be sent now; it counts as sent."""
        if self._allowed < 1:
            return False
        self._allowed -= 1
        self.sent += 1
        return True
