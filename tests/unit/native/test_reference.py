"""The benchmarks' reference loops do the same work as the store."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta import _native


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
