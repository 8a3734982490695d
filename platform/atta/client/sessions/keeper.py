"""Renews the leases of open sessions, notices daemons that are silent, and closes sessions whose iterators are gone."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
import numpy as np

from atta.client.control import CLOSED, Connection
from atta.client.sessions.slots import NearbyDaemon, SlotMaps
from atta.errors import AttaError, ConfigError
from atta.protos.v1 import control_pb2, session_pb2
from atta.wire.retries import ALONE_S, WATCH_S, DaemonSilence

log = logging.getLogger("atta.sessions")
ANSWER_S = 5.0
"""How long a renewal or a close may take."""
IDLE_S = 1.0
"""How long the keeper's thread waits for the next session when there is none. It then ends: while it runs, it holds the
connections of a cluster that nobody else holds any more."""
LOOK_S = 2.0  # how long a consumer may wait before it is looked whether its daemon reaches all others
LOOKING_S = 6.0  # how long that may take
PER_LEASE = 3
"""Number of renewals within a lease: two of them may be lost."""
PER_FAILURE = 4
"""A failed renewal is repeated after the period divided by this."""
SHORTEST_S = 0.01
"""Shortest period between two renewals."""
D = TypeVar("D")


class SessionState:
    """What must outlive the iterator until its session is closed. It is separate so that a finalizer can hold it."""

    def __init__(self, connection: Connection, slots: SlotMaps, session: str) -> None:
        self.connection, self.slots, self.session = connection, slots, session
        self.pid = 0
        """Process id of the daemon, once the session is open."""
        self._process, self._before = os.getpid(), None
        self.call: Any = None
        """What the consumer waits for, or will: ``Open``, or the latest ``Next``. The one before it is kept, too: gRPC
        cancels a call that nobody holds, and the end of an answer comes a little after its last message."""
        self.read = False
        """Whether nothing but the end of its answer is left."""
        self.nearby: NearbyDaemon | None = None
        """How to ask a daemon on this machine; None: by gRPC."""
        self.closed = False
        self.patience_s = ALONE_S
        """How long the daemon may take to answer a question, while it owes the session or a batch."""
        self.silent = False
        """Whether it has not answered such a question. Its call is cancelled then."""
        self._silence, self._owed_since, self._looked_for = DaemonSilence(), math.inf, math.inf
        self._released: deque[int] = deque()  # appended to by garbage collection, at any moment
        self._reported: list[int] = []

    def check_usable(self) -> None:
        """Check that batches can be asked for. Raises ConfigError: this is a forked child: it and its parent would take
        each other's answers. Or the session has been closed, and not by its iterator."""
        if self._inherited:
            raise ConfigError("this iterator is another process's: connections do not survive a fork (connect there)")
        if self.closed:
            raise ConfigError(CLOSED)

    @property
    def _inherited(self) -> bool:
        """Whether this is a forked child, and the session its parent's."""
        return os.getpid() != self._process

    def lease(self, sequence: int, slot: Any) -> np.ndarray:
        """View the slot of batch ``sequence``. When the last view dies, the number joins the released ones."""
        return self.slots.lease(slot, self.pid, partial(self._released.append, sequence))

    def released(self) -> list[int]:
        """Numbers of released batches that no answered request has named yet."""
        while self._released:
            self._reported.append(self._released.popleft())
        return list(self._reported)

    def answered(self) -> None:
        """The request that named the released batches has been answered."""
        self._reported.clear()
        self.silent = False
        self._silence.heard(time.monotonic())

    @contextlib.contextmanager
    def owed(self) -> Iterator[None]:
        """Within this block the consumer waits for the session or a batch."""
        self._owed_since = time.monotonic()
        try:
            yield
        finally:
            self._owed_since = math.inf

    def awaits(self, call: Any) -> None:
        """The consumer waits for this call. It is cancelled if the daemon falls silent."""
        self._before, self.call, self.read = self.call, call, False

    def question(self) -> Any:
        """If it is time to ask the daemon whether it is there: the call, else None. ``questioned`` must follow."""
        now = time.monotonic()
        if self.closed or not self._silence.due(self._owed_since, now):
            return None
        request = session_pb2.RenewRequest(sessions=[self.session])
        with contextlib.suppress(ValueError):  # the channel is closed
            call = self.connection.begin("SessionService.Renew", request, timeout=self.patience_s)
            self._silence.asked(now)
            return call
        return None

    def look(self) -> Any:
        """Once while a consumer waits for long: a call that asks which daemons this one does not reach; else None."""
        since = self._owed_since
        if not self.closed and since != self._looked_for and time.monotonic() - since >= LOOK_S:
            self._looked_for, request = since, control_pb2.DescribeRequest(reach=True)
            with contextlib.suppress(ValueError):  # the channel is closed
                return self.connection.begin("ControlService.Describe", request, timeout=LOOKING_S)
        return None

    def questioned(self, call: Any) -> None:
        """The question has ended. If it has no answer, the consumer need not wait any more."""
        lost = call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        if self._silence.ended(answered=not lost, now=time.monotonic()) and self._owed_since < math.inf:
            self.silent = True
            if self.call is not None:
                self.call.cancel()

    def close(self) -> None:
        """Cancel the outstanding request, close the session and wait for the answer, of a daemon that others can stand in
        for no longer than for a question. If it is gone or the channel is closed, the lease ends the session. Repeating it
        does nothing, and neither does a forked child: its parent's session goes on."""
        if not self._ends():
            return
        try:
            with contextlib.suppress(AttaError, ValueError):
                self.connection.call("SessionService.Close", self._request(), timeout=min(ANSWER_S, self.patience_s))
        finally:
            self.end_calls()

    def begin_close(self) -> Any:
        """Like ``close`` without waiting: the call, which ``end_calls`` must follow, or None if there is nothing to do."""
        if not self._ends():
            return None
        with contextlib.suppress(ValueError):
            return self.connection.begin("SessionService.Close", self._request(), timeout=ANSWER_S)
        self.end_calls()
        return None

    def end_calls(self) -> None:
        """Give up the latest request for a batch. If it was answered, its end came before that of the session: a daemon
        that is still sending it would complain."""
        if self.call is not None:
            self.call.cancel()
        self.leave_nearby()

    def leave_nearby(self) -> None:
        """From now on ask by gRPC alone."""
        daemon, self.nearby = self.nearby, None
        if daemon is not None:
            daemon.end()

    def _request(self) -> Any:
        return session_pb2.CloseRequest(session=self.session)

    def _ends(self) -> bool:
        first, self.closed = not self.closed and not self._inherited, True
        if first and self.call is not None and not self.read:
            self.call.cancel()
        return first


