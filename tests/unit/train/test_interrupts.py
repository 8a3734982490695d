"""An interrupt that arrives in a destructor is not lost, and not printed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal, sys, time
from atta.observe.machine.ending import heed_interrupts

class Dies:
    def __del__(self):
        {what}

heed_interrupts()
dies = Dies()
del dies
try:
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""


def run(what: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM.format(what=what)]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


def test_an_interrupt_in_a_destructor_is_repeated() -> None:
    ended = run("signal.raise_signal(signal.SIGINT)")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("interrupted\n", "", 0)


def test_other_errors_in_destructors_are_printed() -> None:
    ended = run("signal.alarm(1); signal.signal(signal.SIGALRM, signal.default_int_handler); 1 / 0")
    assert ended.stdout == "interrupted\n"
    assert "ZeroDivisionError" in ended.stderr
