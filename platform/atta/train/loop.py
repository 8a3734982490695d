"""The run of any strategy: epochs, evaluation, reports, checkpoints and early stopping."""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

import atta
from atta.errors import ConfigError
from atta.train.checkpoint import (
    load_checkpoint,
    load_rank,
    prune_ranks,
    save_best,
    save_checkpoint,
    save_rank,
)
from atta.train.labels import LabelCounts, check_label_table, count_labels
from atta.train.reports.display import Display
from atta.train.reports.epochs import EpochReport, best_epoch, stalled
from atta.train.settings import TrainSettings
from atta.train.steps.timing import peak_memory

__all__ = ["EpochLoop"]

Settings = TypeVar("Settings", bound=TrainSettings)


class EpochLoop(abc.ABC, Generic[Settings]):
    """The epochs of one rank; the process group must exist.

    Figures are reduced over all ranks first, so all ranks have the same reports. Decisions that follow from them (the
    best epoch, when to stop) need no more messages.

    Attributes:
        rank, world: this trainer's number, and the number of trainers.
        channels, classes: widths of the model's input and output.
        splits: those of ``val`` and ``test`` that have members.
        keeps_state: whether ranks keep something else from epoch to epoch (``rank_state``).
        model, optimizer: saved in checkpoints. Sub-classes set both.
        eval_bytes: bytes of rows that trainers sent each other in the latest evaluation.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    keeps_state: bool = False
    eval_bytes: float = 0.0

    def __init__(self, config: Settings, cluster: atta.Cluster, device: torch.device) -> None:
        """Raises ConfigError if the dataset cannot be trained on."""
        self.config, self.cluster, self.device = config, cluster, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.display = Display(config.verbose and self.rank == 0)
        self.channels, self.classes = self._task()
        self._check_labels()

    def _task(self) -> tuple[int, int]:
        """Number of input channels and of classes."""
        schema = self.cluster.schema
        node_type = schema.node_types[0]
        tables = schema.node_tables[node_type]
        if len(schema.node_types) > 1 or len(schema.edge_types) > 1:
            raise ConfigError("the models of atta train take graphs with one node type and one edge type")
        if "x" not in tables or "y" not in tables:
            raise ConfigError("training needs the node tables x (features) and y (integer labels)")
        if len(tables["x"].row_shape) != 1:
            raise ConfigError(
                f"training needs one row of features per vertex, x has rows of shape {tables['x'].row_shape}"
            )
        self.splits = [s for s in ("val", "test") if schema.splits[node_type].get(s)]
        return tables["x"].row_shape[0], check_label_table(tables["y"], schema.num_classes)

    def _check_labels(self) -> None:
        mine = count_labels(self.cluster, "train", self.classes, self.rank, self.world)
        found = LabelCounts(*map(int, self._sum(astuple(mine))))
        if left_out := found.checked(self.classes):
            self.display.line(left_out)

    def fit(self) -> list[EpochReport]:
        """Train all epochs; returns them with those of a resumed checkpoint."""
        config, epochs = self.config, self._restore()
        for epoch in range(len(epochs), config.epochs):
            # Dropout must not depend on earlier epochs: then a resumed run repeats exactly the same epoch.
            torch.manual_seed((config.seed * 1_000_003 + epoch) * self.world + self.rank)
            figures = self.train_epoch(epoch)
            if (epoch + 1) % config.eval_every == 0 or epoch + 1 == config.epochs:
                start = time.perf_counter()
                accuracy: dict[str, Any] = {f"{s}_accuracy": a for s, a in self.accuracies().items()}
                seconds = self._max(time.perf_counter() - start)
                figures = replace(figures, eval_seconds=seconds, eval_bytes=self.eval_bytes, **accuracy)
            epochs.append(figures)
            self.display.line(figures.line())
            stops = config.patience is not None and stalled(epochs, config.patience)
            last = stops or epoch + 1 == config.epochs
            self._save(epochs, last=last)
            if stops:
                self.display.line(f"no better validation accuracy for {config.patience} evaluations: stopping")
                break
        return epochs

    @abc.abstractmethod
    def train_epoch(self, epoch: int) -> EpochReport:
        """Train for one epoch; figures are reduced over all ranks."""

    def rank_state(self) -> dict[str, Any]:
        """What this rank keeps from epoch to epoch besides model and optimiser, if ``keeps_state``."""
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``rank_state`` has returned; called before the first epoch."""

    @abc.abstractmethod
    def accuracies(self) -> Mapping[str, float]:
        """Accuracy on each of ``splits``, in [0, 1]; each vertex is predicted once."""

    def _restore(self) -> list[EpochReport]:
        if not (self.config.resume and self.config.checkpoint):
            return []
        folder = self.config.checkpoint
        epochs = load_checkpoint(folder, self.config, self.model, self.optimizer, self.device)
        most, least = self._max(len(epochs)), -self._max(-len(epochs))
        if most > least:
            raise ConfigError(
                f"--checkpoint {folder}: not all trainers see the same one; several machines must share it"
            )
        if epochs and self.keeps_state:
            self.load_rank_state(load_rank(folder, self.rank, self.world, len(epochs), self.device))
        return epochs

    def _save(self, epochs: Sequence[EpochReport], *, last: bool) -> None:
        folder, done = self.config.checkpoint, len(epochs)
        if folder is None:
            return
        if self.rank == 0 and best_epoch(epochs) is epochs[-1]:
            save_best(folder, self.config, self.model, epochs[-1])
        if done % self.config.checkpoint_every and not last:
            return
        if self.keeps_state:
            save_rank(folder, self.rank, self.world, done, self.rank_state())
            dist.barrier()  # a checkpoint without the files of all ranks could not be resumed from
        if self.rank == 0:
            save_checkpoint(folder, self.config, self.model, self.optimizer, epochs)
        if self.keeps_state:
            dist.barrier()
            prune_ranks(folder, self.rank, self.world, done)

    def _sum(self, values: Sequence[float]) -> list[float]:
        """Sum of each number over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(v) for v in tensor.tolist()]

    def _peaks(self) -> list[int]:
        """Peak memory in bytes, by rank."""
        mine = [0.0] * self.world
        mine[self.rank] = float(peak_memory(self.device))
        return [int(p) for p in self._sum(mine)]

    def _max(self, value: float) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)
