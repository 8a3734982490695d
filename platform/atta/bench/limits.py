"""What this machine can do, measured when a benchmark runs: the figures that results are held against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from atta.samplers import kernels

__all__ = ["copy_bytes_per_s", "gather_bytes_per_s"]

WORKING_SET = 256 << 20


def copy_bytes_per_s(rounds: int = 5) -> float:
    """Bytes per second of copying a large buffer into a reused one, one thread."""
    source, target = np.ones(WORKING_SET, dtype=np.uint8), np.ones(WORKING_SET, dtype=np.uint8)
    return WORKING_SET / _median_seconds(lambda: np.copyto(target, source), rounds)


def gather_bytes_per_s(row_bytes: int, rounds: int = 5) -> float:
    """Bytes per second of gathering random rows of a table much larger than the caches into a reused buffer, one thread."""
    rows = WORKING_SET // row_bytes
    table = np.ones((rows, row_bytes), dtype=np.uint8)
    chosen = np.random.default_rng(0).integers(0, rows, rows // 4)
    out = np.ones((len(chosen), row_bytes), dtype=np.uint8)
    return out.nbytes / _median_seconds(lambda: kernels.gather_rows(table, chosen, out), rounds)


def _median_seconds(work: Callable[[], object], rounds: int) -> float:
    seconds = []
    work()
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
