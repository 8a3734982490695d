"""What connections owe for work that was done for nothing: their next requests and answers wait.

A refused request of 60 MiB takes a fifth of a second of processor time, in gRPC and on the event loop. An answer that
its caller gives up has been made in vain, and so have the first batches of a session that ends before anybody has asked
for one. A call that is not admitted costs little, but there may be thousands a second. Honest callers do little of
that, and what they owe is paid before they notice. Whoever does it again and again gets a small share of the machine.
Pure.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Debts"]

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
MOST_S = 10.0
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
        self._paid[connection] = min(begin + seconds, now + FREE_S + MOST_S)
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
