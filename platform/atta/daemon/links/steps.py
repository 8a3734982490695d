"""Waits for steps: what a batch has asked other daemons over links."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from atta import _native
from atta.daemon.peers.hedges import Hedges
from atta.wire.silence import ASK_AFTER_S

__all__ = ["LinkSteps"]

WATCH_S = 0.05
"""How often late steps are looked for, in seconds."""


@dataclass(eq=False, slots=True)
class _Awaited:
    """A step under way, and until when its links may take."""

    step: _native.Step = field(repr=False)
    done: asyncio.Future[None]
    kind: str
    began: float
    deadline: float
    late: bool = False


class LinkSteps:
    """The steps of a daemon that are under way. All of it runs on the event loop.

    A link that is late loses what it has not answered: the caller asks for this by messages. As many requests are
    repeated as among messages (``Hedges``).
    """

    def __init__(
        self,
        links: _native.Links,
        deadline_s: float,
        end_silent: Callable[[list[int]], Awaitable[None]],
        *,
        delay_s: float = 0.0,
    ) -> None:
        """``end_silent``: asks owners whether they are there, and ends the links of those that do not answer. It is told
        which ones owe answers and have sent nothing for ``ASK_AFTER_S``. ``delay_s``: how long every step waits before
        it asks.
        """
        self._links, self._deadline_s, self._end_silent, self._delay_s = links, deadline_s, end_silent, delay_s
        self._asking: asyncio.Task[None] | None = None
        self._awaited: dict[int, _Awaited] = {}
        self._flushing = False
        self._watching: asyncio.TimerHandle | None = None
        self.hedges = Hedges()

    def open(self) -> None:
        """Listen to the links."""
        asyncio.get_running_loop().add_reader(self._links.fd, self._finished)

    async def run(self, step: _native.Step, kind: str, age_ms: int) -> None:
        """Ask, and wait until each request has been answered, refused or lost. Requests of one turn of the event loop
        go out together. ``kind``: of step, for what counts as late."""
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        loop, now = asyncio.get_running_loop(), time.monotonic()
        awaited = _Awaited(step, loop.create_future(), kind, now, now + self._deadline_s)
        self._awaited[step.number] = awaited
        self._links.begin(step, age_ms)
        if not self._flushing:
            self._flushing = True
            loop.call_soon(self._flush)
        if self._watching is None:
            self._watching = loop.call_later(WATCH_S, self._watch)
        try:
            await awaited.done
        except asyncio.CancelledError:
            self._awaited.pop(step.number, None)
            step.give_up("nobody waits for it")
            raise

    def _flush(self) -> None:
        self._flushing = False
        self._links.flush()

    def _finished(self) -> None:
        now = time.monotonic()
        for number in self._links.finished():
            awaited = self._awaited.pop(number, None)
            if awaited is not None:
                if not awaited.late:
                    self.hedges.answered(awaited.kind, now - awaited.began)
                if not awaited.done.done():
                    awaited.done.set_result(None)

    def _watch(self) -> None:
        now = time.monotonic()
        for awaited in [*self._awaited.values()]:
            patience = self.hedges.patience(awaited.kind)
            overdue = now >= awaited.deadline
            late = patience is not None and now - awaited.began > patience and not awaited.late and self.hedges.take()
            if overdue or late:
                awaited.late = True
                awaited.step.give_up("no answer within the deadline" if overdue else "late")
        oldest = min((awaited.began for awaited in self._awaited.values()), default=now)
        may_ask = now - oldest >= ASK_AFTER_S and (self._asking is None or self._asking.done())
        if may_ask and (silent := self._links.silent(ASK_AFTER_S)):
            self._asking = asyncio.ensure_future(self._asked(silent))
        self._watching = asyncio.get_running_loop().call_later(WATCH_S, self._watch) if self._awaited else None

    async def _asked(self, silent: list[int]) -> None:
        await self._end_silent(silent)
        await asyncio.sleep(ASK_AFTER_S)  # before the next question

    def close(self) -> None:
        """Stop listening."""
        if self._asking is not None:
            self._asking.cancel()
        asyncio.get_running_loop().remove_reader(self._links.fd)
        if self._watching is not None:
            self._watching.cancel()
