"""Threads for many short pieces of work. Handing one over costs a fraction of what it costs a ``ThreadPoolExecutor``,
which makes a future and several locks for each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import ParamSpec, TypeVar

from atta.observe.machine.threads import name_thread

__all__ = ["Workers"]

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Executor):
    """``count`` threads that take work in the order of its arrival."""

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(name,), name=f"{name}_{i}", daemon=True) for i in range(count)
        ]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def do(self, work: Callable[[], None]) -> None:
        """Call ``work`` on a thread. It must not raise.

        Raises RuntimeError after ``shutdown``.
        """
        if self._closed:
            raise RuntimeError("the workers have ended")
        self._work.put(work)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As ``Executor.submit``."""
        future: Future[T] = Future()
        self.do(partial(_fulfil, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish what was handed over, then end the threads. Nothing is cancelled."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _run(self, name: str) -> None:
        name_thread(name)
        while (work := self._work.get()) is not None:
            work()


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
