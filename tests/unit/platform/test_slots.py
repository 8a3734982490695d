"""Shared-memory slots: both sides see one memory, a slot in use is never written, few files hold all, quotas hold."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import resource
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.loaders.pinning import IDLE_BATCHES, LEAST_BYTES, PAGE, PinnedSlots
from atta.client.sessions.slots import SlotMaps, lease_of
from atta.daemon.engine.slots import (
    GROWN_BATCHES,
    IDLE_S,
    IDLE_SIZES,
    Arena,
    Gaps,
    Slot,
    SlotPool,
    arena_bytes,
    slot_size,
    stale_sizes,
)
from atta.errors import QuotaExceededError, RemoteError, UnavailableError
from atta.protos.v1.session_pb2 import SharedSlot
from atta.wire import memfiles
from tests.unit.platform.test_pulls import files

CAPACITY = 1 << 16
PID = os.getpid()


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    made = SlotPool(1 << 30)
    yield made
    made.close()


def told(slot: Slot, **other: Any) -> SharedSlot:
    of = {"path": slot.path, "capacity": slot.capacity, "offset": slot.offset, "nonce": slot.nonce}
    return SharedSlot(**{**of, "inode": slot.arena.inode, **other})


def memory_files() -> int:
    return files("atta-slots")


def refused(pool: SlotPool, capacity: int, words: str = "quota") -> None:
    with pytest.raises(QuotaExceededError, match=words):
        pool.acquire(capacity)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many MiB of memory are available."""
    return lambda mib: monkeypatch.setattr("atta.daemon.engine.slots.available_bytes", lambda: mib << 20)


def test_both_sides_see_one_memory(pool: SlotPool) -> None:
    maps = SlotMaps()
    first, slot = pool.acquire(CAPACITY), pool.acquire(CAPACITY)
    view = maps.lease(told(slot), PID)
    slot.buffer[5000] = 77
    first.buffer[5000] = 66
    assert view[5000] == 77
    pool.close()
    assert view[5000] == 77  # when the daemon ends, a reader keeps its memory


def test_slots_are_hardly_larger_than_asked_for_and_share_no_page(pool: SlotPool) -> None:
    slots = [pool.acquire(nbytes) for nbytes in (5000, 4096, 100, 17 * 4096 - 1)]
    assert [len(slot.buffer) // 4096 for slot in slots] == [2, 1, 1, 18]
    assert [slot.offset // 4096 for slot in slots] == [0, 2, 3, 4]
    assert len(SlotMaps().lease(told(slots[0]), PID)) == 8192


@given(st.integers(1, 1 << 50))
def test_one_of_eight_sizes_between_two_powers_of_two_is_an_eighth_larger_at_most(nbytes: int) -> None:
    size = slot_size(nbytes)
    assert nbytes <= size < nbytes + max(4096, nbytes / 8)
    assert size % 4096 == 0
    assert slot_size(size) == size
    pages = size // 4096
    assert pages < 16 or pages % (1 << (pages.bit_length() - 4)) == 0


def test_lease_ends_with_the_last_derived_view(pool: SlotPool) -> None:
    ended: list[int] = []
    slot = pool.acquire(CAPACITY)
    lease = SlotMaps().lease(told(slot), PID, lambda: ended.append(1))
    derived = lease[4096:8192].view(np.float32).reshape(32, 32)[3:]
    del lease
    gc.collect()
    assert not ended
    assert not slot.claim()
    del derived
    gc.collect()
    assert ended == [1]
    assert slot.claim()


def unsealed() -> int:
    fd = os.memfd_create("atta-slots", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, CAPACITY)
    return fd


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: os.open(__file__, os.O_RDONLY), "not a memory file"),
        (unsealed, "shrink"),
        (lambda: memfiles.create("atta-slots", CAPACITY - 4096), "61440 bytes, 65536 are wanted"),
    ],
)
def test_what_is_no_sealed_memory_file_is_not_mapped(make: Callable[[], int], words: str) -> None:
    fd = make()
    slot = SharedSlot(path=f"/proc/{PID}/fd/{fd}", capacity=CAPACITY, inode=os.fstat(fd).st_ino)
    with pytest.raises(RemoteError, match=words):
        SlotMaps().lease(slot, PID)
    os.close(fd)


