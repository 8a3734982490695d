"""The trainer of strategies in which servers read each other's rows: what one rank does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

import atta
from atta.errors import ConfigError
from atta.train.cooperative import TrainerBatch
from atta.train.cooperative.across.exact import exact_batch
from atta.train.cooperative.across.figures import RowFigures, row_report
from atta.train.cooperative.across.job import JobReporter
from atta.train.cooperative.across.meeting import HaloRows, meet
from atta.train.cooperative.across.messages import MessageWay, message_way
from atta.train.cooperative.across.packing import packing
from atta.train.cooperative.across.reads import ReadRows, all_rows, halo_rows, rows_of_trainers
from atta.train.cooperative.across.source import StaleSource
from atta.train.cooperative.across.ways import Way
from atta.train.cooperative.exchange import RowDropout, Source, UnchangedRows, source_inside
from atta.train.cooperative.sharing.shares import TrainerShare
from atta.train.cooperative.step import own_backward, source_of, sum_gradients
from atta.train.cooperative.trainer import ServerTrainer, StepInput
from atta.train.reports.epochs import EpochReport
from atta.train.settings import CooperativeSettings, ExchangeSettings, ServerSettings, StaleSettings
from atta.train.stale.decisions.common import Decisions, ExchangeDecisions
from atta.train.stale.table import Direction
from atta.train.steps.timing import Stopwatch

__all__ = ["ExchangeTrainer"]


class ExchangeTrainer(ServerTrainer):
    """Computes the rows of its own vertices only; all others come from the trainers that compute them.

    Rows of other servers, or of all other trainers, are as old as ``decisions`` allow. Sub-classes choose the ways in
    which rows travel (``forward_way``, ``backward_way``) and what a step does besides.

    Attributes:
        decisions: what is read and published, and when.
        options: the settings of the strategy.
        stale: the source of training; set with the first step.
        exact: a source of rows of the present step, for evaluation.
        filled_bytes: bytes of this trainer that filled tables before the epoch that is not reported yet.
    """

    stale: StaleSource
    exact: Source

    def __init__(
        self,
        config: ExchangeSettings,
        cluster: atta.Cluster,
        device: torch.device,
        decisions: Decisions | None = None,
    ) -> None:
        """Raises the errors of ``ServerTrainer``."""
        names = {field.name for field in dataclasses.fields(CooperativeSettings)}
        common = {name: value for name, value in vars(config).items() if name in names}
        super().__init__(CooperativeSettings(**common), cluster, device, halo=True)
        self.options = config
        self.decisions: Decisions = decisions or ExchangeDecisions()
        self.figures = RowFigures()
        self.filled_bytes = 0
        self._saved: dict[str, Any] | None = None
        self._reporter = JobReporter(cluster, config.strategy)

    def fit(self) -> list[EpochReport]:
        epochs = super().fit()
        if hasattr(self, "stale"):  # no step, no source
            self.stale.close()
        self._reporter.end()
        return epochs

    @property
    def keeps_state(self) -> bool:  # type: ignore[override]
        """Whether rows are read again in later epochs."""
        keeps = self.decisions.keeps("forward"), self.decisions.keeps("backward")
        return keeps != (None, None) or self.options.codec == "delta-int8"

    def rank_state(self) -> dict[str, Any]:
        """Rows as they were sent last, copies of others' rows, and their versions."""
        return self.stale.state() | {"options": self._own_options(), "dataset_id": self.cluster.dataset_id}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """The ways of rows are made with the first step, and take it then.

        A trainer keeps the rows of its own vertices and copies of those at the edge of its partition, by their places.
        """
        if state.get("dataset_id", own := self.cluster.dataset_id) != own:
            raise ConfigError(
                f"--resume: the rows that were kept are those of dataset {state['dataset_id']}, this is {own}: cut in "
                "another way, they are of other vertices; --init-from begins with the weights alone"
            )
        was, now = state.get("options", {}), self._own_options()
        for name, value in now.items():
            if was.get(name, value) != value:
                setting = f"{name.replace('_', '-')}={was[name]}"
                raise ConfigError(f"--resume: the checkpoint was made with {setting}, not {value}")
        self._saved = state

    def _own_options(self) -> dict[str, Any]:
        """The options that decide which rows are sent, kept and read."""
        common = {field.name for field in dataclasses.fields(ServerSettings)}
        return {name: value for name, value in vars(self.options).items() if name not in common}

    def train_epoch(self, epoch: int) -> EpochReport:
        """A daemon shows the epoch's figures while the job runs."""
        report = super().train_epoch(epoch)
        ways = self.stale.forward, self.stale.backward
        rows = row_report(
            self.figures,
            kept_bytes=sum(way.kept_bytes for way in ways),
            copied_bytes=sum(way.copied_bytes for way in ways),
            filled_bytes=self.filled_bytes,
            device=self.device,
        )
        self.filled_bytes = 0
        self._reporter.report(epoch, rows)
        return dataclasses.replace(report, rows=rows)

    def tallies(self) -> dict[str, list[float]]:
        """Predicted by an exact forward pass."""
        graph = self._kept(Stopwatch(self.device)).batch.graph
        trained, graph.source = graph.source, self.exact
        try:
            return super().tallies()
        finally:
            graph.source = trained

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """One step. The sum of gradients is also the moment at which all trainers have published their rows."""
        loss = own_backward(self.cooperative, batch, count, self.objective.loss_sum)
        clip = self.decisions.clip_norm(self.world)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.stale.flush()
        sum_gradients(self.cooperative.parameters(), self.groups, loss)
        self.update_weights()
        return loss

    def reads_of(self, found: HaloRows, *, trainers: bool) -> ReadRows:
        """Which rows this trainer gets from others; ``trainers``: also from those of its own server."""
        place = self.groups.place
        if self.options.rows == "all":
            return all_rows(found, place, self.device, trainers=trainers)
        return rows_of_trainers(found, place) if trainers else halo_rows(found, place)

    def forward_way(self, reads: ReadRows, found: HaloRows) -> Way:
        """How rows travel."""
        return self.messages("forward", reads)

    def backward_way(self, reads: ReadRows) -> Way:
        """How gradients of rows travel."""
        return self.messages("backward", reads)

    def messages(self, direction: Direction, reads: ReadRows) -> MessageWay:
        """Messages from owners to readers."""
        packed = packing(self.options.codec, next(self.model.parameters()).dtype)
        return message_way(direction, self.decisions, reads, packing=packed, figures=self.figures, device=self.device)

    def _steps(self, epoch: int, watch: Stopwatch) -> Iterator[StepInput]:
        for step in super()._steps(epoch, watch):
            if self._saved is not None:
                self._take_up(self._saved)
                self._saved = None
            if step.batch.graph.dropout is not None:
                step.batch.graph.dropout.epoch = epoch
            self.stale.begin(epoch + 1)
            yield step
            self.stale.commit()

    def _take_up(self, state: dict[str, Any]) -> None:
        try:
            self.stale.load_state(state)
        except (ConfigError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"--resume: the saved rows do not go with this run: {error}") from error

    def _on_device(self, share: TrainerShare, watch: Stopwatch) -> StepInput:
        start = watch.now()
        found = meet(share.view, self.groups.place, self.device)
        trainers = isinstance(self.options, StaleSettings) and self.options.stale_across == "trainers"
        reads = self.reads_of(found, trainers=trainers)
        watch.add("fetch", start, watch.now())
        start = watch.now()
        step = self._made(TrainerShare(found.view, share.splits), found, reads, trainers=trainers)
        watch.add("copy", start, watch.now())
        return step

    def _made(self, share: TrainerShare, found: HaloRows, reads: ReadRows, *, trainers: bool) -> StepInput:
        """Put a share on the device, with its two sources."""
        view, place = share.view, self.groups.place
        batch = exact_batch(found._replace(view=view), self.groups, self.device)
        graph, x = batch.graph, batch.x
        assert graph.source is not None
        self.exact = graph.source
        if self.config.dropout:
            graph.dropout = RowDropout(view, self.config.seed, self.device)
        self.stale = StaleSource(
            reads, self.forward_way(reads, found), self.backward_way(reads), self.figures, self.device
        )
        fixed = torch.from_numpy(view.halo_features).to(self.device)
        inside = source_inside(view, self.groups.inside, device=self.device, machines=place.machines)
        if trainers and inside is not None:
            fixed = torch.cat([inside.start(0, "forward", x).finish(), fixed])
        stale: Source = self.stale
        if not self.options.send_features:
            stale = UnchangedRows(stale, x, fixed)
        if trainers or inside is None:
            graph.source = stale
        else:
            graph.source = source_of(view, UnchangedRows(inside, x), stale)
        return StepInput(share, batch)
