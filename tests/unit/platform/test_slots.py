"""Shared-memory slots: both sides see one memory, a slot in use is never written, few files hold all, quotas hold."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.sessions.slots import SlotMaps
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
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except OSError:  # the descriptor of the listing itself
            continue
    return sum("memfd:atta-slots" in link for link in links)


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


def test_loaders_that_differ_in_little_use_each_others_slots(pool: SlotPool) -> None:
    slot = pool.acquire(45 << 20)
    pool.release(slot)
    assert pool.acquire((45 << 20) + 8192) is slot, "such as with a table of labels"


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


def plain_file(tmp_path: Path) -> int:
    (tmp_path / "f").write_bytes(bytes(CAPACITY))
    return os.open(tmp_path / "f", os.O_RDWR)


def unsealed(_: Path) -> int:
    fd = os.memfd_create("atta-slots", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, CAPACITY)
    return fd


def short(_: Path) -> int:
    return memfiles.create("atta-slots", CAPACITY - 4096)


@pytest.mark.parametrize(
    ("make", "words"),
    [(plain_file, "not a memory file"), (unsealed, "shrink"), (short, "61440 bytes, 65536 are wanted")],
)
def test_what_is_no_sealed_memory_file_is_not_mapped(tmp_path: Path, make: Callable[[Path], int], words: str) -> None:
    fd = make(tmp_path)
    slot = SharedSlot(path=f"/proc/{PID}/fd/{fd}", capacity=CAPACITY, inode=os.fstat(fd).st_ino)
    with pytest.raises(RemoteError, match=words):
        SlotMaps().lease(slot, PID)
    os.close(fd)


def test_another_path_is_not_opened(pool: SlotPool, tmp_path: Path) -> None:
    slot = pool.acquire(CAPACITY)
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for ever
    name = slot.path.removeprefix(f"/proc/{PID}")
    for path in (
        str(tmp_path / "fifo"),
        f"/proc/self{name}",
        f"/proc/{PID}/../{PID}{name}",
        slot.path + "/",
        "/dev/zero",
    ):
        with pytest.raises(RemoteError, match="not a descriptor of process"):
            SlotMaps().lease(told(slot, path=path), PID)
    with pytest.raises(RemoteError, match=f"not a descriptor of process {PID + 1}"):
        SlotMaps().lease(told(slot), PID + 1)
    with pytest.raises(UnavailableError, match="no daemon answers"):
        SlotMaps().lease(told(slot, path=f"/proc/{PID}/fd/9999"), PID)
    with pytest.raises(UnavailableError, match="no daemon answers"):
        SlotMaps().lease(told(slot, inode=slot.arena.inode + 1), PID)


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


CONSUMER = """
import sys, time
from atta.client.sessions.slots import SlotMaps
from atta.protos.v1.session_pb2 import SharedSlot
view = SlotMaps().lease(SharedSlot.FromString(bytes.fromhex(sys.argv[1])), int(sys.argv[2]))
print(int(view[5000]), flush=True)
time.sleep(600)
"""


def test_a_killed_consumer_looks_at_nothing(pool: SlotPool) -> None:
    slot = pool.acquire(CAPACITY)
    slot.buffer[5000] = 77
    argument = told(slot).SerializeToString().hex()
    consumer = subprocess.Popen([sys.executable, "-c", CONSUMER, argument, str(PID)], stdout=subprocess.PIPE)
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == b"77\n"
    pool.abandon(slot, "s")
    assert pool.lingering == 1
    consumer.kill()
    consumer.communicate()
    pool.trim(0.0)
    assert pool.lingering == 0
    assert pool.acquire(CAPACITY) is slot


@pytest.fixture
def work() -> list[Callable[[], None]]:
    """What a pool wants done on another thread."""
    return []


@pytest.fixture
def populating(work: list[Callable[[], None]]) -> Iterator[SlotPool]:
    made = SlotPool(1 << 30, aside=work.append)
    yield made
    made.close()


def fill(slot: Slot, *pages: int) -> None:
    for page in pages:
        slot.buffer[4096 * page + 100] = 7


def pages_of(slot: Slot) -> list[int]:
    return [page for start, stop in slot.touched() for page in range(start // 4096, stop // 4096)]


def test_a_new_slot_gets_its_pages_where_the_largest_batch_had_them(
    populating: SlotPool, work: list[Callable[[], None]]
) -> None:
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


def test_threads_that_fill_a_new_slot_meet_no_fresh_pages(populating: SlotPool, work: list[Callable[[], None]]) -> None:
    capacity = 8 << 20
    first = populating.acquire(capacity)
    first.buffer[:] = 1
    populating.lend(first, capacity)
    second = populating.acquire(capacity)
    thread = threading.Thread(target=work[0])
    thread.start()
    thread.join()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    second.buffer[:] = 2
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 100, "of 2,048 pages"


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


def test_pages_that_are_made_meanwhile_count_once(work: list[Callable[[], None]]) -> None:
    """The pages of a batch come while the pool counts. They count before or after, not neither."""
    capacity = 1 << 20
    pool = SlotPool(3 << 20, aside=work.append)
    first = pool.acquire(capacity)
    first.buffer[:] = 1
    pool.lend(first, capacity)
    pool.acquire(capacity)
    measured = Arena.resident_bytes.fget
    assert measured is not None

    def then_populated(arena: Arena) -> int:
        nbytes = measured(arena)
        while work:
            work.pop()()
        return int(nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "resident_bytes", property(then_populated))
        third = pool.acquire(capacity)  # just fits
        with pytest.raises(QuotaExceededError, match="quota"):
            pool.acquire(capacity)
    assert not work
    assert pool.resident_bytes == 3 * capacity <= pool.quota_bytes
    assert third.buffer.size == capacity
    pool.close()


def test_batches_that_still_get_pages_count_fully_although_they_are_lent(work: list[Callable[[], None]]) -> None:
    capacity = 1 << 20
    pool = SlotPool(3 << 20, aside=work.append)
    first = pool.acquire(capacity)
    first.buffer[:] = 1
    pool.lend(first, capacity)
    for _ in range(2):
        pool.lend(pool.acquire(capacity), 1000)  # small batches, made before their pages
    with pytest.raises(QuotaExceededError, match="quota"):
        pool.acquire(capacity)
    for task in work:
        task()
    assert pool.resident_bytes == 3 * capacity
    pool.close()


def test_quota_counts_what_is_touched() -> None:
    """Slots that never came back count, too. Untouched pages do not."""
    pool = SlotPool(100_000)
    slots = [pool.acquire(1 << 20) for _ in range(2)]
    assert pool.resident_bytes < 10_000
    for slot in slots:
        slot.buffer[:60_000] = 1
    assert 120_000 <= pool.resident_bytes < 140_000
    with pytest.raises(QuotaExceededError, match="quota"):
        pool.acquire(1 << 20)
    pool.release(slots[0])
    assert pool.acquire(1 << 20) is slots[0]
    with pytest.raises(QuotaExceededError, match="quota"):
        pool.acquire(CAPACITY)
    for slot in slots:
        pool.release(slot)
    other = pool.acquire(CAPACITY)  # free slots of another size make room
    assert pool.resident_bytes < 80_000
    pool.release(other)
    pool.close()


def test_batches_that_are_being_made_count_as_what_they_will_take() -> None:
    pool = SlotPool(1 << 20)
    lent = pool.acquire(1 << 20)
    lent.buffer[:300_000] = 1
    pool.lend(lent, 300_000)
    made = [pool.acquire(1 << 20), pool.acquire(1 << 20)]
    with pytest.raises(QuotaExceededError, match="quota"):
        pool.acquire(1 << 20)
    made[0].buffer[:300_000] = 1  # does not count twice
    with pytest.raises(QuotaExceededError, match="hold 0 MiB of a quota of 1 MiB"):
        pool.acquire(1 << 20)
    pool.quota_bytes = 1_250_000
    pool.acquire(1 << 20)
    pool.close()


def test_memory_that_batches_will_take_is_not_promised_twice(pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MiB are free, and a batch that is being made will take 40 of them."""
    lent = pool.acquire(1 << 30)
    pool.lend(lent, 40 << 20)
    making = pool.acquire(1 << 30)
    monkeypatch.setattr("atta.daemon.engine.slots.available_bytes", lambda: 100 << 20)
    with pytest.raises(QuotaExceededError, match="no memory left for another batch buffer: 60 MiB available"):
        pool.acquire(1 << 30)
    making.buffer[: 20 << 20] = 1  # the batch has filled a part of them
    monkeypatch.setattr("atta.daemon.engine.slots.available_bytes", lambda: 85 << 20)
    pool.acquire(1 << 30)


