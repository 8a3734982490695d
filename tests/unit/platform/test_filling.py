"""What is filled in from other daemons: each piece once, owners in turn, within the rate, again after a failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.filling import FIRST_RETRY_S, LAST_RETRY_S, Filler, FillPiece, PieceQueue, connections, pieces_by_owner
from atta.errors import UnavailableError
from tests.unit.invariants import watch


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch, PieceQueue, "next", "came", "failed")


def pieces(counts: dict[int, int]) -> dict[int, list[FillPiece]]:
    """So many different pieces by owner."""
    return {owner: [FillPiece(owner, Named(owner, i)) for i in range(count)] for owner, count in counts.items()}


class Named:
    """Stands for the fetching of the i-th piece of an owner."""

    def __init__(self, owner: int, number: int) -> None:
        self.name = owner, number

    async def __call__(self) -> int:
        raise AssertionError("a pure queue fetches nothing")


def test_owners_take_turns() -> None:
    queue = PieceQueue(pieces({2: 3, 0: 1, 1: 2}), bytes_per_s=1e12)
    found = []
    for now in range(6):
        piece = queue.next(float(now))
        assert isinstance(piece, FillPiece)
        found.append(piece.fetch.name)  # type: ignore[attr-defined]
        queue.came(1)
    assert found == [(2, 0), (0, 0), (1, 0), (2, 1), (1, 1), (2, 2)]
    assert queue.next(7.0) is None


def test_an_owner_that_is_away_is_left_alone_for_a_time_that_doubles_and_the_others_go_on() -> None:
    queue = PieceQueue(pieces({0: 1, 1: 1}), bytes_per_s=1e12)
    assert queue.next(0.0).owner == 0  # type: ignore[union-attr]
    queue.failed(0.0)
    assert queue.next(0.0).owner == 1  # type: ignore[union-attr]
    queue.came(1)
    now, waits = 0.0, []
    for _ in range(12):
        wait = queue.next(now)
        assert isinstance(wait, float)
        waits.append(wait)
        now += wait
        assert queue.next(now).owner == 0  # type: ignore[union-attr]
        queue.failed(now)
    assert waits == pytest.approx([min(FIRST_RETRY_S * 2**i, LAST_RETRY_S) for i in range(12)])


@settings(deadline=None)
@given(
    counts=st.dictionaries(st.integers(0, 5), st.integers(0, 4), max_size=5),
    outcomes=st.lists(st.tuples(st.booleans(), st.integers(0, 2000), st.floats(0, 0.5)), max_size=40),
)
def test_every_piece_comes_once_in_its_owners_order_and_within_the_rate(
    counts: dict[int, int], outcomes: list[tuple[bool, int, float]]
) -> None:
    rate, now, came, asked = 1000.0, 0.0, [], []
    queue = PieceQueue(pieces(counts), bytes_per_s=rate)
    steps = iter(outcomes)
    while (following := queue.next(now)) is not None:
        if not isinstance(following, FillPiece):
            assert following > 0
            now += following * (1 + 1e-9) + 1e-9
            continue
        works, nbytes, took = next(steps, (True, 100, 0.0))
        if works:
            asked.append((now, nbytes))
            came.append(following.fetch.name)  # type: ignore[attr-defined]
            queue.came(nbytes)
        now += took
        if not works:
            queue.failed(now)
    assert sorted(came) == sorted((owner, i) for owner, count in counts.items() for i in range(count))
    for owner in counts:
        numbers = [number for of, number in came if of == owner]
        assert numbers == sorted(numbers)
    for i, (start, nbytes) in enumerate(asked[:-1]):
        assert asked[i + 1][0] >= start + nbytes / rate - 1e-6
    assert queue.left == 0


async def run_until(filler: Filler, done: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(filler.run())
    try:
        async with asyncio.timeout(20):
            while not done():
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_the_filler_tries_again_what_fails_and_waits_for_nobody() -> None:
    there, fetched, refusals = {1: True, 2: False}, [], [UnavailableError("a", "gone")]

    def fetch(name: str) -> Callable[[], Awaitable[int]]:
        async def one() -> int:
            if refusals:
                raise refusals.pop()
            fetched.append(name)
            there[2] = len(fetched) >= 2  # it starts while the others are being filled in
            return 10

        return one

    async def reached(owner: int) -> bool:
        return there[owner]

    by_owner = {2: [FillPiece(2, fetch("late"))], 1: [FillPiece(1, fetch("a")), FillPiece(1, fetch("b"))]}
    filler = Filler(reached, PieceQueue(by_owner, bytes_per_s=1e9))
    asyncio.run(run_until(filler, lambda: len(fetched) == 3))
    assert fetched == ["a", "b", "late"]
    assert filler.stats() == {"filled_bytes": 30.0, "fill_failures": 1.0, "fill_pieces_left": 0.0}


def test_a_filler_with_nothing_to_do_rests() -> None:
    async def never(_owner: int) -> bool:
        raise AssertionError("nobody is to be asked")

    async def check() -> None:
        empty = PieceQueue({}, bytes_per_s=1.0)
        filler = asyncio.ensure_future(Filler(never, empty).run())
        await asyncio.sleep(0.02)
        assert not filler.done()
        filler.cancel()

    asyncio.run(check())


@given(owners=st.lists(st.integers(0, 9), max_size=20), home=st.integers(0, 9))
def test_every_daemon_begins_with_the_owner_after_its_own_partition(owners: list[int], home: int) -> None:
    found = pieces_by_owner(connections(owners), home)
    assert [*found] == [owner % 10 for owner in range(home, home + 10) if owner % 10 in owners]
    assert sorted(piece.owner for of in found.values() for piece in of) == sorted(owners)
    assert all(piece.owner == owner for owner, of in found.items() for piece in of)
