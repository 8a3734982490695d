"""Runs a program that never outlives the process that starts it: ``python -m atta.observe.machine.tether PID WORDS...``.

PID is the parent. The kernel kills the program when the parent's thread that started it ends, even by SIGKILL. So that
thread must wait for the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tethered(words: Sequence[str]) -> list[str]:
    """The command that runs ``python WORDS...`` and ends with this process."""
    return [sys.executable, "-m", "atta.observe.machine.tether", str(os.getpid()), *words]


def main(parent: int, words: Sequence[str]) -> None:
    """Become ``python WORDS...``; the kernel keeps the request over exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
