"""Moves batches to the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from atta.client.loaders.minibatch import MiniBatch
from atta.train.steps.pinning import pinned_slots
from atta.train.steps.timing import Stopwatch

__all__ = ["DeviceBatch", "awaited", "on_device"]

COPIES = 2
"""How many batches may be on their way to the GPU. Their slots are not given back before they are there."""
Batch = TypeVar("Batch")


class DeviceBatch(NamedTuple):
    """A batch, and its PyG data on the device."""

    batch: MiniBatch
    data: Any


def on_device(batches: Iterable[MiniBatch], device: torch.device, stopwatch: Stopwatch) -> Iterator[DeviceBatch]:
    """Yield batches with their data on ``device``; count the time for it as phases ``wait`` and ``copy``.

    On the CPU the data shares the batch's memory. On CUDA the next batch is pinned where it lies, and copied on a stream
    of its own while the current one is computed.
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
    side, slots = torch.cuda.Stream(device), pinned_slots()
    under_way: deque[tuple[torch.cuda.Event, MiniBatch]] = deque()  # the GPU may still read these batches' slots
    pending: DeviceBatch | None = None
    try:
        for batch in batches:
            slots.pin(batch.arrays.values())
            with torch.cuda.stream(side):
                start = stopwatch.now()
                coming = DeviceBatch(batch, batch.to_pyg().apply(partial(_copied, device=device)))
                stopwatch.add("copy", start, stopwatch.now())
                copied = torch.cuda.Event()
                copied.record(side)
            under_way.append((copied, batch))
            if pending is not None:
                yield pending  # the caller queues the computation of the previous batch, which overlaps with this copy
            while under_way and (len(under_way) > COPIES or under_way[0][0].query()):
                under_way.popleft()[0].synchronize()
            compute = torch.cuda.current_stream(device)
            compute.wait_stream(side)
            for value in (value for store in coming.data.stores for value in store.values()):
                if isinstance(value, torch.Tensor):
                    # It was allocated on the side stream. The allocator must know that another stream uses it too.
                    value.record_stream(compute)
            pending = coming
        if pending is not None:
            yield pending
    finally:
        for copied, _ in under_way:
            copied.synchronize()


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the GPU, once the current stream is there.

    It is copied from where it is if that is pinned, otherwise from a pinned copy. That may be dropped at once: torch
    keeps its memory until the stream has read it.
    """
    if tensor.dim() == 2 and not tensor.is_contiguous() and tensor.stride(1) == 1:  # sources and targets lie apart
        found = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        for there, row in zip(found, tensor, strict=True):
            there.copy_(row.pin_memory(), non_blocking=True)
        return found
    return tensor.pin_memory().to(device, non_blocking=True)
