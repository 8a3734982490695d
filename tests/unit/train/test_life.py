"""Signs of life: who is given up, and when; processes of trainers end with their block, also those that are stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from atta.train.launching.trainers import Processes, Silence, pulse_file, signs_of_life

LIMIT, START, PAUSE = 5.0, 20.0, 0.5


def test_only_the_silent_one_is_given_up() -> None:
    silence = Silence(LIMIT, START, PAUSE)
    given_up = {}
    for look in range(60):
        signs = {0: 1 + look, 1: 1 + min(look, 10), 2: 0, 3: 0 if look > 30 else 1 + look}
        for rank, seconds in silence.look(look * PAUSE, signs).items():
            given_up.setdefault(rank, (look * PAUSE, seconds))
    assert given_up == {1: (5.0 + LIMIT, LIMIT), 2: (START, START)}  # its last sign came at 5 s
    assert Silence(None).look(1e9, {0: 1}) == {}


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
    file, seen = pulse_file(tmp_path, 3), set[int]()
    with signs_of_life(tmp_path, 3, 0.1):
        until = time.monotonic() + 30
        while len(seen) < 3:
            assert time.monotonic() < until
            seen |= {file.stat().st_mtime_ns} if file.exists() else set()
            time.sleep(0.005)
        assert file.read_text() == str(os.getpid())
    assert not file.exists()


def test_processes_end_with_the_block_and_a_stopped_one_can_be_killed() -> None:
    with Processes() as processes:
        for number in range(2):
            processes.start(number, ["timeit", "-n", "1", "import time; time.sleep(60)"], {})
        stopped, other = (processes.running[number] for number in range(2))
        processes.send(signal.SIGSTOP, [0])
        processes.send(signal.SIGKILL, [0, 7])
        assert stopped.wait(30) == -9
        assert processes.ended() == {0: -9}
        assert processes.ended() == {}
    assert other.poll() == -9
