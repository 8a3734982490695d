"""Batches on their way to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from atta.minibatch import MiniBatch

__all__ = ["on_device"]


def on_device(batches: Iterable[MiniBatch], device: torch.device) -> Iterator[tuple[MiniBatch, Any]]:
    """Yield (batch, PyG data on ``device``).

    On CUDA the next batch is pinned and copied on a stream of its own while the current one is being computed.
    """
    if device.type != "cuda":
        for batch in batches:
            yield batch, batch.to_pyg()
        return
    side = torch.cuda.Stream(device)
    pending: tuple[MiniBatch, Any] | None = None
    for batch in batches:
        with torch.cuda.stream(side):
            coming = batch, batch.to_pyg().pin_memory().to(device, non_blocking=True)
        if pending is not None:
            yield pending
        torch.cuda.current_stream(device).wait_stream(side)
        for value in coming[1].to_dict().values():
            if isinstance(value, torch.Tensor):
                value.record_stream(torch.cuda.current_stream(device))
        pending = coming
    if pending is not None:
        yield pending