@dataclass
class _Schedule:
    period: float
    due: float


class Renewals(Generic[D]):
    """When to renew the leases of each daemon ``D``. Pure: times are seconds of any monotonic clock, passed in. Answers do
    not shift the schedule."""

    def __init__(self) -> None:
        self._daemons: dict[D, _Schedule] = {}

    def keep(self, daemon: D, lease_s: float, now: float) -> None:
        """From now on there is a lease of ``lease_s`` seconds to renew, perhaps one of several of this daemon."""
        period = max(lease_s / PER_LEASE, SHORTEST_S)
        known = self._daemons.get(daemon, _Schedule(period, math.inf))
        self._daemons[daemon] = _Schedule(min(period, known.period), min(now + period, known.due))

    def drop(self, daemon: D) -> None:
        """The daemon has no lease left to renew."""
        self._daemons.pop(daemon, None)

    def due(self, now: float) -> list[D]:
        """The daemons to ask now. Each is due again a period later, whether it answers or not."""
        found = [daemon for daemon, schedule in self._daemons.items() if schedule.due <= now]
        for daemon in found:
            self._daemons[daemon].due = now + self._daemons[daemon].period
        return found

    def failed(self, daemon: D, now: float) -> None:
        """A renewal has failed, so the next one comes sooner."""
        if (schedule := self._daemons.get(daemon)) is not None:
            schedule.due = min(schedule.due, now + schedule.period / PER_FAILURE)

    def wait_s(self, now: float) -> float:
        """Seconds until the next renewal is due; inf if there is none."""
        return max(0.0, min((schedule.due for schedule in self._daemons.values()), default=math.inf) - now)


