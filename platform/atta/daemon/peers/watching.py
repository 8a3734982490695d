"""Asks a peer that owes answers whether it is still there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from atta.errors import AttaError
from atta.wire.silence import WATCH_S, DaemonSilence

__all__ = ["PeerWatch"]


class PeerWatch:
    """The answers that one peer owes. If it is silent, those who wait are cancelled. All of it runs on the event loop.

    Attributes:
        silences: how often the peer was silent. Who is cancelled learns from it whether that is the reason.
    """

    def __init__(self, ask: Callable[[], Awaitable[Any]], lost: Callable[[AttaError], None]) -> None:
        """``ask``: asks the peer a small question and raises AttaError if it does not answer in time; ``lost``: is told
        that the peer is silent, before those who wait.
        """
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
            self._fell_silent(failed)
            return False
        return True

    def _fell_silent(self, error: AttaError) -> None:
        self.silences += 1
        self._lost(error)
        for answer in [*self._awaited]:
            answer.cancel()
