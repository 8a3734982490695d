"""One machine's memory among its daemons: nobody gets what is not there, and more memory never leaves less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.partition.graph.needs import DEFAULT_CACHE, LEAST_BYTES, MachineRoom, MemoryWish, Needs, plan_memory

MIB, GIB = 1 << 20, 1 << 30
BILLION = [Needs(1500 * MIB, 600 * MIB, 500 * MIB, 800 * MIB, 9 * GIB, 1.1)] * 8
"""About 50 million vertices and a billion edges in eight partitions."""
SMALL = [Needs(10 * MIB, MIB, 5 * MIB, 5 * MIB, 10 * MIB, 0.5)] * 2


def machine(gib: float, *, free: float = 1.0) -> MachineRoom:
    """A machine of which a share is free."""
    return MachineRoom(int(gib * GIB), int(free * gib * GIB))


sizes = st.integers(0, 1 << 36)
needs = st.lists(
    st.builds(Needs, sizes, sizes, sizes, sizes, sizes, st.floats(0, 4)), min_size=1, max_size=9
)  # fmt: skip
rooms = st.builds(lambda limit, share: MachineRoom(limit, int(share * limit)), st.integers(0, 1 << 38), st.floats(0, 1))
given_sizes = st.none() | st.integers(0, 1 << 34)
wishes = st.builds(
    MemoryWish, st.sampled_from(["auto", "copy", "map", "disk"]), given_sizes, given_sizes, given_sizes, st.integers(1, 3),
    st.integers(0, 8),
)  # fmt: skip


@given(needs, rooms, wishes)
def test_nobody_takes_more_than_nine_tenths(needs: list[Needs], room: MachineRoom, wish: MemoryWish) -> None:
    try:
        plan = plan_memory(needs, room, wish)
    except ConfigError:
        least = wish.replicas * sum(LEAST_BYTES + need.cached(wish.cache or 0) for need in needs)
        least += wish.replicas * sum(need.partition for need in needs) if wish.memory == "copy" else 0
        assert least > room.free - room.limit // 10
        return
    assert plan.total <= room.free - room.limit // 10
    each = [LEAST_BYTES + need.cached(plan.cache) + (need.partition if plan.copies else 0) for need in needs]
    assert wish.replicas * sum(each) <= plan.total


@given(needs, rooms, wishes)
def test_what_the_user_says_stays(needs: list[Needs], room: MachineRoom, wish: MemoryWish) -> None:
    try:
        plan = plan_memory(needs, room, wish)
    except ConfigError:
        return
    assert wish.cache is None or plan.cache == wish.cache
    assert wish.memory in ("auto", plan.way)


@given(needs, rooms, wishes, st.integers(0, 1 << 36))
def test_more_memory_leaves_no_less(needs: list[Needs], room: MachineRoom, wish: MemoryWish, more: int) -> None:
    try:
        plan = plan_memory(needs, room, wish)
    except ConfigError:
        return
    roomier = plan_memory(needs, MachineRoom(room.limit, room.free + more), wish)
    assert (roomier.copies, not roomier.pages, roomier.cache) >= (plan.copies, not plan.pages, plan.cache)
    assert roomier.cache >= plan.cache
    assert roomier.total >= plan.total
    assert plan.short or not roomier.short


@given(needs, rooms, wishes)
def test_more_readers_leave_no_more(needs: list[Needs], room: MachineRoom, wish: MemoryWish) -> None:
    try:
        plan = plan_memory(needs, room, wish)
    except ConfigError:
        return
    busier = plan_memory(needs, room, replace(wish, readers=wish.readers + 1))
    assert busier.cache <= plan.cache
    assert busier.copies <= plan.copies


@pytest.mark.parametrize(
    ("gib", "way", "least", "most"),
    [(8, "disk", 0, 0), (16, "map", 0, 0), (24, "map", 256, 256), (32, "copy", 512, 1024), (256, "copy", 1024, 1024)],
)
def test_a_billion_edges(gib: int, way: str, least: int, most: int) -> None:
    """Files come before caches: without them in memory, nothing is quick."""
    plan = plan_memory(BILLION, machine(gib), MemoryWish(readers=1))
    assert plan.way == way
    assert least * MIB <= plan.cache <= most * MIB
    assert plan.short == (gib < 256), "more memory would make the caches larger"


def test_a_small_graph_is_loaded_with_all_it_wants() -> None:
    plan = plan_memory(SMALL, machine(8), MemoryWish(readers=2))
    assert (plan.copies, plan.cache, plan.short) == (True, DEFAULT_CACHE, False)
    assert plan.line == (
        "memory: each daemon loads what it serves and keeps up to 1.0 GiB of others, because 2 of them have 7.2 GiB "
        "(8.0 GiB of 8.0 GiB are free): 3.0 GiB for themselves, batches and readers, 20 MiB for partitions"
    )


def test_what_cannot_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_memory(BILLION, machine(16, free=0.9), MemoryWish("copy", cache=512 * MIB))
    assert str(caught.value) == (
        "daemons do not fit into memory: they need 21.1 GiB (1.0 GiB for themselves, 8.4 GiB for caches, 11.7 GiB for their "
        "partitions), and 8 of them have 12.8 GiB (14.4 GiB of 16.0 GiB are free); start fewer, let --memory map files, or "
        "give less to --cache"
    )


def test_tables_and_buffers_that_the_user_asks_for_leave_less_for_caches() -> None:
    alone = plan_memory(BILLION, machine(32), MemoryWish())
    assert plan_memory(BILLION, machine(32), MemoryWish(tables=256 * MIB)).cache < alone.cache
    assert plan_memory(BILLION, machine(32), MemoryWish(buffer=64 * MIB)).cache > alone.cache


def test_replicas_map_the_same_files() -> None:
    one, two = (plan_memory(BILLION[:2], machine(16), MemoryWish("map", replicas=n)) for n in (1, 2))
    assert one.cache >= two.cache > 0
