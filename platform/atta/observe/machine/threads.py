"""Threads with names, as ``top``, ``perf`` and /proc show them; and threads for work that may hang."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

__all__ = ["aside", "name_thread", "named_threads"]

T = TypeVar("T")


def named_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads with one name, for Python and for the kernel."""
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=name_thread, initargs=(name,))


def name_thread(name: str) -> None:
    """Name the calling thread for the kernel, which keeps 15 bytes. Python names its threads only for itself."""
    with contextlib.suppress(OSError):  # a system without /proc shows no names
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name, encoding="ascii")


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
