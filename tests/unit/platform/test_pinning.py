"""Slots that stay pinned: once per slot, never twice at one place, and never a page that the daemon has given back."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.loaders.pinning import IDLE_BATCHES, LEAST_BYTES, PAGE, PinnedSlots
from atta.client.sessions.slots import SlotMaps, lease_of
from atta.daemon.engine.slots import Slot, SlotPool
from atta.protos.v1.session_pb2 import SharedSlot

LARGE, SMALL = 2 * LEAST_BYTES, LEAST_BYTES - PAGE
CAPACITY = 64 * LEAST_BYTES


class Pages:
    """Notes what is pinned, and refuses what CUDA would refuse."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.pins = 0
        self.able = True

    def pin(self, address: int, nbytes: int) -> bool:
        assert address % PAGE == nbytes % PAGE == 0
        assert all(address >= stop or start >= address + nbytes for start, stop in self.ranges()), "pinned twice"
        self.pins += 1
        if self.able:
            self.pinned[address] = nbytes
        return self.able

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def ranges(self) -> list[tuple[int, int]]:
        return [(address, address + nbytes) for address, nbytes in self.pinned.items()]

    def holds(self, array: np.ndarray) -> bool:
        """Whether one range has all of an array."""
        begin = array.ctypes.data
        return any(start <= begin and begin + array.nbytes <= stop for start, stop in self.ranges())


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    made = SlotPool(1 << 30)
    yield made
    made.close()


