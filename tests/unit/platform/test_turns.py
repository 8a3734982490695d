"""Answers to peers: the oldest batch first, on the threads and on every connection."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.peers.turns import MessageTurns, TurnPool, began


def test_threads_take_the_oldest_first_and_equals_in_order_of_arrival() -> None:
    pool, gate, done = TurnPool(1, "test"), threading.Event(), []
    pool.submit(0.0, gate.wait)
    ages = [5.0, 1.0, 3.0, 1.0, 5.0, 2.0]
    futures = [pool.submit(age, done.append, (age, number)) for number, age in enumerate(ages)]
    gate.set()
    for future in futures:
        future.result(timeout=10)
    pool.shutdown()
    assert done == sorted((age, number) for number, age in enumerate(ages))


def test_what_a_thread_raises_reaches_the_caller_and_the_next_work_is_done() -> None:
    pool = TurnPool(1, "test")
    failing, good = pool.submit(1.0, lambda: 1 / 0), pool.submit(2.0, lambda: 7)
    with pytest.raises(ZeroDivisionError):
        failing.result(timeout=10)
    assert good.result(timeout=10) == 7
    pool.shutdown()


def test_cancelled_work_is_not_done() -> None:
    pool, gate, done = TurnPool(1, "test"), threading.Event(), []
    pool.submit(0.0, gate.wait)
    unwanted, wanted = pool.submit(1.0, done.append, "unwanted"), pool.submit(2.0, done.append, "wanted")
    assert unwanted.cancel()
    gate.set()
    wanted.result(timeout=10)
    pool.shutdown()
    assert done == ["wanted"]


def test_an_age_counts_back_from_now() -> None:
    assert time.monotonic() - began(1500) == pytest.approx(1.5, abs=0.1)


@given(
    messages=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.booleans()), max_size=24),
    width=st.integers(1, 3),
)
@settings(deadline=None)
def test_every_connection_sends_the_oldest_next_and_never_more_than_its_width(
    messages: list[tuple[str, int, bool]], width: int
) -> None:
    """For each message: its connection, its age, and whether its receiver goes away before its turn."""

    async def play() -> None:
        turns, sending, order = MessageTurns(width), {"a": 0, "b": 0}, {"a": [], "b": []}
        release = asyncio.Event()

        async def send(connection: str, since: float, number: int) -> None:
            async with turns.turn(connection, since):
                sending[connection] += 1
                assert sending[connection] <= width
                order[connection].append((since, number))
                if since < 0:
                    await release.wait()
                await asyncio.sleep(0)
                sending[connection] -= 1

        # Fill both connections, so that all messages have to wait.
        full = [asyncio.create_task(send(name, -1.0, n)) for name in "ab" for n in range(width)]
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(send(name, since, n)) for n, (name, since, _) in enumerate(messages)]
        await asyncio.sleep(0)
        for task, (_, _, leaves) in zip(tasks, messages, strict=True):
            if leaves:
                task.cancel()
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*full, *tasks, return_exceptions=True)
        for name in "ab":
            due = sorted((since, n) for n, (to, since, leaves) in enumerate(messages) if to == name and not leaves)
            if width == 1:
                assert order[name][width:] == due
            assert sorted(order[name][width:]) == due
        assert len(turns) == 0
        assert not turns._waiting

    asyncio.run(play())


def test_a_place_that_was_handed_to_one_who_has_just_left_goes_on_to_the_next() -> None:
    async def play() -> list[str]:
        turns, seen = MessageTurns(width=1), []

        async def send(name: str) -> None:
            async with turns.turn("a", 0.0):
                seen.append(name)

        async with turns.turn("a", 0.0):
            leaving, staying = asyncio.create_task(send("leaving")), asyncio.create_task(send("staying"))
            await asyncio.sleep(0)
        leaving.cancel()  # its turn has come, but it has not run yet
        await asyncio.gather(leaving, staying, return_exceptions=True)
        assert len(turns) == 0
        return seen

    assert asyncio.run(play()) == ["staying"]
