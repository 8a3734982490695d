"""``validate`` of the daemon's state machines finds every invariant that a test breaks by hand.

Reprs leave out arrays.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.daemon.engine.session import MAX_HELD_SLOTS, Delivery, Session, SessionRequest
from atta.daemon.engine.slots import Slot, SlotPool
from atta.daemon.peers import owners as underway
from atta.daemon.peers import watching as hedges
from atta.daemon.peers.owners import Pull, PullsUnderWay
from atta.daemon.peers.watching import Hedges
from atta.wire.memfiles import Gaps
from tests.unit.invariants import validate


def breaks(machine: Any, damage: Callable[[Any], object], words: str) -> None:
    """Whether ``validate`` says ``words`` after the damage."""
    validate(machine)
    damage(machine)
    with pytest.raises(AssertionError, match=words):
        validate(machine)


def put(name: str, value: object) -> Callable[[Any], object]:
    return lambda machine: setattr(machine, name, value)


# -- sessions ----------------------------------------------------------------------------------------------------------


def delivery(number: int, **state: Any) -> Delivery:
    out: Any = SimpleNamespace(nbytes=1)
    return Delivery(number, out, slot=number, stats={}, **state)  # type: ignore[arg-type]


async def opened() -> Session:
    """A session: batch 1 is the current one, the consumer holds both taken batches, and batch 2 waits."""
    pool: Any = SimpleNamespace(lend=lambda *_: None, release=lambda *_: None, abandon=lambda *_: None)
    request: Any = SimpleNamespace(shared_memory=True)
    session = Session("s", request, pool, 0.0)
    for number in range(3):
        session.deliver(delivery(number))
    for number in range(2):
        await session.batch(number, 0.0)
    return session


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (put("sequence", -2), "sequence -2"),
        (lambda s: s.held.update({n: delivery(n, shared=True) for n in range(-MAX_HELD_SLOTS, 0)}), "holds 6 slots"),
        (lambda s: s.held.update({7: delivery(7, shared=True)}), "held before it was taken"),
        (lambda s: s.held.update({0: delivery(0)}), "sent as bytes"),
        (lambda s: s.held.update({0: delivery(0, shared=True, over=True)}), "its slot was freed"),
        (lambda s: s.queue.append(delivery(3, over=True)), "but was taken"),
        (lambda s: s.queue.append(delivery(3, senders=1)), "but was taken"),
        (lambda s: (s.held.clear(), put("sequence", -1)(s)), "before any was taken"),
        (lambda s: put("current", delivery(1, over=True))(s), "is over"),
        (lambda s: put("current", delivery(1, senders=-1))(s), "-1 requests"),
        (lambda s: (s._changed.set(), put("closed", True)(s)), "batches are left"),
        (lambda s: (s.close(), s._changed.clear()), "requests still wait"),
    ],
)
async def test_sessions(damage: Callable[[Any], object], words: str) -> None:
    breaks(await opened(), damage, words)


# -- slots -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    made = SlotPool(1 << 30)
    free, lent, _ = (made.acquire(4096) for _ in range(3))
    made.opened(4096)
    made.release(free)
    made.lend(lent, 100)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p._out.add(p._free[4096][0]), "both free and in use"),
        (lambda p: p._free.update({5000: p._free.pop(4096)}), "have another size"),
        (lambda p: p._lent.update({p._free[4096][0]: 5}), "not in use"),
        (lambda p: p._sessions.update({4096: -2}), "sessions by size"),
        (lambda p: p._arenas.clear(), "arena is unknown"),
        (lambda p: p._free.clear(), "follows one that ends"),
        (lambda p: p._out.add(Slot(p._arenas[0], 4096, 4096, np.empty(0, np.uint8), made=0)), "follows one that ends"),
        (lambda p: p._arenas[0].gaps.give(0, 4096), "follows one that ends"),
        (
            lambda p: (p._free.clear(), p._out.clear(), p._lent.clear(), p._arenas[0].gaps.give(0, 3 * 4096)),
            "an arena without slots",
        ),
    ],
)
def test_slots(pool: SlotPool, damage: Callable[[Any], object], words: str) -> None:
    breaks(pool, damage, words)


def test_gaps() -> None:
    gaps = Gaps(10)
    gaps.take(4)
    validate(gaps, [(0, 4)])
    for taken in ([], [(0, 5)], [(0, 3)], [(0, 2), (2, 4), (4, 4)]):
        with pytest.raises(AssertionError):
            validate(gaps, taken)
    gaps._gaps = [(4, 6), (6, 10)]
    with pytest.raises(AssertionError, match="gaps touch"):
        validate(gaps, [(0, 4)])
    gaps._gaps = [(4, 9)]
    with pytest.raises(AssertionError, match="ranges end at 9 of 10"):
        validate(gaps, [(0, 4)])


# -- peers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (put("_allowed", -0.5), "-0.5 second requests"),
        (put("_allowed", hedges.MOST + 1), "second requests may be sent"),
        (put("won", 1), "1 of 0"),
        (lambda h: h._seen.update(Pull=[0.1] * (hedges.WINDOW + 1)), "too many answers"),
        (lambda h: h._patience.clear(), "patience for"),
        (lambda h: h._patience.update(Sample=1.0), "patience for"),
        (lambda h: h._patience.update(Pull=0.0), "impatient"),
    ],
)
def test_hedges(damage: Callable[[Any], object], words: str) -> None:
    policy = Hedges()
    for _ in range(hedges.ENOUGH):
        policy.answered("Pull", 0.1)
    breaks(policy, damage, words)


KEY = (1, "node", ("x",), "")


def last(pulls: PullsUnderWay) -> underway._LastPulls:
    return pulls._last[KEY]


def first(pulls: PullsUnderWay) -> Pull:
    return last(pulls).open[1]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: last(p).open.clear(), "no pull is open"),
        (lambda p: last(p).open.update({1: last(p).open.pop(1)}), "out of order"),
        (lambda p: put("_pull", np.empty(0))(last(p)), "in arrays of"),
        (lambda p: put("number", 9)(first(p)), "pull 9 is kept as 1"),
        (put("_count", 0), "is kept as 1"),
        (lambda p: put("key", ())(first(p)), "is one of"),
        (lambda p: first(p).expected.extend(first(p).promised), "promises backwards"),
        (lambda p: last(p).open[2].expected.append(first(p).promised[0]), "expects a row twice"),
        (lambda p: put("sources", np.empty(0))(first(p).promised[0]), "unequal lengths"),
        (lambda p: first(p).promised[0].came.set_result(True), "before their pull ended"),
        (lambda p: setattr(p._habits[KEY[0]], "left", 0), "0 pulls are left"),
        (lambda p: setattr(p._habits[KEY[0]], "shared", 10**6), "rows were found"),
    ],
)
async def test_pulls_under_way(damage: Callable[[Any], object], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "LEAST_ROWS", 1)
    with ThreadPoolExecutor(1) as threads:
        pulls, rows = PullsUnderWay(threads), np.arange(20)
        out = np.zeros((20, 3), dtype=np.float32)
        for _ in range(2):
            pulls.begin(KEY, rows, rows, [out])
        breaks(pulls, damage, words)


# -- what logs show ----------------------------------------------------------------------------------------------------


def test_reprs_leave_out_arrays(pool: SlotPool) -> None:
    numbers = np.arange(100, dtype=np.int64)
    anything: Any = SimpleNamespace(numbers=numbers)
    request = SessionRequest(
        plan=anything, layout=anything, seeds=anything, first_batch=0, seed=1, epoch=2, shared_memory=True, job="job",
        sources=numbers, times=numbers,
    )  # fmt: skip
    held = Delivery(3, anything, pool.acquire(4096), {})
    session = Session("s", request, pool, 0.0, held={3: held}, current=held)

    async def waited() -> Pull:
        future = asyncio.get_running_loop().create_future()
        shared = underway.SharedRows(numbers, numbers, numbers, [numbers], future)
        return Pull(KEY, 1, [numbers], [shared], [shared])

    for logged in (request, held, session, asyncio.run(waited())):
        text = repr(logged)
        assert len(text) < 1000
        assert not re.search(r"array|\b\d+[,\s]+\d+[,\s]+\d+\b", text), text
