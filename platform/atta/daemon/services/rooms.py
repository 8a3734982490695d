"""Memory for requests and answers: bounded for all connections together and for each, first come, first served.

A message is not read before there is room for the longest one, as gRPC does not say beforehand how long it is: it waits at the
sender. A longer request announces its size. An answer occupies what it has in memory until its reader has taken all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from atta.errors import AttaError, ConfigError, QuotaExceededError
from atta.observe.machine.threads import aside
from atta.wire.bulk import ARRAYS_BYTES
from atta.wire.pieces import MESSAGE_BYTES, PiecedRequest, announced

SMALL_BYTES = 64 << 10
"""Refused requests and answers that were given up cost nothing up to this size."""
REFUSED_BYTES_PER_S = 40 << 20
"""So many bytes of refused requests may come per second from one connection."""
GIVEN_UP_BYTES_PER_S = 64 << 20
"""So many bytes of answers may be given up per second by one connection."""
PEERS_BYTES_PER_S = 256 << 20
"""The same for answers of which other daemons ask. These give up some: those that they have asked for twice, and those of
sessions that end early."""
UNASKED_S = 0.2
"""What a session costs that ends before anybody has asked it for a batch."""
NOT_ADMITTED_S = 0.05
"""What a call costs whose caller is unknown or lacks a role."""
FREE_S = 1.0
"""Nobody waits for debts up to this: what happens now and then costs nothing."""
MOST_PAUSE_S = 10.0
"""No connection waits longer."""
MOST_CONNECTIONS = 4096
"""More are not remembered; the oldest debt is forgotten."""


class Debts:
    """When each connection will have paid what it owes, in seconds of one clock."""

    def __init__(self) -> None:
        self._paid: OrderedDict[str, float] = OrderedDict()  # in the order in which debts were made

    def owes(self, connection: str, seconds: float, now: float) -> None:
        """This connection has had work done for nothing that is worth ``seconds``."""
        begin = max(now, self._paid.pop(connection, now))
        self._paid[connection] = min(begin + seconds, now + FREE_S + MOST_PAUSE_S)
        if len(self._paid) > MOST_CONNECTIONS:
            self._paid.popitem(last=False)

    def owes_bytes(self, connection: str, nbytes: int, bytes_per_s: int, now: float) -> None:
        """The same by bytes that came, or were in memory, for nothing. Few cost nothing."""
        if nbytes > SMALL_BYTES:
            self.owes(connection, nbytes / bytes_per_s, now)

    def wait_s(self, connection: str, now: float) -> float:
        """Seconds that the next request or answer of this connection has to wait; 0: none."""
        paid = self._paid.get(connection, now)
        if paid <= now:
            self._paid.pop(connection, None)
        return max(0.0, paid - now - FREE_S)


WAIT_S = 60.0
"""How long a request may take to arrive, and how long it, or an answer, may wait for room."""

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class RoomShare:
    """A share of a room that a call has."""

    connection: str
    nbytes: int


class Room:
    """``in_all`` bytes that calls share, of which those of one connection have ``per_connection`` at most. Used on the
    event loop."""

    def __init__(self, what: str, in_all: int, per_connection: int, debts: Debts | None = None) -> None:
        """``what``: names the room in errors. ``debts``: of connections; None: of this room alone."""
        self._what, self._in_all, self._per_connection = what, in_all, per_connection
        self.debts = debts or Debts()
        self.used_bytes = 0
        self._by_connection: dict[str, int] = {}  # entries are positive
        self._waiting: OrderedDict[str, deque[tuple[RoomShare, asyncio.Future[None]]]] = OrderedDict()
        """By connection; each has one at least. The first of them does not fit."""

    async def enter(self, connection: str, nbytes: int) -> RoomShare:
        """Wait for room, once the connection owes nothing: who pauses takes none. ``leave`` gives it back. More than a
        connection may have counts as what it may have. Raises QuotaExceededError: there was none for a minute."""
        loop = asyncio.get_running_loop()
        while True:
            while (pause := self.debts.wait_s(connection, loop.time())) > 0:
                await asyncio.sleep(pause)
            share = RoomShare(connection, min(nbytes, self._per_connection))
            if connection not in self._waiting and self._fits(share):
                self._take(share)
                return share
            await self._wait(share)
            if not self.debts.wait_s(connection, loop.time()):
                return share
            self.leave(share)  # more work was done for nothing meanwhile

    async def _wait(self, share: RoomShare) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(share.connection, deque()).append((share, mine))
        try:
            async with asyncio.timeout(WAIT_S):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():
                self.leave(share)
            else:
                mine.cancel()
                self._admit()
            if isinstance(error, TimeoutError):
                raise QuotaExceededError(f"no room for {self._what} within {WAIT_S:g} s: others take it") from None
            raise

    def leave(self, share: RoomShare, keep: int = 0) -> None:
        """Give back a share, but for ``keep`` bytes."""
        given, share.nbytes = max(0, share.nbytes - keep), min(keep, share.nbytes)
        if not given:
            return
        self.used_bytes -= given
        if left := self._by_connection[share.connection] - given:
            self._by_connection[share.connection] = left
        else:
            del self._by_connection[share.connection]
        if self._waiting:
            self._admit()

    def _fits(self, share: RoomShare) -> bool:
        of_connection = self._by_connection.get(share.connection, 0) + share.nbytes
        return self.used_bytes + share.nbytes <= self._in_all and of_connection <= self._per_connection

    def _take(self, share: RoomShare) -> None:
        self.used_bytes += share.nbytes
        self._by_connection[share.connection] = self._by_connection.get(share.connection, 0) + share.nbytes

    def _admit(self) -> None:
        """Let in those who wait, as far as they fit; connections in the order in which they began to wait."""
        for connection, queue in list(self._waiting.items()):
            while queue:
                share, waiting = queue[0]
                if not waiting.done():
                    if not self._fits(share):
                        break
                    self._take(share)
                    waiting.set_result(None)
                queue.popleft()
            if not queue:
                del self._waiting[connection]


class RequestRoom(Room):
    """Room for requests under way: those that arrive, and those that are being answered. A message that has not arrived
    counts as the longest one."""

    def __init__(self, in_all: int, debts: Debts | None = None) -> None:
        """A connection may have an eighth of ``in_all`` bytes, and two of the largest requests in any case: one may
        arrive while others are answered."""
        super().__init__("the request", max(in_all, 2 * ARRAYS_BYTES), max(in_all // 8, 2 * ARRAYS_BYTES), debts)

    async def read(self, context: Any, check_size: Callable[[int], None]) -> tuple[RoomShare, bytes]:
        """Read the request of a call. It has its share of the room until ``leave``. ``check_size`` gets the size of a
        request in pieces before they are read, and may raise. Raises QuotaExceededError: it did not arrive in time, or
        there was no room for it. ConfigError: the caller has sent none, or pieces that do not make one."""
        connection = context.peer()
        share = await self.enter(connection, MESSAGE_BYTES)
        try:
            raw = await _in_time(_message(context))
            if nbytes := announced(raw):
                check_size(nbytes)
                self.leave(share)  # a call that waits for room has none
                share = await self.enter(connection, nbytes + MESSAGE_BYTES)
                raw = await _in_time(_in_pieces(context, nbytes))
        except BaseException as error:
            if isinstance(error, AttaError):  # nothing came of what was read, or gRPC has refused it as too long
                self.refused(share)
            self.leave(share)
            raise
        self.leave(share, keep=len(raw))
        return share, raw

    def refused(self, share: RoomShare) -> None:
        """The request of this share was refused: its connection pauses, the longer the larger it was."""
        now = asyncio.get_running_loop().time()
        self.debts.owes_bytes(share.connection, share.nbytes, REFUSED_BYTES_PER_S, now)


class AnswerRoom(Room):
    """Room for large answers, which readers may take at any pace."""

    def __init__(self, in_all: int, most_at_once: int, debts: Debts | None = None) -> None:
        """A connection may have an eighth of ``in_all`` bytes; an answer has at most ``most_at_once`` in memory."""
        super().__init__("the answer", max(in_all, most_at_once), max(in_all // 8, most_at_once), debts)
        self._most = most_at_once

    @contextlib.asynccontextmanager
    async def answer(self, connection: str, nbytes: int) -> AsyncIterator[None]:
        """Hold room for a streamed answer of ``nbytes``; raises QuotaExceededError if there was none for a minute."""
        share = await self.enter(connection, min(nbytes, self._most))
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self._given_up(share, GIVEN_UP_BYTES_PER_S)
            raise
        finally:
            self.leave(share)

    async def hold(self, context: Any, nbytes: int) -> None:
        """The same for an answer of one message to another daemon, until its call has ended."""
        share = await self.enter(context.peer(), min(nbytes, self._most))

        def ended(call: Any) -> None:
            if not call.done():
                self._given_up(share, PEERS_BYTES_PER_S)
            self.leave(share)

        context.add_done_callback(ended)

    def _given_up(self, share: RoomShare, bytes_per_s: int) -> None:
        self.debts.owes_bytes(share.connection, share.nbytes, bytes_per_s, asyncio.get_running_loop().time())


async def _in_time(reading: Coroutine[Any, Any, T]) -> T:
    """What ``reading`` returns. It is given up if it takes too long."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await reading
    except TimeoutError:
        raise QuotaExceededError(f"the request did not arrive within {WAIT_S:g} s") from None


async def _message(context: Any) -> bytes:
    """The next message of a call; raises ConfigError if there is none."""
    raw = await context.read()
    if raw is grpc.aio.EOF:  # type: ignore[attr-defined]
        raise ConfigError("the call ended before its request")
    return bytes(raw)


async def _in_pieces(context: Any, nbytes: int) -> bytes:
    """A request of ``nbytes`` whose pieces come next; raises ConfigError if they do not make one."""
    request = PiecedRequest(nbytes)
    while request.missing_bytes:
        request.add(await _message(context))
    return await aside(request.whole)
