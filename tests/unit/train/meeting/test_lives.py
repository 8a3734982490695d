"""When a trainer that has failed is started again."""

from __future__ import annotations

import pytest

from atta.train.launching.failure import Lives


def test_signals_and_unknown_errors_start_a_trainer_again_up_to_the_limit() -> None:
    lives = Lives(range(2), most=2)
    assert [lives.again(1, error) for error in (None, "RuntimeError", None)] == [True, True, False]
    assert lives.again(0, None), "each trainer has its own limit"
    assert lives.restarts == {0: 1, 1: 2}
    assert not Lives([0], most=0).again(0, None)


@pytest.mark.parametrize("error", ["ConfigError", "DataError", "RestartedError", "UnknownNameError", "NonFiniteError"])
def test_an_error_of_atta_would_come_again(error: str) -> None:
    lives = Lives([0], most=2)
    assert not lives.again(0, error)
    assert lives.restarts == {0: 0}
