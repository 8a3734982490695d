"""Pulls that rely on each other, against the table that the rows come from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.peers import underway
from atta.daemon.peers.underway import PullsUnderWay

TABLE = np.random.default_rng(0).random((60, 3)).astype(np.float32)
KEY = (1, "node", ("x",), "")


@pytest.fixture(autouse=True)
def small_pulls_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "LEAST_ROWS", 1)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


class Owner:
    """Sends rows after some turns of the event loop, or fails; counts what it sends."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    async def send(self, rows: np.ndarray, out: np.ndarray, positions: np.ndarray, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns % 5 == 4:
            raise ConnectionError
        self.sent += rows.tolist()
        out[positions] = TABLE[rows]


async def batch(pulls: PullsUnderWay, owner: Owner, rows: np.ndarray, start: int, turns: int) -> np.ndarray | None:
    """A batch that wants ``rows``; None: the owner has failed it. Its memory is overwritten afterwards, as consumers may do."""
    for _ in range(start):
        await asyncio.sleep(0)
    positions = np.random.default_rng(start).permutation(len(rows) + 5)[: len(rows)]
    out = np.full((len(rows) + 5, 3), np.nan, dtype=np.float32)
    pull = pulls.begin(KEY, rows, positions, [out])
    came = False
    try:
        taken = np.concatenate([part.chosen for part in pull.parts]) if pull.parts else np.empty(0, dtype=np.int64)
        assert len(np.unique(taken)) == len(taken)
        rest = np.setdiff1d(np.arange(len(rows)), taken)
        await owner.send(rows[rest], out, positions[rest], turns)
        for part in pull.parts:
            if not await part.came:
                await owner.send(rows[part.chosen], out, positions[part.chosen], 1)
        came = True
    except ConnectionError:
        return None
    finally:
        await asyncio.gather(*(part.came for part in pull.parts), pulls.end(pull, came=came))
    found = out[positions].copy()
    out.fill(-1)
    return found


BATCHES = st.lists(
    st.tuples(st.lists(st.integers(0, 59), unique=True, max_size=40), st.integers(0, 12), st.integers(0, 14)),
    max_size=8,
)


@given(batches=BATCHES)
@settings(max_examples=150, deadline=None)
def test_every_batch_has_its_rows(batches: list[tuple[list[int], int, int]], pool: ThreadPoolExecutor) -> None:
    async def run() -> None:
        pulls, owner = PullsUnderWay(pool), Owner()
        wanted = [(np.array(rows, dtype=np.int64), start, turns) for rows, start, turns in batches]
        found = await asyncio.wait_for(asyncio.gather(*(batch(pulls, owner, *one) for one in wanted)), 20)
        for (rows, _, turns), x in zip(wanted, found, strict=True):
            assert (x is None) == (turns % 5 == 4)
            if x is not None:
                np.testing.assert_array_equal(x, TABLE[rows])
        assert not pulls._wanted  # nothing is kept beyond the last pull

    asyncio.run(run())


def test_a_row_under_way_is_sent_once(pool: ThreadPoolExecutor) -> None:
    async def run() -> list[int]:
        pulls, owner = PullsUnderWay(pool), Owner()
        first, second, third = np.arange(0, 20), np.arange(10, 30), np.arange(5, 35)
        await asyncio.gather(
            batch(pulls, owner, first, 0, 8), batch(pulls, owner, second, 1, 3), batch(pulls, owner, third, 2, 3)
        )
        await batch(pulls, owner, first, 0, 1)  # nobody else waits for these any more
        return owner.sent

    assert sorted(asyncio.run(run())) == sorted([*range(35), *range(20)])


def test_rows_that_differ_have_nothing_in_common(pool: ThreadPoolExecutor) -> None:
    async def run() -> None:
        pulls, rows = PullsUnderWay(pool), np.arange(20)
        out = np.zeros((20, 3), dtype=np.float32)
        opened = [pulls.begin(KEY, rows, rows, [out])]
        for key in (
            (2, "node", ("x",), ""),
            (1, "other", ("x",), ""),
            (1, "node", ("x", "y"), ""),
            (1, "node", ("x",), "fp16"),
        ):
            opened.append(pulls.begin(key, rows, rows, [out]))
        assert [len(pull.parts) for pull in opened] == [0] * 5
        assert len(pulls.begin(KEY, rows, rows, [out]).parts) == 1

    asyncio.run(run())


def test_what_is_remembered_is_bounded(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "MOST_ROWS", 100)

    async def run() -> None:
        pulls = PullsUnderWay(pool)
        for first in range(0, 2000, 20):
            rows = np.arange(first, first + 30)
            opened = pulls.begin(KEY, rows, rows - first, [np.zeros((30, 3), dtype=np.float32)])
            assert sum(len(part.chosen) for part in opened.parts) in {0, 10}
        assert len(pulls._wanted[KEY]._pull) <= 400

    asyncio.run(run())
