"""One optimiser step under DDP, with the time of its phases."""

from __future__ import annotations

from collections.abc import Callable

import torch

from atta.train.steps.allreduce import SyncClock

__all__ = ["timed_step"]


def timed_step(loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer, clock: SyncClock) -> torch.Tensor:
    """Forward, backward and update; counts phases ``compute`` and ``sync`` on the clock's stopwatch.

    ``loss_of`` runs the model and returns its loss. The model's communication hook is ``timed_all_reduce`` with ``clock``. Returns
    the loss, detached from its graph.
    """
    watch = clock.stopwatch
    begin = watch.now()
    loss = loss_of()
    optimizer.zero_grad()
    loss.backward()
    synced = watch.now()
    optimizer.step()
    watch.add("compute", begin, clock.last_bucket)
    watch.add("sync", clock.last_bucket, synced)
    watch.add("compute", synced, watch.now())
    return loss.detach()
