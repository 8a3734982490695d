"""One optimiser step under DDP, of one or several batches, with the time of its phases, and the learning rate of the
next. This file has no postponed annotations: DDP compares the hook's annotations with the classes themselves."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import lr_scheduler

from atta.train.settings.common import TrainSettings
from atta.train.steps.timing import Moment, Stopwatch


@dataclass
class SyncClock:
    """State of the hook: ``last_bucket`` is the time at which the last bucket of gradients went to the all-reduce. From
    then to the end of backward, a trainer only communicates: it transfers gradients and waits for late trainers."""

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


@dataclass(frozen=True)
class StepPart:
    """The place of a batch in an optimiser step: gradients begin anew with the ``first``, the update comes after the
    ``last``, and the loss counts ``share`` in the step."""

    first: bool = True
    last: bool = True
    share: float = 1.0


WHOLE = StepPart()


def step_parts(batches: int, together: int) -> Iterator[StepPart]:
    """The places of an epoch's batches, ``together`` of them in a step, which count alike. The last has what is left."""
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
    """Forward, backward and update; counts phases ``compute`` and ``sync`` on the clock's stopwatch. ``loss_of``
    returns the loss. The model's communication hook is ``timed_all_reduce`` with ``clock``; the caller turns it off for
    a part that is not the last one. ``update``: None: ``optimizer.step``. Returns the loss, detached."""
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


class LearningRate:
    """Sets an optimiser's learning rate after each epoch. The same figures give the same rates on all trainers.

    ``cosine`` falls from ``--lr`` to 0 over all epochs, on half a wave (Loshchilov and Hutter, ICLR 2017, without
    restarts). It is computed from the number of the epoch. ``step`` multiplies it by ``--lr-factor`` every
    ``--lr-every`` epochs, ``plateau`` after as many evaluations in a row without a better figure.
    """

    def __init__(self, settings: TrainSettings, optimizer: torch.optim.Optimizer, *, rises: bool) -> None:
        """``rises``: whether a higher figure is better (``plateau``)."""
        self._optimizer = optimizer
        self._used: lr_scheduler.LRScheduler | lr_scheduler.ReduceLROnPlateau | None = None
        every, factor = settings.lr_every, settings.lr_factor
        if settings.lr_schedule == "cosine":
            self._used = lr_scheduler.LambdaLR(
                optimizer, lambda epoch: (1 + math.cos(math.pi * min(1.0, epoch / settings.epochs))) / 2
            )
        elif settings.lr_schedule == "step":
            self._used = lr_scheduler.StepLR(optimizer, every, factor)
        elif settings.lr_schedule == "plateau":
            # torch counts the evaluations that it still bears, and calls small steps none.
            self._used = lr_scheduler.ReduceLROnPlateau(
                optimizer, "max" if rises else "min", factor, every - 1, threshold=0.0, threshold_mode="abs"
            )

    @property
    def present(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def epoch_done(self, figure: float | None) -> None:
        """Go on to the next epoch; ``figure``: the watched one, None if the epoch was not evaluated."""
        if isinstance(self._used, lr_scheduler.ReduceLROnPlateau):
            if figure is not None:
                self._used.step(figure)
        elif self._used is not None:
            self._used.step()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint saves: plain values."""
        return {} if self._used is None else self._used.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``. The optimiser's own state has the rate."""
        if self._used is not None:
            self._used.load_state_dict(state)
