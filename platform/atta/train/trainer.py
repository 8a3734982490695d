"""The training loop of one rank."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import atta
from atta.errors import ConfigError
from atta.train.allreduce import SyncClock, timed_all_reduce
from atta.train.checkpoint import load_checkpoint, save_best, save_checkpoint
from atta.train.config import TrainConfig
from atta.train.display import Display
from atta.train.models import build_model
from atta.train.report import PHASES, EpochReport, best_epoch, stalled
from atta.train.step import timed_step
from atta.train.timing import Stopwatch, add_daemon_time
from atta.train.transfer import on_device

__all__ = ["Trainer"]


class Trainer:
    """Trains, evaluates and saves; the process group must exist.

    All ranks hold the same reports: figures are reduced before anyone looks at them, so decisions that follow from them (the best
    epoch, when to stop) need no further message.
    """

    def __init__(self, config: TrainConfig, cluster: atta.Cluster, device: torch.device) -> None:
        """Build loaders and model; raises ConfigError where the dataset cannot be trained on."""
        self.config, self.cluster, self.device = config, cluster, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.display = Display(config.verbose and self.rank == 0)
        channels, classes = self._task()
        torch.manual_seed(config.seed)
        model = build_model(config, channels, classes).to(device)
        self.optimizer = torch.optim.Adam(model.parameters(), config.lr, weight_decay=config.weight_decay)
        self.model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        self._clock = SyncClock(Stopwatch(device))
        self.model.register_comm_hook(self._clock, timed_all_reduce)
        self.train_loader = self._loader("train", config.fan_outs, config.batch_size, train=True)
        if not len(self.train_loader):
            raise ConfigError("the dataset has no training vertices")

    def _task(self) -> tuple[int, int]:
        """Number of input channels and of classes."""
        schema = self.cluster.schema
        node_type = schema.node_types[0]
        tables = schema.node_tables[node_type]
        if len(schema.node_types) > 1 or len(schema.edge_types) > 1:
            raise ConfigError("the models of atta train take graphs with one node type and one edge type")
        if "x" not in tables or "y" not in tables or not schema.num_classes:
            raise ConfigError("training needs the node tables x (features) and y (integer labels)")
        if len(tables["x"].row_shape) != 1:
            raise ConfigError(
                f"training needs one row of features per vertex, x has rows of shape {tables['x'].row_shape}"
            )
        self.splits = [s for s in ("val", "test") if schema.splits[node_type].get(s)]
        return tables["x"].row_shape[0], schema.num_classes

    def _loader(self, split: str, fan_outs: Sequence[int], batch_size: int, *, train: bool) -> atta.NeighborLoader:
        return atta.NeighborLoader(
            self.cluster,
            list(fan_outs),
            split,
            batch_size=batch_size,
            shuffle=train,
            pad=train,
            rank=self.rank,
            world_size=self.world,
            seed=self.config.seed,
            seeds=self.config.seeds,
            tables=["x"],
            seed_tables=["y"],
            edge_ids=False,
            job=f"train-{split}-{os.getpid()}",
            epochs=self.config.epochs if train else None,
        )

    def fit(self) -> list[EpochReport]:
        """All epochs, those of a resumed checkpoint included."""
        config, epochs = self.config, self._restore()
        for epoch in range(len(epochs), config.epochs):
            figures = self.train_epoch(epoch)
            if (epoch + 1) % config.eval_every == 0 or epoch + 1 == config.epochs:
                start = time.perf_counter()
                accuracy: dict[str, Any] = {f"{s}_accuracy": self.evaluate(s) for s in self.splits}
                figures = replace(figures, eval_seconds=self._max(time.perf_counter() - start), **accuracy)
            epochs.append(figures)
            self.display.line(figures.line())
            self._save(epochs)
            if config.patience is not None and stalled(epochs, config.patience):
                self.display.line(f"no better validation accuracy for {config.patience} evaluations: stopping")
                break
        return epochs

    def train_epoch(self, epoch: int) -> EpochReport:
        """One pass over this rank's seeds; figures are reduced over all ranks."""
        # Dropout must not depend on what ran before: a resumed run then repeats the very same epoch.
        torch.manual_seed((self.config.seed * 1_000_003 + epoch) * self.world + self.rank)
        self.model.train()
        self.train_loader.set_epoch(epoch)
        watch = self._clock.stopwatch = Stopwatch(self.device)
        loss_sum = torch.zeros(
            (), dtype=torch.float64, device=self.device
        )  # read once, after the epoch: no wait per step
        seeds = edges = 0
        remote_bytes = 0.0
        start = time.perf_counter()
        with self.display.batches(f"epoch {epoch + 1}", len(self.train_loader)) as advance:
            for batch, data in on_device(self.train_loader, self.device, watch):
                loss = timed_step(partial(_loss, self.model, data), self.optimizer, self._clock)
                loss_sum += loss * data.batch_size
                add_daemon_time(watch, batch.stats)
                seeds += data.batch_size
                edges += batch.num_edges
                remote_bytes += batch.stats.get("remote_bytes", 0.0)
                advance()
        spent = watch.totals()
        seconds = self._max(time.perf_counter() - start)
        sums = self._sum([seeds, edges, remote_bytes, float(loss_sum), *(spent.get(p, 0.0) for p in PHASES)])
        breakdown = {p: s / self.world for p, s in zip(PHASES, sums[4:], strict=True)}
        return EpochReport(epoch, seconds, sums[3] / sums[0], sums[0] / seconds, sums[1] / seconds, sums[2], breakdown)

    @torch.no_grad()
    def evaluate(self, split: str) -> float:
        """Accuracy on a split: every vertex is predicted once, by whichever rank has it, and counts are added up."""
        config = self.config
        loader = self._loader(split, config.eval_fan_outs, config.eval_batch_size or config.batch_size, train=False)
        self.model.eval()
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        count = 0
        batches = iter(loader)  # before len(), which then knows the number of batches
        with self.display.batches(f"  {split}", len(loader)) as advance:
            for _, data in on_device(batches, self.device, Stopwatch(self.device)):
                scores = _scores(self.model.module, data)
                right += (scores.argmax(-1) == _labels(data)).sum()
                count += data.batch_size
                advance()
        right_sum, count_sum = self._sum([int(right), count])
        return right_sum / max(1.0, count_sum)

    def _restore(self) -> list[EpochReport]:
        if not (self.config.resume and self.config.checkpoint):
            return []
        return load_checkpoint(self.config.checkpoint, self.config, self.model.module, self.optimizer, self.device)

    def _save(self, epochs: Sequence[EpochReport]) -> None:
        folder = self.config.checkpoint
        if folder is None or self.rank != 0:
            return
        if best_epoch(epochs) is epochs[-1]:
            save_best(folder, self.config, self.model.module, epochs[-1])
        save_checkpoint(folder, self.config, self.model.module, self.optimizer, epochs)

    def _sum(self, values: Sequence[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(v) for v in tensor.tolist()]

    def _max(self, value: float) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)


def _scores(model: torch.nn.Module, data: Any) -> torch.Tensor:
    """[batch_size, classes]: the model's output for the seeds."""
    scores: torch.Tensor = model(data.x.float(), data.edge_index, data.num_sampled_nodes, data.num_sampled_edges)
    return scores


def _loss(model: torch.nn.Module, data: Any) -> torch.Tensor:
    return F.cross_entropy(_scores(model, data), _labels(data))


def _labels(data: Any) -> torch.Tensor:
    """int64 [batch_size]: classes of the seeds, whatever integers and shape the table has."""
    labels: torch.Tensor = data.y.reshape(-1).long()
    return labels
