"""Rows of tables that are predicted from the past of those that were pulled (SAT)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from atta.train.cooperative.across.figures import RowFigures
from atta.train.cooperative.across.meeting import HaloRows
from atta.train.cooperative.across.reads import ReadRows
from atta.train.cooperative.across.tables import TableRows, TableWay
from atta.train.cooperative.across.ways import Outgoing
from atta.train.cooperative.exchange.source import Arrival
from atta.train.stale.codecs.history import History
from atta.train.stale.codecs.rows import row_codec
from atta.train.stale.decisions.sat import SatDecisions
from atta.train.stale.prediction.graph import PublishedGraph
from atta.train.stale.prediction.guard import Errors, Guard
from atta.train.stale.prediction.predictors import Reduce, predicted, predictor
from atta.train.stale.table import Direction

__all__ = ["LayerPredictions", "PredictedWay", "published_graph"]

Sum = Callable[[torch.Tensor], torch.Tensor]
"""Adds up a tensor over all trainers, in place."""
_FORWARD: Direction = "forward"
_SEEDS = 1 << 63


def published_graph(reads: ReadRows, found: HaloRows, rows: TableRows) -> PublishedGraph:
    """The edges among the own rows that are published and the rows that are read."""
    view, published = found.view, rows.published.cpu().numpy()
    place = np.full(view.rows, -1, np.int64)
    place[published] = np.arange(len(published))
    place[view.rows - len(reads.places) :] = len(published) + reads.places
    edges = place[view.edge_index]
    edges = edges[:, (edges >= 0).all(0)]
    return PublishedGraph.of(torch.from_numpy(edges), own=len(published), rows=len(published) + reads.received)


class LayerPredictions:
    """One layer's past, its predictor and its guard. Predictions are made once per synchronisation.

    Attributes:
        guard: decides whether predictions are read.
    """

    def __init__(
        self, decisions: SatDecisions, graph: PublishedGraph, width: int, *, seed: int, device: torch.device
    ) -> None:
        """``graph``: of the rows; ``width``: numbers per row; ``seed``: of the predictor's first weights."""
        self.guard = Guard()
        self._graph, self._device = graph, device
        self._predictor = predictor(decisions.predictor, width, decisions.window, seed=seed).to(device)
        self._past = History(graph.rows, width, decisions.window, row_codec(decisions.history_codec))
        self._stale: torch.Tensor | None = None
        self._predictions: torch.Tensor | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of the past of the rows."""
        return self._past.nbytes

    def pulled(self, own: torch.Tensor, others: torch.Tensor, version: int) -> None:
        """``own`` rows as they were published [p, d], and those of ``others`` [n, d], of a synchronisation."""
        self._past.append(torch.cat([own, others]), version)
        self._stale, self._predictions = own, None

    def chosen(self, stale: torch.Tensor) -> torch.Tensor:
        """What is read in place of ``stale`` [n, d]."""
        if not self.guard.uses:
            return stale
        return self.guard.choose(self._predicted()[self._graph.own :].to(stale.dtype), stale)

    def errors(self, fresh: torch.Tensor) -> Errors:
        """Of the predictions in use, on own rows: ``fresh`` [p, d] are those of this epoch."""
        assert self._stale is not None, "nothing was pulled"
        return Errors.of(self._predicted()[: self._graph.own], self._stale, fresh)

    def learn(self, fresh: torch.Tensor, *, seed: int, reduce: Reduce) -> None:
        """Let the predictor learn, unless the guard says that it is done. All trainers call this together."""
        if self.guard.learns:
            self._predictor.learn(self._window(), self._graph, fresh.float(), seed=seed, reduce=reduce)

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves."""
        return {
            "guard": dataclasses.asdict(self.guard),
            "predictor": self._predictor.state(),
            "past": self._past.state(),
            "stale": self._stale,
            "predictions": self._predictions,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved. Raises ConfigError if it is the state of other rows."""
        self.guard = Guard(**state["guard"])
        self._predictor.load_state(state["predictor"])
        self._past.load_state(state["past"])
        there = [None if rows is None else rows.to(self._device) for rows in (state["stale"], state["predictions"])]
        self._stale, self._predictions = there

    def _predicted(self) -> torch.Tensor:
        # The predictor learns only after its predictions were measured. So it does not matter that they are made late.
        if self._predictions is None:
            self._predictions = predicted(self._predictor, self._window(), self._graph)
        return self._predictions

    def _window(self) -> torch.Tensor:
        return self._past.window().values.to(self._device)


class PredictedWay(TableWay):
    """A ``TableWay`` whose readers predict rows where that is better than the rows that were pulled."""

    def __init__(
        self,
        decisions: SatDecisions,
        rows: TableRows,
        figures: RowFigures,
        *,
        graph: PublishedGraph,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """``graph``: see ``published_graph``; ``seed``: of weights and mini-batches. Others as for ``TableWay``."""
        super().__init__(decisions, rows, figures, device=device)
        self._sat, self._graph, self._seed = decisions, graph, seed
        self._layers: dict[int, LayerPredictions] = {}
        self._pushed: dict[int, tuple[int, torch.Tensor]] = {}
        self._fresh: dict[int, torch.Tensor] = {}

    @property
    def kept_bytes(self) -> int:
        """See ``Way``: the past of rows too."""
        return super().kept_bytes + sum(layer.kept_bytes for layer in self._layers.values())

    def begin(self, epoch: int) -> None:
        """See ``Way``."""
        self._pushed = dict(self._published)  # what is being pulled; this epoch may publish already
        self._fresh.clear()
        super().begin(epoch)

    def start(self, layer: int, rows: torch.Tensor, outgoing: Callable[[torch.Tensor], Outgoing]) -> Arrival:
        """See ``TableWay.start``."""
        if layer not in self._started and self._sat.trains(self._epoch):
            self._fresh[layer] = self._mine(rows)
        return super().start(layer, rows, outgoing)

    def learn(self, sum_: Sum, trainers: int) -> None:
        """Measure predictions and learn from this epoch's rows, if it is time. All trainers call it after backward."""
        layers = sorted(self._fresh)
        if not layers:
            return
        mine = [self._layers[layer].errors(self._fresh[layer]) for layer in layers]
        totals = sum_(torch.tensor([[e.predicted, e.stale] for e in mine], dtype=torch.float64, device=self._device))

        def reduce(tensors: list[torch.Tensor]) -> None:
            means = sum_(torch.cat([tensor.reshape(-1) for tensor in tensors])) / trainers
            for tensor, mean in zip(tensors, means.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(mean.view_as(tensor))

        for layer, total in zip(layers, totals.tolist(), strict=True):
            errors = self._figures.errors[layer, _FORWARD] = Errors(*total)
            predictions = self._layers[layer]
            predictions.guard.measured(errors)
            seed = ((self._seed * 1_000_003 + self._epoch) * 1_009 + layer) * trainers + self._rank
            predictions.learn(self._fresh[layer], seed=seed % _SEEDS, reduce=reduce)
        self._fresh.clear()

    def state(self) -> dict[str, Any]:
        """See ``Way``."""
        return {**super().state(), "predictions": {layer: found.state() for layer, found in self._layers.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """See ``TableWay.load_state``."""
        super().load_state(state)
        for layer, saved in state["predictions"].items():
            self._of(layer).load_state(saved)

    def _of(self, layer: int) -> LayerPredictions:
        if layer not in self._layers:
            self._layers[layer] = LayerPredictions(
                self._sat, self._graph, self._width(layer), seed=(self._seed + layer) % _SEEDS, device=self._device
            )
        return self._layers[layer]

    def _take(self, layer: int) -> None:
        super()._take(layer)
        version, own = self._pushed[layer]
        self._of(layer).pulled(own, self._held[layer].values, version)

    def _chosen(self, layer: int, stale: torch.Tensor) -> torch.Tensor:
        return self._of(layer).chosen(stale)
