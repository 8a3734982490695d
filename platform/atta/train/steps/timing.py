"""Time of a trainer's phases, by the clock of the CPU or the GPU, and peak memory."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.prefetch import copied_ahead

Moment = float | torch.cuda.Event
"""A point in time: seconds on the CPU, an event in the current stream on CUDA."""


class Stopwatch:
    """Adds up the time between moments, by phase. On CUDA a Python call only queues work, so moments are events in the
    stream. ``totals`` reads them once. Reading them earlier would make the CPU wait for the GPU in each step."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: Counter[str] = Counter()
        self._open: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def now(self) -> Moment:
        """This moment."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, phase: str, start: Moment, end: Moment) -> None:
        """Count the time from ``start`` to ``end`` as ``phase``."""
        if isinstance(start, float) and isinstance(end, float):
            self.add_seconds(phase, end - start)
        elif isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            self._open.append((phase, start, end))
        else:
            raise TypeError("both moments must come from the same kind of clock")

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Count ``seconds`` as ``phase``."""
        self._seconds[phase] += seconds  # type: ignore[assignment]  # Counter is declared for ints, floats add up as well

    def totals(self) -> dict[str, float]:
        """Seconds by phase so far; waits for the GPU."""
        if self._open:
            torch.cuda.synchronize()
        for phase, start, end in self._open:
            self.add_seconds(phase, 1e-3 * start.elapsed_time(end))
        self._open.clear()
        return {phase: float(seconds) for phase, seconds in self._seconds.items()}


def add_daemon_time(watch: Stopwatch, stats: Mapping[str, float]) -> None:
    """Count the time that daemons spent on a batch as ``sample`` (sampling, joining) and ``fetch`` (rows, network)."""
    for phase, names in (("sample", ("sample_ms", "join_ms")), ("fetch", ("fetch_ms", "network_ms"))):
        watch.add_seconds(phase, 1e-3 * sum(stats.get(name, 0.0) for name in names))


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of this process on the CPU, of its tensors on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):  # getrusage may report the peak of the parent process
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


Batch = TypeVar("Batch")


class DeviceBatch(NamedTuple):
    """A batch, and its PyG data on the device."""

    batch: MiniBatch
    data: Any


def on_device(batches: Iterable[MiniBatch], device: torch.device, stopwatch: Stopwatch) -> Iterator[DeviceBatch]:
    """Yield batches with their data on ``device``; count the time for it as phases ``wait`` and ``copy``. On the CPU
    the data shares the batch's memory. On CUDA the next batch is copied while the current one is computed."""
    source = awaited(batches, stopwatch)

    @contextmanager
    def copying() -> Iterator[None]:
        start = stopwatch.now()
        yield
        stopwatch.add("copy", start, stopwatch.now())

    if device.type == "cuda":
        for batch, data in copied_ahead(source, device, copying, plain=True):
            yield DeviceBatch(batch, data)
        return
    for batch in source:
        with copying():
            data = batch.to_pyg(plain=True)
        yield DeviceBatch(batch, data)


def awaited(batches: Iterable[Batch], stopwatch: Stopwatch) -> Iterator[Batch]:
    """Yield the batches; the CPU time until each of them arrives counts as ``wait``."""
    start = time.perf_counter()
    iterator = iter(batches)
    while True:
        batch = next(iterator, None)
        stopwatch.add_seconds("wait", time.perf_counter() - start)
        if batch is None:
            return
        yield batch
        start = time.perf_counter()
