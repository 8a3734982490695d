"""Seconds per epoch and memory per trainer of each strategy, from counted sizes and measured rates.

The terms are those of GraNNDis' equations (3), (4) and (8) with counted sizes in the place of D^alpha: computing, rows inside a
server, rows between servers, and sampling. They are added up as in the paper, nothing is taken to overlap; what training overlaps
makes it faster than predicted, and a strategy that overlaps more gains more. Gradients are counted, which the paper leaves out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from atta.train.cooperative.memory import ModelShape, Size, step_bytes
from atta.train.planning.rates import Machines, PlannedModel, Rates
from atta.train.planning.sizes import MeanBatch, ServerWork, Sizes

__all__ = ["Forecast", "Forecaster"]


@dataclass(frozen=True)
class Forecast:
    """What a strategy is predicted to take.

    Attributes:
        kind: mini-batch, exchange, preloading, expansion-aware or cooperative.
        name: for people.
        options: of ``atta train``, beside those that every strategy needs.
        exact: whether each step has the gradient of the whole graph (full-graph strategies without sampling).
        steps: optimiser steps per epoch.
        compute, internal, external, sampling: seconds per epoch.
        preload: seconds for features of other servers' vertices, once before the first epoch.
        memory: bytes that a trainer needs for a step, by the formula of ``--memory`` (``atta.train.cooperative.memory``).
        fits: whether that is within the machine's memory per trainer.
        redundancy: rows that all trainers compute in an epoch, per vertex and layer; 1: each is computed once.
    """

    kind: str
    name: str
    options: tuple[str, ...]
    exact: bool
    steps: int
    compute: float
    internal: float
    external: float
    sampling: float
    preload: float
    memory: float
    fits: bool
    redundancy: float

    @property
    def seconds(self) -> float:
        """Per epoch, all terms added up."""
        return self.compute + self.internal + self.external + self.sampling

    @property
    def terms(self) -> dict[str, float]:
        """Seconds per epoch by name."""
        return {
            "compute": self.compute,
            "internal": self.internal,
            "external": self.external,
            "sampling": self.sampling,
        }


@dataclass(frozen=True)
class Forecaster:
    """Turns counted sizes into seconds and bytes; strategies say which sizes, by which options (``TrainingStrategy.forecasts``)."""

    sizes: Sizes
    machines: Machines
    model: PlannedModel
    rates: Rates

    def shared(
        self, kind: str, name: str, work: ServerWork, options: tuple[str, ...], *, exact: bool = False, steps: int = 1
    ) -> Forecast:
        """The forecast of a strategy whose trainers share one subgraph of their server per step."""
        trainers, layers = self.machines.trainers, self.model.layers
        # Co-batches are new in every step; what is trained on as a whole exchanges its features once.
        again, once = (self.model.feature_exchanges, 0.0) if steps > 1 else (0.0, self.model.feature_exchanges)
        width = self.model.exchanges + again
        rows, edges = work.vertices / trainers, work.edges / trainers
        received = work.internal + work.external / trainers
        inside, outside = self._gradients(steps)
        return self._forecast(
            kind=kind,
            name=name,
            options=options,
            exact=exact,
            steps=steps,
            compute=steps * layers * self._computing(rows, edges),
            internal=inside + steps * work.internal * width / self.rates.internal,
            external=outside + steps * work.external * width / self.rates.external,
            # What is trained on as a whole is extracted once; co-batches are extracted anew in every epoch.
            sampling=steps * work.edges / self.rates.extracting if steps > 1 else 0.0,
            preload=(work.preloaded * self.model.feature_rows + work.external * once) / self.rates.external,
            memory=self._memory(Size(rows, received, edges)),
            redundancy=self.machines.servers * steps * work.mean_vertices / max(1, self.sizes.vertices),
        )

    def sampled(self, kind: str, name: str, batch: MeanBatch, options: tuple[str, ...]) -> Forecast:
        """The forecast of a strategy whose trainers each fetch what their own batch depends on."""
        everybody = self.machines.servers * self.machines.trainers
        steps = math.ceil(self.sizes.targets / (everybody * self.sizes.batch_size))
        work = batch.work(self.model.trims, reads=self.model.deep)
        inside, outside = self._gradients(steps)
        features = steps * batch.remote * self.machines.trainers * self.model.feature_rows
        per_layer = self.model.layers * max(1, self.sizes.vertices)
        return self._forecast(
            kind=kind,
            name=name,
            options=options,
            exact=False,
            steps=steps,
            compute=steps * self._computing(work.rows, work.edges),
            internal=inside,
            external=outside + features / self.rates.external,
            sampling=steps * sum(batch.edges) / self.rates.drawing,
            preload=0.0,
            memory=self._memory(
                Size(sum(batch.vertices), 0, sum(batch.edges)),
                Size(work.rows / self.model.layers, 0, work.edges / self.model.layers),
            ),
            redundancy=everybody * steps * work.rows / per_layer,
        )

    def _forecast(self, *, memory: float, **figures: object) -> Forecast:
        return Forecast(memory=memory, fits=memory <= self.machines.memory, **figures)  # type: ignore[arg-type]

    def _computing(self, rows: float, edges: float) -> float:
        return rows / self.rates.vertices + edges / self.rates.edges

    def _gradients(self, steps: int) -> tuple[float, float]:
        """Seconds inside servers and between them for summing up gradients, once over each link however many trainers there are."""
        rows = steps * self.rates.parameters / self.model.hidden
        inside, outside = (2 * (n - 1) / n for n in (self.machines.trainers, self.machines.servers))
        return rows * inside / self.rates.internal, rows * outside / self.rates.external

    def _memory(self, size: Size, mean_layer: Size | None = None) -> float:
        net = self.model
        shape = ModelShape(net.model, net.layers, net.hidden, net.inputs, device=self.machines.device)
        return float(step_bytes(shape, size, self.rates.parameters, mean_layer))
