"""Which pushes have been applied: retries are recognised by the numbers that their clients give them.

A client registers with one table of one owner, then numbers its pushes to it 0, 1, 2, ... They may arrive in any order and more
than once; each is applied once. The number of a push that was refused is not used up: the client gives it to its next one, or says
that all lower numbers are settled. What is kept per client is the first number that has not come yet and those after it that have.

A client that is not registered is refused: nobody could say whether its push has been applied before. This is why clients may be
forgotten. What comes from a snapshot is there to recognise retries only: whoever goes on registers anew, so that no stray copy of
a push from before the snapshot was loaded changes what was loaded.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from atta.errors import ConfigError, QuotaExceededError, UnknownClientError

__all__ = ["MAX_CLIENTS", "WINDOW", "Client", "Sequences"]

WINDOW = 4096
"""A push may come at most this many numbers after the first one that is still missing."""
MAX_CLIENTS = 65536
"""That are remembered."""

Client = int | str
_MAX_NAME = 256


@dataclass(slots=True)
class _ClientPushes:
    """Numbers below ``expected`` and those in ``ahead`` have been applied, those in ``busy`` are being applied.

    ``over``: no new numbers are taken, as after a snapshot was loaded. ``active``: heard of since the last ``expire``, which saw it
    active last at ``heard`` (seconds).
    """

    expected: int = 0
    ahead: set[int] = field(default_factory=set)
    over: bool = False
    busy: set[int] = field(default_factory=set)
    active: bool = True
    heard: float = 0.0

    def has(self, sequence: int) -> bool:
        return sequence < self.expected or sequence in self.ahead

    def add(self, sequence: int) -> None:
        if sequence >= self.expected:
            self.ahead.add(sequence)
        self._close_up()

    def skip_to(self, settled: int) -> None:
        if settled > self.expected:
            self.expected = settled
            self.ahead = {sequence for sequence in self.ahead if sequence >= settled}
            self._close_up()

    def _close_up(self) -> None:
        while self.expected in self.ahead:
            self.ahead.remove(self.expected)
            self.expected += 1


class Sequences:
    """The clients of one table. Safe to use from many threads."""

    def __init__(self, *, max_clients: int = MAX_CLIENTS) -> None:
        self._max_clients = max_clients
        self._changed = threading.Condition(threading.Lock())
        self._clients: dict[Client, _ClientPushes] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def register(self, client: Client) -> None:
        """Let a client push; ``client`` must never have been registered before, nor be again once it is forgotten.

        Raises:
            ConfigError: it is registered, or is no name of a client.
            QuotaExceededError: too many clients.
        """
        _check(client, 0)
        with self._changed:
            if client in self._clients:
                raise ConfigError(f"client {client!r}: is registered already")
            if len(self._clients) >= self._max_clients:
                raise QuotaExceededError(f"client {client!r}: {self._max_clients} clients are remembered already")
            self._clients[client] = _ClientPushes()

    @contextlib.contextmanager
    def once(self, client: Client, sequence: int, settled: int = 0) -> Iterator[bool]:
        """Whether this push is to be applied now, in the body; an error there leaves its number unused.

        A retry waits for a push of the same number that is being applied, so that its answer means the same. Numbers below
        ``settled`` will not come any more: those that are missing are not waited for.

        Raises:
            ConfigError: no client or number at all.
            UnknownClientError: the client is not registered, or the push is new and a snapshot was loaded since it registered.
            QuotaExceededError: too far ahead of a push that is missing.
        """
        _check(client, sequence)
        _check(client, settled)
        seen = self._claim(client, sequence, min(settled, sequence))
        if seen is None:
            yield False
            return
        try:
            yield True
        except BaseException:
            self._finish(sequence, seen, applied=False)
            raise
        self._finish(sequence, seen, applied=True)

    def forget(self, client: Client) -> bool:
        """Drop a client: what it may still send is refused. False: it was not known."""
        with self._changed:
            return self._clients.pop(client, None) is not None

    def expire(self, now: float, idle_s: float) -> int:
        """Forget clients of which nothing was heard for ``idle_s`` seconds before ``now``; how many these were.

        To be called again and again: when a client was heard of is known as exactly as this is called often.
        """
        with self._changed:
            gone = []
            for client, seen in self._clients.items():
                if seen.active or seen.busy:
                    seen.active, seen.heard = False, now
                elif now - seen.heard > idle_s:
                    gone.append(client)
            for client in gone:
                del self._clients[client]
            return len(gone)

    def to_json(self) -> list[Any]:
        """[client, expected, ahead] of every client."""
        with self._changed:
            return [[client, seen.expected, sorted(seen.ahead)] for client, seen in self._clients.items()]

    @classmethod
    def from_json(cls, value: object) -> Sequences:
        """What ``to_json`` has made, to recognise retries of these clients; raises ValueError or TypeError."""
        made = cls()
        if not isinstance(value, list):
            raise ConfigError(f"clients: {value!r} is no list")
        for client, expected, ahead in value:
            _check(client, expected)
            for sequence in ahead:
                _check(client, sequence)
                if not expected < sequence < expected + WINDOW:
                    raise ConfigError(f"client {client!r}: number {sequence} cannot be ahead of {expected}")
            made._clients[client] = _ClientPushes(expected, set(ahead), over=True)
        return made

    def _claim(self, client: Client, sequence: int, settled: int) -> _ClientPushes | None:
        with self._changed:
            while True:
                seen = self._clients.get(client)
                if seen is None:
                    raise UnknownClientError(f"client {client!r} is not known, or not any more")
                seen.active = True
                if seen.has(sequence):
                    return None
                if seen.over:
                    raise UnknownClientError(f"a snapshot was loaded since client {client!r} registered")
                seen.skip_to(settled)
                if sequence not in seen.busy:
                    break
                self._changed.wait()
            if sequence >= seen.expected + WINDOW:
                raise QuotaExceededError(
                    f"client {client!r}: push {sequence} is {WINDOW} or more ahead of push {seen.expected}, which is missing"
                )
            seen.busy.add(sequence)
            return seen

    def _finish(self, sequence: int, seen: _ClientPushes, *, applied: bool) -> None:
        with self._changed:
            seen.busy.remove(sequence)
            if applied:
                seen.add(sequence)
            self._changed.notify_all()


def _check(client: object, sequence: object) -> None:
    if isinstance(client, str):
        if not 0 < len(client) <= _MAX_NAME:
            raise ConfigError(f"client: a name of {len(client)} characters; 1 to {_MAX_NAME} are possible")
    elif type(client) is not int or not -(2**63) <= client < 2**64:
        raise ConfigError(f"client: {client!r} is neither a name nor an integer of 64 bits")
    if type(sequence) is not int or not 0 <= sequence < 2**63:
        raise ConfigError(f"client {client!r}: {sequence!r} is no number of a push")
