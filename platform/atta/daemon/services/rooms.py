"""Memory for requests and answers: bounded for all connections together and for each, first come, first served.

A message is not read before there is room for the longest one, as gRPC does not say beforehand how long it is. Until
then it waits at the sender: HTTP/2 lets through 64 KiB of it. A longer request announces its size, and its pieces are
read when there is room for all of them. Once it has come, it occupies its own size until it is answered. A streamed
answer occupies what it has in memory at a time, until its reader has taken all of it. So whoever sends without end, or
reads nothing, occupies the room of its own connection, and waits. After work for nothing a connection pauses
(``Debts``).
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

    def refused(self, connection: str, nbytes: int, now: float) -> None:
        """A request of ``nbytes`` from this connection was refused."""
        if nbytes > SMALL_BYTES:
            self._owes(connection, nbytes / REFUSED_BYTES_PER_S, now)

    def given_up(self, connection: str, nbytes: int, now: float, *, of_peers: bool = False) -> None:
        """This connection has given up an answer of which ``nbytes`` were in memory. ``of_peers``: one that other daemons
        ask for."""
        if nbytes > SMALL_BYTES:
            self._owes(connection, nbytes / (PEERS_BYTES_PER_S if of_peers else GIVEN_UP_BYTES_PER_S), now)

    def unasked(self, connection: str, now: float) -> None:
        """This connection has ended a session that nobody has asked for a batch."""
        self._owes(connection, UNASKED_S, now)

    def not_admitted(self, connection: str, now: float) -> None:
        """A call of this connection was refused because of who the caller is."""
        self._owes(connection, NOT_ADMITTED_S, now)

    def _owes(self, connection: str, seconds: float, now: float) -> None:
        begin = max(now, self._paid.pop(connection, now))
        self._paid[connection] = min(begin + seconds, now + FREE_S + MOST_PAUSE_S)
        if len(self._paid) > MOST_CONNECTIONS:
            self._paid.popitem(last=False)

    def wait_s(self, connection: str, now: float) -> float:
        """Seconds that the next request or answer of this connection has to wait; 0: none."""
        paid = self._paid.get(connection)
        if paid is None:
            return 0.0
        if paid > now:
            return max(0.0, paid - now - FREE_S)
        del self._paid[connection]
        return 0.0


WAIT_S = 60.0
"""How long a request may take to arrive, and how long it, or an answer, may wait for room."""

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class RoomShare:
    """A share of a room that a call has."""

    connection: str
    nbytes: int


class Room:
    """``in_all`` bytes that calls share, of which those of one connection have ``per_connection`` at most.

    Used on the event loop.
    """

    def __init__(self, what: str, in_all: int, per_connection: int) -> None:
        """``what``: names the room in errors."""
        self._what, self._in_all, self._per_connection = what, in_all, per_connection
        self._used = 0
        self._by_connection: dict[str, int] = {}  # entries are positive
        self._waiting: OrderedDict[str, deque[tuple[RoomShare, asyncio.Future[None]]]] = OrderedDict()
        """By connection; each has one at least. The first of them does not fit."""

    @property
    def used_bytes(self) -> int:
        """Bytes that calls have."""
        return self._used

    def enter_now(self, connection: str, nbytes: int) -> RoomShare | None:
        """As ``enter``, or None where the call has to wait."""
        share = RoomShare(connection, min(nbytes, self._per_connection))
        if connection in self._waiting or not self._fits(share):
            return None
        self._take(share)
        return share

    async def enter(self, connection: str, nbytes: int) -> RoomShare:
        """Wait for room; ``leave`` gives it back. More than a connection may have counts as what it may have.

        Raises:
            QuotaExceededError: there was none for a minute.
        """
        if (found := self.enter_now(connection, nbytes)) is not None:
            return found
        share = RoomShare(connection, min(nbytes, self._per_connection))
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(connection, deque()).append((share, mine))
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
        return share

    def leave(self, share: RoomShare, keep: int = 0) -> None:
        """Give back a share, but for ``keep`` bytes."""
        given, share.nbytes = max(0, share.nbytes - keep), min(keep, share.nbytes)
        if not given:
            return
        self._used -= given
        left = self._by_connection[share.connection] - given
        if left:
            self._by_connection[share.connection] = left
        else:
            del self._by_connection[share.connection]
        if self._waiting:
            self._admit()

    def _fits(self, share: RoomShare) -> bool:
        return (
            self._used + share.nbytes <= self._in_all
            and self._by_connection.get(share.connection, 0) + share.nbytes <= self._per_connection
        )

    def _take(self, share: RoomShare) -> None:
        self._used += share.nbytes
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


class RequestRoom:
    """Room for requests under way: those that arrive, and those that are being answered."""

    def __init__(self, in_all: int, debts: Debts | None = None) -> None:
        """A connection may have an eighth of ``in_all`` bytes, and two of the largest requests in any case: one may
        arrive while others are answered. ``debts``: of connections, which pause; None: of this room alone."""
        self._room = Room("the request", max(in_all, 2 * ARRAYS_BYTES), max(in_all // 8, 2 * ARRAYS_BYTES))
        self._debts = debts or Debts()
        self._arriving: dict[RoomShare, tuple[float, asyncio.Task[Any]]] = {}
        """When the call began to read, and its task; in order of time."""
        self._late: set[RoomShare] = set()
        self._looks = False

    @property
    def used_bytes(self) -> int:
        """Bytes of requests under way. A message that has not arrived counts as the longest one."""
        return self._room.used_bytes

    async def read(self, context: Any, check_size: Callable[[int], None]) -> tuple[RoomShare, bytes]:
        """Read the request of a call. It has its share of the room until ``leave``. ``check_size`` gets the size of a
        request in pieces before they are read, and may raise.

        Raises:
            QuotaExceededError: it did not arrive in time, or there was no room for it.
            ConfigError: the caller has sent none, or pieces that do not make one.
        """
        connection = context.peer()
        share = await self._entered(connection, MESSAGE_BYTES)
        try:
            raw = await self._in_time(share, _message(context))
            if nbytes := announced(raw):
                check_size(nbytes)
                self._room.leave(share)  # a call that waits for room has none
                share = await self._entered(connection, nbytes + MESSAGE_BYTES)
                raw = await self._in_time(share, _in_pieces(context, nbytes))
        except BaseException as error:
            if isinstance(error, AttaError):  # nothing came of what was read, or gRPC has refused it as too long
                self.refused(share)
            self._room.leave(share)
            raise
        self._room.leave(share, keep=len(raw))
        return share, raw

    async def _entered(self, connection: str, nbytes: int) -> RoomShare:
        return await _entered(self._room, self._debts, connection, nbytes)

    def refused(self, share: RoomShare) -> None:
        """The request of this share was refused: its connection pauses, the longer the larger it was."""
        self._debts.refused(share.connection, share.nbytes, asyncio.get_running_loop().time())

    def leave(self, share: RoomShare) -> None:
        """The request has been answered."""
        self._room.leave(share)

    async def _in_time(self, share: RoomShare, reading: Coroutine[Any, Any, T]) -> T:
        """What ``reading`` returns. It is given up if it takes too long."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "gRPC runs every call as a task"
        self._arriving[share] = loop.time(), task
        if not self._looks:
            self._looks = True
            loop.call_later(WAIT_S / 4, self._look)
        try:
            return await reading
        except asyncio.CancelledError:
            if share not in self._late:
                raise
            self._late.remove(share)
            task.uncancel()
            raise QuotaExceededError(f"the request did not arrive within {WAIT_S:g} s") from None
        finally:
            del self._arriving[share]

    def _look(self) -> None:
        """End the calls whose requests do not arrive. A timer for every request would cost more than this."""
        loop = asyncio.get_running_loop()
        for share, (began, task) in self._arriving.items():
            if loop.time() - began > WAIT_S and share not in self._late:
                self._late.add(share)
                task.cancel()
        self._looks = bool(self._arriving)
        if self._looks:
            loop.call_later(WAIT_S / 4, self._look)


