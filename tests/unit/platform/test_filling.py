"""What is filled in from other daemons: each piece once, owners in turn, within the rate, again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon import filling
from atta.daemon.filling import FIRST_RETRY_S, LAST_RETRY_S, Filler, FillPiece
from atta.errors import UnavailableError

Outcome = tuple[bool, int, float]
"""Whether a fetch works, the bytes that come, the seconds that it takes."""


def filled(
    counts: dict[int, int], outcome: Callable[[int], Outcome], *, home: int = 0, rate: float = 1e12
) -> list[tuple[float, int, int, Outcome]]:
    """What a filler asks for of so many pieces by owner, in virtual time: when, of whom, which piece, what comes of it."""
    now, asked = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        assert seconds > 0
        now += seconds * (1 + 1e-9) + 1e-9

    async def fetch(owner: int, number: int) -> int:
        nonlocal now
        works, nbytes, took = found = outcome(owner)
        asked.append((now, owner, number, found))
        now += took
        if not works:
            raise UnavailableError("a", "gone")
        return nbytes

    async def reached(_: int) -> bool:
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "time", SimpleNamespace(monotonic=lambda: now))
        patch.setattr(filling, "asyncio", SimpleNamespace(sleep=sleep))
        pieces = [FillPiece(owner, partial(fetch, owner, i)) for owner, count in counts.items() for i in range(count)]
        filler = Filler(reached, home=home, bytes_per_s=rate)
        asyncio.run(filler.fill(pieces))
    failures = sum(not works for *_, (works, _, _) in asked)
    came = sum(nbytes for *_, (works, nbytes, _) in asked if works)
    assert filler.stats() == {"filled_bytes": came, "fill_failures": failures, "fill_pieces_left": 0.0}
    return asked


def test_owners_take_turns_and_the_one_after_the_own_partition_begins() -> None:
    found = filled({0: 1, 1: 2, 2: 3}, lambda _: (True, 1, 0.0), home=2)
    assert [(owner, number) for _, owner, number, _ in found] == [(2, 0), (0, 0), (1, 0), (2, 1), (1, 1), (2, 2)]


def test_an_owner_that_is_away_is_left_alone_for_a_time_that_doubles_and_the_others_go_on() -> None:
    failures = iter([False] * 13)
    found = filled({0: 1, 1: 1}, lambda owner: (owner == 1 or next(failures, True), 1, 0.0))
    assert [owner for _, owner, *_ in found] == [0, 1, *[0] * 13]
    times = [now for now, owner, *_ in found if owner == 0]
    waits = [after - before for before, after in pairwise(times)]
    assert waits == pytest.approx([min(FIRST_RETRY_S * 2**i, LAST_RETRY_S) for i in range(13)], rel=1e-6)


@settings(deadline=None)
@given(
    counts=st.dictionaries(st.integers(0, 5), st.integers(0, 4), max_size=5),
    outcomes=st.lists(st.tuples(st.booleans(), st.integers(0, 2000), st.floats(0, 0.5)), max_size=40),
)
def test_every_piece_comes_once_in_its_owners_order_and_within_the_rate(
    counts: dict[int, int], outcomes: list[Outcome]
) -> None:
    rate, steps = 1000.0, iter(outcomes)
    found = filled(counts, lambda _: next(steps, (True, 100, 0.0)), rate=rate)
    came = [(owner, number) for _, owner, number, (works, *_) in found if works]
    assert sorted(came) == sorted((owner, i) for owner, count in counts.items() for i in range(count))
    for owner in counts:
        numbers = [number for of, number in came if of == owner]
        assert numbers == sorted(numbers)
    good = [(now, nbytes) for now, *_, (works, nbytes, _) in found if works]
    for (start, nbytes), (after, _) in pairwise(good):
        assert after >= start + nbytes / rate - 1e-6


def test_an_owner_that_is_not_there_is_not_asked_and_not_waited_for() -> None:
    there, fetched = {1: True, 2: False}, []

    async def fetch(name: str) -> int:
        fetched.append(name)
        there[2] = len(fetched) >= 2  # it starts while the others are being filled in
        return 10

    async def reached(owner: int) -> bool:
        return there[owner]

    pieces = [
        FillPiece(2, partial(fetch, "late")),
        FillPiece(1, partial(fetch, "a")),
        FillPiece(1, partial(fetch, "b")),
    ]
    filler = Filler(reached, home=0, bytes_per_s=1e9)
    asyncio.run(asyncio.wait_for(filler.fill(pieces), 20))
    assert fetched == ["a", "b", "late"]
    assert filler.stats() == {"filled_bytes": 30.0, "fill_failures": 0.0, "fill_pieces_left": 0.0}