class SessionKeeper:
    """A background thread that renews the leases of open sessions, asks daemons that owe a batch whether they are there,
    and closes sessions whose iterators were garbage-collected.

    It never waits for a daemon, so that a slow daemon delays no request to another. The garbage collector may run
    anywhere, even inside gRPC with its locks held, so a finalizer only leaves a note here. The thread runs as long as
    there may be such notes: while a session is not closed. It is started again for the next one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, named: Callable[[str], str] = str) -> None:
        """``named``: what is said of a daemon, by its address."""
        self._clock, self._named, self._told = clock, named, ""
        self._open: weakref.WeakKeyDictionary[SessionState, None] = weakref.WeakKeyDictionary()  # a set in order
        self._notes: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._renewals: Renewals[Connection] = Renewals()
        self._calls: dict[Any, None] = {}  # under way; gRPC cancels a call that nobody holds
        self._closing: dict[SessionState, None] = {}  # whose close is under way
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def watch(self, state: SessionState) -> None:
        """Ask the daemon whether it is there, while it owes what ``state`` waits for."""
        with self._lock:
            self._open[state] = None
            self._start()
        self._notes.put(_nothing)  # wakes the thread, which looks more often now

    def keep(self, state: SessionState, lease_s: float) -> None:
        """Renew ``state``'s lease until it is closed."""
        with self._lock:
            self._open[state] = None
            self._renewals.keep(state.connection, lease_s, self._clock())
            self._start()
        self._notes.put(_nothing)  # wakes the thread, which computes anew when the next renewal is due

    def drop(self, state: SessionState) -> None:
        """Close a session that may be open: its ``Open`` has not been answered."""
        with self._lock:
            self._start()
        self.discard(state)

    def discard(self, state: SessionState) -> None:
        """Close ``state`` soon; never blocks."""
        self._notes.put(partial(self._begin_close, state))

    def close(self) -> None:
        """Close all sessions and end the thread."""
        with self._lock:
            states, thread, self._thread = list(self._open), self._thread, None
        if thread is not None:
            self._notes.put(None)
            thread.join(timeout=10)
        calls = [*self._calls, *(state.begin_close() for state in states)]
        until = self._clock() + ANSWER_S
        for call in calls:
            if call is not None:
                with contextlib.suppress(grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
                    call.result(max(0.0, until - self._clock()))
        for state in (*self._closing, *states):
            state.end_calls()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="atta-keeper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                for connection in self._renewals.due(self._clock()):
                    self._renew(connection)
                for state in self._open:
                    if (call := state.question()) is not None:
                        self._under_way(call, state.questioned)
                    if (call := state.look()) is not None:
                        self._under_way(call, partial(self._looked, state.connection.address))
                wait_s = self._renewals.wait_s(self._clock())
                idle = self._is_idle()
                if idle:
                    wait_s = IDLE_S
                elif self._open:
                    wait_s = min(wait_s, WATCH_S)
            try:
                note = self._notes.get(timeout=None if math.isinf(wait_s) else wait_s)
            except queue.Empty:
                if idle and self._ends():
                    return
                continue
            if note is None:
                return
            note()

    def _is_idle(self) -> bool:
        """Whether all sessions are closed and nothing is under way, so that no finalizer has a note to leave."""
        return not self._calls and all(state.closed for state in self._open)

    def _ends(self) -> bool:
        """Whether the thread ends; from then on ``_start`` starts another one."""
        with self._lock:
            if not self._is_idle() or not self._notes.empty():
                return False
            self._thread, self._renewals = None, Renewals()
            return True

    def _renew(self, connection: Connection) -> None:
        sessions = [s.session for s in self._open if not s.closed and s.connection is connection]
        if not sessions:
            self._renewals.drop(connection)
            return
        request = session_pb2.RenewRequest(sessions=sessions)
        with contextlib.suppress(ValueError):  # the channel is closed
            call = connection.begin("SessionService.Renew", request, timeout=ANSWER_S)
            self._under_way(call, partial(self._renewed, connection))

    def _renewed(self, connection: Connection, call: Any) -> None:
        # The reply names sessions that exist no more. Their next requests will find out.
        if call.code() is not grpc.StatusCode.OK:
            with self._lock:
                self._renewals.failed(connection, self._clock())

    def _looked(self, asked: str, call: Any) -> None:
        silent = [asked] if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED else []
        if call.code() is grpc.StatusCode.OK:
            silent = call.result().unreached
        told, self._told = self._told, ", ".join(map(self._named, silent))
        if self._told not in ("", told):  # of many sessions, one says it
            log.warning("batches wait for a daemon that does not answer: %s", self._told)

    def _begin_close(self, state: SessionState) -> None:
        if (call := state.begin_close()) is not None:
            self._closing[state] = None
            self._under_way(call, lambda _: self._closed(state))

    def _closed(self, state: SessionState) -> None:
        self._closing.pop(state, None)
        state.end_calls()

    def _under_way(self, call: Any, then: Callable[[Any], None]) -> None:
        """Hold a call until it has ended. Then ``then`` runs on the keeper's thread."""
        self._calls[call] = None

        def ended() -> None:
            self._calls.pop(call, None)
            then(call)

        call.add_done_callback(lambda _: self._notes.put(ended))


def _nothing() -> None:
    pass
