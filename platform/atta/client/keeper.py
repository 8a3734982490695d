"""Sessions of a client that must outlive, or survive without, their iterators: leases are renewed, dropped ones closed."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections import defaultdict
from typing import Any

import numpy as np

from atta.client.control import Connection
from atta.client.slots import SlotMaps
from atta.errors import AttaError
from atta.protos.v1 import session_pb2

__all__ = ["SessionKeeper", "SessionState"]


class SessionState:
    """What must outlive the iterator until its session is closed: kept apart so that a finalizer can hold it."""

    def __init__(self, connection: Connection, slots: SlotMaps, keeper: SessionKeeper) -> None:
        self.connection, self.slots, self._keeper = connection, slots, keeper
        self.session = ""
        self.call: Any = None
        self.closed = False
        self._lock = threading.Lock()
        self._held: dict[int, tuple[str, int]] = {}
        self._released: list[int] = []

    def lease(self, sequence: int, slot: Any) -> np.ndarray:
        """View the slot of batch ``sequence``; its number joins the released ones when the last view dies."""
        lease = self.slots.lease(slot.path, slot.capacity, slot.nonce)
        with self._lock:
            self._held[sequence] = (slot.path, slot.nonce)
        weakref.finalize(lease, self._release, sequence).atexit = False
        return np.asarray(lease)

    def _release(self, sequence: int) -> None:
        # Runs inside garbage collection, possibly within take_released: list.append alone is safe without the lock.
        self._released.append(sequence)
        if self.closed:
            self._keeper.discard(self)

    def take_released(self) -> list[int]:
        """Numbers released since the last call."""
        return list(self._take())

    def _take(self) -> dict[int, tuple[str, int]]:
        taken, self._released = self._released, []
        with self._lock:
            return {sequence: self._held.pop(sequence) for sequence in taken}

    def close(self) -> None:
        """Cancel the outstanding request and close the session; called again, report slots let go of since then.

        A slot that the daemon no longer waits for is forgotten, so that its memory goes with its last view.
        """
        first, self.closed = not self.closed, True
        if first and self.call is not None:
            self.call.cancel()
        released = self._take()
        if not first and not released:
            return
        request = session_pb2.CloseRequest(session=self.session, viewed=list(self._held))
        lingering = False
        with contextlib.suppress(AttaError, ValueError):  # daemon gone or channel closed: the lease ends the session
            lingering = self.connection.call("SessionService.Close", request, timeout=5.0).lingering
        if not lingering:
            for path, nonce in released.values():
                self.slots.forget(path, nonce)


class SessionKeeper:
    """A background thread that renews the leases of open sessions and closes those whose iterators were garbage-collected.

    A collector may run anywhere, also inside gRPC with its locks held, so it only leaves a note here.
    """

    def __init__(self) -> None:
        self._open: weakref.WeakSet[SessionState] = weakref.WeakSet()
        self._discarded: queue.SimpleQueue[SessionState | None] = queue.SimpleQueue()
        self._period_s = 20.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def keep(self, state: SessionState, lease_s: float) -> None:
        """Renew ``state``'s lease until it is closed."""
        with self._lock:
            self._open.add(state)
            self._period_s = min(self._period_s, lease_s / 3)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="atta-keeper", daemon=True)
                self._thread.start()

    def discard(self, state: SessionState) -> None:
        """Close ``state`` soon, or report what was let go of since it was closed; never blocks."""
        self._discarded.put(state)

    def close(self) -> None:
        """Close all sessions and end the thread."""
        with self._lock:
            states, thread, self._thread = list(self._open), self._thread, None
        self._discarded.put(None)
        for state in states:
            state.close()
        if thread is not None:
            thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            try:
                state = self._discarded.get(timeout=self._period_s)
            except queue.Empty:
                self._renew()
                continue
            if state is None:
                return
            state.close()

    def _renew(self) -> None:
        with self._lock:
            by_daemon: dict[Connection, list[str]] = defaultdict(list)
            for state in self._open:
                if not state.closed:
                    by_daemon[state.connection].append(state.session)
        for connection, sessions in by_daemon.items():
            try:
                connection.call("SessionService.Renew", session_pb2.RenewRequest(sessions=sessions), timeout=5.0)
            except (AttaError, ValueError):
                continue  # the next request of the session will say what is wrong
