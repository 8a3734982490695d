"""What the tasks of a machine compete for: cores, a bounded pool of threads, and the network's switch."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Any

from atta.daemon.peers.chunks import PULL_BYTES
from atta.simulate.clock import Clock

__all__ = ["Cores", "Pool", "Port", "Switch"]

_EPSILON_S = 1e-9
"""Largest rest of work that counts as rounding error, in seconds."""

Then = Callable[..., None]


class Cores:
    """``count`` cores that all running threads share evenly: each gets min(1, count / threads) of a core.

    Processor sharing in virtual time. ``_served`` is the CPU time that a thread present since the beginning would have
    got. A thread ends when ``_served`` passes its start plus its work, whatever other threads do. A start or end costs
    O(log threads).
    """

    def __init__(self, clock: Clock, cores: int) -> None:
        self.count = cores
        self.busy_s = 0.0
        """Core seconds used up to the last start or end; ``used`` updates it."""
        self.asked_s = 0.0
        """Core seconds asked for."""
        self._clock = clock
        self._threads: list[tuple[float, int, Then, tuple[Any, ...]]] = []
        self._started = 0
        self._served = 0.0
        self._at = 0.0
        self._due = math.inf  # time of the pending call of ``_fire``; other calls are out of date

    def run(self, seconds: float, then: Then, *args: Any) -> None:
        """Use ``seconds`` of one core, then call ``then(*args)``."""
        if seconds <= 0:
            self._clock.at(self._clock.now, then, *args)
            return
        self.asked_s += seconds
        self._advance()
        self._started += 1
        heapq.heappush(self._threads, (self._served + seconds, self._started, then, args))
        self._plan()

    def used(self) -> float:
        """Core seconds used so far."""
        self._advance()
        return self.busy_s

    def _advance(self) -> None:
        passed = self._clock.now - self._at
        running = len(self._threads)
        if passed > 0 and running:
            if running <= self.count:
                self._served += passed
                self.busy_s += passed * running
            else:
                self._served += passed * self.count / running
                self.busy_s += passed * self.count
        self._at = self._clock.now

    def _plan(self) -> None:
        """Ask to be called when the first thread ends, unless a call comes sooner anyway (it will plan again)."""
        left = max(0.0, self._threads[0][0] - self._served)
        due = self._clock.now + left * max(1.0, len(self._threads) / self.count)
        if due < self._due:
            self._due = due
            self._clock.at(due, self._fire, due)

    def _fire(self, due: float) -> None:
        if due != self._due:
            return
        self._due = math.inf
        self._advance()
        threads, limit, ended = self._threads, self._served + _EPSILON_S, []
        while threads and threads[0][0] <= limit:
            ended.append(heapq.heappop(threads))
        if threads:
            self._plan()
        for _, _, then, args in ended:
            then(*args)


class Pool:
    """A bounded number of threads on some cores.

    They serve the oldest batch first, as in a daemon (``atta.daemon.peers.turns``).
    """

    def __init__(self, cores: Cores, threads: int) -> None:
        self._cores, self._free = cores, threads
        self._waiting: list[tuple[float, int, float, Then, tuple[Any, ...]]] = []
        self._arrivals = count()

    def run(self, since: float, seconds: float, then: Then, *args: Any) -> None:
        """As ``Cores.run``, once a thread is free, for a batch that was begun at ``since``."""
        if not self._free:
            heapq.heappush(self._waiting, (since, next(self._arrivals), seconds, then, args))
            return
        self._free -= 1
        self._cores.run(seconds, self._done, then, args)

    def _done(self, then: Then, args: tuple[Any, ...]) -> None:
        if self._waiting:
            _, _, seconds, following, others = heapq.heappop(self._waiting)
            self._cores.run(seconds, self._done, following, others)
        else:
            self._free += 1
        then(*args)


class Port:
    """A machine's full-duplex link to the switch."""

    def __init__(self) -> None:
        self.sent = self.received = 0.0  # bytes
        self.sending = False
        self.waiting: list[tuple[float, int, Port, float, tuple[Any, ...]]] = []  # answers to send
        self.down_free = 0.0  # when the last message accepted so far has arrived


class Switch:
    """A switch that never blocks. Each direction of a port passes messages one after another, at the link's rate.

    A port sends the oldest batch's messages first, and receives in the order of the first bytes. Long data goes as
    several messages, and those of an older batch may come in between. Messages cut through: the receiver's downlink
    begins when the first byte arrives, half a round trip after the sender's uplink began.
    """

    def __init__(self, clock: Clock, rate: float, rtt_s: float) -> None:
        """``rate`` in bytes per second; ``math.inf``: bytes take no time."""
        self._clock, self._rate, self._way_s = clock, rate, rtt_s / 2
        self._arrivals = count()

    def send(self, since: float, source: Port, target: Port, nbytes: float, *then: Any) -> None:
        """Call ``then[0](*then[1:])`` when the last byte has arrived; ``since``: when its batch was begun."""
        heapq.heappush(source.waiting, (since, next(self._arrivals), target, nbytes, then))
        if not source.sending:
            self._next(source)

    def _next(self, source: Port) -> None:
        source.sending = bool(source.waiting)
        if not source.sending:
            return
        since, turn, target, left, then = heapq.heappop(source.waiting)
        nbytes = min(left, PULL_BYTES)
        if left > nbytes:
            heapq.heappush(source.waiting, (since, turn, target, left - nbytes, then))
        seconds = nbytes / self._rate
        source.sent += nbytes
        self._clock.at(self._clock.now + seconds, self._next, source)
        last = then if left == nbytes else ()
        self._clock.at(self._clock.now + self._way_s, self._arrive, target, seconds, nbytes, last)

    def _arrive(self, target: Port, seconds: float, nbytes: float, then: tuple[Any, ...]) -> None:
        start = max(self._clock.now, target.down_free)
        target.down_free = start + seconds
        target.received += nbytes
        if then:
            self._clock.at(start + seconds, *then)
