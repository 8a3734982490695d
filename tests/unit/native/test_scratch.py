"""Borrowed memory comes back with its last view, never earlier, and the pool keeps no more than allowed."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from atta.samplers import kernels
from atta.samplers.batch.scratch import Scratch

BIG = 100_000


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_reused_after_the_last_view() -> None:
    scratch = Scratch()
    first = scratch.empty((2, BIG), np.int64)
    where, view = address(first), first[1, 5:]
    first[...] = 7
    del first
    gc.collect()
    other = scratch.empty((2, BIG), np.int64)
    assert address(other) != where
    assert (view == 7).all()
    del view
    gc.collect()
    # A slightly smaller array of another dtype fits into the same memory.
    again = scratch.empty((4 * BIG - 100,), np.int32)
    assert address(again) == where
    assert again.shape == (4 * BIG - 100,)


def test_widened_equals_astype() -> None:
    scratch = Scratch()
    for size in (0, 3, BIG):
        ids = np.arange(size, dtype=np.int32) - 5
        wide = scratch.widened(ids)
        assert wide.dtype == np.int64
        assert np.array_equal(wide, ids)


def test_many_ids_are_widened_wherever_they_lie() -> None:
    ids = np.random.default_rng(0).integers(-(2**31), 2**31, 300_003).astype(np.int32)
    room = np.zeros(len(ids) + 2, np.int64)
    for skip_in, skip_out, cut in ((0, 0, 0), (1, 1, 0), (2, 1, 3), (3, 0, 1)):
        part = ids[skip_in : len(ids) - cut]
        room[:] = 7
        out = room[skip_out : skip_out + len(part)]
        kernels.widen_ids(part, out)
        assert np.array_equal(out, part)
        assert np.all(room[skip_out + len(part) :] == 7)
        assert np.all(room[:skip_out] == 7)
    with pytest.raises(ValueError, match="as long as ids"):
        kernels.widen_ids(ids, room)


def test_kept_memory_is_bounded() -> None:
    scratch = Scratch(keep_bytes=3 << 20)
    arrays = [scratch.empty((1 << 20,), np.uint8) for _ in range(8)]
    del arrays
    gc.collect()
    assert sum(m.nbytes for free in scratch._free.values() for m in free) <= 3 << 20


def test_torch_holds_the_memory() -> None:
    torch = __import__("pytest").importorskip("torch")
    scratch = Scratch()
    tensor = torch.from_numpy(scratch.empty((BIG,), np.int64))
    tensor.fill_(3)
    gc.collect()
    fresh = scratch.empty((BIG,), np.int64)
    fresh[...] = 4
    assert int(tensor.sum()) == 3 * BIG
