"""Shared-memory slots: both sides see one memory, leases end with the last view, quotas hold."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from atta.client.slots import SlotMaps
from atta.daemon.slots import SlotPool
from atta.errors import QuotaExceededError, RemoteError

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


def test_another_file_behind_the_path_is_noticed() -> None:
    pool = SlotPool(1 << 30)
    slot = pool.acquire(CAPACITY)
    with pytest.raises(RemoteError, match="nonce"):
        SlotMaps().lease(slot.path, slot.capacity, slot.nonce + 1)
    with pytest.raises(RemoteError, match="cannot be mapped"):
        SlotMaps().lease("/proc/self/fd/9999", slot.capacity, slot.nonce)


def test_released_slots_are_reused_and_abandoned_ones_never() -> None:
    pool = SlotPool(1 << 30)
    first = pool.acquire(CAPACITY)
    pool.release(first, 100)
    assert pool.acquire(CAPACITY) is first
    pool.abandon(first)
    assert pool.acquire(CAPACITY) is not first


def test_quota() -> None:
    pool = SlotPool(1000)
    slots = [pool.acquire(CAPACITY) for _ in range(2)]
    for slot in slots:
        pool.release(slot, 600)
    again = [pool.acquire(CAPACITY) for _ in range(2)]
    with pytest.raises(QuotaExceededError, match="quota"):
        pool.acquire(CAPACITY)
    assert len(again) == 2
