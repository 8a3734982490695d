"""An event loop in simulated time. When nothing is ready its clock jumps to the next timer.

Everything that runs belongs to a *node*, a simulated process. Callbacks inherit it by their context. What belongs to a
killed node is never run again, not even its ``finally`` blocks, as after SIGKILL. What belongs to a paused node waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from asyncio import events
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MOST_STEPS = 200_000
"""At most this many rounds of the loop between two movements of the clock."""


class StuckError(AssertionError):
    """Something waits for what will never come."""


class Node:
    """A simulated process: its machine, and whether it runs."""

    def __init__(self, name: str) -> None:
        self.name, self.machine = name, name
        self.alive, self.paused = True, False
        self.held: list[Any] = []
        """Callbacks that wait until the node goes on."""
        self.threads: list[Any] = []
        self.ended: list[Callable[[], None]] = []
        """Called when the node is killed: what the system does for a process that is gone."""
        self.executor: ThreadPoolExecutor | None = None
        self.clock_s = 0.0
        """Added to the time of day."""

    def context(self) -> contextvars.Context:
        context = contextvars.Context()
        context.run(NODE.set, self)
        return context


NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)


def _held(handle: events.Handle) -> bool:
    node = handle._context.get(NODE)  # type: ignore[attr-defined]
    if node is None:
        return False
    if node.alive and node.paused:
        node.held.append(handle)
    return node.paused or not node.alive


class _Ready(events.Handle):
    __slots__ = ()

    def _run(self) -> None:
        if not _held(self):
            super()._run()  # type: ignore[misc]


class _Timer(events.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        if not _held(self):
            super()._run()  # type: ignore[misc]


class _Task(asyncio.Task[Any]):
    """Sets of tasks are run through in an order that does not depend on where they lie in memory."""

    _count = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _Task._count += 1
        self._number = _Task._count
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class _Clock:
    """Stands for the selector: instead of waiting it moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.passed(timeout)
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self, rng: random.Random, *, until_s: float) -> None:
        """``until_s``: simulated seconds after which the simulation counts as stuck."""
        super().__init__()
        self._selector = _Clock(self)
        self._clock_resolution = 1e-9
        self.rng, self.now, self._until, self._steps = rng, 1000.0, 1000.0 + until_s, 0
        self.log: list[str] = []
        """What has happened, a line each."""
        self.over = False
        """Whether the simulation has ended: then nothing begins any more."""
        self.failures: list[str] = []
        """What nobody has caught."""
        self.set_exception_handler(self._note)
        _Task._count = 0
        self.set_task_factory(lambda loop, coroutine, **more: _Task(coroutine, loop=loop, **more))

    def event(self, text: str) -> None:
        self.log.append(f"{self.now - 1000:.6f} {text}")

    def time(self) -> float:
        return self.now

    def passed(self, timeout: float | None) -> None:
        """Nothing was ready for ``timeout`` seconds; None: and nothing ever will be."""
        if timeout is None:
            raise StuckError("everything waits for something else")
        if timeout > 0:
            self.now, self._steps = self.now + timeout, 0
            if self._scheduled:  # type: ignore[attr-defined]
                self.now = max(self.now, min(self._scheduled[0].when(), self.now + 1e-6))  # type: ignore[attr-defined]
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise StuckError("the clock does not move any more")
        if self.now > self._until:
            raise StuckError(f"not done after {self._until - 1000:g} simulated seconds")

    def resume(self, node: Node) -> None:
        node.paused = False
        for handle in node.held:
            self._ready.append(handle)  # type: ignore[attr-defined]
        node.held.clear()

    def _call_soon(self, callback: Any, args: Any, context: Any) -> events.Handle:
        handle = _Ready(callback, args, self, context)
        if not self.over:
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> events.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        node = NODE.get()
        if executor is None and node is not None:
            node.executor = node.executor or ThreadPoolExecutor(1)
            executor = node.executor
        return super().run_in_executor(executor, func, *args)

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _check_closed(self) -> None:
        """Coroutines that were never finished may be finalised later."""

    def _note(self, _: Any, about: dict[str, Any]) -> None:
        error = about.get("exception")
        node = NODE.get()
        if "was destroyed but it is pending" not in about["message"] and (node is None or node.alive):
            self.failures.append(f"{about['message']}: {type(error).__name__}: {error}")
