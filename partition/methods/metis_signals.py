"""METIS in a thread, beside a main thread that signals should still end."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator

__all__ = ["sigterm_kept"]

_POLL_S = 5e-3


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """For one call of METIS, leave SIGTERM to whatever handles it now.

    During a call METIS answers SIGTERM by a jump back into the call. But the kernel gives the signal to the main thread, and there
    the jump leads nowhere: the process crashes instead of ending. METIS has no option for that and puts its handler up more than
    once in a call, so what was there before is put back every few milliseconds. In the main thread nothing is done.
    """
    if threading.current_thread() is threading.main_thread():
        yield
        return
    set_handler = ctypes.CDLL(None).signal  # Python's own may be called in the main thread only
    set_handler.argtypes, set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    before = set_handler(signal.SIGTERM, None)
    set_handler(signal.SIGTERM, before)
    done = threading.Event()

    def replace() -> None:
        while not done.wait(_POLL_S):
            set_handler(signal.SIGTERM, before)

    watcher = threading.Thread(target=replace, name="atta-sigterm", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
