"""Workers do all that they are given, in order, and end."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from atta.daemon.engine.runner import Workers


def test_one_worker_works_in_order_and_finishes_before_it_ends() -> None:
    workers, done = Workers(1, "w"), list[int]()
    for number in range(200):
        workers.do(lambda number=number: done.append(number))  # type: ignore[misc]
    workers.shutdown()
    assert done == [*range(200)]
    workers.shutdown()
    with pytest.raises(RuntimeError, match="ended"):
        workers.do(lambda: None)


def test_as_many_threads_as_asked_for_work_at_once() -> None:
    workers, all_here, names = Workers(3, "w"), threading.Barrier(4), set[str]()

    def meet() -> None:
        names.add(threading.current_thread().name)
        all_here.wait(20)

    for _ in range(3):
        workers.do(meet)
    all_here.wait(20)
    workers.shutdown()
    assert names == {"w_0", "w_1", "w_2"}


def test_futures_bring_results_and_errors_and_can_be_cancelled() -> None:
    workers, go_on = Workers(1, "w"), threading.Event()
    first = workers.submit(go_on.wait, 20)
    failing, cancelled, last = workers.submit(int, "x"), workers.submit(int, "1"), workers.submit(divmod, 7, 3)
    assert cancelled.cancel()
    go_on.set()
    assert first.result(20) is True
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(20)
    with pytest.raises(CancelledError):
        cancelled.result(20)
    assert last.result(20) == (2, 1)
    workers.shutdown()
