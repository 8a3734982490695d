"""Measures the limits of this machine, which results are compared with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from atta.samplers import kernels

__all__ = ["copy_bytes_per_s", "gather_bytes_per_s", "random_reads_per_s"]

_WORKING_SET = 256 << 20


def copy_bytes_per_s(threads: int = 1, rounds: int = 3) -> float:
    """Bytes per second of copying a large buffer into another one that is used again."""
    source, target = np.ones(_WORKING_SET, dtype=np.uint8), np.ones(_WORKING_SET, dtype=np.uint8)
    pieces = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return _WORKING_SET / _median_seconds(lambda: list(pool.map(lambda p: np.copyto(*p), pieces)), rounds)


def gather_bytes_per_s(row_bytes: int, threads: int = 1, rounds: int = 3) -> float:
    """Bytes per second of gathering random rows of a table that is much larger than the CPU caches."""
    rows = max(1, _WORKING_SET // row_bytes)
    table = np.ones((rows, row_bytes), dtype=np.uint8)
    chosen = np.random.default_rng(0).integers(0, rows, max(1, rows // 4))
    out = np.ones((len(chosen), row_bytes), dtype=np.uint8)
    return out.nbytes / _median_seconds(lambda: kernels.gather_rows(table, chosen, out, threads=threads), rounds)


def random_reads_per_s(working_set: int, rounds: int = 3) -> float:
    """Independent random reads of 4 bytes per second and thread, over ``working_set`` bytes of memory."""
    table = np.ones((max(1, working_set // 4), 1), dtype=np.int32)
    kernels.advise_huge(table)
    chosen = np.random.default_rng(0).integers(0, len(table), 4_000_000)
    out = np.ones((len(chosen), 1), dtype=np.int32)
    return len(chosen) / _median_seconds(lambda: kernels.gather_rows(table, chosen, out), rounds)


def _median_seconds(work: Callable[[], object], rounds: int) -> float:
    seconds = []
    work()
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
