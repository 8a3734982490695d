"""Simulated threads: exactly one runs at a time, and which is decided by the seed.

A thread runs until it waits: for a lock, a queue, an answer, or time. Then the event loop goes on. So an execution
has no races but those between two such points, and a seed repeats it. Each is a greenlet: to switch between threads of
the system takes ten times as long.
"""

from __future__ import annotations

import contextvars
import queue as real_queue
import threading as real_threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from greenlet import getcurrent, greenlet

from tests.sim.loop import NODE, Node, VirtualLoop

_CURRENT: list[SimThread] = []
"""The simulated thread that runs now, if one does."""
WAKE_S = 2e-4
"""Longest delay after which a thread notices that it may go on."""


class KilledError(BaseException):
    """The process of this thread was killed."""


def current() -> SimThread:
    """The running thread. The event loop must never wait, so there has to be one."""
    assert _CURRENT, "the event loop would wait for a thread"
    return _CURRENT[-1]


def waiting_thread() -> SimThread | None:
    """The running thread, which may wait; None: it is the event loop."""
    return _CURRENT[-1] if _CURRENT else None


class SimThread:
    def __init__(
        self,
        loop: VirtualLoop,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._loop, self._target, self.name = loop, target, name or "thread"
        self._args, self._kwargs = args, dict(kwargs or {})
        self.node: Node | None = NODE.get()
        contexts = [self.node.context() if self.node is not None else contextvars.Context() for _ in range(2)]
        self._inside, self._context = contexts  # a context cannot be entered twice at a time
        self._mine, self._theirs = greenlet(self._inside.run), getcurrent()
        self._round, self._parked, self._woken = 0, False, False
        self._alive, self._killed = False, False
        self._joining: list[Callable[[], None]] = []
        self.error: BaseException | None = None

    def start(self) -> None:
        self._alive, self._parked = True, True
        if self.node is not None:
            self.node.threads.append(self)
        self._soon(self._round)

    def is_alive(self) -> bool:
        return self._alive

    def join(self, timeout: float | None = None) -> None:
        if self._alive:
            waiter = current()
            self._joining.append(waiter.waker())
            waiter.park(timeout)

    async def ended(self) -> None:
        if self._alive:
            over = self._loop.create_future()
            self._joining.append(lambda: over.done() or over.set_result(None))  # type: ignore[func-returns-value]
            await over

    def kill(self) -> None:
        self._killed = True
        if self._parked:
            self._switch(self._round)

    def waker(self) -> Callable[[], None]:
        """What ends the next ``park``, called once or several times, before it or during it."""
        number = self._round
        return lambda: self._soon(number)

    def park(self, timeout: float | None = None) -> bool:
        """Wait to be woken; False: that did not happen within ``timeout`` seconds."""
        if self._killed:
            raise KilledError
        timer = None
        self._woken = True
        if timeout is not None:
            timer = self._loop.call_later(max(0.0, timeout), self._late, self._round, context=self._context)
        self._parked = True
        self._theirs.switch()
        if timer is not None:
            timer.cancel()
        if self._killed:
            raise KilledError
        return self._woken

    def _late(self, number: int) -> None:
        if number == self._round and self._parked:
            self._woken = False
            self._switch(number)

    def _soon(self, number: int) -> None:
        delay = self._loop.rng.random() * WAKE_S
        self._loop.call_later(delay, self._switch, number, context=self._context)

    def _switch(self, number: int) -> None:
        """Let it run until it waits again. On the thread of the event loop."""
        if number != self._round or not self._parked:
            return
        self._round, self._parked = self._round + 1, False
        _CURRENT.append(self)
        loop, self._theirs = events._get_running_loop(), getcurrent()
        events._set_running_loop(None)  # that of another thread
        if self._mine:
            self._mine.switch()
        else:
            self._mine.parent = self._theirs  # goes on there when it has ended
            self._mine.switch(self._body)
        events._set_running_loop(loop)
        _CURRENT.pop()

    def _body(self) -> None:
        try:
            if not self._killed and self._target is not None:
                self._target(*self._args, **self._kwargs)
        except KilledError:
            pass
        except BaseException as error:
            self.error = error
            self._loop.failures.append(f"thread {self.name}: {type(error).__name__}: {error}")
        self._alive = False
        for wake in self._joining:
            wake()
        self._mine.parent = self._theirs


class SimLock:
    def __init__(self) -> None:
        self._held, self._waiting = False, deque[Callable[[], None]]()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._held:
            if not blocking:
                return False
            thread = current()
            self._waiting.append(thread.waker())
            if not thread.park(None if timeout < 0 else timeout):
                return False
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        while self._waiting:
            self._waiting.popleft()()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> Literal[False]:
        self.release()
        return False


class SimCondition:
    def __init__(self, lock: Any = None) -> None:
        self._lock = lock if lock is not None else SimLock()
        self._waiting: list[Callable[[], None]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> Literal[False]:
        self._lock.release()
        return False

    def wait(self, timeout: float | None = None) -> bool:
        thread = current()
        wake = thread.waker()
        self._waiting.append(wake)
        self._lock.release()
        woken = thread.park(timeout)
        if wake in self._waiting:
            self._waiting.remove(wake)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        woken, self._waiting = self._waiting[:n], self._waiting[n:]
        for wake in woken:
            wake()

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimSemaphore:
    def __init__(self, value: int = 1) -> None:
        self._value, self._changed = value, SimCondition()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        while not self._value:
            if not blocking or timeout == 0 or not self._changed.wait(timeout):
                return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        self._changed.notify(n)


class SimEvent:
    def __init__(self) -> None:
        self._set, self._changed = False, SimCondition()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or self._changed.wait_for(self.is_set, timeout)


class SimQueue:
    def __init__(self) -> None:
        self._items, self._changed = deque[Any](), SimCondition()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        self._changed.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            if not block or not self._changed.wait(timeout):
                raise real_queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


class ThreadingModule:
    Lock, RLock, Condition, Event = SimLock, SimLock, SimCondition, SimEvent
    Semaphore = BoundedSemaphore = SimSemaphore

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def Thread(self, group: None = None, *given: Any, daemon: bool | None = None, **named: Any) -> SimThread:
        return SimThread(self._loop, *given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_threading, name)


class QueueModule:
    SimpleQueue = Queue = SimQueue

    def __getattr__(self, name: str) -> Any:
        return getattr(real_queue, name)
