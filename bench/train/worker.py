"""A measured process of ``atta bench train``: a trainer that gets its batches from Atta.

python -m atta_bench.train.worker '{"addresses": ["127.0.0.1:7070", ...], "rank": 0, ..., "rendezvous": ..., "recipe":
{...}}'
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
from atta.errors import UnknownNameError
from atta.train.steps.timing import add_daemon_time
from atta.train.steps.transfer import awaited
from atta_bench.lab.reporter import Reporter
from atta_bench.lab.workload import Recipe
from atta_bench.loader.consumer import ConsumerConfig, count, open_loader
from atta_bench.train.learner import DglSage, Learner, TrainingEpoch, exit_on_failure, join, pyg_sage

__all__ = ["TrainerConfig", "main"]


@dataclass(frozen=True)
class TrainerConfig(ConsumerConfig):
    """Settings of a trainer, besides those of a consumer.

    Attributes:
        rendezvous: ``tcp://host:port`` of rank 0 for gloo.
        recipe: the model to train.
    """

    rendezvous: str
    recipe: Recipe


Converted = tuple[tuple[Any, ...], torch.Tensor]
"""Arguments of the model, and labels int64 [seeds]."""


def _as_dgl(batch: atta.MiniBatch) -> Converted:
    x, y = torch.from_numpy(batch.table("x")), torch.from_numpy(batch.table("y"))
    return (batch.to_dgl(), x.float()), y.reshape(-1).long()


def _as_pyg(batch: atta.MiniBatch) -> Converted:
    data = batch.to_pyg(plain=True)
    inputs = data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges
    return inputs, data.y.reshape(-1).long()


WAYS: dict[str, tuple[Callable[[Recipe], torch.nn.Module], Callable[[atta.MiniBatch], Converted]]] = {
    "dgl": (DglSage, _as_dgl),
    "pyg": (pyg_sage, _as_pyg),
}
"""By ``deliver``: how to build the model, and how to turn a batch into its inputs."""


def main() -> None:
    """Train the epochs that the benchmark asks for."""
    told = json.loads(sys.argv[1])
    config = TrainerConfig(**{**told, "recipe": Recipe(**told["recipe"])})
    if config.deliver not in WAYS:
        raise UnknownNameError.of("delivery", config.deliver, WAYS)
    reporter = Reporter()
    with exit_on_failure():
        _train(config, reporter)


def _train(config: TrainerConfig, reporter: Reporter) -> None:
    join(config.rank, config.world_size, config.rendezvous, config.threads)
    learner = Learner(WAYS[config.deliver][0], config.recipe)
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
    dist.destroy_process_group()


def _epoch(config: TrainerConfig, loader: atta.NeighborLoader, learner: Learner, number: int) -> TrainingEpoch:
    convert = WAYS[config.deliver][1]
    with learner.epoch(config.rank, number) as epoch:
        watch = learner.watch
        for batch in awaited(loader, watch):
            start = watch.now()
            inputs, labels = convert(batch)
            watch.add("copy", start, watch.now())
            learner.learn(epoch, inputs, labels)
            add_daemon_time(watch, batch.stats)
            count(epoch, batch)
    return epoch


if __name__ == "__main__":
    main()
