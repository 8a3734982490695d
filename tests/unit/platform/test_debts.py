"""Pauses after work for nothing, against a plain account of what each connection owes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.services.rooms import (
    FREE_S,
    GIVEN_UP_BYTES_PER_S,
    MOST_CONNECTIONS,
    MOST_PAUSE_S,
    NOT_ADMITTED_S,
    PEERS_BYTES_PER_S,
    REFUSED_BYTES_PER_S,
    SMALL_BYTES,
    UNASKED_S,
    Debts,
)

COSTS = {"unasked": UNASKED_S, "not admitted": NOT_ADMITTED_S}
RATES = {"refused": REFUSED_BYTES_PER_S, "given up": GIVEN_UP_BYTES_PER_S, "given up by a peer": PEERS_BYTES_PER_S}
EVENTS = st.tuples(
    st.sampled_from("abc"), st.sampled_from([*COSTS, *RATES]), st.integers(0, 1 << 26), st.floats(0.0, 3.0)
)


def owe(debts: Debts, connection: str, what: str, nbytes: int, now: float) -> None:
    if what in COSTS:
        debts.owes(connection, COSTS[what], now)
    else:
        debts.owes_bytes(connection, nbytes, RATES[what], now)


def test_what_is_small_or_happens_now_and_then_costs_nothing() -> None:
    """A session that nobody asked, an answer of 12 MiB, a mistaken request of 4 MiB and calls without the role, every
    second."""
    debts = Debts()
    for second in range(1000):
        owe(debts, "a", "unasked", 0, second)
        owe(debts, "a", "given up", 12 << 20, second)
        owe(debts, "a", "refused", 4 << 20, second)
        for _ in range(5):
            owe(debts, "a", "not admitted", 0, second)
        for _ in range(1000):
            owe(debts, "a", "refused", SMALL_BYTES, second)
        assert debts.wait_s("a", second) == 0.0


@given(st.lists(EVENTS, max_size=50))
def test_debts_add_up_and_are_paid_by_waiting(events: list[tuple[str, str, int, float]]) -> None:
    debts, owed, now = Debts(), dict.fromkeys("abc", 0.0), 0.0
    for connection, what, nbytes, passed in events:
        now += passed
        owed = {name: max(0.0, seconds - passed) for name, seconds in owed.items()}
        owe(debts, connection, what, nbytes, now)
        owed[connection] += COSTS.get(what, nbytes / RATES[what] if what in RATES and nbytes > SMALL_BYTES else 0.0)
        owed[connection] = min(owed[connection], FREE_S + MOST_PAUSE_S)
        for name, seconds in owed.items():
            assert math.isclose(debts.wait_s(name, now), max(0.0, seconds - FREE_S), abs_tol=1e-6), name


def test_the_oldest_debt_is_forgotten() -> None:
    debts = Debts()
    for number in range(MOST_CONNECTIONS + 1):
        owe(debts, str(number), "refused", 1 << 27, 0.0)
    assert debts.wait_s("0", 0.0) == 0.0
    assert debts.wait_s("1", 0.0) > 1.0
