"""Threads: how they are started, ended and woken."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
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
    """From now on the calling thread has this name, and takes the processor when others leave it. Linux has a niceness
    per thread, and other systems one for the process: there it stays what it is."""
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
    """Run ``jobs`` on ``threads`` threads; yield their results in order. A bounded number runs ahead."""
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
    return await asyncio.wrap_future(begun(partial(function, *args), "atta-aside"))


def begun(function: Callable[[], T], name: str) -> Future[T]:
    """Start ``function`` on a thread of its own that does not keep the process from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    threading.Thread(target=fulfil, args=(future, function), name=name, daemon=True).start()
    return future


def fulfil(future: Future[T], function: Callable[[], T]) -> None:
    """Call ``function``, and give a running ``future`` what it returns or raises."""
    try:
        future.set_result(function())
    except BaseException as error:  # whoever waits must see every error
        future.set_exception(error)


_PAUSE_S = 0.002
"""How long both threads sleep before each try, so that cores sleep, too."""
_LEAST_S, _MOST_S = 0.004, 0.012
"""Of the delays that are tried."""
_TIMERS = 2
"""Number of timers at once. One alone ends more punctually than those of an event loop with more to do."""


def wake_s(tries: int = 200) -> float:
    """Median seconds from a write into a pipe until the thread that waits for it runs. Half of it each way and back."""
    there, back = os.pipe(), os.pipe()

    def answer() -> None:
        while os.read(there[0], 1) == b"?":
            os.write(back[1], b"!")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    seconds = []
    try:
        for _ in range(tries):
            time.sleep(_PAUSE_S)
            begun = time.perf_counter()
            os.write(there[1], b"?")
            os.read(back[0], 1)
            seconds.append((time.perf_counter() - begun) / 2)
        os.write(there[1], b".")
        thread.join()
    finally:
        for end in (*there, *back):
            os.close(end)
    return statistics.median(seconds)


def timer_lateness_s(tries: int = 60) -> float:
    """Mean seconds by which timers of an event loop end too late, without the slowest tenth."""
    late: list[float] = []
    draw = random.Random(0)

    async def wait() -> None:
        for _ in range(tries):
            delay, begun = draw.uniform(_LEAST_S, _MOST_S), time.perf_counter()
            await asyncio.sleep(delay)
            late.append(max(0.0, time.perf_counter() - begun - delay))

    async def side_by_side() -> None:
        await asyncio.gather(*(wait() for _ in range(_TIMERS)))

    thread = threading.Thread(target=lambda: asyncio.run(side_by_side()))  # the caller may have an event loop
    thread.start()
    thread.join()
    return statistics.fmean(sorted(late)[: max(1, len(late) * 9 // 10)])
