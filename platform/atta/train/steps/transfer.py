"""Moves batches to the device, and counts the time for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch

from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.prefetch import copied_ahead
from atta.train.steps.timing import Stopwatch

__all__ = ["DeviceBatch", "awaited", "on_device"]

Batch = TypeVar("Batch")


class DeviceBatch(NamedTuple):
    """A batch, and its PyG data on the device."""

    batch: MiniBatch
    data: Any


def on_device(batches: Iterable[MiniBatch], device: torch.device, stopwatch: Stopwatch) -> Iterator[DeviceBatch]:
    """Yield batches with their data on ``device``; count the time for it as phases ``wait`` and ``copy``.

    On the CPU the data shares the batch's memory. On CUDA the next batch is copied while the current one is computed.
    """
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
