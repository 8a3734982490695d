"""Signs of life: who is given up, and when; with real files and processes where that is what is decided."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.train.launching.life import ENDED, Pulse, Silence, born, read_pulse, signs_of_life, watched

LIMIT, START, PAUSE = 5.0, 20.0, 0.5


def test_only_the_silent_one_is_given_up() -> None:
    silence = Silence(LIMIT, START, PAUSE)
    given_up = {}
    for look in range(60):
        counts = {0: look, 1: min(look, 10), 2: None, 3: ENDED}
        for rank, seconds in silence.look(look * PAUSE, counts).items():
            given_up.setdefault(rank, (look * PAUSE, seconds))
    assert given_up == {1: (5.0 + LIMIT, LIMIT), 2: (START, START)}  # its last sign came at 5 s


@given(st.lists(st.floats(0.01, 3600.0), min_size=1, max_size=50))
def test_time_in_which_nobody_looked_is_not_silence(pauses: list[float]) -> None:
    """A launcher that was stopped finds trainers as they were: each of its looks counts two pauses at most."""
    silence = Silence(LIMIT, START, PAUSE)
    now, silent = 0.0, 0.0
    silence.look(now, {0: 7})
    for pause in pauses:
        now, silent = now + pause, silent + min(pause, 2 * PAUSE)
        found = silence.look(now, {0: 7})
        assert (0 in found) == (silent >= LIMIT) or abs(silent - LIMIT) < 1e-6


def test_signs_come_from_a_thread_and_end_with_the_block(tmp_path: Path) -> None:
    assert read_pulse(tmp_path, 3) is None
    with signs_of_life(tmp_path, 3, 1.0):
        until = time.monotonic() + 30
        while (first := read_pulse(tmp_path, 3)) is None or first.count < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert read_pulse(tmp_path, 3) == Pulse(ENDED, os.getpid(), born(os.getpid()))
    (tmp_path / "pulse-3").write_bytes(b"cut")
    assert read_pulse(tmp_path, 3) is None


def test_a_silent_process_is_killed_and_another_one_of_its_number_is_not(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        for rank, created in enumerate((born(child.pid) - 1000, born(child.pid))):
            with watched(tmp_path, [rank], 1.0) as silent:
                _write(tmp_path, rank, child.pid, created)
                until = time.monotonic() + 30
                while not silent:
                    assert time.monotonic() < until
                    time.sleep(0.01)
            assert list(silent) == [rank]
            if not rank:
                assert child.poll() is None
        assert child.wait(30) == -9


def test_when_a_process_was_created_does_not_depend_on_its_name_nor_on_the_clock(tmp_path: Path) -> None:
    """It counts from the start of the machine, not from 1970."""
    own, odd = born(os.getpid()), tmp_path / "a) R (b 1"
    odd.symlink_to(Path("/proc/self/exe").resolve())  # sys.executable may be a program that starts the interpreter
    with subprocess.Popen([odd, "-c", "input()"], stdin=subprocess.PIPE) as child:
        until = time.monotonic() + 30
        while odd.name not in Path(f"/proc/{child.pid}/stat").read_text():  # before, it is a copy of this process
            assert time.monotonic() < until
        later = born(child.pid)
        child.kill()
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert own < later < (up_s + 1) * os.sysconf("SC_CLK_TCK")
    with pytest.raises(OSError, match="No such"):
        born(child.pid)


def _write(folder: Path, rank: int, pid: int, created: int) -> None:
    from atta.train.launching.life import _FORMAT

    (folder / f"pulse-{rank}").write_bytes(_FORMAT.pack(4, pid, created))
