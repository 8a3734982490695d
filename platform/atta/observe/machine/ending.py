"""A process ends when it is told to, and when the process that started it has ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

REPEATED_S = 0.05
"""How much later an interrupt that was lost is repeated."""


def heed_interrupts() -> None:
    """Repeat an interrupt that arrives in a destructor or in a callback of a weak reference: Python prints it there, and
    goes on. Imports have such callbacks."""
    printed = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Later: else it would arrive in this function. By a signal, which also ends a call that waits.
            threading.Timer(REPEATED_S, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            printed(unraisable)

    sys.unraisablehook = hook


def end_with_parent(parent: int) -> None:
    """End this process when ``parent`` is not its parent any more; for a thread of its own."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
