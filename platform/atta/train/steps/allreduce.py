"""DDP's gradient all-reduce, which also records when the last gradients were ready.

This file has no postponed annotations: DDP compares the hook's annotations with the classes themselves.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from atta.train.steps.timing import Moment, Stopwatch

__all__ = ["SyncClock", "timed_all_reduce"]


@dataclass
class SyncClock:
    """State of the hook: ``last_bucket`` is the time at which the last bucket of gradients went to the all-reduce.

    From then to the end of backward, a trainer only communicates: it transfers gradients and waits for late trainers.
    """

    stopwatch: Stopwatch
    last_bucket: Moment = 0.0


def timed_all_reduce(  # torch's stubs lack GradBucket
    clock: SyncClock,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Mean of the bucket's gradients over all ranks."""
    if bucket.is_last():
        clock.last_bucket = clock.stopwatch.now()
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    assert work is not None
    mean: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return mean