def test_another_path_is_not_opened(pool: SlotPool, tmp_path: Path) -> None:
    slot, fifo = pool.acquire(CAPACITY), str(tmp_path / "fifo")
    os.mkfifo(fifo)  # opening it would wait for ever
    name, words = slot.path.removeprefix(f"/proc/{PID}"), "not a descriptor of process"
    wrong = (fifo, f"/proc/self{name}", f"/proc/{PID}/../{PID}{name}", slot.path + "/", "/dev/zero")
    for other, pid, error, told_of in (
        *(({"path": path}, PID, RemoteError, words) for path in wrong),
        ({}, PID + 1, RemoteError, f"{words} {PID + 1}"),
        ({"path": f"/proc/{PID}/fd/9999"}, PID, UnavailableError, "no daemon answers"),
        ({"inode": slot.arena.inode + 1}, PID, UnavailableError, "no daemon answers"),
    ):
        with pytest.raises(error, match=told_of):
            SlotMaps().lease(told(slot, **other), pid)


def test_files_are_sealed(pool: SlotPool) -> None:
    fd = pool.acquire(CAPACITY).arena.fd
    size = os.fstat(fd).st_size
    for wrong in (size - 4096, size + 4096, 0):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, wrong)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_another_batch_in_the_slot_is_noticed(pool: SlotPool) -> None:
    slot, maps = pool.acquire(CAPACITY), SlotMaps()
    earlier = told(slot)
    pool.release(slot)
    assert pool.acquire(CAPACITY) is slot
    with pytest.raises(RemoteError, match="nonce"):
        maps.lease(earlier, PID)
    assert len(maps.lease(told(slot), PID)) == CAPACITY
    size = os.fstat(slot.arena.fd).st_size
    for offset, capacity in ((size - 4096, CAPACITY), (2**64 - 1, 8), (8, 2**64 - 1), (0, 0), (0, 7)):
        with pytest.raises(RemoteError, match="of a file of"):
            maps.lease(told(slot, offset=offset, capacity=capacity), PID)


def test_a_released_slot_is_used_again_but_not_while_it_is_looked_at(pool: SlotPool) -> None:
    first = pool.acquire(CAPACITY)
    pool.release(first)
    assert pool.acquire(CAPACITY) is first
    view = SlotMaps().lease(told(first), PID)
    pool.release(first)
    second = pool.acquire(CAPACITY)
    assert second is not first
    del view
    pool.release(second)
    assert {pool.acquire(CAPACITY), pool.acquire(CAPACITY)} == {first, second}


def test_what_a_consumer_keeps_is_given_up_until_it_lets_go(pool: SlotPool) -> None:
    slot = pool.acquire(CAPACITY)
    slot.buffer[4096:] = 5
    view = SlotMaps().lease(told(slot), PID)
    pool.lend(slot, CAPACITY)
    assert pool.resident_bytes == CAPACITY
    pool.abandon(slot, "s")
    assert (pool.resident_bytes, pool.lent_bytes, pool.lingering) == (0, 0, 1)
    for now in range(1000):
        pool.trim(float(now))
    assert pool.acquire(CAPACITY) is not slot
    assert (view[4096:] == 5).all()
    del view
    pool.trim(1000.0)
    assert pool.lingering == 0
    assert pool.acquire(CAPACITY) is slot


@pytest.fixture
def work() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def populating(work: list[Callable[[], None]]) -> Iterator[SlotPool]:
    made = SlotPool(3 << 20, aside=work.append)
    yield made
    made.close()


def fill(slot: Slot, *pages: int) -> None:
    for page in pages:
        slot.buffer[4096 * page + 100] = 7


