"""The trainers of strategies in which servers read each other's rows: what one rank does."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

import atta
from atta.errors import ConfigError, RestartedError, UnknownNameError
from atta.observe.settings import settings_of
from atta.train.cooperative.dropout import RowDropout
from atta.train.cooperative.exchange import CooperativeGraph, TrainerBatch, own_backward, sum_gradients
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.halo import all_rows, broadcast_bytes, exact_batch, meet, rows_of_trainers
from atta.train.cooperative.source import Arrival, Direction, JoinedSource, RowPart, Source, source_inside
from atta.train.cooperative.trainer import ServerTrainer
from atta.train.exchange.codecs import packing
from atta.train.exchange.figures import JobReporter, RowFigures, row_report
from atta.train.exchange.messages import RowSetting, StaleRows
from atta.train.exchange.policies import DigestPolicy, RowPolicy, SatPolicy
from atta.train.exchange.predictions import PredictedRows, Share
from atta.train.exchange.tables import LEASE_S, DaemonTable, TableRows
from atta.train.reports.epochs import EpochReport
from atta.train.settings.servers import DigestSettings, ExchangeSettings, ServerSettings, StaleSettings
from atta.train.steps.timing import Stopwatch


class ExchangeTrainer(ServerTrainer):
    """Computes the rows of its own vertices only; all others come from the trainers that compute them.

    Attributes:
        rows: how they travel.
        policy: what is read and published, and when.
        stale, exact: sources of training, set with the first step, and of rows of the present step, for evaluation.
        filled_bytes: bytes of this trainer that filled tables before the epoch that is not reported yet.
    """

    rows: type[StaleRows] = StaleRows
    options: ExchangeSettings
    stale: StaleRows
    exact: Source

    def __init__(
        self, config: ExchangeSettings, cluster: atta.Cluster, device: torch.device, policy: RowPolicy
    ) -> None:
        super().__init__(config, cluster, device, halo=True)
        self.policy: RowPolicy = policy
        self.figures = RowFigures()
        self.filled_bytes = 0
        self._saved: dict[str, Any] | None = None
        self._reporter = JobReporter(cluster, config.strategy)

    def fit(self) -> list[EpochReport]:
        try:
            epochs = self._fit()
        except BaseException:
            # If the first trainer dropped its tables now, others would report missing tables as the cause.
            if hasattr(self, "stale"):  # no step, no source
                self.stale.let_go()
            raise
        if hasattr(self, "stale"):
            self.stale.close()
        self._reporter.end()
        return epochs

    def _fit(self) -> list[EpochReport]:
        return super().fit()

    @property
    def keeps_state(self) -> bool:  # type: ignore[override]
        """Whether rows are read again in later epochs."""
        keeps = self.policy.history("forward"), self.policy.history("backward")
        return keeps != (None, None) or self.options.codec == "delta-int8"

    def rank_state(self) -> dict[str, Any]:
        """Rows as they were sent last, copies of others' rows, and their versions."""
        return self.stale.state() | {"options": self._own_options(), "dataset_id": self.cluster.dataset_id}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """The source of rows is made with the first step, and takes it then. A trainer keeps the rows of its own
        vertices and copies of those at the edge of its partition, by their places."""
        if state.get("dataset_id", own := self.cluster.dataset_id) != own:
            raise ConfigError(
                f"--resume: the rows that were kept are those of dataset {state['dataset_id']}, this is {own}: cut in "
                "another way, they are of other vertices; --init-from begins with the weights alone"
            )
        was, now = state.get("options", {}), self._own_options()
        for name, value in now.items():
            if was.get(name, value) != value:
                setting = next(field for field in settings_of(type(self.options)) if field.field == name)
                raise ConfigError(f"--resume: the checkpoint was made with {setting.given(was[name])}, not {value}")
        self._saved = state

    def _own_options(self) -> dict[str, Any]:
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
        with other_source(self._kept(Stopwatch(self.device)).graph, self.exact):
            return super().tallies()

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """One step. The sum of gradients is also the moment at which all trainers have published their rows."""
        began = self._computed_s(batch)
        loss = own_backward(self.cooperative, batch, count, self.objective.loss_sum)
        if (clip := self.policy.clip_norm(self.world)) is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.stale.flush()
        seconds = loss.new_zeros(self.world if self.policy.paced else 0)
        seconds[self.rank :][:1] = self._computed_s(batch) - began
        sum_gradients(self.cooperative.parameters(), self.groups, loss, seconds)
        self.stale.note_seconds(seconds.tolist())
        self.update_weights()
        return loss

    def _computed_s(self, batch: TrainerBatch) -> float:
        """A clock that stands still while this trainer waits for others, and wherever speeds do not count."""
        watch = batch.graph.watch
        if watch is None or not self.policy.paced:
            return 0.0
        return time.perf_counter() - watch.totals().get("exchange", 0.0)

    def _steps(self, epoch: int, watch: Stopwatch) -> Iterator[TrainerBatch]:
        for batch in super()._steps(epoch, watch):
            saved, self._saved = self._saved, None
            if saved is not None:
                try:
                    self.stale.load_state(saved)
                except (ConfigError, KeyError, TypeError, ValueError, RuntimeError) as error:
                    raise ConfigError(f"--resume: the saved rows do not go with this run: {error}") from error
            if batch.graph.dropout is not None:
                batch.graph.dropout.epoch = epoch
            self.stale.begin(epoch + 1)
            yield batch
            self.stale.commit()

    def _on_device(self, view: WorkerView, watch: Stopwatch) -> TrainerBatch:
        """Put a view on the device, with its two sources."""
        start, place, options = watch.now(), self.groups.place, self.options
        found = meet(view, place, self.device)
        trainers = isinstance(options, StaleSettings) and options.stale_across == "trainers"
        reads = rows_of_trainers(found, place) if trainers else found
        if options.rows == "all" and self.rows is StaleRows:  # from a table nobody pulls more than is read
            reads = all_rows(found, place, self.device, trainers=trainers)
        met = watch.now()
        watch.add("fetch", start, met)
        batch = exact_batch(found, self.groups, self.device)
        graph, x, view = batch.graph, batch.x, found.view
        assert graph.source is not None
        self.exact = graph.source
        if self.config.dropped:
            graph.dropout = RowDropout(view, self.config.seed, self.device)
        packed = packing(options.codec, next(self.model.parameters()).dtype)
        every, seed = options.rows == "all", self.config.seed
        self.stale = self.rows(RowSetting(self.policy, reads, self.figures, packed, self.device, every, seed))
        features = torch.from_numpy(view.halo_features).to(self.device)
        inside = source_inside(view, self.groups.inside, device=self.device, machines=place.machines)
        parts = [] if inside is None or trainers else [RowPart(inside, len(view.remote))]
        if inside is not None and trainers:
            features = torch.cat([inside.start(0, "forward", x).finish(), features])
        parts.append(RowPart(self.stale, len(features), keeps=not options.send_features, features=features))
        graph.source = JoinedSource(x, parts)
        watch.add("copy", met, watch.now())
        return batch


