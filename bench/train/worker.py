"""A measured process of ``atta bench train``: a trainer that gets its batches from Atta.

python -m atta_bench.train.worker '{"addresses": ["127.0.0.1:7070", ...], "rank": 0, ..., "rendezvous": ..., "recipe":
{...}}'
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import atta
from atta.observe.machine.memory import keep_freed
from atta.train.steps.step import SyncClock, timed_all_reduce, timed_step
from atta.train.steps.timing import Stopwatch, add_daemon_time, awaited
from atta_bench.lab.workload import Epoch, Recipe, Reporter
from atta_bench.loader.consumer import ConsumerConfig, count, open_loader

_CPU = torch.device("cpu")


@dataclass
class TrainingEpoch(Epoch):
    """An epoch of training.

    Attributes:
        wait_s: seconds of waiting for batches.
        copy_s: seconds of turning batches into inputs of the model.
        compute_s: seconds of forward, backward and update, without ``sync_s``.
        sync_s: seconds of exchanging gradients that the backward pass did not hide.
        loss_sum: sum of the losses of all seeds.
        right: number of seeds that were classified right.
        val_accuracy, test_accuracy: accuracies after the epoch, over the vertices of all trainers; None: not evaluated.
        sent_bytes: bytes that left the host of the trainer during the epoch; None: not counted.
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
    """GraphSAGE of DGL's layers: from blocks and x, float32 [input vertices, channels], to [seeds, classes]."""

    def __init__(self, recipe: Recipe) -> None:
        from dgl.nn import SAGEConv

        super().__init__()
        widths = [recipe.channels, *[recipe.hidden] * (recipe.layers - 1), recipe.classes]
        self.layers = torch.nn.ModuleList(SAGEConv(fan_in, fan_out, "mean") for fan_in, fan_out in pairwise(widths))
        self.dropout = recipe.dropout
        # Torch's own initial weights, as in PyG's layers. Those of DGL are larger, and the loss falls later.
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
    """GraphSAGE as ``atta train`` builds it: each layer computes only the vertices that the next one reads."""
    from atta.train.config import TrainConfig
    from atta.train.models import build_model

    hops = (1,) * recipe.layers  # only their number counts here
    config = TrainConfig(cluster="-", model="sage", num_neighbors=hops, hidden=recipe.hidden, dropout=recipe.dropout)
    return build_model(config, recipe.channels, recipe.classes)


def join(rank: int, world_size: int, rendezvous: str, threads: int) -> None:
    """Enter the process group (gloo); torch computes with ``threads`` threads."""
    # Tensors of the same sizes come and go in every step, with every system.
    keep_freed()
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", rank=rank, world_size=world_size, init_method=rendezvous)


