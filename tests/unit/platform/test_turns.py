"""Work in turns: the oldest batch first, on threads and among requests to a peer; brief tasks on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.engine.runner import Workers
from atta.daemon.peers.peers import RequestTurns
from atta.daemon.services.data import TurnPool, began
from atta.samplers.dag.instance import Kind, Lane, Task
from atta.scheduler.costs import brief_us, is_brief


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
    assert time.monotonic() - began(1500) == pytest.approx(1.5, abs=0.1)  # an age counts back from now


def test_what_a_thread_raises_reaches_the_caller_and_cancelled_work_is_not_done() -> None:
    pool, gate, done = TurnPool(1, "test"), threading.Event(), []
    pool.submit(0.0, gate.wait)
    failing, unwanted = pool.submit(1.0, lambda: 1 / 0), pool.submit(1.5, done.append, "unwanted")
    good = pool.submit(2.0, lambda: 7)
    assert unwanted.cancel()
    gate.set()
    with pytest.raises(ZeroDivisionError):
        failing.result(timeout=10)
    assert good.result(timeout=10) == 7
    pool.shutdown()
    assert done == []


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


async def test_a_turn_that_was_handed_to_one_who_has_just_left_goes_on_to_the_next() -> None:
    turns, seen = RequestTurns(1), []

    async def ask(name: str) -> None:
        async with turns.turn(0.0):
            seen.append(name)

    async with turns.turn(0.0):
        leaving, staying = asyncio.create_task(ask("leaving")), asyncio.create_task(ask("staying"))
        await asyncio.sleep(0)
    leaving.cancel()  # its turn has come, but it has not run yet
    await asyncio.gather(leaving, staying, return_exceptions=True)
    assert (turns._free, seen) == (1, ["staying"])


def test_one_worker_works_in_order_and_finishes_before_it_ends() -> None:
    workers, done = Workers(1, "w"), list[int]()
    for number in range(200):
        workers.do(lambda number=number: done.append(number))
    workers.shutdown()
    assert done == [*range(200)]
    workers.shutdown()
    with pytest.raises(RuntimeError, match="ended"):
        workers.do(lambda: None)


def test_as_many_threads_as_asked_for_work_at_once() -> None:
    workers, all_here, names = Workers(3, "w"), threading.Barrier(4), set[str]()

    def meet() -> None:
        names.add(threading.current_thread().name)
        all_here.wait(20)

    for _ in range(3):
        workers.do(meet)
    all_here.wait(20)
    workers.shutdown()
    assert names == {"w_0", "w_1", "w_2"}


def test_futures_bring_results_and_errors_and_can_be_cancelled() -> None:
    workers, go_on = Workers(1, "w"), threading.Event()
    first = workers.submit(go_on.wait, 20)
    failing, cancelled, last = workers.submit(int, "x"), workers.submit(int, "1"), workers.submit(divmod, 7, 3)
    assert cancelled.cancel()
    go_on.set()
    assert first.result(20) is True
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(20)
    with pytest.raises(CancelledError):
        cancelled.result(20)
    assert last.result(20) == (2, 1)
    workers.shutdown()


def task(kind: Kind, cost: float = 0.0) -> Task:
    return Task(kind, "op", 0, 0, 1, Lane.CPU, cost)


@pytest.mark.parametrize("kind", [Kind.NEIGHBORHOOD, Kind.JOIN, Kind.FEATURE])
def test_cheaper_tasks_are_brief_if_dearer_ones_are(kind: Kind) -> None:
    found = [is_brief(task(kind, 10.0**power), 30.0, seeds=1, vertices=1) for power in range(9)]
    assert found[0]
    assert not found[-1]
    assert all(cheap >= dear for cheap, dear in pairwise(found))


def test_what_else_is_brief() -> None:
    assert brief_us(1) > brief_us(2) == brief_us(8), "a single worker leaves more to the event loop"
    assert not is_brief(task(Kind.BATCH), 200.0, seeds=1, vertices=1), "walks of an operator never are"
    seed, end = task(Kind.SEED), task(Kind.END)  # these go by the size of the batch
    assert is_brief(seed, 200.0, seeds=1024, vertices=0)
    assert not is_brief(seed, 30.0, seeds=1024, vertices=0)
    assert is_brief(end, 30.0, seeds=1024, vertices=16_384)
    assert not is_brief(end, 30.0, seeds=1024, vertices=16_385)
