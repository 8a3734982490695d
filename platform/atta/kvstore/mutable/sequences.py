"""Remembers which pushes have been applied, and who waits for whom.

A client registers with one table of one owner, then numbers its pushes to it 0, 1, 2, ... They may arrive in any order
and more than once; each is applied once. The number of a refused push is still free. A client that is not registered is
refused, because its push may have been applied before. Clients from a snapshot are kept only to recognise retries: one
that goes on after a load registers anew, so a late push from before the load does not change the loaded table.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from atta.errors import ConfigError, QuotaExceededError, UnknownClientError


class Changes:
    """Wakes coroutines that wait until something has changed, by whichever thread."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def notify(self) -> None:
        """Let all who wait look again."""
        while self._waiting:
            with contextlib.suppress(IndexError):  # another thread has taken the last one
                loop, mine = self._waiting.popleft()
                loop.call_soon_threadsafe(_wake, mine)

    async def until(self, ready: Callable[[], bool], *, look_again_s: float | None = None) -> None:
        """Return when ``ready``. It is also looked at when so many seconds have passed, if it depends on a clock."""
        while not ready():
            loop = asyncio.get_running_loop()
            mine = loop.create_future()
            self._waiting.append((loop, mine))
            if ready():  # it has changed before this one waited
                return
            await asyncio.wait({mine}, timeout=look_again_s)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class Gate:
    """A lock for readers and a writer: a waiting writer goes before new readers. Not re-entrant."""

    def __init__(self, changes: Changes) -> None:
        """``changes``: is told when the lock is not held alone any more."""
        self._changed, self._changes = threading.Condition(threading.Lock()), changes
        self._inside = 0
        self._alone = False
        self._waiting = 0  # number of threads that wait to hold the lock alone

    @property
    def open(self) -> bool:
        """Whether ``shared`` would not wait now. This is only a hint: it may change at any time."""
        return not self._alone and not self._waiting

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with others."""
        with self._changed:
            self._changed.wait_for(lambda: self.open)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._inside)
                self._alone = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
            self._changes.notify()


WINDOW = 4096
"""A push may come at most this many numbers after the first one that is still missing."""
MAX_CLIENTS = 65536
"""At most this many clients are remembered."""
BUSY_S = 60.0
"""How long a push that was sent again waits for the first one, which is being applied."""

Client = int | str
_MAX_NAME = 256


class Claim(enum.Enum):
    """What is known of a push: it is new and its number is taken now, it was applied, or it is being applied."""

    FRESH = enum.auto()
    APPLIED = enum.auto()
    BUSY = enum.auto()


@dataclass(slots=True)
class _ClientPushes:
    """The pushes of one client. Numbers below ``expected`` and in ``ahead`` have been applied, those in ``busy`` are
    being applied. ``over``: new ones are refused because a snapshot was loaded. ``active``: since the last ``expire``,
    which has ``heard`` of it then, in seconds."""

    expected: int = 0
    ahead: set[int] = field(default_factory=set)
    over: bool = False
    busy: set[int] = field(default_factory=set)
    active: bool = True
    heard: float = 0.0

    def has(self, sequence: int) -> bool:
        return sequence < self.expected or sequence in self.ahead

    def add(self, *applied: int, settled: int = 0) -> None:
        """Numbers have been applied; those below ``settled`` will not come any more."""
        if settled > self.expected:
            self.expected = settled
            self.ahead = {sequence for sequence in self.ahead if sequence >= settled}
        self.ahead.update(sequence for sequence in applied if sequence >= self.expected)
        while self.expected in self.ahead:
            self.ahead.remove(self.expected)
            self.expected += 1


class Sequences:
    """The clients of one table. Safe to use from many threads."""

    def __init__(self, *, max_clients: int = MAX_CLIENTS, changes: Changes | None = None) -> None:
        """``changes``: is told when a push has been applied, or its number is unused again."""
        self._max_clients, self.changes = max_clients, changes or Changes()
        self._changed = threading.Condition(threading.Lock())
        self._clients: dict[Client, _ClientPushes] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def register(self, client: Client) -> None:
        """Let a client push. A name may be registered only once, even if it is forgotten later. Raises ConfigError: the
        name is registered already, or is not a name of a client; QuotaExceededError: too many clients."""
        _check(client, 0)
        with self._changed:
            if client in self._clients:
                raise ConfigError(f"client {client!r}: is registered already")
            if len(self._clients) >= self._max_clients:
                raise QuotaExceededError(f"client {client!r}: {self._max_clients} clients are remembered already")
            self._clients[client] = _ClientPushes()

    @contextlib.contextmanager
    def once(self, client: Client, sequence: int, settled: int = 0) -> Iterator[bool]:
        """Yield whether to apply this push now, in the body. An error in the body leaves the number unused.

        A retry waits while a push of the same number is being applied, so both get the same answer. Numbers below
        ``settled`` will not come any more; nothing waits for missing ones.

        Raises:
            ConfigError: not a valid client or number.
            UnknownClientError: the client may not make new pushes.
            QuotaExceededError: too far ahead of a push that is missing, or still being applied after ``BUSY_S``.
        """
        claim = self.claim(client, sequence, settled, wait_s=BUSY_S)
        if claim is Claim.BUSY:
            raise QuotaExceededError(
                f"push {sequence} of client {client!r} is still being applied after {BUSY_S:g} s; send it again"
            )
        if claim is Claim.APPLIED:
            yield False
            return
        try:
            yield True
        except BaseException:
            self.finish(client, sequence, applied=False)
            raise
        self.finish(client, sequence, applied=True)

    def claim(self, client: Client, sequence: int, settled: int = 0, *, wait_s: float = 0.0) -> Claim:
        """Take the number of a push, for which ``finish`` must follow if it is FRESH. Waits up to ``wait_s`` seconds
        while it is BUSY. Raises as ``once``."""
        _check(client, sequence)
        _check(client, settled)
        claim = Claim.BUSY

        def claimed() -> bool:
            nonlocal claim
            claim = self._claim(client, sequence, min(settled, sequence))
            return claim is not Claim.BUSY

        with self._changed:
            if not claimed() and wait_s:  # else the event loop may be asking, which never waits for a thread
                self._changed.wait_for(claimed, wait_s)
        return claim

    def finish(self, client: Client, sequence: int, *, applied: bool) -> None:
        """A claimed push has been applied, or its number is unused again."""
        with self._changed:
            seen = self._clients.get(client)
            if seen is not None and sequence in seen.busy:  # else the client was forgotten meanwhile
                seen.busy.remove(sequence)
                if applied:
                    seen.add(sequence)
            self._changed.notify_all()
        self.changes.notify()

    def replay(self, client: Client, sequence: int, settled: int) -> None:
        """A push was applied, as a log says that has every push once. The client may have been forgotten since."""
        with self._changed:
            if (seen := self._clients.get(client)) is not None:
                seen.add(sequence, settled=min(settled, sequence))

    def restore(self, client: Client) -> None:
        """Know a client that registered, as a log says, unless it is known."""
        with self._changed:
            self._clients.setdefault(client, _ClientPushes())

    def forget(self, client: Client) -> bool:
        """Drop a client. Its later pushes are refused. Returns whether it was known."""
        with self._changed:
            return self._clients.pop(client, None) is not None

    def expire(self, now: float, idle_s: float) -> tuple[Client, ...]:
        """Forget clients that were silent for more than ``idle_s`` seconds before ``now``; returns them. Call it
        regularly: silence is measured to the interval between calls."""
        with self._changed:
            gone = []
            for client, seen in self._clients.items():
                if seen.active or seen.busy:
                    seen.active, seen.heard = False, now
                elif now - seen.heard > idle_s:
                    gone.append(client)
            for client in gone:
                del self._clients[client]
            return tuple(gone)

    def to_json(self) -> list[Any]:
        """[client, expected, ahead] of every client."""
        with self._changed:
            return [[client, seen.expected, sorted(seen.ahead)] for client, seen in self._clients.items()]

    def over(self) -> list[Client]:
        """The clients of whom only retries are recognised."""
        with self._changed:
            return [client for client, seen in self._clients.items() if seen.over]

    @classmethod
    def from_json(cls, value: object, *, over: Container[Client] | None = None) -> Sequences:
        """Read what ``to_json`` wrote, to recognise retries of these clients; raises ValueError or TypeError. ``over``:
        the other clients may go on pushing; None: no client may."""
        made = cls()
        if not isinstance(value, list):
            raise ConfigError(f"clients: {value!r} is not a list")
        for client, expected, ahead in value:
            _check(client, expected)
            for sequence in ahead:
                _check(client, sequence)
                if not expected < sequence < expected + WINDOW:
                    raise ConfigError(f"client {client!r}: number {sequence} cannot be ahead of {expected}")
            made._clients[client] = _ClientPushes(expected, set(ahead), over=over is None or client in over)
        return made

    def _claim(self, client: Client, sequence: int, settled: int) -> Claim:
        seen = self._clients.get(client)
        if seen is None:
            raise UnknownClientError(f"client {client!r} is not known, or not any more")
        seen.active = True
        if seen.has(sequence) and sequence not in seen.busy:
            return Claim.APPLIED
        if seen.over:
            raise UnknownClientError(f"a snapshot was loaded since client {client!r} registered")
        seen.add(settled=settled)
        if sequence in seen.busy:
            return Claim.BUSY
        if sequence >= seen.expected + WINDOW:
            raise QuotaExceededError(
                f"client {client!r}: push {sequence} is {WINDOW} or more ahead of push {seen.expected}, which is missing"
            )
        seen.busy.add(sequence)
        return Claim.FRESH


def _check(client: object, sequence: object) -> None:
    if isinstance(client, str):
        if not 0 < len(client) <= _MAX_NAME:
            raise ConfigError(f"client: a name of {len(client)} characters; 1 to {_MAX_NAME} are possible")
    elif type(client) is not int or not -(2**63) <= client < 2**64:
        raise ConfigError(f"client: {client!r} is neither a name nor an integer of 64 bits")
    if type(sequence) is not int or not 0 <= sequence < 2**63:
        raise ConfigError(f"client {client!r}: {sequence!r} is not a number of a push")