class Learner:
    """A model under DDP with Adam.

    Attributes:
        watch: the clock of the current epoch. The code that brings the batches adds ``wait``, ``copy``, ``sample`` and
            ``fetch``.
    """

    def __init__(self, make_model: Any, recipe: Recipe) -> None:
        """``make_model(recipe)`` builds the model; the seed of the recipe decides its initial weights."""
        torch.manual_seed(recipe.seed)
        self._model = DistributedDataParallel(make_model(recipe))
        self._optimizer = torch.optim.Adam(self._model.parameters(), recipe.lr)
        self.watch = Stopwatch(_CPU)
        self._clock = SyncClock(self.watch)
        self._model.register_comm_hook(self._clock, timed_all_reduce)
        self._scores = torch.empty(0, 0)

    @contextmanager
    def epoch(self, rank: int, number: int) -> Iterator[TrainingEpoch]:
        """Time one epoch. Its phases are filled in at the end of the block."""
        epoch = TrainingEpoch(rank, number)
        self.watch = self._clock.stopwatch = Stopwatch(_CPU)
        with epoch.timed():
            yield epoch
        spent = self.watch.totals()
        epoch.wait_s, epoch.copy_s = spent.get("wait", 0.0), spent.get("copy", 0.0)
        epoch.compute_s, epoch.sync_s = spent.get("compute", 0.0), spent.get("sync", 0.0)
        epoch.sampling_s, epoch.fetch_s = spent.get("sample"), spent.get("fetch")

    def learn(self, epoch: TrainingEpoch, inputs: Sequence[Any], labels: torch.Tensor, **more: Any) -> None:
        """One step: ``inputs`` and ``more`` are the model's arguments, ``labels`` int64 [seeds]."""
        loss = timed_step(partial(self._loss, inputs, more, labels), self._optimizer, self._clock)
        epoch.loss_sum += float(loss) * len(labels)
        epoch.right += int((self._scores.argmax(-1) == labels).sum())

    @torch.no_grad()
    def right(self, inputs: Sequence[Any], labels: torch.Tensor) -> int:
        """Number of ``labels`` that the model gets right now."""
        model: torch.nn.Module = self._model.module
        model.eval()
        found = model(*inputs).argmax(-1)
        model.train()
        return int((found == labels).sum())

    def _loss(self, inputs: Sequence[Any], more: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
        scores = self._model(*inputs, **more)
        self._scores = scores.detach()
        return F.cross_entropy(scores, labels)


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """End the process at once if the block fails: the process group's destructor would wait for other trainers."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, SystemExit):  # it means that the benchmark is gone
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


Converted = tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]
"""Arguments of the model, those by name, and labels int64 [seeds]."""


def _as_dgl(batch: atta.MiniBatch) -> Converted:
    x, y = torch.from_numpy(batch.table("x")), torch.from_numpy(batch.table("y"))
    return (batch.to_dgl(), x.float()), {}, y.reshape(-1).long()


def _as_pyg(batch: atta.MiniBatch) -> Converted:
    data = batch.to_pyg(plain=True)
    inputs = data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges
    return inputs, {"aggregated": data.get("aggregated")}, data.y.reshape(-1).long()


WAYS: dict[str, tuple[Callable[[Recipe], torch.nn.Module], Callable[[atta.MiniBatch], Converted]]] = {
    "dgl": (DglSage, _as_dgl),
    "pyg": (pyg_sage, _as_pyg),
}
"""By ``deliver``: how to build the model, and how to turn a batch into its inputs."""


def main() -> None:
    """Train the epochs that the benchmark asks for."""
    config = ConsumerConfig.read(sys.argv[1])
    assert config.recipe is not None
    reporter = Reporter()
    with exit_on_failure():
        _train(config, config.recipe, reporter)


def _train(config: ConsumerConfig, recipe: Recipe, reporter: Reporter) -> None:
    join(config.rank, config.world_size, config.rendezvous, config.threads)
    learner = Learner(WAYS[config.deliver][0], recipe)
    with atta.connect(config.addresses, wait=True, deadline_s=120.0) as cluster:
        # DGL's blocks have edge ids. Training with PyG does not need them.
        loader = open_loader(config, cluster, tables=["x"], seed_tables=["y"], edge_ids=config.deliver == "dgl")
        for number in range(config.warm_up):
            warm = _epoch(config, loader, learner, number)
        epochs = config.warm_up
        for measured in reporter.stretches(warm):
            loader.epochs = epochs = epochs + measured
            for number in range(measured):
                reporter.report(_epoch(config, loader, learner, number))
    dist.barrier()
    del learner
    gc.collect()  # torch may wait forever where DDP is the last to let go of the group
    dist.destroy_process_group()


def _epoch(config: ConsumerConfig, loader: atta.NeighborLoader, learner: Learner, number: int) -> TrainingEpoch:
    convert = WAYS[config.deliver][1]
    with learner.epoch(config.rank, number) as epoch:
        watch = learner.watch
        for batch in awaited(loader, watch):
            start = watch.now()
            inputs, more, labels = convert(batch)
            watch.add("copy", start, watch.now())
            learner.learn(epoch, inputs, labels, **more)
            add_daemon_time(watch, batch.stats)
            count(epoch, batch)
    return epoch


if __name__ == "__main__":
    main()
