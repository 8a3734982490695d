"""How many threads a trainer computes with, and which of them yield to others."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from atta.observe.machine.threads import YIELDING, yielding_thread
from atta.train.launching.worker import compute_threads


def test_trainers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(6))
    assert [compute_threads(trainers) for trainers in (1, 2, 4, 6, 9)] == [6, 3, 1, 1, 1]


@pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("", 6), ("0", 6), ("-2", 6), ("two", 6)])
def test_the_environment_may_name_a_number(monkeypatch: pytest.MonkeyPatch, asked: str, threads: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(6))
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert compute_threads(1) == threads


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness per thread")
def test_a_yielding_thread_leaves_others_alone() -> None:
    """Its own niceness rises; that of the thread which started it stays."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with yielding_thread("atta-test") as threads:
        found = threads.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result()
    assert found == max(before, YIELDING)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