def pages_of(slot: Slot) -> list[int]:
    return [page for start, stop in slot.touched() for page in range(start // 4096, stop // 4096)]


def test_a_new_slot_gets_the_pages_of_the_largest_batch(populating: SlotPool, work: Any) -> None:
    capacity = 50 * 4096 - 100
    first, second = populating.acquire(capacity), populating.acquire(capacity)
    fill(first, 3, 4, 20, 49)
    fill(second, 7)
    populating.lend(first, 4 * 4096)
    populating.lend(second, 1 * 4096)  # a smaller batch
    assert not work, "nothing was known of batches of this size"
    third = populating.acquire(capacity)
    nonce = third.nonce
    assert pages_of(third) == [0]
    fill(third, 4)  # the batch is being made already
    for task in work:
        task()
    assert pages_of(third) == [0, 3, 4, 20, 49] == pages_of(first)
    assert third.buffer[:8].view(np.uint64)[0] == nonce
    assert np.flatnonzero(third.buffer[4096:]).tolist() == [3 * 4096 + 100]
    assert pages_of(second) == [0, 7]
    work.clear()
    populating.release(third)
    assert populating.acquire(capacity) is third
    assert populating.acquire(2 * capacity)
    assert not work, "a used slot has its pages, and of the other size nothing is known"


def test_a_slot_that_is_given_back_gets_no_pages(populating: SlotPool, work: list[Callable[[], None]]) -> None:
    capacity = 20 * 4096
    populating.opened(capacity)
    first = populating.acquire(capacity)
    fill(first, 1, 2, 3)
    populating.lend(first, 3 * 4096)
    second = populating.acquire(capacity)
    populating.release(second)
    populating.closed(capacity, 0.0)
    populating.trim(IDLE_S + 1)
    resident = populating.resident_bytes
    work[0]()
    assert populating.resident_bytes == resident == 4 * 4096


def test_pages_that_are_made_meanwhile_count_once(populating: SlotPool, work: Any) -> None:
    """The pages of a batch come while the pool counts. They count before or after, not neither."""
    pool, capacity = populating, 1 << 20
    first = pool.acquire(capacity)
    first.buffer[:] = 1
    pool.lend(first, capacity)
    pool.acquire(capacity)
    measured: Any = Arena.resident_bytes.fget

    def then_populated(arena: Arena) -> int:
        nbytes = measured(arena)
        while work:
            work.pop()()
        return int(nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "resident_bytes", property(then_populated))
        third = pool.acquire(capacity)  # just fits
        refused(pool, capacity)
    assert not work
    assert pool.resident_bytes == 3 * capacity <= pool.quota_bytes
    assert third.buffer.size == capacity


def test_batches_that_still_get_pages_count_fully_although_they_are_lent(populating: SlotPool, work: Any) -> None:
    pool, capacity = populating, 1 << 20
    first = pool.acquire(capacity)
    first.buffer[:] = 1
    pool.lend(first, capacity)
    for _ in range(2):
        pool.lend(pool.acquire(capacity), 1000)  # small batches, made before their pages
    refused(pool, capacity)
    for task in work:
        task()
    assert pool.resident_bytes == 3 * capacity


def test_quota_counts_what_is_touched(pool: SlotPool) -> None:
    """Slots that never came back count, too. Untouched pages do not."""
    pool.quota_bytes = 100_000
    slots = [pool.acquire(1 << 20) for _ in range(2)]
    assert pool.resident_bytes < 10_000
    for slot in slots:
        slot.buffer[:60_000] = 1
    assert 120_000 <= pool.resident_bytes < 140_000
    refused(pool, 1 << 20)
    pool.release(slots[0])
    assert pool.acquire(1 << 20) is slots[0]
    refused(pool, CAPACITY)
    for slot in slots:
        pool.release(slot)
    other = pool.acquire(CAPACITY)  # free slots of another size make room
    assert pool.resident_bytes < 80_000
    pool.release(other)


def test_batches_that_are_being_made_count_as_what_they_will_take(pool: SlotPool) -> None:
    pool.quota_bytes = 1 << 20
    lent = pool.acquire(1 << 20)
    lent.buffer[:300_000] = 1
    pool.lend(lent, 300_000)
    made = [pool.acquire(1 << 20), pool.acquire(1 << 20)]
    refused(pool, 1 << 20)
    made[0].buffer[:300_000] = 1  # does not count twice
    refused(pool, 1 << 20, "hold 0 MiB of a quota of 1 MiB")
    pool.quota_bytes = 1_250_000
    pool.acquire(1 << 20)


def test_memory_that_batches_will_take_is_not_promised_twice(pool: SlotPool, free: Callable[[int], None]) -> None:
    """100 MiB are free, and a batch that is being made will take 40 of them."""
    lent = pool.acquire(1 << 30)
    pool.lend(lent, 40 << 20)
    making = pool.acquire(1 << 30)
    free(100)
    refused(pool, 1 << 30, "no memory left for another batch buffer: 60 MiB available")
    making.buffer[: 20 << 20] = 1  # the batch has filled a part of them
    free(85)
    pool.acquire(1 << 30)


@pytest.mark.parametrize(("touched", "mib", "enough"), [(0, 63, False), (0, 65, True), (70 << 20, 65, False)])
def test_free_memory_must_do_for_a_batch_like_those_before(
    pool: SlotPool, free: Callable[[int], None], touched: int, mib: int, enough: bool
) -> None:
    first = pool.acquire(100 << 20)
    pool.lend(first, touched)
    free(mib)
    if enough:
        assert pool.acquire(100 << 20) is not first
        return
    refused(pool, 100 << 20, f"no memory left for another batch buffer: {mib} MiB")
    pool.release(first)
    assert pool.acquire(100 << 20) is first  # its pages are in memory


def test_a_client_forgets_files_that_the_daemon_has_closed(pool: SlotPool) -> None:
    """Otherwise a consumer's old mapping would keep the contents in memory."""
    maps = SlotMaps()
    slot = pool.acquire(CAPACITY)
    view = maps.lease(told(slot), PID)
    slot.buffer[9000] = 7
    pool.close()
    other = SlotPool(1 << 30).acquire(CAPACITY)  # very likely with the first one's number
    maps.lease(told(other), PID)
    gc.collect()
    assert [inode for _, inode in maps._files] == [other.arena.inode]
    assert view[9000] == 7
    before = memory_files()
    del view
    gc.collect()
    assert memory_files() == before - 2  # the last view's file: its own descriptor and that of its mapping


# -- many slots --------------------------------------------------------------------------------------------------------


def test_few_files_hold_all_slots(pool: SlotPool) -> None:
    """1,024 batches that could take 2 GiB each: 2 TiB of addresses in a dozen files."""
    before, maps = memory_files(), SlotMaps()
    slots = [pool.acquire(1 << 31) for _ in range(1024)]
    assert memory_files() - before <= 2 * 12
    kept = [maps.lease(told(slot), PID) for slot in slots[::16]]
    assert memory_files() - before <= 4 * 12
    for number, slot in enumerate(slots):
        slot.buffer[8:16].view(np.int64)[0] = number
    assert [int(view[8:16].view(np.int64)[0]) for view in kept] == list(range(0, 1024, 16))


@given(data=st.data(), total=st.integers(1, 60), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_gaps_against_a_list_of_cells(data: st.DataObject, total: int, sizes: list[int]) -> None:
    gaps, cells, taken = Gaps(total), [False] * total, {}
    for size in sizes:
        if taken and data.draw(st.booleans()):
            start = data.draw(st.sampled_from(sorted(taken)))
            length = taken.pop(start)
            gaps.give(start, length)
            cells[start : start + length] = [False] * length
        fits = [i for i in range(total - size + 1) if not any(cells[i : i + size])]
        found = gaps.take(size)
        assert found == (fits[0] if fits else None)
        if found is not None:
            cells[found : found + size] = [True] * size
            taken[found] = size
        assert gaps.whole == (not any(cells))


def test_sizes_that_no_session_uses_are_given_back() -> None:
    used = {size: 100.0 + size for size in range(10)}  # the latest last
    assert stale_sizes(used, {0, 9}, 110.0) == [1, 2, 3, 4][: 8 - IDLE_SIZES]
    assert stale_sizes(used, {0, 9}, 107.0 + IDLE_S) == [1, 2, 3, 4, 5, 6]
    assert stale_sizes(used, set(used), 1e9) == []
    assert stale_sizes({}, set(), 0.0) == []
    assert [arena_bytes(n, 1) >> 30 for n in (0, 1, 2, 9, 10, 11, 40)] == [1, 2, 4, 512, 1024, 1024, 1024]
    assert arena_bytes(0, 5 << 40) == 5 << 40


def test_sessions_of_many_sizes_leave_little(pool: SlotPool) -> None:
    rng, most = random.Random(1), 0
    for number in range(300):
        capacity = 4096 * (10 + rng.randrange(50))
        pool.opened(capacity)
        slots = [pool.acquire(capacity) for _ in range(3)]
        for slot in slots:
            slot.buffer[:] = 1
            pool.release(slot)
        pool.closed(capacity, float(number))
        most = max(most, pool.resident_bytes)
    assert most <= 3 * (IDLE_SIZES + 1) * 4096 * 60
    pool.trim(300.0 + IDLE_S)
    assert pool.resident_bytes == 0
    assert pool._arenas == []


def test_slots_of_running_sessions_are_kept(pool: SlotPool) -> None:
    """They stay for any number of sizes and any length of pause: fresh pages cost more than a copy."""
    sizes = [4096 << n for n in range(19)]
    for size in sizes:
        pool.opened(size)
        pool.release(pool.acquire(size))
    pool.trim(1e6)
    made = pool.created
    for size in sizes:
        pool.acquire(size)
    assert pool.created == made


def test_without_descriptors_there_is_an_error_and_some_are_left(pool: SlotPool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    slot = pool.acquire(CAPACITY)
    pool.release(slot)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken = [os.open("/dev/null", os.O_RDONLY)]
    while taken[-1] < highest:  # until no lower number is free
        taken.append(os.open("/dev/null", os.O_RDONLY))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 5, hard))
        refused(pool, 2 << 30, "files open")
        assert pool.acquire(CAPACITY) is slot
        assert pool.acquire(CAPACITY) is not slot  # needs no file
        os.close(os.open("/dev/null", os.O_RDONLY))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_many_slots_leave_a_tenth(pool: SlotPool, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.daemon.engine.slots.GROWN_BYTES", 2 << 20)
    monkeypatch.setattr("atta.daemon.engine.slots.total_bytes", lambda: 10 << 30)
    free(900)
    for _ in range(GROWN_BATCHES):
        slot = pool.acquire(1 << 20)
        slot.buffer[:] = 1
        pool.lend(slot, 1 << 20)
    refused(pool, 1 << 20, "no memory left for another batch buffer: 900 MiB available")
    free(1200)
    pool.acquire(1 << 20)


LARGE, SMALL = 2 * LEAST_BYTES, LEAST_BYTES - PAGE
LONG = 64 * LEAST_BYTES


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
        begin = array.ctypes.data
        return any(start <= begin and begin + array.nbytes <= stop for start, stop in self.ranges())


class Consumer:
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


def test_large_arrays_are_pinned_once_and_as_a_whole_when_they_grow(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(LONG)
    for grown in (1, 1, 1.2, 3):
        arrays = consumer.take(slot, {PAGE: SMALL, 16 * PAGE: int(grown * LARGE), 1 << 20: LARGE + 100})
        assert [consumer.pages.holds(array) for array in arrays] == [False, True, True]
        del arrays
        assert consumer.pages.pins == (3 if grown == 3 else 2)
        assert sum(consumer.pages.pinned.values()) < 1.3 * (4 if grown == 3 else 2) * LARGE


def test_a_slot_with_new_pages_is_pinned_anew(pool: SlotPool) -> None:
    consumer, kept, slot = Consumer(), pool.acquire(PAGE), pool.acquire(LONG)
    (array,) = consumer.take(slot, {PAGE: LARGE})
    place, made = array.ctypes.data, slot.made
    del array
    pool.release(slot)
    pool.opened(LONG)
    pool.closed(LONG, now=0.0)
    pool.trim(now=1e6)  # the pages are given back, the range is free
    again = pool.acquire(LONG)
    assert (again.arena, again.offset) == (kept.arena, slot.offset)
    assert again.made != made
    (array,) = consumer.take(again, {PAGE: LARGE})
    assert array.ctypes.data == place
    assert consumer.pages.pins == 2


def test_the_first_batch_of_a_slot_is_not_pinned(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(LONG)
    consumer.seen.add(slot.made)
    for pins in (0, 1, 1):
        consumer.take(slot, {PAGE: LARGE})
        assert consumer.pages.pins == pins


def test_slots_in_turns_do_not_push_each_other_out(pool: SlotPool) -> None:
    consumer, slots = Consumer(limit=3 * LARGE), [pool.acquire(LONG) for _ in range(4)]
    for _ in range(5):
        pinned = [consumer.pages.holds(consumer.take(slot, {PAGE: LARGE})[0]) for slot in slots]
        assert pinned == [True, True, False, False]
        assert consumer.slots.nbytes <= 3 * LARGE
    assert consumer.pages.pins == 2
    for _ in range(IDLE_BATCHES + 2):
        consumer.take(slots[3], {PAGE: LARGE})
    assert [consumer.pages.holds(consumer.take(slot, {PAGE: LARGE})[0]) for slot in slots[2:]] == [False, True]


def test_an_array_is_pinned_as_a_whole_or_not_at_all(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(LONG)
    consumer.take(slot, {PAGE: LARGE})
    (small,) = consumer.take(slot, {LARGE: SMALL})  # of another session: begins in pinned pages, ends beyond
    assert all(
        stop <= small.ctypes.data or small.ctypes.data + SMALL <= start for start, stop in consumer.pages.ranges()
    )


def test_where_pinning_is_refused_nothing_is_tried_again(pool: SlotPool) -> None:
    consumer, slots = Consumer(), [pool.acquire(LONG) for _ in range(2)]
    consumer.take(slots[0], {PAGE: LARGE})
    consumer.pages.able = False
    for _ in range(3):
        consumer.take(slots[1], {PAGE: LARGE, 1 << 20: LARGE})
    assert consumer.pages.pinned == {}  # a range that cannot grow with its array must not stay
    assert consumer.pages.pins == 2


def test_a_file_that_is_unmapped_is_not_pinned_any_more(pool: SlotPool) -> None:
    consumer, slot = Consumer(), pool.acquire(LONG)
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


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([24, 40]), st.booleans(), layouts), max_size=25))
def test_large_arrays_are_always_pinned(batches: list[tuple[int, int, bool, list[tuple[int, int]]]]) -> None:
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
