"""DDP's gradient all-reduce, with a note of when the last gradients were ready.

No postponed annotations in this file: DDP compares the hook's annotations with the classes themselves.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

__all__ = ["SyncClock", "timed_all_reduce"]


@dataclass
class SyncClock:
    """``last_bucket``: perf_counter when the last bucket of gradients was handed to the all-reduce.

    What backward takes beyond that moment is communication that computing did not hide.
    """

    last_bucket: float = 0.0


def timed_all_reduce(  # torch's stubs lack GradBucket
    clock: SyncClock,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Mean of the bucket's gradients over all ranks."""
    if bucket.is_last():
        clock.last_bucket = time.perf_counter()
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    assert work is not None
    mean: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return mean
