"""Planted bugs are found: a few at every run, all of them in the long tests."""

from __future__ import annotations

import pytest

from tests.sim.planted import PLANTED, found

FEW = 12
MANY = 40
QUICK = ["numbers of pushes are forgotten", "the cursor is off by one"]


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert found(bug, FEW) is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nine_of_ten_planted_bugs_are_found() -> None:
    assert len(PLANTED) >= 10
    missed = [bug for bug in PLANTED if found(bug, MANY) is None]
    assert len(missed) <= len(PLANTED) // 10, f"not found within {MANY} seeds: {missed}"
