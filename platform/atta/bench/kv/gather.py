"""One measured process of ``atta bench kv``: gathers random rows of a table that lies in its memory, prints one line of JSON.

    python -m atta.bench.kv.gather '{"dataset": "...", "system": "atta", ...}'

All ways of doing it run in alternation, each on rows that the others have not just read, into the same shared-memory slot.
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
    """What a process is told.

    Attributes:
        dataset: of one part, with the table ``x`` of node type ``node``.
        system: ``"atta"``: the store, what it is held against, and the libraries; ``"dgl"``: DGL alone.
        batch: rows per gather, distinct and random.
        threads: that a gather may use.
        repeats: timed gathers per way.
        seed: of the rows.
    """

    dataset: str
    system: str
    batch: int
    threads: int
    repeats: int
    seed: int


@dataclass(frozen=True)
class _Way:
    """A way to gather: ``run`` takes what ``prepare`` makes of the rows (int64 [batch]) before the clock starts.

    ``result`` says where the rows are afterwards; None: these are not the rows asked for (a copy of others).
    """

    run: Callable[[Any], Any]
    prepare: Callable[[np.ndarray], Any] = lambda rows: rows
    result: Callable[[Any], Any] | None = None
    extra: dict[str, float] = field(default_factory=dict)


class _Place:
    """A table, a slot to gather into (``out`` float32 [batch, dim], ``raw`` the same as bytes), and batches of rows."""

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
        self.raw[:] = 1  # the pages of a reused slot are there
        self.bytes = self.table.view(np.uint8)
        order = np.random.default_rng(config.seed).permutation(len(self.table)).astype(np.int64)
        count = len(order) // config.batch
        self._batches = itertools.cycle(list(order[: count * config.batch].reshape(count, config.batch)))

    def rows(self) -> np.ndarray:
        """The next batch: nobody has asked for its rows for as long as the table allows."""
        return next(self._batches)


def measure(config: GatherConfig) -> dict[str, dict[str, float]]:
    """Figures by system.

    Raises:
        AttaError: a way of gathering gave wrong rows.
    """
    place = _Place(config)
    ways = _dgl_ways(config, place) if config.system == "dgl" else _ways(config, place)
    for name, way in ways:
        _check(name, way, place)
    seconds: list[list[float]] = [[] for _ in ways]
    order = np.random.default_rng(config.seed)
    for _ in range(config.repeats):
        for index in order.permutation(len(ways)):
            seconds[index].append(_seconds(ways[index][1], place.rows()))
            # Threads of OpenMP wait for more work by spinning: they must not take the next one's core.
            time.sleep(_PAUSE_S if config.threads > 1 else 0)
    found: dict[str, dict[str, float]] = {}
    for (name, way), taken in zip(ways, seconds, strict=True):
        middle = statistics.median(taken)
        speed = place.raw.nbytes / middle
        if name not in found or speed > found[name]["bytes_per_s"]:
            found[name] = {"bytes_per_s": speed, "ns_per_row": 1e9 * middle / config.batch, **way.extra}
    return found


def _ways(config: GatherConfig, place: _Place) -> list[tuple[str, _Way]]:
    """All ways by system; of a system's several ways the quickest counts."""
    positions = np.arange(config.batch)

    def gather(rows: np.ndarray) -> None:
        place.store.gather_to(NODE, TABLE, rows, place.out, positions)

    ways = [("atta", _Way(gather, result=lambda _: place.out))]
    ways += [("loop", way) for way in _loops(config, place)]
    ways += [("copy", way) for way in _copies(config, place)]
    if importlib.util.find_spec("torch") is not None:
        ways += _torch_ways(config, place)
    if config.threads == 1:
        take = _Way(  # with mode="raise" numpy would gather into a buffer of its own first
            lambda rows: np.take(place.table, rows, axis=0, out=place.out, mode="clip"), result=lambda found: found
        )
        ways.append(("numpy", take))
    return ways


def _loops(config: GatherConfig, place: _Place) -> Iterator[_Way]:
    """The plain prefetching loop, with several distances and both kinds of stores."""
    for ahead, stream in itertools.product(_AHEAD, (False, True)):

        def run(rows: np.ndarray, ahead: int = ahead, stream: bool = stream) -> None:
            _native.reference_gather(place.bytes, rows, place.raw, ahead, stream, config.threads)

        yield _Way(run, result=lambda _: place.out, extra={"rows_ahead": float(ahead), "streaming": float(stream)})


def _copies(config: GatherConfig, place: _Place) -> Iterator[_Way]:
    """As many bytes that lie together, somewhere in the table."""
    starts = len(place.table) - config.batch + 1

    def piece(rows: np.ndarray) -> np.ndarray:
        first = int(rows[0]) % starts
        found: np.ndarray = place.bytes[first : first + config.batch]
        return found

    for stream in (False, True):

        def run(source: np.ndarray, stream: bool = stream) -> None:
            _native.reference_copy(source, place.raw, stream, config.threads)

        yield _Way(run, prepare=piece, extra={"streaming": float(stream)})


def _torch_ways(config: GatherConfig, place: _Place) -> list[tuple[str, _Way]]:
    import torch

    torch.set_num_threads(config.threads)
    table, out = torch.from_numpy(place.table), torch.from_numpy(place.out)

    def fresh(rows: torch.Tensor) -> torch.Tensor:
        return torch.index_select(table, 0, rows)

    def reused(rows: torch.Tensor) -> torch.Tensor:
        return torch.index_select(table, 0, rows, out=out)

    return [
        ("torch", _Way(fresh, prepare=torch.from_numpy, result=lambda found: found.numpy())),
        ("torch-out", _Way(reused, prepare=torch.from_numpy, result=lambda _: place.out)),
    ]


def _dgl_ways(config: GatherConfig, place: _Place) -> list[tuple[str, _Way]]:
    import dgl.backend
    import torch

    torch.set_num_threads(config.threads)
    table = torch.from_numpy(place.table)

    def gather(rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = dgl.backend.gather_row(table, rows)
        return found

    return [("dgl", _Way(gather, prepare=torch.from_numpy, result=lambda found: found.numpy()))]


def _check(name: str, way: _Way, place: _Place) -> None:
    """Run once, so that nothing is new when the clock runs, and look at the rows."""
    rows = place.rows()
    place.raw[:] = 0
    found = way.run(way.prepare(rows))
    if way.result is not None and not np.array_equal(way.result(found), place.table[rows]):
        raise AttaError(f"{name} gathers wrong rows")


def _seconds(way: _Way, rows: np.ndarray) -> float:
    prepared = way.prepare(rows)
    start = time.perf_counter()
    kept = way.run(prepared)  # new memory is given back after the clock has stopped
    seconds = time.perf_counter() - start
    del kept
    return seconds


def main() -> None:
    """Measure, as the module docstring says."""
    kernels.retain_heap()  # as a daemon does
    print(json.dumps(measure(GatherConfig(**json.loads(sys.argv[1])))), flush=True)
    os._exit(0)  # some libraries take seconds to say goodbye


if __name__ == "__main__":
    main()
