"""A process of DistDGL that trains: one of its servers, or a trainer, as DGL_ROLE says.

python -m atta_bench.peers.distdgl.train_worker '{"rank": 0, ..., "recipe": {...}}'

It loads as ``worker`` does and trains as Atta's trainer does, with the same model, optimiser, gradient exchange and
clocks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atta_bench.lab.reporter import Reporter
from atta_bench.lab.workload import Recipe
from atta_bench.peers.distdgl.partition import mask_of
from atta_bench.peers.distdgl.worker import DistDglConfig, count, open_loader, pull, serve_or_run

if TYPE_CHECKING:
    from atta_bench.train.learner import Learner, TrainingEpoch

__all__ = ["DistDglTrainConfig", "main"]

_EVALUATED = 8192
"""Seeds per batch of an evaluation. With all neighbours, even a few seeds reach most of a small graph."""


@dataclass(frozen=True)
class DistDglTrainConfig(DistDglConfig):
    """Settings of a trainer, besides those of one that only loads.

    Attributes:
        recipe: the model to train.
        eval_every: epochs between evaluations, counted with the warm-up; the last epoch is always evaluated. 0: no
            evaluations.
    """

    recipe: Recipe
    eval_every: int


def main() -> None:
    """Serve, or train until the benchmark ends it."""
    serve_or_run(_config, _train)


def _config(settings: dict[str, Any]) -> DistDglTrainConfig:
    return DistDglTrainConfig(**{**settings, "recipe": Recipe(**settings["recipe"])})


def _train(config: DistDglTrainConfig, reporter: Reporter) -> None:
    import torch.distributed as dist

    from atta_bench.train.learner import DglSage, Learner, exit_on_failure, join

    with exit_on_failure():
        join(config.rank, config.world_size, config.rendezvous, config.threads)
        graph, loader = open_loader(config, equal=True)
        learner = Learner(DglSage, config.recipe)
        for number in range(config.warm_up):
            warm = _epoch(config, graph, loader, learner, number, remote=True)
            _evaluate(config, graph, learner, warm, number + 1)
        dist.barrier()
        trained = config.warm_up
        for measured in reporter.stretches(warm):
            for number in range(measured):
                trained += 1
                epoch = _epoch(config, graph, loader, learner, number, remote=False)
                _evaluate(config, graph, learner, epoch, trained, last=number + 1 == measured)
                reporter.report(epoch)
        dist.barrier()


def _epoch(config: DistDglTrainConfig, graph: Any, loader: Any, learner: Any, number: int, *, remote: bool) -> Any:
    """One epoch; with ``remote`` also count the rows that another machine holds, which costs time."""
    from atta.train.steps.transfer import awaited
    from atta_bench.lab.processes import sent_bytes

    host = os.getpid(), os.environ["GLOO_SOCKET_IFNAME"]
    sent = sent_bytes(*host)
    with learner.epoch(config.rank, number) as epoch:
        watch = learner.watch
        for inputs, seeds, blocks in awaited(loader, watch):
            sampled = watch.now()
            rows = pull(config, graph, inputs, seeds)
            fetched = watch.now()
            learner.learn(epoch, (blocks, rows["x"].float()), rows["y"].reshape(-1).long())
            watch.add("wait", sampled, fetched)
            watch.add("fetch", sampled, fetched)
            count(epoch, blocks, rows, graph if remote else None)
    epoch.sampling_s = epoch.wait_s - epoch.fetch_s
    epoch.sent_bytes = sent_bytes(*host) - sent
    return epoch


def _evaluate(
    config: DistDglTrainConfig, graph: Any, learner: Learner, epoch: TrainingEpoch, trained: int, *, last: bool = False
) -> None:
    """If an evaluation is due after ``trained`` epochs, fill in the accuracies, with all neighbours of every vertex."""
    import torch.distributed as dist

    if config.eval_every and (last or trained % config.eval_every == 0):
        epoch.val_accuracy = _accuracy(config, graph, learner, "val")
        epoch.test_accuracy = _accuracy(config, graph, learner, "test")
        dist.barrier()  # the next epoch begins for all of them at once


def _accuracy(config: DistDglTrainConfig, graph: Any, learner: Learner, split: str) -> float | None:
    """Accuracy over the vertices of all trainers; None: the split is empty or missing."""
    import dgl
    import torch
    import torch.distributed as dist

    if mask_of(split) not in graph.ndata:
        return None
    mine = dgl.distributed.node_split(graph.ndata[mask_of(split)], graph.get_partition_book(), force_even=True)
    sampler = dgl.dataloading.NeighborSampler([-1] * config.recipe.layers)
    counts = torch.zeros(2, dtype=torch.int64)
    for inputs, seeds, blocks in dgl.dataloading.DistNodeDataLoader(
        graph, mine, sampler, batch_size=_EVALUATED, shuffle=False, drop_last=False
    ):
        rows = pull(config, graph, inputs, seeds)
        counts[0] += learner.right((blocks, rows["x"].float()), rows["y"].reshape(-1).long())
        counts[1] += len(seeds)
    dist.all_reduce(counts)
    right, seen = counts.tolist()
    return right / seen if seen else None


if __name__ == "__main__":
    main()
