"""Shared-memory slots: both sides see one memory, leases end with the last view, quotas hold."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from atta.client.slots import SlotMaps
from atta.daemon.slots import SlotPool
from atta.errors import QuotaExceededError, RemoteError, UnavailableError

CAPACITY = 1 << 16


def test_both_sides_see_one_memory() -> None:
    pool, maps = SlotPool(1 << 30), SlotMaps()
    slot = pool.acquire(CAPACITY)
    view = np.asarray(maps.lease(slot.path, slot.capacity, slot.nonce))
    slot.buffer[5000] = 77
    assert view[5000] == 77
    pool.close()
    assert view[5000] == 77  # the daemon's end does not take memory away from a reader


def test_lease_ends_with_the_last_derived_view() -> None:
    pool, maps = SlotPool(1 << 30), SlotMaps()
    slot = pool.acquire(CAPACITY)
    lease = maps.lease(slot.path, slot.capacity, slot.nonce)
    ended: list[int] = []
    weakref.finalize(lease, ended.append, 1)
    derived = np.asarray(lease)[4096:8192].view(np.float32).reshape(32, 32)[3:]
    del lease
    gc.collect()
    assert not ended
    del derived
    gc.collect()
    assert ended == [1]


def test_another_file_behind_the_path_is_noticed(tmp_path: Path) -> None:
    pool = SlotPool(1 << 30)
    slot = pool.acquire(CAPACITY)
    with pytest.raises(RemoteError, match="nonce"):
        SlotMaps().lease(slot.path, slot.capacity, slot.nonce + 1)
    with pytest.raises(RemoteError, match="cannot be mapped"):
        SlotMaps().lease(str(tmp_path), slot.capacity, slot.nonce)
    with pytest.raises(UnavailableError, match="no daemon answers"):
        SlotMaps().lease("/proc/self/fd/9999", slot.capacity, slot.nonce)


def test_released_slots_are_reused_and_abandoned_ones_never() -> None:
    pool = SlotPool(1 << 30)
    first = pool.acquire(CAPACITY)
    pool.release(first)
    assert pool.acquire(CAPACITY) is first
    pool.abandon(first)
    assert pool.acquire(CAPACITY) is not first


def test_quota_counts_what_is_touched() -> None:
    """Also slots that have never come back count, and untouched pages do not."""
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
    pool.abandon(other)


@pytest.mark.parametrize(
    ("touched", "free", "enough"), [(0, 63 << 20, False), (0, 65 << 20, True), (70 << 20, 65 << 20, False)]
)
def test_free_memory_must_do_for_a_batch_like_those_before(
    monkeypatch: pytest.MonkeyPatch, touched: int, free: int, enough: bool
) -> None:
    pool = SlotPool(1 << 30)
    first = pool.acquire(100 << 20)
    first.buffer[:touched] = 1
    monkeypatch.setattr("atta.daemon.slots.available_bytes", lambda: free)
    if enough:
        assert pool.acquire(100 << 20) is not first
        return
    with pytest.raises(QuotaExceededError, match=f"no memory left for another batch buffer: {free >> 20} MiB"):
        pool.acquire(100 << 20)
    pool.release(first)
    assert pool.acquire(100 << 20) is first  # its pages are there


def test_mappings_of_closed_slots_are_forgotten() -> None:
    """A slot that the daemon closes to make room must not stay in memory because a consumer has once mapped it."""
    pool, maps = SlotPool(1 << 30), SlotMaps()
    slot = pool.acquire(CAPACITY)
    maps.lease(slot.path, slot.capacity, slot.nonce)
    (mapping,) = map(weakref.ref, maps._maps.values())
    kept = pool.acquire(CAPACITY)
    view = np.asarray(maps.lease(kept.path, kept.capacity, kept.nonce))
    kept.buffer[9000] = 7
    pool.close()
    other = pool.acquire(CAPACITY)  # very likely with the first one's number
    maps.lease(other.path, other.capacity, other.nonce)
    gc.collect()
    assert mapping() is None
    assert len(maps._maps) == 1
    assert view[9000] == 7
