"""The trainers of strategies whose rows wait in tables on the daemons: DIGEST and SAT."""

from __future__ import annotations

import secrets
from typing import Any

import torch
import torch.distributed as dist

from atta.errors import ConfigError
from atta.train.cooperative.exchange import TrainerBatch, own_backward, sum_gradients
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.halo import broadcast_bytes
from atta.train.cooperative.source import Arrival, Direction, Source
from atta.train.exchange.policies import DigestPolicy, SatPolicy
from atta.train.exchange.predictions import PredictedRows, Share
from atta.train.exchange.tables import LEASE_S, DaemonTable, TableRows
from atta.train.exchange.trainer import ExchangeTrainer, other_source
from atta.train.settings import DigestSettings
from atta.train.steps.timing import Stopwatch


class RecordedRows(Source):
    """A source that remembers the own rows of each layer that travels.

    Attributes:
        rows: own rows [o, d] by layer.
    """

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
    """Reads rows of the last synchronisation. One exact forward pass before the first epoch fills the tables.

    The daemons keep ``slots`` versions of a row, and drop them ``lease_s`` seconds after the run has died.
    """

    rows = TableRows
    lease_s = LEASE_S
    slots = 2
    options: DigestSettings
    policy: DigestPolicy
    stale: TableRows

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

    def divisor(self, batch: TrainerBatch, count: int) -> int:
        """By what the sum of losses is divided: the targets of all trainers, ``count``, or those of this one."""
        return count if self.options.loss == "global" else max(1, len(batch.targets))

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """One step on the mean of gradients, or on the mean of the weights of trainers that step by themselves."""
        divisor = self.divisor(batch, count)
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

    def _on_device(self, view: WorkerView, watch: Stopwatch) -> TrainerBatch:
        batch = super()._on_device(view, watch)
        start = watch.now()
        self._fill(batch)
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
        rows, name = recorded.rows, self._table_name()
        if self.rank == 0:  # alone: if there is no room, it leaves nothing behind
            table = self._table(name, rows)
        dist.barrier()
        if self.rank != 0:
            table = self._table(name, rows)
        self.stale.fill(table, rows)
        self.filled_bytes = self.exact.sent.total() + self.figures.pushed.total()
        dist.barrier()
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
