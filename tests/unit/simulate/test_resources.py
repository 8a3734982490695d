"""Cores, pools and links alone: times worked out by hand, and nothing lost or made."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.simulate.resources import PIECE_BYTES, Clock, Cores, Pool, Port, Switch


def test_calls_come_in_order_of_time_then_of_planning_and_cores_are_shared_evenly() -> None:
    clock, seen = Clock(), []
    for when, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        clock.at(when, lambda name=name: seen.append((clock.now, name)))
    clock.run()
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]
    clock, ends = Clock(), dict[str, float]()
    cores = Cores(clock, 2)
    for name, work in (("short", 1.0), ("long", 2.0), ("longer", 3.0)):
        cores.run(work, lambda name=name: ends.__setitem__(name, clock.now))
    clock.run()
    # Three threads on two cores: 2/3 of a core each until 1.5 s, then two threads with a core each.
    assert ends == pytest.approx({"short": 1.5, "long": 2.5, "longer": 3.5})
    assert cores.used() == pytest.approx(6.0)


def test_a_pool_serves_the_oldest_batch_and_then_who_comes_first() -> None:
    clock, seen = Clock(), []
    pool = Pool(clock, Cores(clock, 4), 1)
    for name, since, work in (("a", 5.0, 3.0), ("b", 4.0, 1.0), ("c", 4.0, 2.0), ("d", 1.0, 1.0)):
        pool.run(since, work, lambda name=name: seen.append((name, clock.now)))
    clock.run()
    # a had the thread before the others came.
    assert [name for name, _ in seen] == ["a", "d", "b", "c"]
    assert [when for _, when in seen] == pytest.approx([3.0, 4.0, 5.0, 7.0])


def test_messages_cut_through_and_wait_at_both_ends() -> None:
    clock, ends = Clock(), {}
    switch, a, b, c = Switch(clock, 100.0, 1.0), Port(), Port(), Port()

    def send(name: str, source: Port, target: Port, nbytes: float) -> None:
        switch.send(source, target, nbytes, lambda: ends.__setitem__(name, clock.now))

    send("a to c", a, c, 100)  # uplink 0 to 1 s, arrives 0.5 to 1.5 s
    send("a to b", a, b, 100)  # uplink 1 to 2 s, arrives 1.5 to 2.5 s
    send("b to c", b, c, 200)  # arrives from 0.5 s, but waits for a's message
    clock.run()
    assert ends == pytest.approx({"a to c": 1.5, "a to b": 2.5, "b to c": 3.5})


def test_connections_take_turns_and_urgent_messages_overtake_them() -> None:
    clock, ends = Clock(), {}
    switch, a, b, c = Switch(clock, float(PIECE_BYTES), 0.0), Port(), Port(), Port()
    for when, name, urgent, target, pieces in (
        (0.0, "large", False, b, 3.0), (0.0, "behind it", False, b, 2.0), (0.0, "other", False, c, 2.0),
        (3.5, "urgent", True, c, 0.5),
    ):  # fmt: skip
        ended = partial(lambda name: ends.__setitem__(name, clock.now), name)
        clock.at(when, partial(switch.send, urgent=urgent), a, target, pieces * PIECE_BYTES, ended)
    clock.run()
    # large, other, large, other, urgent, large, and then what was behind it
    assert ends == pytest.approx({"other": 4.0, "urgent": 4.5, "large": 5.5, "behind it": 7.5})


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 3)), min_size=1, max_size=30),
    count=st.integers(1, 4),
    threads=st.integers(0, 3),
)
def test_work_is_conserved(jobs: list[tuple[float, float]], count: int, threads: int) -> None:
    clock, ended = Clock(), []
    cores = Cores(clock, count)
    run = partial(Pool(clock, cores, threads).run, 0.0) if threads else cores.run
    for start, work in jobs:
        clock.at(start, run, work, lambda start=start, work=work: ended.append(clock.now - start - work))
    clock.run()
    total = sum(work for _, work in jobs)
    assert len(ended) == len(jobs)
    assert min(ended) >= -1e-6  # no work is faster than on a core of its own
    assert cores.used() == pytest.approx(total, abs=1e-6)
    assert clock.now <= max(start for start, _ in jobs) + total + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(
        st.tuples(st.floats(0, 2), st.integers(0, 3), st.integers(0, 3), st.integers(0, 4 * PIECE_BYTES), st.booleans()),
        min_size=1, max_size=30,
    )
)  # fmt: skip
def test_bytes_are_conserved(messages: list[tuple[float, int, int, int, bool]]) -> None:
    clock, arrived, rate = Clock(), [], 2.0 * PIECE_BYTES
    switch, ports = Switch(clock, rate, 0.1), [Port() for _ in range(4)]
    for when, source, target, size, urgent in messages:
        send = partial(switch.send, urgent=urgent)
        clock.at(when, send, ports[source], ports[target], size, arrived.append, size)
    clock.run()
    total = sum(size for *_, size, _ in messages)
    assert sum(p.sent for p in ports) == sum(p.received for p in ports) == sum(arrived) == total
    busiest = max(max(p.sent, p.received) for p in ports)
    assert clock.now >= busiest / rate
    assert math.isfinite(clock.now)


def test_waking_a_thread_takes_time_where_a_core_sleeps() -> None:
    """The second piece of work finds the thread awake, and the third one finds both cores at work."""
    clock, ends = Clock(), {}
    cores = Cores(clock, 2)
    first, second = Pool(clock, cores, 1, wake_s=0.5), Pool(clock, cores, 1, wake_s=0.5)
    first.run(0.0, 1.0, lambda: ends.__setitem__("woken", clock.now))
    first.run(0.0, 1.0, lambda: ends.__setitem__("awake", clock.now))
    clock.at(1.0, cores.run, 0.5, lambda: None)
    clock.at(1.0, second.run, 0.0, 1.0, lambda: ends.__setitem__("switched", clock.now))
    clock.run()
    # From 1 s on three threads share two cores until one of them has ended at 1.75 s.
    assert ends == pytest.approx({"woken": 1.75, "awake": 2.75, "switched": 2.25})
    assert cores.used() == pytest.approx(3.5)  # waking needs no processor time
