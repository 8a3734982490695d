"""bench/step.py: when a rate counts as recovered."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "bench" / "step.py"


@pytest.fixture(scope="module")
def step() -> Any:
    spec = importlib.util.spec_from_file_location("step", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_steady_rate_needs_no_recovery(step: Any) -> None:
    assert step.recovery_s(np.arange(100, 110, 0.05), 100, 110, 20.0) == 0.0


def test_a_gap_counts_from_the_change_to_its_end(step: Any) -> None:
    arrived = np.concatenate([np.arange(100, 101, 0.05), np.arange(103, 112, 0.05)])
    assert step.recovery_s(arrived, 100, 112, 20.0) == pytest.approx(3.0, abs=0.2)


def test_what_never_gets_there_has_not_recovered(step: Any) -> None:
    assert step.recovery_s(np.arange(100, 110, 0.1), 100, 110, 20.0) == math.inf
