"""Rows of tables that are predicted from the past of those that were pulled, where that is better (SAT)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from atta.observe.machine.threads import yielding_thread
from atta.train.cooperative.halo import ReadRows
from atta.train.cooperative.source import Arrival
from atta.train.exchange.codecs import History, row_codec
from atta.train.exchange.messages import RowSetting
from atta.train.exchange.policies import SatPolicy
from atta.train.exchange.predictors import PublishedGraph, predict_changes, predictor
from atta.train.exchange.tables import TableRows

Share = tuple[int, str]
"""A layer, and what of it is added up over all trainers."""
_SEEDS = 1 << 63


class Errors(NamedTuple):
    """Squared distances of predicted and of stale rows to those that have come after them."""

    predicted: float = 0.0
    stale: float = 0.0

    @classmethod
    def of(cls, predicted: torch.Tensor, stale: torch.Tensor, fresh: torch.Tensor) -> Errors:
        """Of rows [n, d]."""
        return cls(*(float((rows.double() - fresh.double()).square().sum()) for rows in (predicted, stale)))

    @property
    def ratio(self) -> float:
        """Predicted by stale distance; below 1 where predictions are better. 1 where both are 0."""
        if self.stale > 0:
            return math.sqrt(self.predicted / self.stale)
        return 1.0 if self.predicted == 0 else math.inf


@dataclass
class Guard:
    """Decides for one layer whether predictions are used: if those of the HALO rows of all trainers, for the moment at
    which these rows were published anew, were at most ``most_ratio`` times as far from them as the stale rows. No
    predictor has seen these rows before. After ``patience`` measurements in a row without a better ratio the predictor
    stops learning.

    The paper asks for a ratio below 1. But stale rows are rows that a model has had, and predictions are off in
    directions of their own. With ratios of 0.7 to 0.8 training diverged (bench/results/stale-sat.md)."""

    most_ratio: float = 0.5
    patience: int = 10
    uses: bool = False
    best: float = math.inf
    waited: int = 0

    def note_errors(self, errors: Errors) -> None:
        """Note errors, summed over all trainers."""
        self.uses = errors.stale > 0 and errors.ratio <= self.most_ratio  # false if one of them is not a number
        if errors.ratio < self.best:
            self.best, self.waited = errors.ratio, 0
        else:
            self.waited += 1

    @property
    def learns(self) -> bool:
        """Whether the predictor should learn. It learns again when its predictions have become worse than stale rows."""
        return self.waited < self.patience or not self.uses


def published_graph(reads: ReadRows, published: npt.NDArray[np.int64]) -> PublishedGraph:
    """The edges among the own rows that are published, and the rows that are read."""
    view = reads.view
    place = np.full(view.rows, -1, np.int64)
    place[published] = np.arange(len(published))
    place[view.rows - len(reads.places) :] = len(published) + reads.places
    edges = place[view.edge_index]
    edges = edges[:, (edges >= 0).all(0)]
    return PublishedGraph.of(torch.from_numpy(edges), own=len(published), rows=len(published) + reads.received)


class LayerPredictions:
    """One layer's past, its predictor and its guard. Changes are predicted once per synchronisation, and after learning."""

    def __init__(self, policy: SatPolicy, graph: PublishedGraph, like: torch.Tensor, *, seed: int) -> None:
        """``graph``: of the rows; ``like`` [n, d]: rows as they are read; ``seed``: of the predictor's first weights."""
        self.guard = Guard(policy.guard)
        self._graph, self._device, self._every = graph, like.device, policy.sync_every
        width, codec = like.shape[1], row_codec(policy.history_codec, str(like.dtype).removeprefix("torch."))
        self._predictor = predictor(policy.predictor, width, policy.window, seed=seed).to(like.device)
        if like.dtype is torch.float64:
            self._predictor.double()
        self._past = History(graph.rows, width, policy.window, codec)
        self._changes: torch.Tensor | None = None
        self._study: Future[None] | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of the past of the rows."""
        return self._past.nbytes

    def take_pulled(self, own: torch.Tensor, others: torch.Tensor, version: int) -> None:
        """``own`` rows as they were published [p, d], and those of ``others`` [n, d], of a synchronisation."""
        self._past.append(torch.cat([own, others]), version)
        self._changes = None

    def rows_to_read(self, stale: torch.Tensor, ahead: float) -> torch.Tensor:
        """What is read in place of ``stale`` [n, d], which are ``ahead`` periods old."""
        if not self.guard.uses:
            return stale
        return stale + ahead * self._predict()[self._graph.own :].to(stale.dtype)

    def errors(self, stale: torch.Tensor, others: torch.Tensor, version: int) -> Errors:
        """Of predictions of HALO rows, before ``others`` [n, d] of ``version`` are taken in place of the ``stale`` ones."""
        ahead = (version - self._past.version) / self._every
        return Errors.of(stale + ahead * self._predict()[self._graph.own :].to(stale.dtype), stale, others)

    def study(self, fresh: torch.Tensor, *, ahead: float, seed: int, beside: Executor) -> None:
        """Let the predictor learn in a thread of ``beside``, unless the guard says that it is done."""
        if self.guard.learns:
            window = self._window()
            fresh = fresh.to(window.dtype)
            self._study = beside.submit(self._predictor.study, window, self._graph, fresh, ahead=ahead, seed=seed)

    def shares(self) -> list[torch.Tensor]:
        """What was learnt since ``study``, to be added up over all trainers; nothing without it. Waits until it is done."""
        if self._study is None:
            return []
        self._study.result()
        return self._predictor.shares()

    def take(self, sums: list[torch.Tensor]) -> None:
        """Predict with the sums of ``shares``; rows are predicted anew."""
        self._predictor.take(sums)
        self._study = self._changes = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves. Waits until the predictor has learnt, which is shared later."""
        if self._study is not None:
            self._study.result()
        return {
            "guard": dataclasses.asdict(self.guard),
            "predictor": self._predictor.state(),
            "past": self._past.state(),
            "changes": self._changes,
            "learns": self._study is not None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved. Raises ConfigError if it is the state of other rows."""
        self.guard = Guard(**state["guard"])
        self._predictor.load_state(state["predictor"])
        self._past.load_state(state["past"])
        changes = state["changes"]
        self._changes = None if changes is None else changes.to(self._device)
        self._study = None
        if state["learns"]:
            self._study = Future()
            self._study.set_result(None)

    def _predict(self) -> torch.Tensor:
        if self._changes is None:
            self._changes = predict_changes(self._predictor, self._window(), self._graph)
        return self._changes

    def _window(self) -> torch.Tensor:
        return self._past.window().to(self._device)


class PredictedRows(TableRows):
    """``TableRows`` whose readers predict rows where that is better than the rows that were pulled."""

    policy: SatPolicy

    def __init__(self, given: RowSetting) -> None:
        super().__init__(given)
        self._graph, self._seed = published_graph(given.reads, self._shared.cpu().numpy()), given.seed
        self._layers: dict[int, LayerPredictions] = {}
        self._pushed: dict[int, tuple[int, torch.Tensor]] = {}
        self._fresh: dict[int, torch.Tensor] = {}
        self._errors: dict[int, Errors] = {}
        self._beside = yielding_thread("atta-predictor")

    @property
    def kept_bytes(self) -> int:
        """The past of rows counts, too."""
        return super().kept_bytes + sum(layer.kept_bytes for layer in self._layers.values())

    def begin(self, epoch: int) -> None:
        self._pushed = dict(self._published)  # what is being pulled; this epoch may publish already
        self._fresh.clear()
        self._errors.clear()
        super().begin(epoch)

    def _forward(self, layer: int, rows: torch.Tensor) -> Arrival:
        if (layer, "forward") not in self._started and self.policy.trains(self._epoch):
            self._fresh[layer] = self._mine(rows)
        return super()._forward(layer, rows)

    def shares(self) -> dict[Share, list[torch.Tensor]]:
        """What is to be added up over all trainers in this epoch: errors, and what predictors have learnt. All trainers
        have shares of the same sizes in the same epochs."""
        found: dict[Share, list[torch.Tensor]] = {
            (layer, "errors"): [torch.tensor(errors, dtype=torch.float64, device=self._device)]
            for layer, errors in sorted(self._errors.items())
        }
        for layer, predictions in sorted(self._layers.items()) if self.policy.shares(self._epoch) else []:
            if learnt := predictions.shares():
                found[layer, "learnt"] = learnt
        return found

    def learn(self, sums: Mapping[Share, list[torch.Tensor]]) -> None:
        """Take what all trainers have learnt, then begin to learn from this epoch's rows: the sums of ``shares``."""
        for (layer, kind), of_layer in sums.items():
            predictions = self._layers[layer]
            if kind == "learnt":
                predictions.take(of_layer)
            else:
                errors = self.figures.errors[layer, "forward"] = Errors(*of_layer[0].tolist())
                predictions.guard.note_errors(errors)
        ahead, trainers = self.policy.ahead(self._epoch), dist.get_world_size()
        for layer, fresh in sorted(self._fresh.items()):
            seed = ((self._seed * 1_000_003 + self._epoch) * 1_009 + layer) * trainers + self._rank
            self._layers[layer].study(fresh, ahead=ahead, seed=seed % _SEEDS, beside=self._beside)
        self._fresh.clear()

    def close(self) -> None:
        self._beside.shutdown(cancel_futures=True)
        super().close()

    def let_go(self) -> None:
        self._beside.shutdown(wait=False, cancel_futures=True)
        super().let_go()

    def state(self) -> dict[str, Any]:
        return {**super().state(), "predictions": {layer: found.state() for layer, found in self._layers.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        for layer, saved in state["predictions"].items():
            self._of(layer).load_state(saved)

    def _of(self, layer: int) -> LayerPredictions:
        if layer not in self._layers:
            like, seed = self._pulled[layer].values, (self._seed + layer) % _SEEDS
            self._layers[layer] = LayerPredictions(self.policy, self._graph, like, seed=seed)
        return self._layers[layer]

    def _take(self, layer: int) -> None:
        before = self._pulled.get(layer)
        super()._take(layer)
        version, own = self._pushed[layer]
        predictions, others = self._of(layer), self._pulled[layer].values
        if before is not None:
            self._errors[layer] = predictions.errors(before.values, others, version)
        predictions.take_pulled(own, others, version)

    def _read(self, layer: int, *, first: bool) -> torch.Tensor:
        stale = super()._read(layer, first=first)
        return self._of(layer).rows_to_read(stale, self.policy.ahead(self._epoch))