class Consumer:
    """Takes batches out of slots, and pins them."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.pages, self.maps = Pages(), SlotMaps()
        self.slots = PinnedSlots(self.pages, limit)
        self.seen: set[int] = set()

    def take(self, slot: Slot, layout: Mapping[int, int]) -> list[np.ndarray]:
        """The arrays of a batch, whose offsets and sizes are ``layout``, pinned; not the first batch of the slot."""
        told = SharedSlot(path=slot.path, capacity=slot.capacity, offset=slot.offset, nonce=slot.nonce)
        told.inode, told.made = slot.arena.inode, slot.made
        buffer = self.maps.lease(told, os.getpid())
        if slot.made not in self.seen:
            self.seen.add(slot.made)
            self.slots.pin([np.asarray(buffer[:8])])
        arrays = [np.asarray(buffer[start : start + nbytes]) for start, nbytes in layout.items()]
        self.slots.pin(arrays)
        assert self.slots.nbytes == sum(self.pages.pinned.values())
        return arrays


def test_large_arrays_are_pinned_once(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(CAPACITY)
    layout = {PAGE: SMALL, 16 * PAGE: LARGE, 1 << 20: LARGE + 100}
    for _ in range(3):
        small, *large = consumer.take(slot, layout)
        assert [consumer.pages.holds(array) for array in (small, *large)] == [False, True, True]
        del small, large
    assert consumer.pages.pins == 2
    assert sum(consumer.pages.pinned.values()) < 1.3 * 2 * LARGE


def test_an_array_that_grows_is_pinned_as_a_whole(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(CAPACITY)
    for nbytes in (LARGE, int(1.2 * LARGE), 3 * LARGE):
        (array,) = consumer.take(slot, {PAGE: nbytes})
        assert consumer.pages.holds(array)
        del array
    assert consumer.pages.pins == 2


def test_a_slot_with_new_pages_is_pinned_anew(pool: SlotPool) -> None:
    consumer, kept, slot = Consumer(), pool.acquire(PAGE), pool.acquire(CAPACITY)
    (array,) = consumer.take(slot, {PAGE: LARGE})
    place, made = array.ctypes.data, slot.made
    del array
    pool.release(slot)
    pool.opened(CAPACITY)
    pool.closed(CAPACITY, now=0.0)
    pool.trim(now=1e6)  # the pages are given back, the range is free
    again = pool.acquire(CAPACITY)
    assert (again.arena, again.offset) == (kept.arena, slot.offset)
    assert again.made != made
    (array,) = consumer.take(again, {PAGE: LARGE})
    assert array.ctypes.data == place
    assert consumer.pages.pins == 2


def test_the_first_batch_of_a_slot_is_not_pinned(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(CAPACITY)
    consumer.seen.add(slot.made)
    for pins in (0, 1, 1):
        consumer.take(slot, {PAGE: LARGE})
        assert consumer.pages.pins == pins


def test_slots_in_turns_do_not_push_each_other_out(pool: SlotPool) -> None:
    consumer, slots = Consumer(limit=3 * LARGE), [pool.acquire(CAPACITY) for _ in range(4)]
    for _ in range(5):
        pinned = [consumer.pages.holds(consumer.take(slot, {PAGE: LARGE})[0]) for slot in slots]
        assert pinned == [True, True, False, False]
        assert consumer.slots.nbytes <= 3 * LARGE
    assert consumer.pages.pins == 2
    for _ in range(IDLE_BATCHES + 2):
        consumer.take(slots[3], {PAGE: LARGE})
    assert [consumer.pages.holds(consumer.take(slot, {PAGE: LARGE})[0]) for slot in slots[2:]] == [False, True]


def test_an_array_is_pinned_as_a_whole_or_not_at_all(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(CAPACITY)
    consumer.take(slot, {PAGE: LARGE})
    (small,) = consumer.take(slot, {LARGE: SMALL})  # of another session: begins in pinned pages, ends beyond
    assert all(
        stop <= small.ctypes.data or small.ctypes.data + SMALL <= start for start, stop in consumer.pages.ranges()
    )


def test_where_pinning_is_refused_nothing_is_tried_again(pool: SlotPool) -> None:
    consumer, slots = Consumer(), [pool.acquire(CAPACITY) for _ in range(2)]
    consumer.take(slots[0], {PAGE: LARGE})
    consumer.pages.able = False
    for _ in range(3):
        consumer.take(slots[1], {PAGE: LARGE, 1 << 20: LARGE})
    assert consumer.pages.pinned == {}  # a range that cannot grow with its array must not stay
    assert consumer.pages.pins == 2


def test_a_file_that_is_unmapped_is_not_pinned_any_more(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(CAPACITY)
    arrays = consumer.take(slot, {PAGE: LARGE})
    consumer.maps = SlotMaps()
    assert consumer.pages.pinned
    arrays.clear()
    gc.collect()
    assert consumer.pages.pinned == {}
    assert consumer.slots.nbytes == 0


def test_memory_that_is_in_no_slot_is_left_alone() -> None:
    consumer = Consumer()
    array = np.zeros(LARGE, np.uint8)
    assert lease_of(array) is None
    consumer.slots.pin([array, array[5:]])
    assert consumer.pages.pins == 0


sizes = st.integers(1, 6 * LEAST_BYTES)
layouts = st.lists(st.tuples(st.integers(0, 3), sizes), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([24, 40]), st.booleans(), layouts), max_size=25))
def test_large_arrays_are_always_pinned(batches: list[tuple[int, int, bool, list[tuple[int, int]]]]) -> None:
    """Of any batches in any slots, some of which are given back and made anew, with arrays at any places."""
    pool, consumer = SlotPool(1 << 30), Consumer()
    slots: dict[int, Slot] = {}
    now = 0.0
    try:
        for which, size, anew, arrays in batches:
            if anew and which in slots:
                pool.release(slots.pop(which))
                pool.trim(now)
                now += 1e6
                pool.trim(now)
            if which not in slots:
                slots[which] = pool.acquire(size * LEAST_BYTES)
            slot, layout, at = slots[which], {}, PAGE
            for gap, nbytes in arrays:
                at += gap * PAGE
                if at + nbytes <= slot.capacity:
                    layout[at] = nbytes
                    at += -(-nbytes // PAGE) * PAGE
            for array in consumer.take(slot, layout):
                assert array.nbytes < LEAST_BYTES or consumer.pages.holds(array)
    finally:
        pool.close()
