"""The trainer of strategies in which servers read each other's rows: what one rank does."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

import atta
from atta.errors import ConfigError
from atta.train.cooperative.dropout import RowDropout
from atta.train.cooperative.exchange import CooperativeGraph
from atta.train.cooperative.halo import HaloRows, ReadRows, all_rows, exact_batch, halo_rows, meet, rows_of_trainers
from atta.train.cooperative.shares import TrainerShare
from atta.train.cooperative.source import Source, UnchangedRows, source_inside
from atta.train.cooperative.step import TrainerBatch, own_backward, source_of, sum_gradients
from atta.train.cooperative.trainer import ServerTrainer, StepInput
from atta.train.exchange.codecs import Packing, packing
from atta.train.exchange.figures import JobReporter, RowFigures, row_report
from atta.train.exchange.messages import StaleRows
from atta.train.exchange.policies import ExactPolicy
from atta.train.exchange.policy import RowPolicy
from atta.train.reports.epochs import EpochReport
from atta.train.settings import CooperativeSettings, ExchangeSettings, ServerSettings, StaleSettings
from atta.train.steps.timing import Stopwatch


class ExchangeTrainer(ServerTrainer):
    """Computes the rows of its own vertices only; all others come from the trainers that compute them.

    Rows of other servers, or of all other trainers, are as old as the ``policy`` allows. Sub-classes choose how rows
    travel (``stale_rows``) and what a step does besides.

    Attributes:
        policy: what is read and published, and when.
        options: the settings of the strategy.
        stale: the source of training; set with the first step.
        exact: a source of rows of the present step, for evaluation.
        filled_bytes: bytes of this trainer that filled tables before the epoch that is not reported yet.
    """

    stale: StaleRows
    exact: Source

    def __init__(
        self,
        config: ExchangeSettings,
        cluster: atta.Cluster,
        device: torch.device,
        policy: RowPolicy | None = None,
    ) -> None:
        """Raises the errors of ``ServerTrainer``."""
        names = {field.name for field in dataclasses.fields(CooperativeSettings)}
        common = {name: value for name, value in vars(config).items() if name in names}
        super().__init__(CooperativeSettings(**common), cluster, device, halo=True)
        self.options = config
        self.policy: RowPolicy = policy or ExactPolicy()
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
        keeps = self.policy.history("forward"), self.policy.history("backward")
        return keeps != (None, None) or self.options.codec == "delta-int8"

    def rank_state(self) -> dict[str, Any]:
        """Rows as they were sent last, copies of others' rows, and their versions."""
        return self.stale.state() | {"options": self._own_options(), "dataset_id": self.cluster.dataset_id}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """The source of rows is made with the first step, and takes it then.

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
        kept = [self.stale.kept_bytes, self.stale.copied_bytes, self.filled_bytes]
        rows = row_report(self.figures, kept, self.device)
        self.filled_bytes = 0
        self._reporter.report(epoch, rows)
        return dataclasses.replace(report, rows=rows)

    def tallies(self) -> dict[str, list[float]]:
        """Predicted by an exact forward pass."""
        with other_source(self._kept(Stopwatch(self.device)).batch.graph, self.exact):
            return super().tallies()

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """One step. The sum of gradients is also the moment at which all trainers have published their rows."""
        loss = own_backward(self.cooperative, batch, count, self.objective.loss_sum)
        clip = self.policy.clip_norm(self.world)
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

    def stale_rows(self, reads: ReadRows, found: HaloRows) -> StaleRows:
        """The source of ``reads``, the rows of ``found`` that travel: messages from owners to readers."""
        return StaleRows(self.policy, reads, self.figures, self.packing(), device=self.device)

    def packing(self) -> Packing:
        """How rows and gradients look in messages."""
        return packing(self.options.codec, next(self.model.parameters()).dtype)

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
        step = self._make_step(TrainerShare(found.view, share.splits), found, reads, trainers=trainers)
        watch.add("copy", start, watch.now())
        return step

    def _make_step(self, share: TrainerShare, found: HaloRows, reads: ReadRows, *, trainers: bool) -> StepInput:
        """Put a share on the device, with its two sources."""
        view, place = share.view, self.groups.place
        batch = exact_batch(found._replace(view=view), self.groups, self.device)
        graph, x = batch.graph, batch.x
        assert graph.source is not None
        self.exact = graph.source
        if self.config.dropout:
            graph.dropout = RowDropout(view, self.config.seed, self.device)
        self.stale = self.stale_rows(reads, found)
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


@contextlib.contextmanager
def other_source(graph: CooperativeGraph, source: Source) -> Iterator[None]:
    """Read remote rows from another ``source`` within the block."""
    trained, graph.source = graph.source, source
    try:
        yield
    finally:
        graph.source = trained
