"""What connections owe for large requests that were refused: their next ones wait.

A refused request of 60 MiB takes a fifth of a second of processor time, in gRPC and on the event loop. Honest callers
send few such requests, so a pause after each costs them little. Whoever sends one after the other gets a small share of
the machine. Pure.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Debts"]

FREE_BYTES = 64 << 10
"""Refused requests up to this size cost nothing."""
BYTES_PER_S = 40 << 20
"""So many refused bytes may come per second from one connection."""
MOST_S = 10.0
"""No request waits longer."""
MOST_CONNECTIONS = 4096
"""More are not remembered; the oldest debt is forgotten."""


class Debts:
    """Until when each connection has to wait, in seconds of one clock."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()  # in the order in which debts were made

    def refused(self, connection: str, nbytes: int, now: float) -> None:
        """A request of ``nbytes`` from this connection was refused."""
        if nbytes <= FREE_BYTES:
            return
        begin = max(now, self._until.pop(connection, now))
        self._until[connection] = min(begin + nbytes / BYTES_PER_S, now + MOST_S)
        if len(self._until) > MOST_CONNECTIONS:
            self._until.popitem(last=False)

    def wait_s(self, connection: str, now: float) -> float:
        """Seconds that the next request of this connection has to wait; 0: none."""
        until = self._until.get(connection)
        if until is None:
            return 0.0
        if until > now:
            return until - now
        del self._until[connection]
        return 0.0