@pytest.mark.parametrize(
    ("touched", "free", "enough"), [(0, 63 << 20, False), (0, 65 << 20, True), (70 << 20, 65 << 20, False)]
)
def test_free_memory_must_do_for_a_batch_like_those_before(
    pool: SlotPool, monkeypatch: pytest.MonkeyPatch, touched: int, free: int, enough: bool
) -> None:
    first = pool.acquire(100 << 20)
    pool.lend(first, touched)
    monkeypatch.setattr("atta.daemon.engine.slots.available_bytes", lambda: free)
    if enough:
        assert pool.acquire(100 << 20) is not first
        return
    with pytest.raises(QuotaExceededError, match=f"no memory left for another batch buffer: {free >> 20} MiB"):
        pool.acquire(100 << 20)
    pool.release(first)
    assert pool.acquire(100 << 20) is first  # its pages are in memory


def test_a_client_forgets_files_that_the_daemon_has_closed() -> None:
    """Otherwise a consumer's old mapping would keep the contents in memory."""
    pool, maps = SlotPool(1 << 30), SlotMaps()
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


@settings(deadline=None, max_examples=50)
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


def test_arenas_double() -> None:
    assert [arena_bytes(n, 1) >> 30 for n in (0, 1, 2, 9, 10, 11, 40)] == [1, 2, 4, 512, 1024, 1024, 1024]
    assert arena_bytes(0, 5 << 40) == 5 << 40


