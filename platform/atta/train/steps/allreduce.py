"""DDP's gradient all-reduce, with a note of when the last gradients were ready.

No postponed annotations in this file: DDP compares the hook's annotations with the classes themselves.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from atta.train.steps.timing import Moment, Stopwatch

__all__ = ["SyncClock", "timed_all_reduce"]


@dataclass
class SyncClock:
    """State of the hook: ``last_bucket`` is when the last bucket of gradients was handed to the all-reduce.

    What backward takes beyond that moment is communication that computing did not hide: the transfer itself and waiting for
    trainers that are late.
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
