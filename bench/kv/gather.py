"""A measuring process of ``atta bench kv``: gathers random rows of a table in its memory, prints one line of JSON.

    python -m atta_bench.kv.gather '{"dataset": "...", "system": "atta", ...}'

The ways to gather alternate. Each gets rows that no other has just read, and puts them into the same shared-memory
slot.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atta import _native
from atta.daemon.engine.slots import SlotPool
from atta.errors import AttaError
from atta.kvstore.store import Store
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.batch.layout import HEADER_BYTES

__all__ = ["GatherConfig", "main", "measure"]

NODE, TABLE = "node", "x"
_AHEAD = (4, 8, 16, 32)
_PAUSE_S = 0.02


@dataclass(frozen=True)
class GatherConfig:
    """Settings of the process.

    Attributes:
        dataset: dataset of one part, with the table ``x`` of node type ``node``.
        system: ``"atta"``: the store, reference loops and copies, and the libraries; ``"dgl"``: DGL alone.
        batch: rows per gather, distinct and random.
        threads: at most this many threads gather.
        repeats: timed gathers per way.
        seed: seed of the choice of rows.
    """

    dataset: str
    system: str
    batch: int
    threads: int
    repeats: int
    seed: int


@dataclass(frozen=True)
class _Way:
    """A way to gather.

    Attributes:
        run: what is timed; takes the result of ``prepare``.
        prepare: prepares the numbers of the rows (int64 [batch]) before the clock starts.
        result: gives the rows from the result of ``run``; None: ``run`` moves other rows, so they are not compared.
        extra: figures that say how this way works.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[np.ndarray], Any] = lambda rows: rows
    result: Callable[[Any], Any] | None = None
    extra: dict[str, float] = field(default_factory=dict)


class _GatherBuffers:
    """What all ways share: the table, the slot to gather into, and the batches of rows.

    The slot is ``out`` float32 [batch, dim], and ``raw`` uint8 [batch, row bytes] in the same memory.
    """

    def __init__(self, config: GatherConfig) -> None:
        dataset = Dataset.open(config.dataset, verify=False)
        self.store = Store(dataset, 0, threads=config.threads, resident=True)
        self.table = self.store.table(NODE, TABLE).data
        row_bytes = self.store.table(NODE, TABLE).row_bytes
        self.pool = SlotPool(quota_bytes=1 << 62)
        end = HEADER_BYTES + config.batch * row_bytes
        slot = self.pool.acquire(end)
        self.raw = slot.buffer[HEADER_BYTES:end].reshape(config.batch, row_bytes)
        self.out = self.raw.view(self.table.dtype)
        self.raw[:] = 1  # a reused slot has its pages already
        self.bytes = self.table.view(np.uint8)
        order = np.random.default_rng(config.seed).permutation(len(self.table)).astype(np.int64)
        count = len(order) // config.batch
        self._batches = itertools.cycle(list(order[: count * config.batch].reshape(count, config.batch)))

    def rows(self) -> np.ndarray:
        """The next batch, int64 [batch]: rows that were not read for as long as the size of the table allows."""
        return next(self._batches)


def measure(config: GatherConfig) -> dict[str, dict[str, float]]:
    """Figures by system.

    Raises:
        AttaError: a way of gathering gave wrong rows.
    """
    buffers = _GatherBuffers(config)
    ways = _dgl_ways(config, buffers) if config.system == "dgl" else _ways(config, buffers)
    for name, way in ways:
        _check(name, way, buffers)
    seconds: list[list[float]] = [[] for _ in ways]
    order = np.random.default_rng(config.seed)
    for _ in range(config.repeats):
        for index in order.permutation(len(ways)):
            seconds[index].append(_seconds(ways[index][1], buffers.rows()))
            # Threads of OpenMP spin while they wait for work. Without a pause they would take the core of the next way.
            time.sleep(_PAUSE_S if config.threads > 1 else 0)
    found: dict[str, dict[str, float]] = {}
    for (name, way), taken in zip(ways, seconds, strict=True):
        middle = statistics.median(taken)
        speed = buffers.raw.nbytes / middle
        if name not in found or speed > found[name]["bytes_per_s"]:
            found[name] = {"bytes_per_s": speed, "ns_per_row": 1e9 * middle / config.batch, **way.extra}
    return found


