"""The trainer of sampled mini-batches: what one rank does in an epoch."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import atta
from atta.errors import ConfigError
from atta.train.loop import EpochLoop
from atta.train.models import build_model
from atta.train.reports.epochs import PHASES, EpochReport
from atta.train.settings import MinibatchSettings
from atta.train.steps.allreduce import SyncClock, timed_all_reduce
from atta.train.steps.step import step_parts, timed_step
from atta.train.steps.timing import Stopwatch, add_daemon_time
from atta.train.steps.transfer import on_device

__all__ = ["MinibatchTrainer"]


class MinibatchTrainer(EpochLoop[MinibatchSettings]):
    """Trains on sampled mini-batches under DDP."""

    def __init__(self, config: MinibatchSettings, cluster: atta.Cluster, device: torch.device) -> None:
        """Build loaders and model; raises ConfigError if the dataset cannot be trained on."""
        super().__init__(config, cluster, device)
        torch.manual_seed(config.seed)
        self.begin_with(self.build())
        self.parallel = DistributedDataParallel(
            self.model, device_ids=[device.index] if device.type == "cuda" else None
        )
        self._clock = SyncClock(Stopwatch(device))
        self.parallel.register_comm_hook(self._clock, timed_all_reduce)
        self.train_loader = self.train_batches()

    def train_batches(self) -> Any:
        """The batches of training, one epoch per iteration; raises ConfigError if there are none."""
        loader = self._loader("train", self.config.batch_size, train=True)
        if not len(loader):
            raise ConfigError("the dataset has no training vertices")
        return loader

    def build(self) -> torch.nn.Module:
        """The model, with new weights."""
        return build_model(self.config, self.channels, self.outputs)

    def scores(self, model: torch.nn.Module, data: Any) -> torch.Tensor:
        """[batch_size, outputs]: the model's output for the seeds of a batch, given as PyG's data."""
        scores: torch.Tensor = model(data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges)
        return scores

    def seeds_in(self, data: Any) -> Any:
        """The part of PyG's data that has ``y`` of the seeds and ``batch_size``."""
        return data

    def targets(self, data: Any) -> torch.Tensor:
        """What the model shall find for a batch, one row for each of its ``scores``."""
        return self.task.targets(self.seeds_in(data).y)

    def loader_options(self, *, train: bool) -> dict[str, Any]:
        """Fan-outs and tables of the loader, as ``NeighborLoader`` takes them."""
        fan_outs = self.config.fan_outs if train else self.config.eval_fan_outs
        return {"num_neighbors": list(fan_outs), "tables": ["x"]}

    def _loader(self, split: str, batch_size: int, *, train: bool) -> atta.NeighborLoader:
        return atta.NeighborLoader(
            self.cluster,
            input_nodes=(self.node_type, split),
            batch_size=batch_size,
            shuffle=train,
            pad=train,
            rank=self.rank,
            world_size=self.world,
            seed=self.config.seed,
            seed_policy=self.config.seed_policy,
            seed_tables=["y"],
            edge_ids=False,
            job=f"train-{split}-{os.getpid()}",
            epochs=self.config.epochs if train else None,
            **self.loader_options(train=train),
        )

    def train_epoch(self, epoch: int) -> EpochReport:
        """One pass over this rank's seeds; figures are reduced over all ranks."""
        self.parallel.train()
        self.train_loader.set_epoch(epoch)
        watch = self._clock.stopwatch = Stopwatch(self.device)
        loss_sum = torch.zeros(
            (), dtype=torch.float64, device=self.device
        )  # read once after the epoch, so no step waits for the GPU
        known_sum = torch.zeros((), dtype=torch.int64, device=self.device)
        seeds = edges = 0
        remote_bytes = 0.0
        batches, together = len(self.train_loader), self.config.accumulate
        parts = step_parts(batches, together)
        start = time.perf_counter()
        with self.display.batches(f"epoch {epoch}", batches) as advance:
            for batch, data in on_device(self.train_loader, self.device, watch):
                targets = self.targets(data)
                part = next(parts)
                with nullcontext() if part.last else self.parallel.no_sync():
                    loss = timed_step(
                        partial(self._loss, data, targets),
                        self.optimizer,
                        self._clock,
                        part,
                        update=self.update_weights,
                    )
                known = self.task.known(targets).sum()
                loss_sum += loss * known
                known_sum += known
                add_daemon_time(watch, batch.stats)
                seeds += self.seeds_in(data).batch_size
                edges += batch.num_edges
                remote_bytes += batch.stats.get("remote_bytes", 0.0)
                advance()
        spent = watch.totals()
        seconds = self._max(time.perf_counter() - start)
        sums = self._sum(
            [seeds, edges, remote_bytes, float(loss_sum), int(known_sum), *(spent.get(p, 0.0) for p in PHASES)]
        )
        breakdown = {p: s / self.world for p, s in zip(PHASES, sums[5:], strict=True)}
        return EpochReport(
            epoch,
            seconds,
            loss=sums[3] / max(1.0, sums[4]),
            seeds_per_s=sums[0] / seconds,
            edges_per_s=sums[1] / seconds,
            remote_bytes=sums[2],
            breakdown=breakdown,
            steps=-(-batches // together),
            peak_memory_bytes=self._peaks(),
        )

    def _loss(self, data: Any, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            outputs = self.scores(self.parallel, data)
        return self.objective.mean_loss(outputs.float(), targets)

    def tallies(self) -> dict[str, list[float]]:
        """See ``EpochLoop``."""
        return {split: self._tally(split) for split in self.splits}

    @torch.no_grad()
    def _tally(self, split: str) -> list[float]:
        """The tally of a split; one rank predicts each vertex, and ranks add up their tallies."""
        config = self.config
        loader = self._loader(split, config.eval_batch_size or config.batch_size, train=False)
        self.parallel.eval()
        tally = self.objective.empty_tally(self.device)
        batches = iter(loader)  # before len(), which then knows the number of batches
        with self.display.batches(f"  {split}", len(loader)) as advance:
            for _, data in on_device(batches, self.device, Stopwatch(self.device)):
                tally += self.objective.tally(self.scores(self.model, data), self.targets(data))
                advance()
        return self._sum(tally.tolist())
