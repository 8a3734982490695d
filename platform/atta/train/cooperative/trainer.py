"""The trainer of strategies with servers (GraNNDis): what one rank does in an epoch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import atta
from atta.train.cooperative.exchange import CooperativeGraph, TrainerBatch, backward, broadcast_weights, count_targets
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.groups import ServerGroups, machines_per_server
from atta.train.cooperative.halo import exact_batch, meet
from atta.train.cooperative.memory import Size, estimate
from atta.train.cooperative.model import CooperativeModel
from atta.train.cooperative.subgraphs import ServerData
from atta.train.exchange.policies import Cut, doubt
from atta.train.loop import EpochLoop
from atta.train.models import whole_model
from atta.train.reports.epochs import SERVER_PHASES, EpochReport
from atta.train.settings.common import DEEP_MODELS
from atta.train.settings.servers import CooperativeSettings, ServerSettings
from atta.train.steps.timing import Stopwatch


class ServerTrainer(EpochLoop[CooperativeSettings]):
    """Trains on the subgraphs of whole servers; only gradients travel between servers. With one step per epoch, the
    share stays on the device until another sample is drawn. ``options``: the settings of the strategy, of which
    ``config`` has those of co-batches."""

    def __init__(
        self, options: ServerSettings, cluster: atta.Cluster, device: torch.device, *, halo: bool = False
    ) -> None:
        """Build groups and model. ``halo``: as for ``ServerData``. Raises ConfigError if the dataset cannot be trained
        on, or servers do not fit the machines."""
        names = {field.name for field in fields(CooperativeSettings)}
        config = CooperativeSettings(**{name: value for name, value in vars(options).items() if name in names})
        super().__init__(config, cluster, device)
        self.options: Any = options
        schema = cluster.schema
        schema.split_size(schema.node_types[0], "train")
        trainers_here = int(os.environ.get("LOCAL_WORLD_SIZE", str(config.trainers)))  # set by torch's launcher
        self.groups = ServerGroups(
            config.server_size, machines_per_server(config.server_size, trainers_here), timeout_s=config.answer_s
        )
        torch.manual_seed(config.seed)
        self.begin_with(whole_model(config, self.channels, self.outputs))
        self.cooperative = CooperativeModel(self.model)
        broadcast_weights(self.cooperative)
        self.data = ServerData(config, cluster, self.groups, device, self.task, halo=halo)
        self._weights = sum(p.numel() for p in self.model.parameters())
        self._resident: TrainerBatch | None = None
        self._count = 0  # targets of the resident batch, on all trainers
        self._exact: TrainerBatch | None = None

    def train_epoch(self, epoch: int) -> EpochReport:
        """Run all steps of an epoch; figures are reduced over all ranks."""
        watch = self.groups.watch = Stopwatch(self.device)
        start, begin = time.perf_counter(), watch.now()
        self.cooperative.train()
        fetched = -self.data.remote_bytes
        if self.data.prepare(epoch, watch, self._needed):
            self._resident, self._count = None, 0
        fetched += self.data.remote_bytes
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        targets, edges, sent = 0, 0, np.zeros(3)
        with self.display.batches(f"epoch {epoch}", self.data.batches) as advance:
            for batch in self._steps(epoch, watch):
                graph = batch.graph
                sent -= self._sent_bytes(graph)
                graph.watch = watch
                if batch is not self._resident or not self._count:
                    self._count = count_targets(batch, self.groups)
                loss_sum += self.update(batch, self._count) * self._count
                graph.watch = None
                targets += self._count
                edges += graph.edge_index.shape[1]
                sent += self._sent_bytes(graph)
                advance()
        watch.add("all", begin, watch.now())
        self.groups.watch = None
        seconds = self._max(time.perf_counter() - start)
        total_edges, total_sent, total_crossed, total_features, total_fetched, *spent = self._sum(
            [edges, *sent, fetched, *self._leader_seconds(watch)]
        )
        return self.report(
            epoch,
            seconds,
            targets,
            total_edges,
            loss=float(loss_sum) / targets,
            remote_bytes=total_fetched,
            breakdown={p: s / self.config.servers for p, s in zip(SERVER_PHASES, spent, strict=True)},
            steps=self.data.batches,
            exchanged_bytes=total_sent,
            crossed_bytes=total_crossed,
            crossed_feature_bytes=total_features,
        )

    def report(self, epoch: int, seconds: float, targets: float, edges: float, **figures: Any) -> EpochReport:
        """The report of an epoch that has read so many ``edges`` for so many ``targets``; every rank calls this."""
        figures.setdefault("remote_bytes", 0.0)
        figures.setdefault("breakdown", dict.fromkeys(SERVER_PHASES, 0.0))
        figures |= {"seeds_per_s": targets / seconds, "edges_per_s": edges / seconds}
        return EpochReport(epoch, seconds, peak_memory_bytes=self._peaks(), **figures)

    def take_weights(self, values: np.ndarray | None) -> None:
        """Give the model of every trainer the weights [size] that the first trainer gives; every rank calls this."""
        vector = parameters_to_vector(self.model.parameters()).detach()
        if values is not None:
            vector = torch.from_numpy(np.array(values)).to(self.device)
        dist.broadcast(vector, 0)
        vector_to_parameters(vector, self.model.parameters())

    def _sent_bytes(self, graph: CooperativeGraph) -> np.ndarray:
        """Bytes that this trainer has sent: to others, to other servers, and features to these. The first layer of a
        deep model reads rows that were computed."""
        source, deep = graph.source, self.config.model in DEEP_MODELS
        features = 0 if deep or source is None else source.crossed[0, "forward"]
        return np.array([graph.exchanged_bytes, graph.crossed_bytes, features])

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """One optimiser step on ``batch``; returns the mean loss over the ``count`` targets of all trainers."""
        loss = backward(self.cooperative, batch, self.groups, count, self.objective.loss_sum)
        self.update_weights()
        return loss

    @torch.no_grad()
    def tallies(self) -> dict[str, list[float]]:
        """It is the same forward as in training, on subgraphs of the same kind, or an exact one."""
        self.cooperative.eval()
        tally = torch.stack([self.objective.empty_tally(self.device)] * max(1, len(self.splits)))
        sent = 0
        for batch in self._evaluation():
            view = batch.graph.view
            sent -= batch.graph.exchanged_bytes
            outputs = self.cooperative(batch.x, batch.graph)
            sent += batch.graph.exchanged_bytes
            targets = torch.from_numpy(view.labels).to(self.device)
            for i, split in enumerate(self.splits):
                rows = torch.from_numpy(view.splits[split]).to(self.device)
                tally[i] += self.objective.tally(outputs[rows], targets[rows])
        self.eval_bytes, *sums = self._sum([sent, *tally.flatten().tolist()])
        return dict(zip(self.splits, np.array(sums).reshape(len(tally), -1).tolist(), strict=False))

    def _steps(self, epoch: int, watch: Stopwatch) -> Iterator[TrainerBatch]:
        if self.data.batches == 1:
            yield self._kept(watch)
            return
        for view in self.data.steps(epoch, watch):
            yield self._on_device(view, watch)

    def _evaluation(self) -> Iterator[TrainerBatch]:
        watch = Stopwatch(self.device)
        if self.config.eval == "exact":
            yield self._exact_batch(watch)
        elif self.data.batches == 1:
            yield self._kept(watch)
        else:
            for view in self.data.evaluation(watch):
                yield self._on_device(view, watch)

    def _exact_batch(self, watch: Stopwatch) -> TrainerBatch:
        if self._exact is None:
            once = replace(self.config, co_batches=1, memory=None)
            data = ServerData(once, self.cluster, self.groups, self.device, self.task, halo=True)
            data.prepare(0, watch, lambda view: 0)  # without memory nobody asks what a step needs
            self._exact = exact_batch(meet(data.whole(watch), self.groups.place, self.device), self.groups, self.device)
        return self._exact

    def _kept(self, watch: Stopwatch) -> TrainerBatch:
        if self._resident is None:
            view = self.data.whole(watch)
            self._say_doubt(view)
            self._resident = self._on_device(view, watch)
        return self._resident

    def _say_doubt(self, view: WorkerView) -> None:
        """Warn of what the strategy cannot do with this cut; every rank calls this."""
        across = getattr(self.options, "stale_across", "servers") == "trainers"
        inside = len(view.own) + (0 if across else len(view.remote))
        here = [float((view.edge_index[0] >= inside).sum()), view.edge_index.shape[1], len(view.targets)]
        cut, edges, targets = self._sum(here)
        if said := doubt(self.options, Cut(cut / max(1.0, edges), targets / self.world)):
            self.display.line(f"warning: {said}")

    def _on_device(self, view: WorkerView, watch: Stopwatch) -> TrainerBatch:
        start = watch.now()
        batch = TrainerBatch.of(view, self.groups.inside, device=self.device, machines=self.groups.place.machines)
        watch.add("copy", start, watch.now())
        return batch

    def _needed(self, view: WorkerView) -> int:
        here = replace(self.config, device=self.device.type)  # no longer "auto"
        return estimate(here, Size.of(view), self.channels, self._weights)

    def _leader_seconds(self, watch: Stopwatch) -> list[float]:
        """Seconds by phase of this server's first trainer, 0 on other trainers, so that a sum over ranks is one over
        servers."""
        spent = watch.totals()
        # Exchanges happen within forward and backward, so the rest of the epoch is computing.
        spent["compute"] = max(0.0, 2 * spent["all"] - sum(spent.values()))
        return [spent.get(p, 0.0) if self.groups.place.local_rank == 0 else 0.0 for p in SERVER_PHASES]
