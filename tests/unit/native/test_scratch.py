"""Borrowed memory comes back with its last view, and the benchmarks' reference loops do the same work as the store."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta import _native
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


@given(
    st.integers(1, 40),
    st.sampled_from([1, 4, 16, 28, 48, 64, 400]),
    st.integers(0, 200),
    st.integers(0, 40),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from([0, 16, 64, 3]),
)
def test_gather_against_numpy(
    table_rows: int, row_bytes: int, count: int, ahead: int, stream: bool, threads: int, offset: int
) -> None:
    rng = np.random.default_rng(table_rows * 1000 + count)
    table = rng.integers(0, 256, (table_rows, row_bytes), dtype=np.uint8)
    rows = rng.integers(0, table_rows, count)
    memory = np.zeros(offset + count * row_bytes + 64, dtype=np.uint8)
    out = memory[offset : offset + count * row_bytes].reshape(count, row_bytes)
    _native.reference_gather(table, rows, out, ahead, stream, threads)
    np.testing.assert_array_equal(out, table[rows])
    assert not memory[:offset].any()
    assert not memory[offset + count * row_bytes :].any()


@given(st.integers(0, 1000), st.booleans(), st.integers(1, 4), st.sampled_from([0, 16, 5]))
def test_copy_against_numpy(nbytes: int, stream: bool, threads: int, offset: int) -> None:
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    memory = np.zeros(offset + nbytes + 64, dtype=np.uint8)
    _native.reference_copy(source, memory[offset : offset + nbytes], stream, threads)
    np.testing.assert_array_equal(memory[offset : offset + nbytes], source)
    assert not memory[offset + nbytes :].any()


def test_sizes_that_contradict_each_other_are_refused() -> None:
    table, rows = np.zeros((4, 8), np.uint8), np.zeros(3, np.int64)
    for out, words in ((np.zeros((3, 7), np.uint8), "another size"), (np.zeros((2, 8), np.uint8), "one row per entry")):
        with pytest.raises(ValueError, match=words):
            _native.reference_gather(table, rows, out, 4, False, 1)
    with pytest.raises(ValueError, match="threads"):
        _native.reference_gather(table, rows, np.zeros((3, 8), np.uint8), 4, False, 0)
    with pytest.raises(ValueError, match="as many bytes"):
        _native.reference_copy(np.zeros(5, np.uint8), np.zeros(6, np.uint8), False, 1)