class AnswerRoom:
    """Room for large answers, which readers may take at any pace."""

    def __init__(self, in_all: int, most_at_once: int, debts: Debts | None = None) -> None:
        """A connection may have an eighth of ``in_all`` bytes; an answer has at most ``most_at_once`` in memory.
        ``debts``: of connections, which pause; None: of this room alone."""
        self._room = Room("the answer", max(in_all, most_at_once), max(in_all // 8, most_at_once))
        self._most, self._debts = most_at_once, debts or Debts()

    @property
    def used_bytes(self) -> int:
        """Bytes of answers that are being sent."""
        return self._room.used_bytes

    @contextlib.asynccontextmanager
    async def answer(self, connection: str, nbytes: int) -> AsyncIterator[None]:
        """Hold room for a streamed answer of ``nbytes``; raises QuotaExceededError if there was none for a minute."""
        share = await _entered(self._room, self._debts, connection, min(nbytes, self._most))
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self._debts.given_up(connection, share.nbytes, asyncio.get_running_loop().time())
            raise
        finally:
            self._room.leave(share)

    async def hold(self, context: Any, nbytes: int) -> None:
        """The same for an answer of one message to another daemon, until its call has ended."""
        connection = context.peer()
        share = await _entered(self._room, self._debts, connection, min(nbytes, self._most))

        def ended(call: Any) -> None:
            if not call.done():  # it was given up
                now = asyncio.get_running_loop().time()
                self._debts.given_up(connection, share.nbytes, now, of_peers=True)
            self._room.leave(share)

        context.add_done_callback(ended)


async def _entered(room: Room, debts: Debts, connection: str, nbytes: int) -> RoomShare:
    """Room for ``nbytes``, once the connection owes nothing. Who pauses takes no room."""
    loop = asyncio.get_running_loop()
    while True:
        while (pause := debts.wait_s(connection, loop.time())) > 0:
            await asyncio.sleep(pause)
        share = room.enter_now(connection, nbytes) or await room.enter(connection, nbytes)
        if not debts.wait_s(connection, loop.time()):
            return share
        room.leave(share)  # more work was done for nothing meanwhile


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
