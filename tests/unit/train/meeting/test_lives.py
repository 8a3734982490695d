"""When a trainer that has ended is started again."""

from __future__ import annotations

import pytest

from atta.train.launching.failure import Lives, Verdict


def test_signals_and_unknown_errors_start_a_trainer_again_up_to_the_limit() -> None:
    lives = Lives(range(2), most=2)
    assert lives.ended(1, -9, None) is Verdict.AGAIN
    assert lives.ended(1, 1, "RuntimeError") is Verdict.AGAIN
    assert lives.restarts == {0: 0, 1: 2}
    assert lives.ended(1, -15, None) is Verdict.FAILED
    assert lives.ended(0, 3, None) is Verdict.AGAIN, "each trainer has its own limit"
    assert lives.restarts == {0: 1, 1: 2}


@pytest.mark.parametrize("error", ["ConfigError", "DataError", "RestartedError", "UnknownNameError", "NonFiniteError"])
def test_an_error_of_atta_would_come_again(error: str) -> None:
    lives = Lives([0], most=2)
    assert lives.ended(0, 1, error) is Verdict.FAILED
    assert lives.restarts == {0: 0}


def test_a_trainer_that_ends_well_has_ended() -> None:
    assert Lives([0], most=0).ended(0, 0, None) is Verdict.ENDED
    assert Lives([0], most=0).ended(0, -9, None) is Verdict.FAILED
