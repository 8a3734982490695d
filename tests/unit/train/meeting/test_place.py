"""Machines tell each other how often their trainers were started again, and that they have failed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from atta.errors import AttaError
from atta.train.launching.nodes import MeetingPlace, Nodes
from tests.addresses import held_addresses

WAIT_S = 20.0


def places() -> tuple[MeetingPlace, MeetingPlace]:
    """Those of two machines."""
    (endpoint,) = held_addresses(1)
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(MeetingPlace, Nodes(2, rank, endpoint), WAIT_S) for rank in range(2)]
        first, second = (one.result(60) for one in made)
    return first, second


def test_machines_know_the_restarts_of_all_ranks() -> None:
    first, second = places()
    assert first.run == second.run
    first.look()
    second.look()
    with ThreadPoolExecutor() as pool:
        ended = [
            pool.submit(place.all_ended, restarts, WAIT_S)
            for place, restarts in ((first, {0: 0, 1: 2}), (second, {2: 1, 3: 0}))
        ]
        assert [one.result(60) for one in ended] == [[0, 2, 1, 0]] * 2


def test_a_machine_that_fails_tells_the_others() -> None:
    first, second = places()
    second.fail()
    with pytest.raises(AttaError, match=r"^node 0 of 2 at .*: node 1 has failed: the cause is reported there$"):
        first.look()


def test_a_single_machine_is_reached_on_loopback() -> None:
    place = MeetingPlace(Nodes(), WAIT_S)
    assert place.address.startswith("127.0.0.1:")
    assert place.all_ended({1: 3, 0: 0}, WAIT_S) == [0, 3]
    assert place.run != MeetingPlace(Nodes(), WAIT_S).run


def test_a_machine_does_not_wait_for_ever_for_the_first_one() -> None:
    (endpoint,) = held_addresses(1)
    with pytest.raises(AttaError, match=r"^node 1 of 2 at .*: the others did not come or went away"):
        MeetingPlace(Nodes(2, 1, endpoint), 1.0)
