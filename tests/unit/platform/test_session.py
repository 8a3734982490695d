"""A session on the daemon: every request gets its own batch or is refused, in any order of requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.engine.session import MAX_HELD_SLOTS, Delivery, Session
from atta.errors import AttaError, ConfigError

BATCHES = 6


class Pool:
    """Records the slots that came back. A slot is the number of the batch in it."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.abandoned: list[int] = []

    def lend(self, slot: int, used_bytes: int) -> None:
        pass

    def release(self, slot: int) -> None:
        self.released.append(slot)

    def abandon(self, slot: int, session: str) -> None:
        self.abandoned.append(slot)


def delivery(number: int) -> Delivery:
    return Delivery(number, SimpleNamespace(nbytes=1), number, {})  # type: ignore[arg-type]


def opened(*, shared: bool = False) -> tuple[Session, Pool]:
    pool = Pool()
    request: Any = SimpleNamespace(shared_memory=shared)
    return Session("s", request, pool, 0.0), pool  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_waiter_that_was_overtaken_is_refused() -> None:
    """Two requests wait for batch 0. Before the second one runs again, the consumer has gone on to batch 1."""
    session, _ = opened()
    stale = asyncio.ensure_future(session.batch(0, 5.0))
    await settle()
    session.deliver(delivery(0))  # wakes it, but other tasks run first
    session.deliver(delivery(1))
    for number in (0, 1):
        found = await session.batch(number, 0.0)
        assert found is not None
        assert found.batch == number
    with pytest.raises(ConfigError, match="batch number 0 asked for after 1"):
        await stale


@settings(deadline=None, max_examples=200)
@given(
    steps=st.lists(st.one_of(st.just("deliver"), st.just("run"), st.integers(0, BATCHES)), max_size=40),
    shared=st.booleans(),
)
def test_requests_in_any_order_get_their_own_batch(steps: list[Any], shared: bool) -> None:
    async def run() -> None:
        session, pool = opened(shared=shared)
        made, asked = 0, []
        for step in steps:
            if step == "deliver":
                session.deliver(delivery(made))
                made += 1
            elif step == "run":
                await settle()
            else:
                asked.append((step, asyncio.ensure_future(session.batch(step, 0.0 if step % 2 else 5.0))))
        session.fail(AttaError("over"))
        taken: set[int] = set()
        answers = await asyncio.gather(*(request for _, request in asked), return_exceptions=True)
        for (number, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                refused = isinstance(answer, ConfigError) and f"batch number {number} asked for after" in str(answer)
                assert refused or str(answer) == "over"
            else:
                assert answer is None or answer.batch == number
                taken |= {number} if answer is not None else set()
        assert sorted(taken) == list(range(len(taken)))
        session.close()
        kept = min(len(taken), MAX_HELD_SLOTS) if shared else 0
        assert sorted(pool.abandoned) == list(range(kept))
        assert sorted(pool.released + pool.abandoned) == list(range(made))

    asyncio.run(run())


async def test_bytes_that_are_being_sent_stay_as_they_are() -> None:
    """A repeated request still reads batch 0 while the consumer, which has it already, asks for the next batches."""
    session, pool = opened()
    for number in range(3):
        session.deliver(delivery(number))
    first = await session.batch(0, 0.0)
    assert first is not None
    with session.sending(first):
        await session.batch(1, 0.0)
        await session.batch(2, 0.0)
        assert pool.released == [1]
        session.close()
        assert pool.released == [1, 2]
    assert pool.released == [1, 2, 0]


async def test_a_batch_that_was_let_go_is_not_handed_out_again() -> None:
    session, pool = opened(shared=True)
    session.deliver(delivery(0))
    assert await session.batch(0, 0.0) is await session.batch(0, 0.0) is not None
    session.let_go([0, 7, 0])
    assert pool.released == [0]
    with pytest.raises(ConfigError, match="after it has been let go"):
        await session.batch(0, 0.0)
