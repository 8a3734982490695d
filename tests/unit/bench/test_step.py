"""bench/loader/step.py: when a rate counts as recovered."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atta_bench.loader.step import recovery_s


def test_a_steady_rate_needs_no_recovery() -> None:
    assert recovery_s(np.arange(100, 110, 0.05), 100, 110, 20.0) == 0.0


def test_a_gap_counts_from_the_change_to_its_end() -> None:
    arrived = np.concatenate([np.arange(100, 101, 0.05), np.arange(103, 112, 0.05)])
    assert recovery_s(arrived, 100, 112, 20.0) == pytest.approx(3.0, abs=0.2)


def test_what_never_gets_there_has_not_recovered() -> None:
    assert recovery_s(np.arange(100, 110, 0.1), 100, 110, 20.0) == math.inf
