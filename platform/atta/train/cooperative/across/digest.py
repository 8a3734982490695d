"""The trainers of strategies whose rows wait in tables on the daemons: DIGEST and SAT."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from atta.errors import ConfigError
from atta.train.cooperative import TrainerBatch
from atta.train.cooperative.across.meeting import HaloRows, told
from atta.train.cooperative.across.predictions import PredictedWay, Share, published_graph
from atta.train.cooperative.across.reads import ReadRows, halo_rows, rows_of_trainers
from atta.train.cooperative.across.tables import TableWay, table_rows
from atta.train.cooperative.across.trainer import ExchangeTrainer
from atta.train.cooperative.across.ways import Way
from atta.train.cooperative.exchange import Arrival, Direction, Source
from atta.train.cooperative.exchange.source import Payload
from atta.train.cooperative.sharing.shares import TrainerShare
from atta.train.cooperative.step import own_backward, sum_gradients
from atta.train.cooperative.trainer import StepInput
from atta.train.reports.epochs import EpochReport
from atta.train.settings import DigestSettings
from atta.train.stale.daemons import LEASE_S, DaemonTable
from atta.train.stale.decisions.digest import DigestDecisions
from atta.train.stale.decisions.sat import SatDecisions
from atta.train.stale.table import TableShape
from atta.train.steps.timing import Stopwatch

__all__ = ["DigestTrainer", "RecordedRows", "SatTrainer"]


class RecordedRows(Source):
    """A source that remembers the own rows of each layer that travels.

    Attributes:
        rows: own rows [o, d] by layer.
    """

    def __init__(self, source: Source, unchanged: torch.Tensor | None) -> None:
        """``unchanged``: rows that readers keep, so they do not travel."""
        self._source, self._unchanged = source, unchanged
        self.rows: dict[int, torch.Tensor] = {}

    @property
    def sent(self) -> Payload:
        return self._source.sent

    @property
    def crossed(self) -> Payload:
        return self._source.crossed

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        """Raises ConfigError for rows of more than one dimension."""
        if rows is not self._unchanged:
            if rows.dim() != 2:
                raise ConfigError(f"layer {layer}: stale rows have one dimension, not those of {list(rows.shape[1:])}")
            self.rows[layer] = rows.detach()
        return self._source.start(layer, direction, rows)


class DigestTrainer(ExchangeTrainer):
    """Reads rows of the last synchronisation. One exact forward pass before the first epoch fills the tables.

    Attributes:
        lease_s: how long the tables live when the run has died.
        table_type: how rows are kept on the daemons.
        tables: the way of hidden rows; set with the first step.
    """

    lease_s = LEASE_S
    table_type: type[DaemonTable] = DaemonTable
    options: DigestSettings
    decisions: DigestDecisions
    tables: TableWay

    def fit(self) -> list[EpochReport]:
        """At the end the tables are dropped."""
        try:
            return super().fit()
        except BaseException:
            # If the first trainer dropped the tables now, others would report missing tables as the cause.
            if hasattr(self, "tables"):
                self.tables.let_go()
            raise

    def rank_state(self) -> dict[str, Any]:
        """Trainers that step by themselves have moments of their own."""
        alone = self.options.average == "weights"
        return super().rank_state() | ({"optimizer": self.optimizer.state_dict()} if alone else {})

    def load_rank_state(self, state: dict[str, Any]) -> None:
        super().load_rank_state(state)
        if self.options.average == "weights":
            try:
                self.optimizer.load_state_dict(state["optimizer"])
            except (KeyError, ValueError) as error:
                raise ConfigError(f"--resume: the checkpoint was made without average=weights: {error}") from error

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """One step on the mean of gradients, or on the mean of the weights of trainers that step by themselves."""
        divisor = count if self.options.loss == "global" else max(1, len(batch.targets))
        loss = own_backward(self.cooperative, batch, divisor, self.objective.loss_sum) * (divisor / count)
        parameters = [p for p in self.cooperative.parameters() if p.grad is not None]
        averages_weights = self.options.average == "weights"
        for parameter in parameters:
            assert parameter.grad is not None
            # Gradients of means over all vertices add up; weights, and gradients of own means, are averaged.
            if self.options.loss == "global" and averages_weights:
                parameter.grad.mul_(self.world)
            elif self.options.loss == "local" and not averages_weights:
                parameter.grad.div_(self.world)
        self.stale.flush()
        more = self.shares()
        if averages_weights:
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

    def reads_of(self, found: HaloRows, *, trainers: bool) -> ReadRows:
        """Which rows are read: others are in the tables at most, and nobody pulls them."""
        return rows_of_trainers(found, self.groups.place) if trainers else halo_rows(found, self.groups.place)

    def forward_way(self, reads: ReadRows, found: HaloRows) -> Way:
        rows = table_rows(reads, found, self.device, publish_all=self.options.rows == "all")
        self.tables = TableWay(self.decisions, rows, self.figures, device=self.device)
        return self.tables

    def _on_device(self, share: TrainerShare, watch: Stopwatch) -> StepInput:
        step = super()._on_device(share, watch)
        start = watch.now()
        self._fill(step.batch)
        watch.add("fetch", start, watch.now())
        return step

    def _fill(self, batch: TrainerBatch) -> None:
        """Make the tables, and fill them with the rows of an exact forward pass."""
        self._fill_with(self._exact_rows(batch))

    def _fill_with(self, rows: dict[int, torch.Tensor]) -> None:
        self.tables.fill(self._shared_table(rows), rows)
        self.filled_bytes = self.exact.sent.total() + self.figures.pushed.total()
        dist.barrier()
        self.tables.commit()

    @torch.no_grad()
    def _exact_rows(self, batch: TrainerBatch) -> dict[int, torch.Tensor]:
        """Own rows of each layer that travels, of one exact forward pass."""
        graph, training = batch.graph, self.cooperative.training
        recorded = RecordedRows(self.exact, None if self.options.send_features else batch.x)
        trained, graph.source = graph.source, recorded
        self.cooperative.eval()
        try:
            self.cooperative(batch.x, graph)
        finally:
            graph.source = trained
            self.cooperative.train(training)
        return recorded.rows

    def _shared_table(self, rows: dict[int, torch.Tensor]) -> DaemonTable:
        """The table of this run. The first trainer creates it alone: if there is no room, it leaves nothing behind."""
        name = self._table_name()
        if self.rank == 0:
            table = self._table(name, rows)
        dist.barrier()
        if self.rank != 0:
            table = self._table(name, rows)
        return table

    def _table_name(self) -> str:
        """A name that no other run has; all ranks call this."""
        number = int(told(np.array([secrets.randbits(62)]) if self.rank == 0 else None, 0, self.device)[0])
        return f"stale-{number:016x}"

    def _table(self, name: str, rows: dict[int, torch.Tensor]) -> DaemonTable:
        schema = self.cluster.schema
        node_type = schema.node_types[0]
        dtype = next((of_layer.dtype for of_layer in rows.values()), torch.float32)
        shape = TableShape(
            schema.node_counts[node_type],
            {(layer, "forward"): of_layer.shape[1] for layer, of_layer in rows.items()},
            history=self.table_type.history,
            dtype=dtype,
        )
        codec = "" if self.options.codec == "none" else self.options.codec
        return self.table_type(
            self.cluster.tables,
            shape,
            job=name,
            node_type=node_type,
            trainer=self.rank,
            codec=codec,
            lease_s=self.lease_s,
        )


class SatTrainer(DigestTrainer):
    """Predicts rows from their last synchronisations where that is better than reading the last one."""

    decisions: SatDecisions
    tables: PredictedWay

    def forward_way(self, reads: ReadRows, found: HaloRows) -> Way:
        rows = table_rows(reads, found, self.device, publish_all=self.options.rows == "all")
        graph = published_graph(reads, found, rows)
        self.tables = PredictedWay(
            self.decisions, rows, self.figures, graph=graph, seed=self.config.seed, device=self.device
        )
        return self.tables

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """Predictors begin to learn after it, beside the next epochs."""
        self._shares: dict[Share, list[torch.Tensor]] = {}
        loss = super().update(batch, count)
        self.tables.learn(self._shares)
        return loss

    def shares(self) -> list[torch.Tensor]:
        """Errors of predictions, and what predictors have learnt."""
        self._shares = self.tables.shares()
        return [tensor for of_layer in self._shares.values() for tensor in of_layer]
