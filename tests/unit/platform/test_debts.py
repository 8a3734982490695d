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

EVENTS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["refused", "given up", "given up by a peer", "unasked", "not admitted"]),
    st.integers(0, 1 << 26),
    st.floats(0.0, 3.0),
)


def test_small_requests_and_answers_cost_nothing() -> None:
    debts = Debts()
    for _ in range(1000):
        debts.refused("a", SMALL_BYTES, 5.0)
        debts.given_up("a", SMALL_BYTES, 5.0)
    assert debts.wait_s("a", 5.0) == 0.0


def test_what_happens_now_and_then_costs_nothing() -> None:
    """A session that nobody asked, an answer of 12 MiB, a mistaken request of 4 MiB and calls without the role, every
    second."""
    debts = Debts()
    for second in range(1000):
        debts.unasked("a", second)
        debts.given_up("a", 12 << 20, second)
        debts.refused("a", 4 << 20, second)
        for _ in range(5):
            debts.not_admitted("a", second)
        assert debts.wait_s("a", second) == 0.0


@given(st.lists(EVENTS, max_size=50))
def test_debts_add_up_and_are_paid_by_waiting(events: list[tuple[str, str, int, float]]) -> None:
    debts, owed, now = Debts(), dict.fromkeys("abc", 0.0), 0.0
    for connection, what, nbytes, passed in events:
        now += passed
        owed = {name: max(0.0, seconds - passed) for name, seconds in owed.items()}
        if what == "unasked":
            debts.unasked(connection, now)
            owed[connection] += UNASKED_S
        elif what == "not admitted":
            debts.not_admitted(connection, now)
            owed[connection] += NOT_ADMITTED_S
        elif what == "refused":
            debts.refused(connection, nbytes, now)
            owed[connection] += nbytes / REFUSED_BYTES_PER_S if nbytes > SMALL_BYTES else 0.0
        else:
            of_peers = what == "given up by a peer"
            debts.given_up(connection, nbytes, now, of_peers=of_peers)
            rate = PEERS_BYTES_PER_S if of_peers else GIVEN_UP_BYTES_PER_S
            owed[connection] += nbytes / rate if nbytes > SMALL_BYTES else 0.0
        owed[connection] = min(owed[connection], FREE_S + MOST_PAUSE_S)
        for name, seconds in owed.items():
            assert math.isclose(debts.wait_s(name, now), max(0.0, seconds - FREE_S), abs_tol=1e-6), name


def test_the_oldest_debt_is_forgotten() -> None:
    debts = Debts()
    for number in range(MOST_CONNECTIONS + 1):
        debts.refused(str(number), 1 << 27, 0.0)
    assert debts.wait_s("0", 0.0) == 0.0
    assert debts.wait_s("1", 0.0) > 1.0