@contextlib.contextmanager
def other_source(graph: CooperativeGraph, source: Source) -> Iterator[None]:
    """Read remote rows from another ``source`` within the block."""
    trained, graph.source = graph.source, source
    try:
        yield
    finally:
        graph.source = trained


class RecordedRows(Source):
    """A source that remembers own ``rows`` [o, d] of each layer that travels."""

    def __init__(self, source: Source, unchanged: torch.Tensor | None) -> None:
        """``unchanged``: rows that readers keep, so they do not travel."""
        self._source, self._unchanged = source, unchanged
        self.sent, self.crossed = source.sent, source.crossed
        self.rows: dict[int, torch.Tensor] = {}

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        if rows is not self._unchanged:
            if rows.dim() != 2:
                raise ConfigError(f"layer {layer}: stale rows have one dimension, not those of {list(rows.shape[1:])}")
            self.rows[layer] = rows.detach()
        return self._source.start(layer, direction, rows)


class DigestTrainer(ExchangeTrainer):
    """Reads rows of the last synchronisation. One exact forward pass before the first epoch fills the tables. The
    daemons keep ``slots`` versions of a row, and drop them ``lease_s`` seconds after the run has died."""

    rows = TableRows
    lease_s = LEASE_S
    slots = 2
    options: DigestSettings
    policy: DigestPolicy
    stale: TableRows

    _filled = False

    @property
    def averages_weights(self) -> bool:
        """Whether trainers step by themselves, so that they have moments of their own."""
        return self.options.average == "weights"

    def rank_state(self) -> dict[str, Any]:
        return super().rank_state() | ({"optimizer": self.optimizer.state_dict()} if self.averages_weights else {})

    def load_rank_state(self, state: dict[str, Any]) -> None:
        super().load_rank_state(state)
        if self.averages_weights:
            try:
                self.optimizer.load_state_dict(state["optimizer"])
            except (KeyError, ValueError) as error:
                raise ConfigError(f"--resume: the checkpoint was made without average=weights: {error}") from error

    def divisor(self, batch: TrainerBatch, count: int) -> int:
        """By what the sum of losses is divided: the targets of all trainers, ``count``, or those of this one."""
        return count if self.options.loss == "global" else max(1, len(batch.targets))

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """One step on the mean of gradients, or on the mean of the weights of trainers that step by themselves."""
        divisor = self.divisor(batch, count)
        loss = own_backward(self.cooperative, batch, divisor, self.objective.loss_sum) * (divisor / count)
        parameters = [p for p in self.cooperative.parameters() if p.grad is not None]
        for parameter in parameters:
            assert parameter.grad is not None
            # Gradients of means over all vertices add up; weights, and gradients of own means, are averaged.
            if self.options.loss == "global" and self.averages_weights:
                parameter.grad.mul_(self.world)
            elif self.options.loss == "local" and not self.averages_weights:
                parameter.grad.div_(self.world)
        self.stale.flush()
        more = self.shares()
        if self.averages_weights:
            self.optimizer.step()
            with torch.no_grad():
                sum_gradients((), self.groups, loss, *(p.data for p in parameters), *more)
                for parameter in parameters:
                    parameter.div_(self.world)
        else:
            sum_gradients(parameters, self.groups, loss, *more)
            self.update_weights()
        return loss

    def shares(self) -> list[torch.Tensor]:
        """What else is added up over all trainers, in place, together with the gradients."""
        return []

    def _fit(self) -> list[EpochReport]:
        """Tables that this run has made, and a daemon no longer has, are no mistake of the user: all may start again."""
        try:
            return super()._fit()
        except UnknownNameError as error:
            if not self._filled:
                raise
            raise RestartedError("a daemon", str(error)) from error

    def _on_device(self, view: WorkerView, watch: Stopwatch) -> TrainerBatch:
        batch = super()._on_device(view, watch)
        start = watch.now()
        self._fill(batch)
        self._filled = True
        watch.add("fetch", start, watch.now())
        return batch

    @torch.no_grad()
    def _fill(self, batch: TrainerBatch) -> dict[int, torch.Tensor]:
        """Make the tables, and fill them with the own rows [o, d] of each layer that travels, of an exact forward pass."""
        features = None if self.options.send_features else batch.x
        recorded, training = RecordedRows(self.exact, features), self.cooperative.training
        self.cooperative.eval()
        with other_source(batch.graph, recorded):
            self.cooperative(batch.x, batch.graph)
        self.cooperative.train(training)
        rows, name = self.travelling(recorded.rows), self._table_name()
        if self.rank == 0:  # alone: if there is no room, it leaves nothing behind
            table = self._table(name, rows)
        dist.barrier()
        if self.rank != 0:
            table = self._table(name, rows)
        self.stale.fill(table, rows)
        self.filled_bytes = self.exact.sent.total() + self.figures.pushed.total()
        dist.barrier()
        return rows

    def travelling(self, rows: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Those of ``rows`` [o, d], by layer, that others pull."""
        return rows

    def _table_name(self) -> str:
        """A name that no other run has; all ranks call this."""
        return "stale-" + broadcast_bytes(secrets.token_hex(8).encode(), 0, self.device).decode()

    def _table(self, name: str, rows: dict[int, torch.Tensor]) -> DaemonTable:
        schema = self.cluster.schema
        node_type = schema.node_types[0]
        return DaemonTable(
            self.cluster.tables,
            {layer: of_layer.shape[1] for layer, of_layer in rows.items()},
            schema.node_counts[node_type],
            job=name,
            node_type=node_type,
            slots=self.slots,
            dtype=next((of_layer.dtype for of_layer in rows.values()), torch.float32),
            codec="" if self.options.codec == "none" else self.options.codec,
            lease_s=self.lease_s,
        )


class SatTrainer(DigestTrainer):
    """Predicts rows from their last synchronisations where that is better than reading the last one."""

    rows = PredictedRows
    policy: SatPolicy
    stale: PredictedRows

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """Predictors begin to learn after it, beside the next epochs."""
        self._shares: dict[Share, list[torch.Tensor]] = {}
        loss = super().update(batch, count)
        self.stale.learn(self._shares)
        return loss

    def shares(self) -> list[torch.Tensor]:
        """Errors of predictions, and what predictors have learnt."""
        self._shares = self.stale.shares()
        return [tensor for of_layer in self._shares.values() for tensor in of_layer]
