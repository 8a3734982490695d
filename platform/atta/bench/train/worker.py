"""One trainer of the training benchmark that gets its batches from Atta.

python -m atta.bench.train.worker '{"addresses": ["127.0.0.1:7070", ...], "rank": 0, ..., "rendezvous": ..., "recipe": {...}}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import atta
from atta.bench.lab.stage import Stage
from atta.bench.lab.workload import Recipe
from atta.bench.loader.consumer import ConsumerConfig, count, open_loader
from atta.bench.train.learn import DglSage, Learner, Lesson, ending_at_once, join, pyg_sage
from atta.errors import UnknownNameError
from atta.train.steps.timing import add_daemon_time
from atta.train.steps.transfer import awaited

__all__ = ["TrainerConfig", "main"]


@dataclass(frozen=True)
class TrainerConfig(ConsumerConfig):
    """What a trainer is told besides what a consumer is told.

    Attributes:
        rendezvous: ``tcp://host:port`` of rank 0 for gloo.
        recipe: what to train.
    """

    rendezvous: str
    recipe: Recipe


Converted = tuple[tuple[Any, ...], torch.Tensor]
"""Arguments of the model, labels int64 [seeds]."""


def _as_dgl(batch: atta.MiniBatch) -> Converted:
    x, y = torch.from_numpy(batch.table("x")), torch.from_numpy(batch.table("y"))
    return (batch.to_dgl(), x.float()), y.reshape(-1).long()


def _as_pyg(batch: atta.MiniBatch) -> Converted:
    data = batch.to_pyg()
    inputs = data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges
    return inputs, data.y.reshape(-1).long()


WAYS: dict[str, tuple[Callable[[Recipe], torch.nn.Module], Callable[[atta.MiniBatch], Converted]]] = {
    "dgl": (DglSage, _as_dgl),
    "pyg": (pyg_sage, _as_pyg),
}
"""By ``deliver``: the model, and how it gets a batch."""


def main() -> None:
    """Train the epochs that the benchmark asks for."""
    told = json.loads(sys.argv[1])
    config = TrainerConfig(**{**told, "recipe": Recipe(**told["recipe"])})
    if config.deliver not in WAYS:
        raise UnknownNameError.of("delivery", config.deliver, WAYS)
    stage = Stage()
    with ending_at_once():
        _train(config, stage)


def _train(config: TrainerConfig, stage: Stage) -> None:
    join(config.rank, config.world_size, config.rendezvous, config.threads)
    learner = Learner(WAYS[config.deliver][0], config.recipe)
    with atta.connect(config.addresses, wait=True, deadline_s=120.0) as cluster:
        # DGL's blocks carry edge ids; of PyG's users nobody needs them to train.
        loader = open_loader(config, cluster, tables=["x"], seed_tables=["y"], edge_ids=config.deliver == "dgl")
        for number in range(config.warm_up):
            warm = _epoch(config, loader, learner, number)
        measured = stage.ready(warm)
        loader.epochs = config.warm_up + measured
        for number in range(measured):
            stage.report(_epoch(config, loader, learner, number))
        stage.done()
    dist.barrier()
    dist.destroy_process_group()


def _epoch(config: TrainerConfig, loader: atta.NeighborLoader, learner: Learner, number: int) -> Lesson:
    convert = WAYS[config.deliver][1]
    with learner.lesson(config.rank, number) as lesson:
        watch = learner.watch
        for batch in awaited(loader, watch):
            start = watch.now()
            inputs, labels = convert(batch)
            watch.add("copy", start, watch.now())
            learner.learn(lesson, inputs, labels)
            add_daemon_time(watch, batch.stats)
            count(lesson, batch)
    return lesson


if __name__ == "__main__":
    main()
