"""Simulated time, and what the tasks of a machine compete for in it: cores, pools of threads, the network's switch."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any


class Clock:
    """``now`` is in seconds. Calls are made one at a time and never from within ``at``, so users of a clock are not
    re-entered."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0
        self._stopped = False

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Make ``call(*args)`` at ``when``, which must not lie in the past."""
        self._planned += 1
        heapq.heappush(self._calls, (when, self._planned, call, args))

    def stop(self) -> None:
        """Let ``run`` return after the current call."""
        self._stopped = True

    def run(self) -> None:
        """Make all calls until ``stop``, or until there are none."""
        calls, pop = self._calls, heapq.heappop
        while calls and not self._stopped:
            self.now, _, call, args = pop(calls)
            self.events += 1
            call(*args)


PIECE_BYTES = 256 << 10
"""What a connection sends in its turn. TCP shares a link packet by packet; pieces of 64 KiB change rates by less than 4 %."""
_EPSILON_S = 1e-9
"""Largest rest of work that counts as rounding error, in seconds."""

Then = Callable[..., None]


class Cores:
    """``count`` cores that all running threads share evenly: each gets min(1, count / threads) of a core.

    Processor sharing in virtual time. ``_served`` is the CPU time that a thread present since the beginning would have
    got. A thread ends when ``_served`` passes its start plus its work, whatever other threads do. A start or end costs
    O(log threads)."""

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

    @property
    def idle(self) -> bool:
        """Whether a core has nothing to do."""
        return len(self._threads) < self.count

    def used(self) -> float:
        """Core seconds used so far."""
        self._advance()
        return self.busy_s

    def _advance(self) -> None:
        now, running = self._clock.now, len(self._threads)
        if (passed := now - self._at) > 0:
            self._at = now
            if running:
                using = min(running, self.count)
                self._served += passed * using / running
                self.busy_s += passed * using

    def _plan(self) -> None:
        """Ask to be called when the first thread ends, unless a call comes sooner anyway (it will plan again)."""
        running, left = len(self._threads), max(0.0, self._threads[0][0] - self._served)
        due = self._clock.now + (left * running / self.count if running > self.count else left)
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

    They serve the oldest batch first, as in a daemon (``atta.daemon.services.data``). If all come with the same
    ``since``, they are served in order of arrival. A daemon's event loop is a pool of one thread.

    A thread without work sleeps. Waking it takes ``wake_s``, and no CPU time, if a core sleeps, too; a core that is at
    work switches at once."""

    def __init__(self, clock: Clock, cores: Cores, threads: int, wake_s: float = 0.0) -> None:
        self.threads = threads
        self.asked_s = 0.0
        """Core seconds asked for."""
        self._clock, self._cores, self._free, self._wake_s = clock, cores, threads, wake_s
        self._waiting: list[tuple[float, int, float, Then, tuple[Any, ...]]] = []
        self._arrivals = count()

    def run(self, since: float, seconds: float, then: Then, *args: Any) -> None:
        """As ``Cores.run``, once a thread is free, for a batch that was begun at ``since``."""
        self.asked_s += seconds
        if not self._free:
            heapq.heappush(self._waiting, (since, next(self._arrivals), seconds, then, args))
            return
        self._free -= 1
        if self._wake_s and self._cores.idle:
            self._clock.at(self._clock.now + self._wake_s, self._cores.run, seconds, self._done, then, args)
        else:
            self._cores.run(seconds, self._done, then, args)

    def _done(self, then: Then, args: tuple[Any, ...]) -> None:
        if self._waiting:
            _, _, seconds, following, others = heapq.heappop(self._waiting)
            self._cores.run(seconds, self._done, following, others)
        else:
            self._free += 1
        then(*args)


class Port:
    """A machine's full-duplex link to the switch, with a connection to every other machine."""

    def __init__(self) -> None:
        self.sent = self.received = 0.0  # bytes
        self.urgent: deque[tuple[Port, float, tuple[Any, ...]]] = deque()
        self.lines: dict[Port, deque[tuple[float, tuple[Any, ...]]]] = {}  # what waits, by connection
        self.turns: deque[Port] = deque()  # connections on which something waits, in the order of their turns
        self.sending = False  # whether the switch will look for what waits
        self.up_free = 0.0  # when the uplink has passed the last piece that it began
        self.down_free = 0.0  # when the last piece sent to it so far has arrived


class Switch:
    """A switch that never blocks. Each direction of a port passes pieces one after another, at the link's rate.

    Urgent messages go first. Then a port's connections take turns, ``PIECE_BYTES`` each, as TCP shares a link. What waits
    on a connection goes in order: it is in the buffer of a socket. A port receives in the order of the first bytes. Pieces
    cut through: the receiver's downlink begins when the first byte arrives, half a round trip after the sender's uplink
    began. All first bytes need equally long, so they arrive in the order in which pieces are begun, and an arrival is
    known when its piece is begun."""

    def __init__(self, clock: Clock, rate: float, rtt_s: float) -> None:
        """``rate`` in bytes per second; ``math.inf``: bytes take no time."""
        self._clock, self._rate, self._way_s = clock, rate, rtt_s / 2

    def send(self, source: Port, target: Port, nbytes: float, *then: Any, urgent: bool = False) -> None:
        """Call ``then[0](*then[1:])`` when the last byte has arrived."""
        if not source.sending:
            if source.up_free <= self._clock.now and (urgent or nbytes <= PIECE_BYTES):
                self._begin(source, target, nbytes, then)
                return
            source.sending = True
            self._clock.at(max(self._clock.now, source.up_free), self._next, source)
        if urgent:
            source.urgent.append((target, nbytes, then))
            return
        line = source.lines.setdefault(target, deque())
        if not line:
            source.turns.append(target)
        line.append((nbytes, then))

    def _next(self, source: Port) -> None:
        """The uplink is free, and something waits for it."""
        if source.urgent:
            self._begin(source, *source.urgent.popleft())
        else:
            target = source.turns.popleft()
            line = source.lines[target]
            left, then = line.popleft()
            nbytes = min(left, PIECE_BYTES)
            if left > nbytes:
                line.appendleft((left - nbytes, then))
            if line:
                source.turns.append(target)
            self._begin(source, target, nbytes, then if left == nbytes else ())
        source.sending = bool(source.urgent or source.turns)
        if source.sending:
            self._clock.at(source.up_free, self._next, source)

    def _begin(self, source: Port, target: Port, nbytes: float, then: tuple[Any, ...]) -> None:
        """Pass a piece. ``then`` is empty if more of the message follows."""
        now, seconds = self._clock.now, nbytes / self._rate
        source.sent += nbytes
        source.up_free = now + seconds
        target.received += nbytes
        target.down_free = max(now + self._way_s, target.down_free) + seconds
        if then:
            self._clock.at(target.down_free, *then)
