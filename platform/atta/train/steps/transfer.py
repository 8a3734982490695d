"""Moves batches to the device."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch

from atta.client.loaders.minibatch import MiniBatch
from atta.train.steps.timing import Stopwatch

__all__ = ["DeviceBatch", "awaited", "on_device"]

Batch = TypeVar("Batch")


class DeviceBatch(NamedTuple):
    """A batch, and its PyG data on the device."""

    batch: MiniBatch
    data: Any


def on_device(batches: Iterable[MiniBatch], device: torch.device, stopwatch: Stopwatch) -> Iterator[DeviceBatch]:
    """Yield batches with their data on ``device``; count the time for it as phases ``wait`` and ``copy``.

    On the CPU the data shares the batch's memory. On CUDA the next batch is pinned, and copied on a stream of its own,
    while the current one is computed.
    """
    source = awaited(batches, stopwatch)
    if device.type == "cuda":
        yield from _ahead(source, device, stopwatch)
        return
    for batch in source:
        start = stopwatch.now()
        data = batch.to_pyg()
        stopwatch.add("copy", start, stopwatch.now())
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


def _ahead(batches: Iterator[MiniBatch], device: torch.device, stopwatch: Stopwatch) -> Iterator[DeviceBatch]:
    """Copy the next batch to the GPU while the current one is computed."""
    side = torch.cuda.Stream(device)
    pending: DeviceBatch | None = None
    for batch in batches:
        with torch.cuda.stream(side):
            start = stopwatch.now()
            # The pinned copy may be dropped at once: the allocator keeps its memory until the stream has read it.
            coming = DeviceBatch(batch, batch.to_pyg().pin_memory().to(device, non_blocking=True))
            stopwatch.add("copy", start, stopwatch.now())
        if pending is not None:
            yield pending  # the caller queues the computation of the previous batch, which overlaps with this copy
        compute = torch.cuda.current_stream(device)
        compute.wait_stream(side)
        for value in (value for store in coming.data.stores for value in store.values()):
            if isinstance(value, torch.Tensor):
                # It was allocated on the side stream. The allocator must know that another stream uses it too.
                value.record_stream(compute)
        pending = coming
    if pending is not None:
        yield pending
