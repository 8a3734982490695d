"""The run of any strategy: epochs, evaluation, reports, checkpoints and early stopping."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist

import atta
from atta.errors import ConfigError, DataError
from atta.observe.lastwords import counted
from atta.partition.disk.mirror import Mirror
from atta.train.checkpoint.files import LAST, RunPlace, SavedEmbeddings, fill, load_first
from atta.train.checkpoint.run import (
    load_checkpoint,
    load_rank,
    prune_ranks,
    remove_best,
    save_best,
    save_checkpoint,
    save_rank,
)
from atta.train.reports.display import TRAINING_BEGINS, Display, exporting, nothing_left
from atta.train.reports.epochs import EpochReport, best_epoch, stalled
from atta.train.reports.loggers import RunLog, make_logger
from atta.train.settings.common import TrainSettings, epoch_seed, patience_of
from atta.train.steps.step import LearningRate
from atta.train.steps.timing import peak_memory
from atta.train.tasks.choice import check_watched, task_on, watched_by
from atta.train.tasks.targets import class_weights, count_targets_of, counts_of
from atta.train.tasks.task import VERTICES, LearningTask, Objective, TargetCounts
from atta.train.tasks.types import rows_advice

Settings = TypeVar("Settings", bound=TrainSettings)


class EpochLoop(abc.ABC, Generic[Settings]):
    """The epochs of one rank; the process group must exist. Figures are reduced over all ranks first, so decisions that
    follow from them (the best epoch, when to stop) need no more messages.

    Attributes:
        objective, watched: loss and figures with the weights of this run, and the figure that tells which epoch is the best.
        channels, outputs: widths of the model's input and output.
        splits: those of ``val`` and ``test`` that have members.
        keeps_state: whether ranks keep something else from epoch to epoch (``rank_state``).
        model, optimizer, learning_rate: saved in checkpoints; set by ``begin_with``.
        eval_bytes: bytes of rows that trainers sent each other in the latest evaluation.
        due: a checkpoint is due at the end of the epoch under way, also between those of ``--checkpoint-every``.
        begun: what ``save_within`` was given in the checkpoint that the run goes on from; None: it begins with an epoch.
        validated: the targets of validation vertices.
        kept: the file that gets each epoch when it ends, of the first trainer of a machine.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    learning_rate: LearningRate
    keeps_state: bool = False
    eval_bytes: float = 0.0
    due: bool = False
    begun: dict[str, Any] | None = None
    kept: Path | None = None
    validated: TargetCounts = TargetCounts()
    _cuts: bool = False  # there may be files of ranks at a place in mid-epoch

    def __init__(self, config: Settings, cluster: atta.Cluster, device: torch.device) -> None:
        """Raises ConfigError if the dataset cannot be trained on."""
        found = task_on(cluster.schema, config)
        self.config, self.cluster, self.device = replace(config, **found.resolved), cluster, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.display = Display(config.verbose and self.rank == 0)
        self.task, self.channels, self.outputs, self.splits = found.task, found.channels, found.outputs, found.splits
        self.node_type = found.node_type
        self.objective, self.watched = self._objective(), watched_by(self.config)
        self.done: list[EpochReport] = []

    def _objective(self) -> Objective:
        """Count the targets of vertices, refuse those that cannot be learnt or judged, and weigh classes."""
        counts = self.counted(self.task, self.outputs)
        if left_out := self.task.check(counts, self.outputs):
            self.display.line(left_out)
        self.check_judged(self.task, self.outputs)
        weights = class_weights(self.config.class_weights, self.task, counts, self.outputs)
        given = None if weights is None else torch.from_numpy(weights).float().to(self.device)
        return Objective(self.task, self.outputs, given)

    def check_judged(self, task: LearningTask, outputs: int) -> None:
        """Refuse targets of ``splits`` that are none of a task, and to watch unknown ones; every rank calls this."""
        for split in self.splits:
            counts = self.counted(task, outputs, split)
            task.refuse(counts, outputs, VERTICES[split])
            if split == "val":
                self.validated = counts
                check_watched(self.config, self.splits, counts)

    def counted(self, task: LearningTask, outputs: int, split: str = "train") -> TargetCounts:
        """The targets of all vertices of a split for a task; every rank calls this."""
        mine = count_targets_of(
            self.cluster, split, task, outputs, node_type=self.node_type, rank=self.rank, world=self.world
        )
        return counts_of(np.array(self._sum(mine.tolist())))

    def begin_with(self, model: torch.nn.Module) -> None:
        """Take the model that is trained, with new weights or those of ``--init-from``, which raise DataError if they do not
        fit it, and make its optimiser."""
        config = self.config
        self.model = model.to(self.device)
        goes_on = config.resume and config.checkpoint is not None and Mirror(config.checkpoint).has(LAST)
        if config.init_from is not None and not goes_on:
            first = load_first(config.init_from, self.device, self.cluster.schema)
            fill(self.model, first.weights, first.path)
            self.load_embedding_weights(first.embeddings)
            if first.other_classes:
                self.display.line(f"--init-from: {first.other_classes}; its weights are taken by number")
        self.optimizer = torch.optim.Adam(self.model.parameters(), config.lr, weight_decay=config.weight_decay)
        self.learning_rate = LearningRate(config, self.optimizer, rises=self.watched.rises)

    def update_weights(self) -> None:
        """The optimiser's step, once gradients are those of all trainers."""
        if self.config.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_grad_norm)
        self.optimizer.step()

    def fit(self) -> list[EpochReport]:
        """Train all epochs; returns them with those of a resumed checkpoint. Raises NonFiniteError if training diverges."""
        epochs, patience = self._restore(), patience_of(self.config)
        self.done = epochs
        if len(epochs) >= self.config.epochs:
            self.display.line(nothing_left(len(epochs)))
        else:
            self.display.line(TRAINING_BEGINS)
        stops = self._stops(epochs)  # a run that has stopped stays stopped when it is resumed
        with self._run_log() as log, self._exporting() as show:
            while len(epochs) < self.config.epochs and not stops:
                epochs.append(self._epoch(len(epochs)))
                log.epoch(epochs[-1])
                show(epochs[-1])
                stops = self._stops(epochs)
                self._save(epochs, last=stops or len(epochs) == self.config.epochs)
                self.display.epoch(epochs[-1])  # whoever sees it may press Ctrl-C: everything is kept
        if stops and patience:
            metric = self.watched.metric.replace("val_", "validation ", 1)
            self.display.line(f"no better {metric} for {counted(patience, 'evaluation')}: stopping")
        if found := self._doubt(epochs):
            self.display.line(f"warning: nothing seems to be learnt, validation {found}")
        return epochs

    def _doubt(self, epochs: Sequence[EpochReport]) -> str:
        best = best_epoch(epochs, self.watched)
        if best is None or self.objective.weights is not None:  # weights may have a model say rare classes too often
            return ""
        figures = {name.removeprefix("val_"): value for name, value in best.metrics.items()}
        found = self.task.doubt(figures, self.validated)
        return found and f"{found}; {rows_advice(self.cluster.schema, self.config)}"

    def _run_log(self) -> RunLog:
        wanted = self.config.logger if self.rank == 0 else ()
        return RunLog([make_logger(text) for text in wanted], asdict(self.config), self.kept, self.done)

    def _exporting(self) -> AbstractContextManager[Callable[[EpochReport], None]]:
        config = self.config
        about = {"dataset": self.cluster.dataset_id, "strategy": config.strategy, "model": config.model}
        return exporting(config.metrics if self.rank == 0 else "", about)

    def _epoch(self, epoch: int) -> EpochReport:
        config = self.config
        # Dropout must not depend on earlier epochs: then a resumed run repeats exactly the same epoch.
        torch.manual_seed(epoch_seed(config.seed, epoch, self.rank, self.world))
        figures = self.train_epoch(epoch)
        figures.check_loss()
        figures = replace(figures, learning_rate=self.learning_rate.present)
        if (epoch + 1) % config.eval_every == 0 or epoch + 1 == config.epochs:
            figures = self.evaluated(figures)
        self.learning_rate.epoch_done(figures.metric(self.watched.metric))
        return figures

    def evaluated(self, report: EpochReport) -> EpochReport:
        """The report with figures of validation and test; every rank calls this."""
        start = time.perf_counter()
        found = {split: self.objective.metrics(tally) for split, tally in self.tallies().items()}
        metrics = {f"{split}_{name}": value for split, of_split in found.items() for name, value in of_split.items()}
        seconds = self._max(time.perf_counter() - start)
        return replace(report, eval_seconds=seconds, eval_bytes=self.eval_bytes).evaluated(metrics)

    def _stops(self, epochs: Sequence[EpochReport]) -> bool:
        patience = patience_of(self.config)
        return patience is not None and stalled(epochs, patience, self.watched)

    @abc.abstractmethod
    def train_epoch(self, epoch: int) -> EpochReport:
        """Train for one epoch; figures are reduced over all ranks."""

    def rank_state(self) -> dict[str, Any]:
        """What this rank keeps from epoch to epoch besides model and optimiser, if ``keeps_state``."""
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``rank_state`` has returned; called before the first epoch."""

    def load_rank_states(self, folder: str, place: RunPlace) -> None:
        """Go on from what all ranks have saved at the end of an epoch. As a rule, each has only its own."""
        self.load_rank_state(load_rank(folder, self.rank, self.world, place, self.device))

    def embedding_weights(self) -> SavedEmbeddings | None:
        """Rows of learnable tables, for the file of the best model; rank 0 calls this."""
        return None

    def load_embedding_weights(self, saved: SavedEmbeddings) -> None:
        """Begin with rows of another run; raises DataError."""
        if saved.rows:
            raise DataError(saved.path, f"--init-from: has embeddings of {', '.join(saved.rows)}, this model has none")

    @abc.abstractmethod
    def tallies(self) -> Mapping[str, Sequence[float]]:
        """``Objective.tally`` of each of ``splits``, added up over all ranks; each vertex is predicted once."""

    def _restore(self) -> list[EpochReport]:
        folder = self.config.checkpoint
        epochs = self._resumed(folder) if folder is not None and self.config.resume else []
        self._best_is_own = bool(epochs) or self.begun is not None
        return epochs

    def _resumed(self, folder: str) -> list[EpochReport]:
        epochs, place = load_checkpoint(
            folder, self.config, self.model, self.optimizer, self.device, schedule=self.learning_rate,
            schema=self.cluster.schema,
        )  # fmt: skip
        if any(self._max(number) > -self._max(-number) for number in (place.epoch, place.batch)):
            raise ConfigError(f"--checkpoint {folder}: not all trainers see the same; several machines must share it")
        if place.batch:
            saved = load_rank(folder, self.rank, self.world, place, self.device)
            self.begun, self._cuts = saved["begun"], True
            if self.keeps_state:
                self.load_rank_state(saved["kept"])
        elif epochs and self.keeps_state:
            self.load_rank_states(folder, place)
        return epochs

    def _save(self, epochs: Sequence[EpochReport], *, last: bool) -> None:
        folder, done = self.config.checkpoint, len(epochs)
        if folder is None:
            return
        if self.rank == 0:
            # The model of the last epoch is written if none is better. Where nothing tells, that of the run's last epoch is
            # written if it has embeddings, of which checkpoints have each rank's share only.
            best = best_epoch(epochs, self.watched)
            found = self.embedding_weights() if best is epochs[-1] or (best is None and last) else None
            if best is epochs[-1] or found:
                save_best(folder, self.config, self.model, epochs[-1], embeddings=found, schema=self.cluster.schema)
                self._best_is_own = True
        due, self.due = self.due, False
        if done % self.config.checkpoint_every and not last and not due:
            return
        self._save_at(folder, RunPlace(done), self.rank_state() if self.keeps_state else None)

    def save_within(self, place: RunPlace, begun: dict[str, Any]) -> None:
        """Write a checkpoint in mid-epoch, one cut through all ranks; every rank calls this at the same place. ``begun``: what
        this rank has of the epoch, tensors and plain values; a resumed run finds it in ``self.begun``."""
        assert self.config.checkpoint is not None
        self.settle()
        self._save_at(self.config.checkpoint, place, {"begun": begun, "kept": self.rank_state()})
        self._cuts = True

    def settle(self) -> None:
        """Wait until nothing is on its way from any rank to ``rank_state``; every rank calls this."""

    def _save_at(self, folder: str, place: RunPlace, mine: dict[str, Any] | None) -> None:
        """Write ``mine`` for each rank, unless it is None, and the checkpoint of all."""
        if mine is not None:
            save_rank(folder, self.rank, self.world, place, mine)
            dist.barrier()  # a checkpoint without the files of all ranks could not be resumed from
        if self.rank == 0:
            if not self._best_is_own:  # it would be taken for that of this run
                remove_best(folder)
                self._best_is_own = True
            save_checkpoint(
                folder, self.config, self.model, self.optimizer, self.done, schedule=self.learning_rate, place=place,
                schema=self.cluster.schema,
            )  # fmt: skip
        if mine is not None or self._cuts:
            dist.barrier()
            prune_ranks(folder, self.rank, self.world, place)
            self._cuts = mine is not None

    def add_up(self, values: Sequence[float]) -> list[float]:
        """Sum of each number over all ranks; every rank calls this."""
        return self._sum(values)

    def _sum(self, values: Sequence[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(v) for v in tensor.tolist()]

    def _peaks(self) -> list[int]:
        mine = [0.0] * self.world
        mine[self.rank] = float(peak_memory(self.device))
        return [int(p) for p in self._sum(mine)]

    def _max(self, value: float) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)
