"""The record of killed trainers divides the time from a kill to the next new step, and counts repeated steps."""

from __future__ import annotations

from typing import Any

import pytest

from atta_bench.train.killed import account, lives, wrong_steps


def marks(began: float, at: tuple[int, int] | None, steps: list[tuple[float, str]]) -> list[dict[str, Any]]:
    """A process that took 0.1 s to start, 2 s for imports, 0.5 s for the process group."""
    found: list[dict[str, Any]] = [
        {"mark": "begins", "t": began, "imports": 0.0, "spawned": began - 0.1, "began": began},
        {"mark": "joins", "t": began + 2.0, "imports": 1.5},
        {"mark": "joined", "t": began + 2.75, "imports": 1.75},
    ]
    if at is not None:
        found.append({"mark": "loaded", "t": began + 3.0, "imports": 2.0, "epoch": at[0], "step": at[1]})
    return found + [{"mark": "stepped", "t": t, "imports": 2.0, "digest": digest} for t, digest in steps]


BEFORE = marks(100.0, None, [(104.0 + step, str(step)) for step in range(1, 14)])
AFTER = marks(120.0, (1, 2), [(124.0, "11"), (125.0, "12"), (126.0, "13"), (127.0, "14")])
EPOCH_STEPS = 8


def test_the_time_after_a_kill_is_divided_whole() -> None:
    assert lives([], EPOCH_STEPS) == []
    first, second = lives([*BEFORE, *AFTER], EPOCH_STEPS)
    assert (first.first, first.last, second.first, second.last) == (1, 13, 11, 14)
    kill = account(1, 117.5, 118.0, first, second)
    assert (kill.rank, kill.step, kill.again) == (1, 13, 3)
    assert kill.total == pytest.approx(127.0 - 117.5)
    assert (kill.imports, kill.group, kill.repeating) == pytest.approx((2.0, 0.5, 3.0))
    assert kill.own + kill.interpreter + kill.imports + kill.group == pytest.approx(kill.total)


def test_steps_are_compared_with_those_of_the_undisturbed_run() -> None:
    found = lives([*BEFORE, *AFTER], EPOCH_STEPS)
    expected = [str(step) for step in range(1, 15)]
    assert wrong_steps(found, expected) == 0
    assert wrong_steps(found, [*expected[:11], "other", *expected[12:]]) == 2  # step 12 was done twice
