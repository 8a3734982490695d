"""Repetitions of requests are few, and come later and later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.client import control
from atta.client.control import Patience
from atta.wire.retries import AT_ONCE, FIRST_PAUSE_S, LONGEST_PAUSE_S, SHARE, RetryBudget, pause_s


@given(st.lists(st.booleans(), max_size=400), st.integers(1, 20))
def test_repetitions_are_a_tenth_of_all_requests_and_some_at_once(fails: list[bool], at_once: int) -> None:
    budget = RetryBudget(at_once)
    requests = repeated = 0
    for failed in fails:
        budget.asked()
        requests += 1
        if failed and budget.take():
            repeated += 1
            requests += 1
            budget.asked()
        assert repeated <= at_once + SHARE * requests + 1e-9
        assert 0 <= budget.left <= at_once


def test_a_budget_comes_back_with_requests_that_succeed() -> None:
    budget = RetryBudget()
    while budget.take():
        budget.asked()
    for _ in range(11):
        budget.asked()
    assert budget.take()
    assert not budget.take()


@given(st.integers(1, 40), st.floats(0, 1))
def test_pauses(failures: int, drawn: float) -> None:
    soon = pause_s(failures, RetryBudget(), drawn)
    assert min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S) / 2 <= soon <= LONGEST_PAUSE_S
    empty = RetryBudget(1)
    assert not empty.take()
    assert LONGEST_PAUSE_S / 2 <= pause_s(1, empty, drawn) <= LONGEST_PAUSE_S


def test_a_client_repeats_for_its_time_at_the_slowest_pace_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [100.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(control.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(control.time, "sleep", sleep)
    budget = RetryBudget()
    waiting = Patience(30.0, budget)
    while waiting.lasts():
        budget.asked()
    assert 130.0 <= now[0] <= 130.0 + LONGEST_PAUSE_S
    assert len(pauses) <= AT_ONCE + SHARE * len(pauses) + 30.0 / (LONGEST_PAUSE_S / 2)
    assert not Patience(0, budget).lasts()
