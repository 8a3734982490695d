"""What all trainers of the training benchmark share, whichever system brings the batches: models, steps, clocks, how to fail.

Imports torch: only for trainer processes.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from atta.bench.lab.stage import Epoch
from atta.bench.lab.workload import Recipe
from atta.train.launching.worker import keep_freed_memory
from atta.train.steps.allreduce import SyncClock, timed_all_reduce
from atta.train.steps.step import timed_step
from atta.train.steps.timing import Stopwatch

__all__ = ["DglSage", "Learner", "Lesson", "ending_at_once", "join", "pyg_sage"]

_CPU = torch.device("cpu")


@dataclass
class Lesson(Epoch):
    """An epoch with training; phases in seconds.

    ``wait_s``: until batches were there, ``copy_s``: turning them into what the model takes, ``compute_s``: forward, backward and
    update without ``sync_s``: gradients exchanged that backward did not hide. ``loss_sum`` and ``right`` add up over seeds.
    Accuracies are those of all trainers' vertices after the epoch, where they were looked at; ``sent_bytes`` left the trainer's
    host during the epoch, where that was counted.
    """

    wait_s: float = 0.0
    copy_s: float = 0.0
    compute_s: float = 0.0
    sync_s: float = 0.0
    loss_sum: float = 0.0
    right: int = 0
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    sent_bytes: int | None = None


class DglSage(torch.nn.Module):
    """GraphSAGE of DGL's layers: ``model(blocks, x)`` with x [input vertices, channels] float32 gives [seeds, classes]."""

    def __init__(self, recipe: Recipe) -> None:
        from dgl.nn import SAGEConv

        super().__init__()
        widths = [recipe.channels, *[recipe.hidden] * (recipe.layers - 1), recipe.classes]
        self.layers = torch.nn.ModuleList(SAGEConv(fan_in, fan_out, "mean") for fan_in, fan_out in pairwise(widths))
        self.dropout = recipe.dropout
        # Torch's own initial weights, as PyG's layers have them: DGL's are larger, and the loss falls later.
        for module in self.modules():
            if isinstance(module, torch.nn.Linear):
                module.reset_parameters()

    def forward(self, blocks: Sequence[Any], x: torch.Tensor) -> torch.Tensor:
        """Class scores of the seeds."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if number + 1 < len(self.layers):
                x = F.dropout(F.relu(x), self.dropout, self.training)
        return x


def pyg_sage(recipe: Recipe) -> torch.nn.Module:
    """GraphSAGE as ``atta train`` builds it; each layer computes only what the next one reads."""
    from atta.train.config import TrainConfig
    from atta.train.models import build_model

    hops = (1,) * recipe.layers  # only their number counts here
    config = TrainConfig(cluster="-", model="sage", num_neighbors=hops, hidden=recipe.hidden, dropout=recipe.dropout)
    return build_model(config, recipe.channels, recipe.classes)


def join(rank: int, world_size: int, rendezvous: str, threads: int) -> None:
    """Enter the process group (gloo); torch computes with ``threads`` threads."""
    # Helps every system alike: tensors of the same sizes come and go in every step.
    keep_freed_memory()
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", rank=rank, world_size=world_size, init_method=rendezvous)


class Learner:
    """A model under DDP with Adam.

    Attributes:
        watch: of the current lesson; whoever brings the batches adds ``wait``, ``copy``, ``sample`` and ``fetch``.
    """

    def __init__(self, make_model: Any, recipe: Recipe) -> None:
        """``make_model(recipe)`` builds the model; its initial weights follow from the recipe's seed."""
        torch.manual_seed(recipe.seed)
        self._model = DistributedDataParallel(make_model(recipe))
        self._optimizer = torch.optim.Adam(self._model.parameters(), recipe.lr)
        self.watch = Stopwatch(_CPU)
        self._clock = SyncClock(self.watch)
        self._model.register_comm_hook(self._clock, timed_all_reduce)
        self._scores = torch.empty(0, 0)

    @contextmanager
    def lesson(self, rank: int, number: int) -> Iterator[Lesson]:
        """Time one epoch; the phases are filled in at its end."""
        lesson = Lesson(rank, number)
        self.watch = self._clock.stopwatch = Stopwatch(_CPU)
        with lesson.timed():
            yield lesson
        spent = self.watch.totals()
        lesson.wait_s, lesson.copy_s = spent.get("wait", 0.0), spent.get("copy", 0.0)
        lesson.compute_s, lesson.sync_s = spent.get("compute", 0.0), spent.get("sync", 0.0)
        lesson.sampling_s, lesson.fetch_s = spent.get("sample"), spent.get("fetch")

    def learn(self, lesson: Lesson, inputs: Sequence[Any], labels: torch.Tensor) -> None:
        """One step: ``inputs`` are the model's arguments, ``labels`` int64 [seeds]."""
        loss = timed_step(partial(self._loss, inputs, labels), self._optimizer, self._clock)
        lesson.loss_sum += float(loss) * len(labels)
        lesson.right += int((self._scores.argmax(-1) == labels).sum())

    @torch.no_grad()
    def right(self, inputs: Sequence[Any], labels: torch.Tensor) -> int:
        """How many of ``labels`` the model, as it is now, gets right."""
        model: torch.nn.Module = self._model.module
        model.eval()
        found = model(*inputs).argmax(-1)
        model.train()
        return int((found == labels).sum())

    def _loss(self, inputs: Sequence[Any], labels: torch.Tensor) -> torch.Tensor:
        scores = self._model(*inputs)
        self._scores = scores.detach()
        return F.cross_entropy(scores, labels)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """End the process where the block fails: the destructors of a process group would wait for the other trainers."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, SystemExit):  # which means that the benchmark is gone
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