def test_sizes_that_no_session_uses_are_given_back() -> None:
    used = {size: 100.0 + size for size in range(10)}  # the latest last
    assert stale_sizes(used, {0, 9}, 110.0) == [1, 2, 3, 4][: 8 - IDLE_SIZES]
    assert stale_sizes(used, {0, 9}, 107.0 + IDLE_S) == [1, 2, 3, 4, 5, 6]
    assert stale_sizes(used, set(used), 1e9) == []
    assert stale_sizes({}, set(), 0.0) == []


def test_sessions_of_many_sizes_leave_little(pool: SlotPool) -> None:
    """After 300 sessions of 50 sizes, only the few most recent sizes still hold memory and descriptors."""
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
        with pytest.raises(QuotaExceededError, match="files open"):
            pool.acquire(2 << 30)
        assert pool.acquire(CAPACITY) is slot
        assert pool.acquire(CAPACITY) is not slot  # needs no file
        os.close(os.open("/dev/null", os.O_RDONLY))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_many_slots_leave_a_tenth_of_the_memory_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.daemon.engine.slots.GROWN_BYTES", 2 << 20)
    monkeypatch.setattr("atta.daemon.engine.slots.total_bytes", lambda: 10 << 30)
    monkeypatch.setattr("atta.daemon.engine.slots.available_bytes", lambda: 900 << 20)
    pool = SlotPool(1 << 30)
    try:
        for _ in range(GROWN_BATCHES):
            slot = pool.acquire(1 << 20)
            slot.buffer[:] = 1
            pool.lend(slot, 1 << 20)
        with pytest.raises(QuotaExceededError, match="no memory left for another batch buffer: 900 MiB available"):
            pool.acquire(1 << 20)
        monkeypatch.setattr("atta.daemon.engine.slots.available_bytes", lambda: 1200 << 20)
        pool.acquire(1 << 20)
    finally:
        pool.close()
