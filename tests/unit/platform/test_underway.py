"""Pulls that rely on each other, as daemons make them: the rows of every batch against their table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.engine.tasks import RemoteContext, TaskResult, WantedRows, pull_jointly
from atta.daemon.peers import owners as underway
from atta.daemon.peers.owners import Owners, PullsUnderWay
from atta.samplers.batch.items import FeatureItem
from tests.unit.invariants import validate

TABLES = {name: np.random.default_rng(seed).random((60, 3)).astype(np.float32) for seed, name in enumerate("xy")}
KEY = ("node", ("x",), "")
OFFSETS = np.array([0, 0, 25, 60])
"""Owner 1 has the rows 0 to 24, owner 2 the others. Home is partition 0 and has none."""
FAILS = 4
"""A peer with this number of turns to wait (modulo 5) fails instead of answering."""


@pytest.fixture(autouse=True)
def small_pulls_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "LEAST_ROWS", 1)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


class Owner:
    """A peer that answers after some turns of the event loop, or fails.

    It records the vertices whose rows it sends.
    """

    address = "owner"

    def __init__(self, part: int, turns: int, sent: list[int]) -> None:
        self.part, self.turns, self.sent, self.requests = part, turns, sent, 0

    async def pull(self, item: FeatureItem, codec: str, *, age_ms: int) -> memoryview:
        self.requests += 1
        for _ in range(self.turns if self.requests == 1 else 1):
            await asyncio.sleep(0)
        if self.requests == 1 and self.turns % 5 == FAILS:
            raise ConnectionError
        rows = item.rows + OFFSETS[self.part]
        self.sent += rows.tolist()
        return memoryview(b"".join(TABLES[name][rows].tobytes() for name in item.tables))


DATASET: Any = SimpleNamespace(book=SimpleNamespace(offsets={"node": OFFSETS}), schema=SimpleNamespace(edge_types=()))


class Batches:
    """Batches of one daemon that pull from two owners."""

    def __init__(self, pool: ThreadPoolExecutor, *, at_once: int = 1 << 20) -> None:
        self.pulls, self.sent = PullsUnderWay(pool, {"node": int(OFFSETS[-1])}), list[int]()
        self._pool, self._at_once = pool, at_once

    async def make(self, rows: np.ndarray, start: int, turns: int, tables: str = "x") -> tuple[TaskResult, Any] | None:
        """A batch that begins after ``start`` turns; None: an owner failed. Afterwards its memory is overwritten."""
        for _ in range(start):
            await asyncio.sleep(0)
        positions = np.random.default_rng(start).permutation(len(rows) + 5)[: len(rows)]
        outs = [np.full((len(rows) + 5, 3), np.nan, dtype=np.float32) for _ in tables]
        cache: Any = None  # no row has a slot in it
        peers: Any = {part: Owner(part, turns, self.sent) for part in (1, 2)}
        owners = Owners(peers, DATASET, self._pool, at_once=self._at_once)
        context = RemoteContext(peers, owners, cache, self._pool, self.pulls, at_once=self._at_once)
        order = np.argsort(np.searchsorted(OFFSETS, rows, side="right"), kind="stable")
        starts = np.array([np.count_nonzero(rows < first) for first in OFFSETS])
        wanted = WantedRows(FeatureItem("node", tuple(tables), rows[order], positions[order], starts), outs)
        try:
            pulled = await pull_jointly([wanted], context)
        except ConnectionError:
            return None
        finally:
            found = [out[positions].copy() for out in outs]
            for out in outs:
                out.fill(-1)
        asked = [peer.requests for peer in peers.values() if peer.requests]
        assert len(asked) <= pulled.requests <= sum(asked)
        return pulled, found


BATCHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 59), unique=True, max_size=40),
        st.integers(0, 12),
        st.integers(0, 14),
        st.sampled_from(["x", "y", "xy"]),
    ),
    max_size=8,
)


@given(batches=BATCHES, at_once=st.sampled_from([0, 1 << 20]), looks=st.sampled_from([1, 2, underway.LOOKS]))
@settings(max_examples=150, deadline=None)
def test_every_batch_has_its_rows(
    batches: list[tuple[list[int], int, int, str]], at_once: int, looks: int, pool: ThreadPoolExecutor
) -> None:
    """After short stretches, pulls look for rows of pulls that did not look."""

    async def run() -> None:
        daemon = Batches(pool, at_once=at_once)
        wanted = [(np.array(rows, dtype=np.int64), *how) for rows, *how in batches]
        with patch.multiple(underway, LOOKS=looks, RESTS=1):
            found = await asyncio.wait_for(asyncio.gather(*(daemon.make(*one) for one in wanted)), 20)
        sent = 0
        for (rows, _, turns, tables), made in zip(wanted, found, strict=True):
            if made is None:
                assert turns % 5 == FAILS
                continue
            pulled, arrays = made
            for name, x in zip(tables, arrays, strict=True):
                np.testing.assert_array_equal(x, TABLES[name][rows])
            assert pulled.remote_rows + pulled.shared_rows == len(rows)
            assert pulled.remote_bytes == pulled.remote_rows * 12 * len(tables)
            sent += pulled.remote_rows
        assert sent <= len(daemon.sent)
        assert not daemon.pulls._last  # nothing remains after the last pull

    asyncio.run(run())


async def test_a_batch_fails_only_with_its_own_request(pool: ThreadPoolExecutor) -> None:
    """The first batch fails to bring some rows. The second batch then asks for them itself."""
    daemon = Batches(pool)
    first, second = await asyncio.gather(daemon.make(np.arange(0, 20), 0, FAILS), daemon.make(np.arange(10, 30), 1, 1))
    assert first is None
    assert second is not None
    np.testing.assert_array_equal(second[1][0], TABLES["x"][10:30])
    assert (second[0].remote_rows, second[0].shared_rows) == (20, 0)


def test_a_row_under_way_is_sent_once(pool: ThreadPoolExecutor) -> None:
    async def run() -> list[int]:
        daemon = Batches(pool)
        first, second, third = np.arange(0, 20), np.arange(10, 30), np.arange(5, 35)
        made = await asyncio.gather(daemon.make(first, 0, 8), daemon.make(second, 1, 3), daemon.make(third, 2, 3))
        assert [m and (m[0].remote_rows, m[0].shared_rows) for m in made] == [(20, 0), (10, 10), (5, 25)]
        await daemon.make(first, 0, 1)  # no other batch waits for these now
        return daemon.sent

    assert sorted(asyncio.run(run())) == sorted([*range(35), *range(20)])


async def test_a_batch_that_is_given_up_leaves_nothing_behind(pool: ThreadPoolExecutor) -> None:
    daemon = Batches(pool)
    slow = asyncio.ensure_future(daemon.make(np.arange(20), 0, 10**6 + 1))
    quick = asyncio.ensure_future(daemon.make(np.arange(20), 2, 1))
    for _ in range(10):
        await asyncio.sleep(0)
    slow.cancel()
    made = await asyncio.wait_for(quick, 20)
    assert made is not None
    np.testing.assert_array_equal(made[1][0], TABLES["x"][:20])
    assert slow.cancelled() or (await asyncio.gather(slow, return_exceptions=True))
    assert not daemon.pulls._last


async def test_rows_that_differ_have_nothing_in_common(pool: ThreadPoolExecutor) -> None:
    pulls, rows = PullsUnderWay(pool), np.arange(20)
    out = np.zeros((20, 3), dtype=np.float32)
    opened = [pulls.begin(KEY, rows, rows, [out])]
    for key in (("other", ("x",), ""), ("node", ("x", "y"), ""), ("node", ("x",), "fp16")):
        opened.append(pulls.begin(key, rows, rows, [out]))
    assert [len(pull.expected) for pull in opened] == [0] * 4
    assert len(pulls.begin(KEY, rows, rows, [out]).expected) == 1


async def test_what_is_remembered_is_bounded(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "MOST_ROWS", 100)
    pulls = PullsUnderWay(pool)
    for first in range(0, 2000, 20):
        rows = np.arange(first, first + 30)
        opened = pulls.begin(KEY, rows, rows - first, [np.zeros((30, 3), dtype=np.float32)])
        assert sum(len(shared.chosen) for shared in opened.expected) in {0, 10}
    assert len(pulls._last[KEY]._pull) <= 400


class Pulls:
    """Pulls of 20 rows each, of which at most two are open."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.under_way, self._open, self._out = PullsUnderWay(pool), list[Any](), np.zeros((20, 3), dtype=np.float32)

    def one(self, first: int) -> int:
        """A pull of the rows from ``first`` on. Returns how many of them the pull before brings."""
        rows = np.arange(first, first + 20)
        pull = self.under_way.begin(KEY, rows, np.arange(20), [self._out])
        validate(self.under_way)
        self._open.append(pull)
        if len(self._open) > 2:
            ended = self._open.pop(0)
            owed = self.under_way.end(ended, came=False)
            if owed is not None:
                owed.close()
        return sum(len(shared.chosen) for shared in pull.expected)


async def test_pulls_do_not_look_for_long_where_nothing_is_shared(pool: ThreadPoolExecutor) -> None:
    pulls = Pulls(pool)
    assert [pulls.one(20 * i) for i in range(underway.LOOKS)] == [0] * underway.LOOKS
    # The same rows again and again: nobody looks.
    assert [pulls.one(0) for _ in range(underway.RESTS)] == [0] * underway.RESTS
    assert not pulls.under_way._last  # and nothing is remembered
    # Then they look again, and go on as they find something.
    again = 10 * underway.LOOKS
    assert [pulls.one(0) for _ in range(again)] == [0, *[20] * (again - 1)]


@pytest.mark.parametrize(("step", "rest"), [(10, False), (19, False), (20, True)])
async def test_whether_pulls_look_follows_from_the_share_that_they_find(
    pool: ThreadPoolExecutor, step: int, rest: bool
) -> None:
    """Each pull has 20 - ``step`` rows of the one before: half, a twentieth, none."""
    pulls, count = Pulls(pool), 4 * underway.LOOKS
    found = [pulls.one(step * i) for i in range(count)]
    assert found == [0, *[20 - step] * (count - 1)]
    assert pulls.under_way._habits["node"].rests is rest
