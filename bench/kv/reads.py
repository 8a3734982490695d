"""A measuring process of ``atta bench kv``: rows of a mutable table by memory, in messages, and what the machine can do.

    python -m atta_bench.kv.reads '{"address": "127.0.0.1:7070", ...}'

All ways read the same rows, in turn. Prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import atta
from atta.errors import AttaError
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec
from atta.samplers import kernels

__all__ = ["ReadsConfig", "main", "measure"]

_CPU_CLOCK = 2  # of a process, see clock_getcpuclockid(3)
_CLIENT = 1


@dataclass(frozen=True)
class ReadsConfig:
    """Settings of the process.

    Attributes:
        address: address of the daemon.
        daemon_pid: its process id.
        rows, dim: shape of the float32 table.
        batch: rows per read, distinct and random.
        repeats: timed reads per way.
        seed: seed of rows and values.
    """

    address: str
    daemon_pid: int
    rows: int
    dim: int
    batch: int
    repeats: int
    seed: int


@dataclass
class _ReadWay:
    """A way to read, its seconds per read, and the processor seconds of both processes in all reads."""

    read: Callable[[np.ndarray], np.ndarray]
    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    def timed(self, rows: np.ndarray, daemon: int) -> np.ndarray:
        """Read once, with the clock running."""
        cpu, start = _cpu_s(daemon), time.perf_counter()
        found = self.read(rows)
        self.seconds.append(time.perf_counter() - start)
        self.cpu_s += _cpu_s(daemon) - cpu
        return found


def _cpu_s(daemon: int) -> float:
    """Processor seconds of this process and the daemon so far; finer than the hundredths of ``psutil``."""
    return time.process_time() + time.clock_gettime(_CPU_CLOCK | (~daemon << 3))


def measure(config: ReadsConfig) -> dict[str, dict[str, float]]:
    """Figures by way: ``"atta"`` (by memory, if the answer is large enough), ``"messages"``, ``"loop"``, ``"copy"``.

    Raises:
        AttaError: the daemon does not answer, or the ways read different rows.
    """
    spec = MutableSpec("bench-reads", config.rows, row_shape=(config.dim,))
    rng = np.random.default_rng(config.seed)
    local, values = MutableTable(spec), rng.random((config.rows, config.dim), dtype=np.float32)
    local.register(_CLIENT)
    everything = np.arange(config.rows)
    local.push(everything, values, "write", client=_CLIENT, sequence=0)
    with (
        atta.connect([config.address], wait=True, deadline_s=120.0) as cluster,
        atta.connect([config.address], deadline_s=120.0) as other,
    ):
        table, far = cluster.tables.create(spec), other.tables.create(spec)
        for connection in other._connections:
            connection.takes_lent = False
        table.push(everything, values).wait()
        ways = {
            "atta": _ReadWay(lambda rows: table.pull(rows).values),
            "messages": _ReadWay(lambda rows: far.pull(rows).values),
            **_limits(local, values, config.batch),
        }
        names = list(ways)
        for number in range(config.repeats + 1):
            rows = rng.choice(config.rows, config.batch, replace=False)
            wanted = values[rows]
            for name in names[:: 1 if number % 2 == 0 else -1]:
                found = ways[name].timed(rows, config.daemon_pid)
                if name != "copy" and not np.array_equal(found, wanted):
                    raise AttaError(f"reads: {name} gives wrong rows")
                del found
        cluster.tables.delete(spec.name)
    nbytes = 4 * config.dim * config.batch
    return {name: _figures(way, config, nbytes) for name, way in ways.items()}


def _limits(table: MutableTable, values: np.ndarray, batch: int) -> dict[str, _ReadWay]:
    """A gather in this process, and a copy of as many bytes that lie together, both into memory that has its pages."""
    out = np.ones((batch, values.shape[1]), dtype=np.float32)

    def copy(_: np.ndarray) -> np.ndarray:
        np.copyto(out, values[:batch])
        return out

    return {"loop": _ReadWay(lambda rows: table.pull(rows, out=Pulled(out, None)).values), "copy": _ReadWay(copy)}


def _figures(way: _ReadWay, config: ReadsConfig, nbytes: int) -> dict[str, float]:
    seconds = statistics.median(way.seconds[1:])  # the first one warms up
    return {
        "rows_per_s": config.batch / seconds,
        "bytes_per_s": nbytes / seconds,
        "cpu_s_per_gb": 1e9 * way.cpu_s / (nbytes * len(way.seconds)),
    }


def main() -> None:
    """Measure, as the module docstring says."""
    kernels.retain_heap()
    found: dict[str, Any] = measure(ReadsConfig(**json.loads(sys.argv[1])))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
