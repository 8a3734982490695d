"""One process of DistDGL that trains, server or trainer as DGL_ROLE says.

python -m atta.bench.peers.distdgl.train_worker '{"rank": 0, ..., "recipe": {...}}'

Loads as ``worker`` does and learns as Atta's trainer does: the same model, optimiser, gradient exchange and clocks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atta.bench.lab.stage import Stage
from atta.bench.lab.workload import Recipe
from atta.bench.peers.distdgl.partition import mask_of
from atta.bench.peers.distdgl.worker import WorkerConfig, count, open_loader, play, pull

if TYPE_CHECKING:
    from atta.bench.train.learn import Learner, Lesson

__all__ = ["TrainWorkerConfig", "main"]


_EVALUATED = 8192
"""Seeds at a time when accuracies are looked at: all neighbours of a few are most of a small graph."""


@dataclass(frozen=True)
class TrainWorkerConfig(WorkerConfig):
    """What a trainer is told besides what a loading one is told.

    Attributes:
        recipe: what to train.
        eval_every: epochs between looks at the accuracy, the first of them warm-ups; also after the last. 0: none.
    """

    recipe: Recipe
    eval_every: int


def main() -> None:
    """Serve or train until told to end."""
    play(lambda told: TrainWorkerConfig(**{**told, "recipe": Recipe(**told["recipe"])}), _train)


def _train(config: TrainWorkerConfig, stage: Stage) -> None:
    import torch.distributed as dist

    from atta.bench.train.learn import DglSage, Learner, ending_at_once, join

    with ending_at_once():
        join(config.rank, config.world_size, config.rendezvous, config.threads)
        graph, loader = open_loader(config, equal=True)
        learner = Learner(DglSage, config.recipe)
        for number in range(config.warm_up):
            warm = _epoch(config, graph, loader, learner, number, remote=True)
            _evaluate(config, graph, learner, warm, number + 1)
        dist.barrier()
        measured = stage.ready(warm)
        for number in range(measured):
            lesson = _epoch(config, graph, loader, learner, number, remote=False)
            _evaluate(config, graph, learner, lesson, config.warm_up + number + 1, last=number + 1 == measured)
            stage.report(lesson)
        stage.done()
        dist.barrier()


def _epoch(config: TrainWorkerConfig, graph: Any, loader: Any, learner: Any, number: int, *, remote: bool) -> Any:
    """One epoch; with ``remote`` also count rows that another machine holds (costs time)."""
    from atta.bench.lab.drive import sent_bytes
    from atta.train.steps.transfer import awaited

    host = os.getpid(), os.environ["GLOO_SOCKET_IFNAME"]
    sent = sent_bytes(*host)
    with learner.lesson(config.rank, number) as lesson:
        watch = learner.watch
        for inputs, seeds, blocks in awaited(loader, watch):
            sampled = watch.now()
            rows = pull(config, graph, inputs, seeds)
            fetched = watch.now()
            learner.learn(lesson, (blocks, rows["x"].float()), rows["y"].reshape(-1).long())
            watch.add("wait", sampled, fetched)
            watch.add("fetch", sampled, fetched)
            count(lesson, blocks, rows, graph if remote else None)
    lesson.sampling_s = lesson.wait_s - lesson.fetch_s
    lesson.sent_bytes = sent_bytes(*host) - sent
    return lesson


def _evaluate(
    config: TrainWorkerConfig, graph: Any, learner: Learner, lesson: Lesson, trained: int, *, last: bool = False
) -> None:
    """Fill in the accuracies after ``trained`` epochs, from all neighbours of every vertex, where that is due."""
    import torch.distributed as dist

    if config.eval_every and (last or trained % config.eval_every == 0):
        lesson.val_accuracy = _accuracy(config, graph, learner, "val")
        lesson.test_accuracy = _accuracy(config, graph, learner, "test")
        dist.barrier()  # the next epoch begins for all of them at once


def _accuracy(config: TrainWorkerConfig, graph: Any, learner: Learner, split: str) -> float | None:
    """Of all trainers together; None: the split is empty, or there is none."""
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
