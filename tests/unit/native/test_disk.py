"""Rows and values on the disk against numpy: both ways of reading, and files that end too soon."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atta import _native

WAYS = [(True, True), (False, True), (True, False), (False, False)]
"""Whether reads go through io_uring, and past the page cache."""


def table(path: Path, start: int, rows: int, row_bytes: int, seed: int = 0) -> np.ndarray:
    held = np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), np.uint8)
    path.write_bytes(b"h" * start + held.tobytes())
    return held


def opened(path: Path, start: int, held: np.ndarray, slots: int, way: tuple[bool, bool]) -> _native.DiskRows:
    return _native.DiskRows(str(path), start, *held.shape, slots, len(held), *way)


@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 4, 100, 511, 512, 1000, 4095, 4096, 5000, 70_000]),
    st.integers(1, 2000),
    st.sampled_from([0, 64, 128, 4096, 5001]),
    st.sampled_from(WAYS),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_those_of_the_file(
    tmp_path: Path, seed: int, row_bytes: int, rows: int, start: int, way: tuple[bool, bool]
) -> None:
    rng = np.random.default_rng(seed)
    rows = min(rows, max(1, 2_000_000 // row_bytes))
    held = table(tmp_path / "rows", start, rows, row_bytes, seed)
    disk = opened(tmp_path / "rows", start, held, int(rng.integers(1, rows + 2)), way)
    for turn in range(4):
        asked = rng.integers(0, rows, int(rng.integers(0, 3 * rows)))
        later = np.unique(rng.integers(0, rows, rows))
        disk.expect(turn + 1, later)
        out = np.zeros((len(asked) + 5, row_bytes), np.uint8)
        places = rng.permutation(len(out))[: len(asked)]
        disk.gather(asked.astype(rng.choice([np.int32, np.int64])), out, places, turn)  # type: ignore[arg-type]
        disk.close(turn)
        expected = np.zeros_like(out)
        expected[places] = held[asked]
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", [64, 512, 4096])
def test_values_are_those_of_the_file(tmp_path: Path, way: tuple[bool, bool], block: int) -> None:
    ids = np.random.default_rng(1).integers(0, 1 << 40, 30_001)
    (tmp_path / "ids.npy").write_bytes(b"h" * 128 + ids.tobytes())
    size = os.path.getsize(tmp_path / "ids.npy")
    disk = _native.DiskRows(str(tmp_path / "ids.npy"), 0, -(-size // block), block, 20, 100, *way)
    for count in (0, 1, 5, 100_000):
        at = np.random.default_rng(count).integers(0, len(ids), count)
        out = np.empty(count, np.int64)
        disk.values(128, at, out)
        assert np.array_equal(out, ids[at])
    every = np.arange(len(ids))
    disk.values(128, every, out := np.empty(len(ids), np.int64))
    assert np.array_equal(out, ids)


def test_hot_rows_are_read_once_and_neighbours_in_one_go(tmp_path: Path) -> None:
    held = table(tmp_path / "rows", 128, 50_000, 512)
    disk = opened(tmp_path / "rows", 128, held, 1000, (True, True))
    out = np.empty((1000, 512), np.uint8)
    disk.gather(np.arange(1000)[::-1].copy(), out, None, -1)
    first = disk.figures()
    assert np.array_equal(out, held[:1000][::-1])
    assert first["disk_reads"] <= 10
    assert first["disk_read_bytes"] <= 600_000
    assert first["disk_rows_asked"] == 1000
    disk.gather(np.arange(1000), out, None, -1)
    assert disk.figures()["disk_reads"] == first["disk_reads"]
    assert disk.figures()["disk_rows_hit"] == 1000
    far = np.arange(2000, 50_000, 100)
    disk.gather(far, out[: len(far)], None, -1)
    assert disk.figures()["disk_reads"] == first["disk_reads"] + len(far)


def test_rows_that_the_window_wants_come_with_those_beside_them(tmp_path: Path) -> None:
    held = table(tmp_path / "rows", 0, 800, 512)
    disk = opened(tmp_path / "rows", 0, held, 200, (True, True))
    disk.expect(1, np.arange(1, 800, 8))
    out = np.empty((100, 512), np.uint8)
    for turn in (0, 1):
        disk.gather(np.arange(turn, 800, 8), out, None, turn)
        assert np.array_equal(out, held[turn::8])
    assert disk.figures()["disk_rows_hit"] == 100


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_cut_short_is_an_error_and_reading_goes_on(tmp_path: Path, way: tuple[bool, bool]) -> None:
    held = table(tmp_path / "rows", 128, 5000, 1000)
    disk = opened(tmp_path / "rows", 128, held, 10, way)
    os.truncate(tmp_path / "rows", 3_000_000)
    out = np.empty((300, 1000), np.uint8)
    for _ in range(3):
        with pytest.raises(OSError, match="rows") as raised:
            disk.gather(np.arange(2900, 3200), out, None, -1)
        assert raised.value.filename == str(tmp_path / "rows")
    disk.gather(np.arange(0, 2900, 10), out[:290], None, -1)
    assert np.array_equal(out[:290], held[:2900:10])


def test_many_threads_read_one_table(tmp_path: Path) -> None:
    held = table(tmp_path / "rows", 128, 20_000, 300)
    disk = opened(tmp_path / "rows", 128, held, 3000, (True, True))

    def read(seed: int) -> bool:
        asked = (np.random.default_rng(seed).pareto(1, 3000) * 50).astype(np.int64) % len(held)
        out = np.empty((len(asked), 300), np.uint8)
        disk.gather(asked, out, None, seed % 7)
        return np.array_equal(out, held[asked])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(64)))


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    held = table(tmp_path / "rows", 0, 10, 8)
    disk = opened(tmp_path / "rows", 0, held, 5, (True, True))
    out = np.empty((2, 8), np.uint8)
    for rows in ([0, 10], [-1, 0]):
        with pytest.raises(ValueError, match="rows"):
            disk.gather(np.array(rows), out, None, -1)
    with pytest.raises(ValueError, match="positions"):
        disk.gather(np.array([0, 1]), out, np.array([0, 2]), -1)
    with pytest.raises(ValueError, match="positions"):
        disk.values(0, np.array([20]), np.empty(1, np.int32))
    with pytest.raises(ValueError, match="shorter"):
        _native.DiskRows(str(tmp_path / "rows"), 0, 11, 8, 1, 1, True, True)
    with pytest.raises(FileNotFoundError, match="none"):
        _native.DiskRows(str(tmp_path / "none"), 0, 1, 1, 1, 1, True, True)
