"""One process of DistDGL that trains, server or trainer as DGL_ROLE says.

python -m atta.bench.peers.distdgl.train_worker '{"rank": 0, ..., "recipe": {...}}'

Loads as ``worker`` does and learns as Atta's trainer does: the same model, optimiser, gradient exchange and clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atta.bench.peers.distdgl.worker import WorkerConfig, count, open_loader, play, pull
from atta.bench.stage import Stage
from atta.bench.workload import Recipe

__all__ = ["TrainWorkerConfig", "main"]


@dataclass(frozen=True)
class TrainWorkerConfig(WorkerConfig):
    """What a trainer is told besides what a loading one is told: ``recipe``, what to train."""

    recipe: Recipe


def main() -> None:
    """Serve or train until told to end."""
    play(lambda told: TrainWorkerConfig(**{**told, "recipe": Recipe(**told["recipe"])}), _train)


def _train(config: TrainWorkerConfig, stage: Stage) -> None:
    import torch.distributed as dist

    from atta.bench.learn import DglSage, Learner, ending_at_once, join

    with ending_at_once():
        join(config.rank, config.world_size, config.rendezvous, config.threads)
        graph, loader = open_loader(config, equal=True)
        learner = Learner(DglSage, config.recipe)
        for number in range(config.warm_up):
            warm = _epoch(config, graph, loader, learner, number, remote=True)
        dist.barrier()
        for number in range(stage.ready(warm)):
            stage.report(_epoch(config, graph, loader, learner, number, remote=False))
        stage.done()
        dist.barrier()


def _epoch(config: TrainWorkerConfig, graph: Any, loader: Any, learner: Any, number: int, *, remote: bool) -> Any:
    """One epoch; with ``remote`` also count rows that another machine holds (costs time)."""
    from atta.train.transfer import awaited

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
    return lesson


if __name__ == "__main__":
    main()
