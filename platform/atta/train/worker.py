"""One trainer process: connect, train, evaluate, report."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import atta
from atta.errors import ConfigError, DataError
from atta.train.allreduce import SyncClock, timed_all_reduce
from atta.train.config import TrainConfig
from atta.train.models import build_model, forward
from atta.train.progress import bar
from atta.train.report import PHASES, EpochReport
from atta.train.transfer import on_device

__all__ = ["Trainer", "run"]


class Trainer:
    """The training loop of one rank; the process group must exist."""

    def __init__(self, config: TrainConfig, cluster: atta.Cluster) -> None:
        self.config, self.cluster = config, cluster
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = _device(config)
        schema = cluster.schema
        node_type = schema.node_types[0]
        tables = schema.node_tables[node_type]
        if "x" not in tables or "y" not in tables or not schema.num_classes:
            raise ConfigError("training needs the node tables x (features) and y (integer labels)")
        torch.manual_seed(config.seed)
        model = build_model(config, tables["x"].row_shape[0], schema.num_classes).to(self.device)
        self.optimizer = torch.optim.Adam(model.parameters(), config.lr, weight_decay=config.weight_decay)
        ids = [self.device.index] if self.device.type == "cuda" else None
        self.model = DistributedDataParallel(model, device_ids=ids)
        self._clock = SyncClock()
        self.model.register_comm_hook(self._clock, timed_all_reduce)
        self.train_loader = self._loader("train", config.num_neighbors, config.batch_size, train=True)
        self.splits = [s for s in ("val", "test") if schema.splits[node_type].get(s)]

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
            tables=["x", "y"],
            edge_ids=False,
            job=f"train-{split}-{os.getpid()}",
        )

    def train_epoch(self, epoch: int) -> EpochReport:
        """One pass over this rank's seeds; figures are reduced over all ranks."""
        # Dropout must not depend on what ran before: a resumed run then repeats the very same epoch.
        torch.manual_seed((self.config.seed * 1_000_003 + epoch) * self.world + self.rank)
        self.model.train()
        self.train_loader.set_epoch(epoch)
        spent: defaultdict[str, float] = defaultdict(float)
        totals: defaultdict[str, float] = defaultdict(float)
        start = mark = time.perf_counter()
        for batch, data in self._steps(self.train_loader, f"epoch {epoch + 1}"):
            ready = time.perf_counter()
            loss = F.cross_entropy(forward(self.model, self.config, data), data.y[: data.batch_size])
            self.optimizer.zero_grad()
            loss.backward()
            after = time.perf_counter()
            self.optimizer.step()
            sync = after - self._clock.last_bucket
            wait = batch.stats["wait_ms"] / 1e3
            spent["wait"] += wait
            spent["copy"] += max(0.0, ready - mark - wait)
            spent["sync"] += sync
            mark = time.perf_counter()
            spent["compute"] += mark - ready - sync
            spent["sample"] += (batch.stats.get("sample_ms", 0.0) + batch.stats.get("join_ms", 0.0)) / 1e3
            spent["fetch"] += (batch.stats.get("fetch_ms", 0.0) + batch.stats.get("network_ms", 0.0)) / 1e3
            totals["seeds"] += data.batch_size
            totals["loss"] += float(loss.detach()) * data.batch_size
            totals["edges"] += batch.num_edges
            totals["remote_bytes"] += batch.stats.get("remote_bytes", 0.0)
        seconds = time.perf_counter() - start
        sums = self._sum([totals[k] for k in ("seeds", "loss", "edges", "remote_bytes")] + [spent[p] for p in PHASES])
        longest = self._max(seconds)
        seeds, loss_sum, edges, remote_bytes = sums[:4]
        breakdown = {p: v / self.world for p, v in zip(PHASES, sums[4:], strict=True)}
        return EpochReport(
            epoch, longest, loss_sum / max(1, seeds), seeds / longest, edges / longest, remote_bytes, breakdown
        )

    def _steps(self, loader: atta.NeighborLoader, title: str) -> Iterator[tuple[atta.MiniBatch, Any]]:
        shown = self.rank == 0 and self.config.verbose
        return bar(on_device(loader, self.device), len(loader) if shown else 0, title, shown=shown)

    @torch.no_grad()
    def evaluate(self, split: str) -> float:
        """Accuracy on a split, every vertex counted once over all ranks."""
        config = self.config
        fan_outs = config.eval_num_neighbors or config.num_neighbors
        loader = self._loader(split, fan_outs, config.eval_batch_size or config.batch_size, train=False)
        self.model.eval()
        right = count = 0
        for _, data in self._steps(loader, split):
            scores = forward(self.model.module, config, data)
            right += int((scores.argmax(-1) == data.y[: data.batch_size]).sum())
            count += data.batch_size
        right_sum, count_sum = self._sum([right, count])
        return right_sum / max(1, count_sum)

    def fit(self, first: int) -> list[dict[str, Any]]:
        """All epochs from ``first`` on; rank 0 prints each as it ends."""
        epochs = []
        for epoch in range(first, self.config.epochs):
            figures = self.train_epoch(epoch)
            if (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == self.config.epochs:
                accuracy = {f"{s}_accuracy": self.evaluate(s) for s in self.splits}
                figures = EpochReport(**{**asdict(figures), **accuracy})
            epochs.append(asdict(figures))
            if self.rank == 0:
                self._save(epoch)
                if self.config.verbose:
                    print(figures.line(), file=sys.stderr, flush=True)
        return epochs

    def restore(self) -> int:
        """Load the checkpoint if there is one; returns the first epoch to run."""
        path = self._checkpoint_path()
        if path is None or not path.exists():
            return 0
        try:
            saved = torch.load(path, map_location=self.device, weights_only=True)
            self.model.module.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            return int(saved["epoch"]) + 1
        except (RuntimeError, KeyError, ValueError, EOFError) as error:
            raise DataError(path, f"is no checkpoint of this model: {error}") from error

    def _save(self, epoch: int) -> None:
        path = self._checkpoint_path()
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "epoch": epoch,
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": {"epoch": epoch + 1, "batch": 0},
        }
        temporary = path.with_suffix(".partial")
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _checkpoint_path(self) -> Path | None:
        return Path(self.config.checkpoint) / "checkpoint.pt" if self.config.checkpoint else None

    def _sum(self, values: Sequence[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(v) for v in tensor.tolist()]

    def _max(self, value: float) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)


def _device(config: TrainConfig) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def run(config: TrainConfig, addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Body of a trainer process under torch's elastic launcher; returns the epochs' figures."""
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world))
    cuda = _device(config).type == "cuda"
    if cuda:
        torch.cuda.set_device(_device(config))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        with atta.connect(list(addresses)) as cluster:
            trainer = Trainer(config, cluster)
            return trainer.fit(trainer.restore() if config.resume else 0)
    finally:
        dist.destroy_process_group()
