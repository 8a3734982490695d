"""How processes end: with their parents, when they are told, and with one line."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence

REPEATED_S = 0.05
"""How much later an interrupt that was lost is repeated."""

PARENT = "ATTA_PARENT"
"""Variable with the process id of who started a trainer."""


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


def nobody_reads(fd: int) -> bool:
    """Whether the reader of a pipe, such as ``head``, has ended. A terminal that was closed is no such pipe."""
    output = select.poll()
    output.register(fd, 0)
    return any(event == select.POLLERR for _, event in output.poll(0))


def end_with_parent(parent: int) -> None:
    """End this process when ``parent`` is not its parent any more; for a thread of its own."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


_PR_SET_PDEATHSIG = 1


def tethered(words: Sequence[str]) -> list[str]:
    """The command that runs ``python WORDS...`` and ends with this process."""
    return [sys.executable, "-m", "atta.observe.machine.ending", str(os.getpid()), *words]


def main(parent: int, words: Sequence[str]) -> None:
    """Become ``python WORDS...``; the kernel keeps the request over exec."""
    import ctypes  # takes a tenth of what `atta --help` takes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
