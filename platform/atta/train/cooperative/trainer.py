"""The trainer of strategies with servers (GraNNDis): what one rank does in an epoch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

import atta
from atta.train.cooperative.exchange import CooperativeGraph
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.groups import ServerGroups, machines_per_server
from atta.train.cooperative.halo import exact_share
from atta.train.cooperative.memory import Size, estimate
from atta.train.cooperative.model import CooperativeModel
from atta.train.cooperative.shares import TrainerShare
from atta.train.cooperative.step import TrainerBatch, backward, broadcast_weights, count_targets
from atta.train.cooperative.subgraphs import ServerData
from atta.train.loop import EpochLoop
from atta.train.models import whole_model
from atta.train.reports.epochs import SERVER_PHASES, EpochReport
from atta.train.settings import DEEP_MODELS, CooperativeSettings
from atta.train.steps.timing import Stopwatch


class StepInput(NamedTuple):
    """What a trainer computes on in a step: its share of a subgraph, and the share's tensors on the device."""

    share: TrainerShare
    batch: TrainerBatch


class ServerTrainer(EpochLoop[CooperativeSettings]):
    """Trains on the subgraphs of whole servers; only gradients travel between servers.

    With one step per epoch, the share stays on the device until another sample is drawn.
    """

    def __init__(
        self, config: CooperativeSettings, cluster: atta.Cluster, device: torch.device, *, halo: bool = False
    ) -> None:
        """Build groups and model. ``halo``: as for ``ServerData``.

        Raises ConfigError if the dataset cannot be trained on, or servers do not fit the machines.
        """
        super().__init__(config, cluster, device)
        schema = cluster.schema
        schema.split_size(schema.node_types[0], "train")
        trainers_here = int(os.environ.get("LOCAL_WORLD_SIZE", str(config.trainers)))  # set by torch's launcher
        self.groups = ServerGroups(
            config.server_size,
            machines_per_server(config.server_size, trainers_here),
            timeout_s=config.rank_timeout,
        )
        torch.manual_seed(config.seed)
        self.begin_with(whole_model(config, self.channels, self.outputs))
        self.cooperative = CooperativeModel(self.model)
        broadcast_weights(self.cooperative, self.groups)
        self.data = ServerData(config, cluster, self.groups, device, self.task, halo=halo)
        self._weights = sum(p.numel() for p in self.model.parameters())
        self._resident: StepInput | None = None
        self._exact: StepInput | None = None

    def train_epoch(self, epoch: int) -> EpochReport:
        """Run all steps of an epoch; figures are reduced over all ranks."""
        watch = self.groups.watch = Stopwatch(self.device)
        start, begin = time.perf_counter(), watch.now()
        self.cooperative.train()
        fetched = -self.data.remote_bytes
        if self.data.prepare(epoch, watch, self._needed):
            self._resident = None
        fetched += self.data.remote_bytes
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        targets = edges = sent = crossed = features = 0
        with self.display.batches(f"epoch {epoch}", self.data.batches) as advance:
            for _, batch in self._steps(epoch, watch):
                graph = batch.graph
                sent, crossed = sent - graph.exchanged_bytes, crossed - graph.crossed_bytes
                features -= self._crossed_features(graph)
                graph.watch = watch
                count = count_targets(batch, self.groups)
                loss_sum += self.update(batch, count) * count
                graph.watch = None
                targets += count
                edges += graph.edge_index.shape[1]
                sent, crossed = sent + graph.exchanged_bytes, crossed + graph.crossed_bytes
                features += self._crossed_features(graph)
                advance()
        watch.add("all", begin, watch.now())
        self.groups.watch = None
        seconds = self._max(time.perf_counter() - start)
        total_edges, total_sent, total_crossed, total_features, total_fetched, *spent = self._sum(
            [edges, sent, crossed, features, fetched, *self._leader_seconds(watch)]
        )
        return EpochReport(
            epoch,
            seconds,
            loss=float(loss_sum) / targets,
            seeds_per_s=targets / seconds,
            edges_per_s=total_edges / seconds,
            remote_bytes=total_fetched,
            breakdown={p: s / self.config.servers for p, s in zip(SERVER_PHASES, spent, strict=True)},
            steps=self.data.batches,
            exchanged_bytes=total_sent,
            crossed_bytes=total_crossed,
            crossed_feature_bytes=total_features,
            peak_memory_bytes=self._peaks(),
        )

    def _crossed_features(self, graph: CooperativeGraph) -> int:
        """Bytes of features that this trainer has sent to other servers. The first layer of a deep model reads rows
        that were computed.
        """
        return 0 if self.config.model in DEEP_MODELS else graph.crossed_in(0, "forward")

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
        for share, batch in self._evaluation():
            sent -= batch.graph.exchanged_bytes
            outputs = self.cooperative(batch.x, batch.graph)
            sent += batch.graph.exchanged_bytes
            targets = torch.from_numpy(share.view.labels).to(self.device)
            for i, split in enumerate(self.splits):
                rows = torch.from_numpy(share.splits[split]).to(self.device)
                tally[i] += self.objective.tally(outputs[rows], targets[rows])
        self.eval_bytes, *sums = self._sum([sent, *tally.flatten().tolist()])
        return dict(zip(self.splits, np.array(sums).reshape(len(tally), -1).tolist(), strict=False))

    def _steps(self, epoch: int, watch: Stopwatch) -> Iterator[StepInput]:
        if self.data.batches == 1:
            yield self._kept(watch)
            return
        for share in self.data.steps(epoch, watch):
            yield self._on_device(share, watch)

    def _evaluation(self) -> Iterator[StepInput]:
        watch = Stopwatch(self.device)
        if self.config.eval == "exact":
            if self._exact is None:
                self._exact = StepInput(*exact_share(self.config, self.cluster, self.groups, self.device, self.task))
            yield self._exact
            return
        if self.data.batches == 1:
            yield self._kept(watch)
            return
        for share in self.data.evaluation(watch):
            yield self._on_device(share, watch)

    def _kept(self, watch: Stopwatch) -> StepInput:
        if self._resident is None:
            self._resident = self._on_device(self.data.whole(watch), watch)
        return self._resident

    def _on_device(self, share: TrainerShare, watch: Stopwatch) -> StepInput:
        """Put a share on the device."""
        start = watch.now()
        machines = self.groups.place.machines
        batch = TrainerBatch.of(share.view, self.groups.inside, device=self.device, machines=machines)
        watch.add("copy", start, watch.now())
        return StepInput(share, batch)

    def _needed(self, view: WorkerView) -> int:
        here = replace(self.config, device=self.device.type)  # no longer "auto"
        return estimate(here, Size.of(view), self.channels, self._weights)

    def _leader_seconds(self, watch: Stopwatch) -> list[float]:
        """Seconds by phase of this server's first trainer, 0 on other trainers, so that a sum over ranks is one over
        servers.
        """
        spent = watch.totals()
        # Exchanges happen within forward and backward, so the rest of the epoch is computing.
        spent["compute"] = max(0.0, 2 * spent["all"] - sum(spent.values()))
        return [spent.get(p, 0.0) if self.groups.place.local_rank == 0 else 0.0 for p in SERVER_PHASES]
