"""Names of threads, as ``top``, ``perf`` and /proc show them."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["name_thread", "named_threads"]


def named_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads with one name, for Python and for the kernel."""
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=name_thread, initargs=(name,))


def name_thread(name: str) -> None:
    """Name the calling thread for the kernel, which keeps 15 bytes. Python names its threads only for itself."""
    with contextlib.suppress(OSError):  # a system without /proc shows no names
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name, encoding="ascii")
