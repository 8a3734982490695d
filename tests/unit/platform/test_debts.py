"""Pauses after large requests that were refused, against a plain account of what each connection owes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.services.debts import BYTES_PER_S, FREE_BYTES, MOST_CONNECTIONS, MOST_S, Debts


def test_small_requests_cost_nothing() -> None:
    debts = Debts()
    for _ in range(1000):
        debts.refused("a", FREE_BYTES, 5.0)
    assert debts.wait_s("a", 5.0) == 0.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1 << 26), st.floats(0.0, 3.0)), max_size=50))
def test_debts_add_up_and_are_paid_by_waiting(events: list[tuple[str, int, float]]) -> None:
    debts, owed, now = Debts(), dict.fromkeys("abc", 0.0), 0.0
    for connection, nbytes, passed in events:
        now += passed
        owed = {name: max(0.0, seconds - passed) for name, seconds in owed.items()}
        debts.refused(connection, nbytes, now)
        if nbytes > FREE_BYTES:
            owed[connection] = min(MOST_S, owed[connection] + nbytes / BYTES_PER_S)
        for name, seconds in owed.items():
            assert math.isclose(debts.wait_s(name, now), seconds, abs_tol=1e-6), name


def test_the_oldest_debt_is_forgotten() -> None:
    debts = Debts()
    for number in range(MOST_CONNECTIONS + 1):
        debts.refused(str(number), 1 << 26, 0.0)
    assert debts.wait_s("0", 0.0) == 0.0
    assert debts.wait_s("1", 0.0) > 1.0
