"""Answers to peers: the oldest batch first, on the threads that make them and among the requests to a peer."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.peers.peers import RequestTurns
from atta.daemon.services.data import TurnPool, began


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


@given(requests=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=24), width=st.integers(1, 3))
@settings(deadline=None)
def test_the_oldest_request_is_next_and_never_more_are_under_way(requests: list[tuple[int, bool]], width: int) -> None:
    """For each request: since when its batch is made, and whether whoever asks goes away before its turn."""

    async def play() -> None:
        turns, order, release = RequestTurns(width), [], asyncio.Event()
        under_way = 0

        async def ask(since: float, number: int) -> None:
            nonlocal under_way
            async with turns.turn(since):
                under_way += 1
                assert under_way <= width
                order.append((since, number))
                if since < 0:
                    await release.wait()
                await asyncio.sleep(0)
                under_way -= 1

        full = [asyncio.create_task(ask(-1.0, n)) for n in range(width)]  # so that all requests have to wait
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(ask(since, n)) for n, (since, _) in enumerate(requests)]
        await asyncio.sleep(0)
        for task, (_, leaves) in zip(tasks, requests, strict=True):
            if leaves:
                task.cancel()
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*full, *tasks, return_exceptions=True)
        due = sorted((since, n) for n, (since, leaves) in enumerate(requests) if not leaves)
        if width == 1:
            assert order[width:] == due
        assert sorted(order[width:]) == due
        assert turns._free == width
        assert not turns._waiting

    asyncio.run(play())


def test_a_turn_that_was_handed_to_one_who_has_just_left_goes_on_to_the_next() -> None:
    async def play() -> list[str]:
        turns, seen = RequestTurns(1), []

        async def ask(name: str) -> None:
            async with turns.turn(0.0):
                seen.append(name)

        async with turns.turn(0.0):
            leaving, staying = asyncio.create_task(ask("leaving")), asyncio.create_task(ask("staying"))
            await asyncio.sleep(0)
        leaving.cancel()  # its turn has come, but it has not run yet
        await asyncio.gather(leaving, staying, return_exceptions=True)
        assert turns._free == 1
        return seen

    assert asyncio.run(play()) == ["staying"]
