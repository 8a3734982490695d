"""One optimiser step under DDP, of one or several batches, with the time of its phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from atta.train.steps.allreduce import SyncClock

__all__ = ["WHOLE", "StepPart", "step_parts", "timed_step"]


@dataclass(frozen=True)
class StepPart:
    """The place of a batch in an optimiser step.

    Attributes:
        first: gradients begin anew with it.
        last: the update comes after it.
        share: what its loss counts in the step.
    """

    first: bool = True
    last: bool = True
    share: float = 1.0


WHOLE = StepPart()


def step_parts(batches: int, together: int) -> Iterator[StepPart]:
    """The places of an epoch's batches, ``together`` of them in a step. The last step has what is left.

    Each batch counts alike in its step.
    """
    for number in range(batches):
        place = number % together
        size = min(together, batches - (number - place))
        yield StepPart(first=place == 0, last=place == size - 1, share=1 / size)


def timed_step(
    loss_of: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    clock: SyncClock,
    part: StepPart = WHOLE,
    *,
    update: Callable[[], None] | None = None,
) -> torch.Tensor:
    """Forward, backward and update; counts phases ``compute`` and ``sync`` on the clock's stopwatch.

    ``loss_of`` runs the model and returns its loss. The model's communication hook is ``timed_all_reduce`` with
    ``clock``; it is not called for a part that is not the last one, if the caller has turned DDP's all-reduce off.
    ``update`` changes the weights; None: ``optimizer.step``. Returns the loss, detached from its graph.
    """
    watch = clock.stopwatch
    begin = watch.now()
    loss = loss_of()
    if part.first:
        optimizer.zero_grad()
    (loss if part.share == 1 else loss * part.share).backward()
    synced = watch.now()
    if not part.last:
        watch.add("compute", begin, synced)
        return loss.detach()
    (update or optimizer.step)()
    watch.add("compute", begin, clock.last_bucket)
    watch.add("sync", clock.last_bucket, synced)
    watch.add("compute", synced, watch.now())
    return loss.detach()
