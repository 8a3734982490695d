"""Threads with names, as ``top``, ``perf`` and /proc show them; and threads for work that may hang."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
YIELDING = 10
"""Niceness of threads that compute while others wait."""


def named_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads with one name, for Python and for the kernel."""
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=name_thread, initargs=(name,))


def yielding_thread(name: str) -> ThreadPoolExecutor:
    """A thread that takes the processor when others leave it."""
    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=yield_processor, initargs=(name,))


def yield_processor(name: str) -> None:
    """From now on the calling thread has this name, and takes the processor when others leave it.

    Linux has a niceness per thread, and other systems one for the process: there it stays what it is.
    """
    name_thread(name)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            nice = max(YIELDING, os.getpriority(os.PRIO_PROCESS, 0))
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def name_thread(name: str) -> None:
    """Name the calling thread for the kernel, which keeps 15 bytes. Python names its threads only for itself."""
    with contextlib.suppress(OSError):  # a system without /proc shows no names
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name, encoding="ascii")


def in_order(jobs: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """Run ``jobs`` on ``threads`` threads and yield their results in the order of the jobs. A bounded number runs
    ahead."""
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for job in jobs:
                pending.append(pool.submit(job))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


async def aside(function: Callable[..., T], *args: object) -> T:
    """Call ``function(*args)`` on a thread of its own that does not keep the process from ending: its disk may hang."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="atta-aside", daemon=True).start()
    return await asyncio.wrap_future(future)