def _ways(config: GatherConfig, buffers: _GatherBuffers) -> list[tuple[str, _Way]]:
    """(system, way) of each way to gather. Of several ways of one system the quickest counts."""
    positions = np.arange(config.batch)

    def gather(rows: np.ndarray) -> None:
        buffers.store.gather_to(NODE, TABLE, rows, buffers.out, positions)

    ways = [("atta", _Way(gather, result=lambda _: buffers.out))]
    ways += [("loop", way) for way in _loops(config, buffers)]
    ways += [("copy", way) for way in _copies(config, buffers)]
    if importlib.util.find_spec("torch") is not None:
        ways += _torch_ways(config, buffers)
    if config.threads == 1:
        take = _Way(  # with mode="raise" numpy would gather into a buffer of its own first
            lambda rows: np.take(buffers.table, rows, axis=0, out=buffers.out, mode="clip"), result=lambda found: found
        )
        ways.append(("numpy", take))
    return ways


def _loops(config: GatherConfig, buffers: _GatherBuffers) -> Iterator[_Way]:
    """The plain loop that prefetches, with several distances and with both kinds of store instructions."""
    for ahead, stream in itertools.product(_AHEAD, (False, True)):

        def run(rows: np.ndarray, ahead: int = ahead, stream: bool = stream) -> None:
            _native.reference_gather(buffers.bytes, rows, buffers.raw, ahead, stream, config.threads)

        yield _Way(run, result=lambda _: buffers.out, extra={"rows_ahead": float(ahead), "streaming": float(stream)})


def _copies(config: GatherConfig, buffers: _GatherBuffers) -> Iterator[_Way]:
    """Copies of as many bytes that lie together somewhere in the table."""
    starts = len(buffers.table) - config.batch + 1

    def piece(rows: np.ndarray) -> np.ndarray:
        first = int(rows[0]) % starts
        found: np.ndarray = buffers.bytes[first : first + config.batch]
        return found

    for stream in (False, True):

        def run(source: np.ndarray, stream: bool = stream) -> None:
            _native.reference_copy(source, buffers.raw, stream, config.threads)

        yield _Way(run, prepare=piece, extra={"streaming": float(stream)})


def _torch_ways(config: GatherConfig, buffers: _GatherBuffers) -> list[tuple[str, _Way]]:
    import torch

    torch.set_num_threads(config.threads)
    table, out = torch.from_numpy(buffers.table), torch.from_numpy(buffers.out)

    def fresh(rows: torch.Tensor) -> torch.Tensor:
        return torch.index_select(table, 0, rows)

    def reused(rows: torch.Tensor) -> torch.Tensor:
        return torch.index_select(table, 0, rows, out=out)

    return [
        ("torch", _Way(fresh, prepare=torch.from_numpy, result=lambda found: found.numpy())),
        ("torch-out", _Way(reused, prepare=torch.from_numpy, result=lambda _: buffers.out)),
    ]


def _dgl_ways(config: GatherConfig, buffers: _GatherBuffers) -> list[tuple[str, _Way]]:
    import dgl.backend
    import torch

    torch.set_num_threads(config.threads)
    table = torch.from_numpy(buffers.table)

    def gather(rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = dgl.backend.gather_row(table, rows)
        return found

    return [("dgl", _Way(gather, prepare=torch.from_numpy, result=lambda found: found.numpy()))]


def _check(name: str, way: _Way, buffers: _GatherBuffers) -> None:
    """Run a way once before it is timed, and compare its rows with the table."""
    rows = buffers.rows()
    buffers.raw[:] = 0
    found = way.run(way.prepare(rows))
    if way.result is not None and not np.array_equal(way.result(found), buffers.table[rows]):
        raise AttaError(f"{name} gathers wrong rows")


def _seconds(way: _Way, rows: np.ndarray) -> float:
    prepared = way.prepare(rows)
    start = time.perf_counter()
    kept = way.run(prepared)  # frees new memory only after the clock has stopped
    seconds = time.perf_counter() - start
    del kept
    return seconds


def main() -> None:
    """Measure, as the module docstring says."""
    kernels.retain_heap()  # as a daemon does
    print(json.dumps(measure(GatherConfig(**json.loads(sys.argv[1])))), flush=True)
    os._exit(0)  # some libraries take seconds to shut down


if __name__ == "__main__":
    main()
