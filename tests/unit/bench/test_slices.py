"""What pairs of slices say of two checkouts."""

from __future__ import annotations

import pytest

from atta_bench.slices import Slice, summary


def pair(base_s: float, this_s: float) -> dict[str, Slice]:
    return {
        "base": {"seeds": 100, "seconds": base_s, "cpu_s": 2 * base_s, "p99_s": base_s / 50},
        "this": {"seeds": 100, "seconds": this_s, "cpu_s": 2 * this_s, "p99_s": this_s / 50},
    }


def test_a_machine_that_slows_down_changes_no_quotient() -> None:
    found = summary([pair(speed, speed / 1.25) for speed in (1.0, 1.5, 2.0, 4.0)], "seeds/s")
    assert found["quotient"] == found["low"] == found["high"] == pytest.approx(1.25)
    assert found["base"] == pytest.approx((100 / 1.5 + 50) / 2)


def test_processor_time_has_its_own_rates() -> None:
    found = summary([pair(1.0, 1.0)] * 3, "seeds/CPU s")
    assert (found["base"], found["this"], found["quotient"]) == (50.0, 50.0, 1.0)


def test_longer_waits_are_a_lower_rate() -> None:
    found = summary([pair(1.0, 1.25)] * 3, "1 / p99 of waits, 1/s")
    assert (found["base"], found["this"], found["quotient"]) == pytest.approx((50.0, 40.0, 0.8))


def test_the_interval_holds_the_median_and_not_every_outlier() -> None:
    ordinary = [pair(1.0, 1 + k / 1000) for k in range(-20, 21)]
    found = summary([*ordinary, pair(1.0, 10.0)], "seeds/s")
    assert 1 / 1.021 < found["low"] <= found["quotient"] <= found["high"] < 1 / 0.979
    assert found["low"] < found["high"]
