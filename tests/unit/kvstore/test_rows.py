"""The row kernels against numpy, alone and from many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from atta import _native as kernels

THREADS = 4


def together(*bodies: Callable[[], object]) -> None:
    """Run the bodies on their own threads, which begin together. An error is raised."""
    start = threading.Barrier(len(bodies))

    def run(body: Callable[[], object]) -> None:
        start.wait()
        body()

    with ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(run, body) for body in bodies]:
            future.result()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2000,)])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float32, np.int64])
def test_reading_and_writing_equal_numpy(shape: tuple[int, ...], dtype: type, rng: np.random.Generator) -> None:
    table = rng.integers(0, 2, (60, *shape)).astype(dtype)
    want, locks = table.copy(), kernels.RowLocks()
    for _ in range(4):
        rows = rng.integers(0, 60, 40)
        values = rng.integers(0, 2, (40, *shape)).astype(dtype)
        kernels.write_rows(table, rows, values, locks)
        for row, value in zip(rows, values, strict=True):
            want[row] = value
        assert np.array_equal(table, want)
        out = np.zeros((40, *shape), dtype)
        kernels.read_rows(table, rows, out, locks)
        assert np.array_equal(out, want[rows])


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (5,)])
def test_adding_equals_numpy(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    big = np.dtype(dtype).kind in "iu"
    scale = float(np.iinfo(dtype).max) / 2 if big else 3.0
    table = (rng.random((20, *shape)) * scale).astype(dtype)
    want = table.copy()
    rows = rng.integers(0, 20, 300)
    values = (rng.random((300, *shape)) * scale).astype(dtype)
    kernels.add_rows(table, rows, values, kernels.RowLocks())
    with np.errstate(over="ignore"):
        np.add.at(want, rows, values)
    assert np.array_equal(table, want)


def test_bad_requests_change_nothing() -> None:
    table, locks = np.zeros((5, 2), np.float32), kernels.RowLocks()
    ones, two = np.ones((2, 2), np.float32), np.array([0, 1])
    state = np.zeros((5, 2), np.float32)
    for call, words in [
        (lambda: kernels.read_rows(table, np.array([0, 5]), ones, locks), "row 5"),
        (lambda: kernels.write_rows(table, np.array([0, -1]), ones, locks), "row -1"),
        (lambda: kernels.write_rows(table, two, ones[:1], locks), "one row per entry"),
        (lambda: kernels.write_rows(table, two, np.ones((2, 3), np.float32), locks), "another size"),
        (lambda: kernels.write_rows(table, two, ones, locks, versions=np.zeros(4, np.int64)), "versions"),
        (lambda: kernels.read_rows(table, two, ones, locks, versions=np.zeros(5, np.int64)), "go together"),
        (lambda: kernels.add_rows(table, two, np.ones((2, 2)), locks), "dtype"),
        (lambda: kernels.add_rows(table, np.array([0, 9]), ones, locks), "row 9"),
        (lambda: kernels.add_rows(table.astype(bool), two, ones.astype(bool), locks), "cannot be added"),
        (lambda: kernels.step_rows("sgd", table, [], np.array([0, 5]), ones, locks, 1.0), "row 5"),
        (lambda: kernels.step_rows("adagrad", table, [state[:4]], two, ones, locks, 1.0), "state"),
        (lambda: kernels.step_rows("adagrad", table, [], two, ones, locks, 1.0), "number of arrays"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError):  # a copy would be changed in its place
        kernels.add_rows(table.T, two, ones, locks)
    assert not table.any()


@pytest.mark.parametrize("width", [3, 64, 1000])
def test_no_row_is_ever_torn(width: int) -> None:
    """Writers write constant rows with a matching version. Every row that is read must be constant and match."""
    rows_of_table, rounds, many = 7, 100, max(50, 6000 // width)  # requests long enough to overlap
    table = np.zeros((rows_of_table, width), np.int64)
    versions, locks = np.zeros(rows_of_table, np.int64), kernels.RowLocks()
    done = threading.Event()

    def write(writer: int) -> None:
        rng = np.random.default_rng(writer)
        for i in range(rounds):
            number = i * THREADS + writer
            rows = rng.integers(0, rows_of_table, many)
            values = np.full((many, width), number, np.int64)
            kernels.write_rows(table, rows, values, locks, versions=versions, version=number)

    def read() -> None:
        out, out_versions = np.empty((many, width), np.int64), np.empty(many, np.int64)
        rng = np.random.default_rng(0)
        while not done.is_set():
            rows = rng.integers(0, rows_of_table, many)
            kernels.read_rows(table, rows, out, locks, versions=versions, out_versions=out_versions)
            assert (out == out_versions[:, None]).all()

    def writers() -> None:
        try:
            together(*(partial(write, w) for w in range(THREADS)))
        finally:
            done.set()

    together(writers, read, read)
    assert (table == versions[:, None]).all()


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_additions_of_many_threads_are_all_there(dtype: type) -> None:
    table, locks, rounds, repeats = np.zeros((5, 33), dtype), kernels.RowLocks(), 60, 500
    rows = np.tile([0, 1, 2, 3, 3, 3], repeats)

    def add() -> None:
        for _ in range(rounds):
            kernels.add_rows(table, rows, np.ones((len(rows), 33), dtype), locks)

    together(*[add] * THREADS)
    want = np.array([1, 1, 1, 3, 0]) * rounds * repeats * THREADS
    assert np.array_equal(table, np.repeat(want[:, None], 33, axis=1).astype(dtype))


def test_messages_are_packed_in_one_piece() -> None:
    table, versions = np.arange(15, dtype=np.float32).reshape(5, 3), np.arange(5, dtype=np.int64) * 7
    locks, chosen = kernels.RowLocks(), np.array([4, 0, 4, 1])
    for rows in (chosen[:0], chosen[1:2], chosen):
        for head in (b"", b"abc"):
            packed = head + table[rows].tobytes()
            assert kernels.pack_table(head, table, rows, locks, middle=b"versions:") == packed
            packed += b"versions:" + versions[rows].tobytes()
            assert kernels.pack_table(head, table, rows, locks, versions=versions, middle=b"versions:") == packed
    for row in (-1, 5):
        with pytest.raises(ValueError, match="outside"):
            kernels.pack_table(b"", table, np.array([row]), locks)
