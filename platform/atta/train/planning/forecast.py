"""Seconds per epoch and memory per trainer of each strategy, from counted sizes and measured rates.

The terms are those of GraNNDis' equations (3), (4) and (8), with counted sizes instead of D^alpha: computing, rows
within a server, rows between servers, and sampling. As in the paper they are added up, as if nothing overlapped. In
training some of them overlap, so it is faster than predicted. Unlike the paper, gradients are counted. A strategy that is
built to send rows while it computes takes the larger of the two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atta.train.cooperative.memory import ModelShape, Size, step_bytes
from atta.train.planning.sizes import Machines, MeanBatch, PlannedModel, Rates, ServerWork, Sizes

_STEPS = 10
"""Steps of an epoch that come as far as so many epochs of one step. Three did (12 epochs beside 4, on a dense graph);
beyond ten nothing was measured, so more are not counted."""


@dataclass(frozen=True)
class Forecast:
    """Predicted time and memory of a strategy.

    ``options`` of ``atta train`` select it. ``exact``: each step computes the gradient of the whole graph. ``compute``,
    ``internal``, ``external``, ``sampling`` and ``disk`` are seconds per epoch; ``hidden`` ones of ``external`` pass while
    trainers compute; ``preload`` is once before the first epoch. ``memory``: bytes that a trainer needs for a step
    (``atta.train.cooperative.memory``). ``redundancy``: rows computed per epoch, vertex and layer; 1: each once.
    ``row_bytes``: that the busiest server receives from others per epoch. ``ages``: least and largest age of rows of
    other servers, in epochs; None: no bound. ``reason``: what else speaks for it; ``risk``: what may cost accuracy;
    ``settings``: of its own, by field; ``doubt``: what it cannot do at this depth and cut. ``epochs``: how many epochs
    come as far as one of exact training on the whole graph."""

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
    row_bytes: float = 0.0
    ages: tuple[int, int | None] = (0, 0)
    risk: str = ""
    hidden: float = 0.0
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    doubt: str = ""
    disk: float = 0.0
    epochs: float = 1.0

    @property
    def seconds(self) -> float:
        """Seconds per epoch: the sum of all terms, without what is hidden behind computing."""
        return self.compute + self.internal + (self.external - self.hidden) + self.sampling + self.disk

    @property
    def to_accuracy(self) -> float:
        """Seconds to come as far as in an epoch of exact training on the whole graph."""
        return self.seconds * self.epochs

    @property
    def terms(self) -> dict[str, float]:
        """Seconds per epoch by name."""
        return {
            "compute": self.compute,
            "internal": self.internal,
            "external": self.external,
            "sampling": self.sampling,
            "disk": self.disk,
        }


@dataclass(frozen=True)
class Forecaster:
    """Computes seconds and bytes from counted sizes. Strategies choose the sizes and options
    (``TrainingStrategy.forecasts``).

    Attributes:
        losses: what variants have cost in accuracy, in words, by the name of the variant in the record.
    """

    sizes: Sizes
    machines: Machines
    model: PlannedModel
    rates: Rates
    losses: Mapping[str, str] = field(default_factory=dict)

    def shared(
        self, kind: str, name: str, work: ServerWork, options: tuple[str, ...], *, exact: bool = False, steps: int = 1
    ) -> Forecast:
        """The forecast of a strategy whose trainers share one subgraph of their server per step."""
        trainers, layers = self.machines.trainers, self.model.layers
        # Each step has a new co-batch. A subgraph that is trained on as a whole exchanges its features once.
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
            # A subgraph that is trained on as a whole is extracted once; co-batches are extracted in each epoch.
            sampling=steps * work.edges / self.rates.extracting if steps > 1 else 0.0,
            preload=(work.preloaded * self.model.feature_rows + work.external * once) / self.rates.external,
            memory=self._memory(Size(rows, received, edges)),
            redundancy=self.machines.servers * steps * work.mean_vertices / max(1, self.sizes.vertices),
        )

    def reading(
        self,
        strategy: str,
        name: str,
        *,
        forward: float,
        backward: float,
        settings: Mapping[str, Any] | None = None,
        ages: tuple[int, int | None] = (0, 0),
        copies: int = 0,
        predicted: float = 0.0,
        overlaps: bool = False,
        at_one_daemon: bool = False,
        again: float = 0.0,
        handed: float = 0.0,
        steps: int = 1,
        risk: str = "",
        measured: str = "",
        reason: str = "",
        epochs: float = 1.0,
    ) -> Forecast:
        """The forecast of a strategy in which trainers read HALO rows of other servers.

        ``forward``, ``backward``: how often per epoch rows and gradients of a layer travel. ``settings``: of its own, by
        field. ``copies``: versions of HALO rows that readers keep of each layer. ``predicted``: versions per
        epoch and HALO row that an LSTM reads; it computes 8 d² products per row and version, a layer 3 d².
        ``overlaps``: rows travel while trainers compute. ``at_one_daemon``: each trainer sends its gradient to one
        daemon and gets weights from it. ``again``: share of a layer's rows that is computed a second time. ``handed``:
        how often per epoch and layer own rows go to another process of the machine, or come from it. ``steps``: per epoch,
        each on as much as all own vertices at most. ``measured``: the variant of the record that tells the risk. ``epochs``:
        as of ``Forecast``."""
        work, trainers = self.sizes.exchanged, self.machines.trainers
        given = ",".join(f"{field.replace('_', '-')}={value}" for field, value in (settings or {}).items())
        words = ("--strategy", f"{strategy}:{given}" if given else strategy, "--trainers-per-server", str(trainers))
        exact = self.shared(strategy, name, work, words, exact=not risk)
        layers = self.model.exchanges / 2
        rows = work.external * layers
        own = work.vertices / trainers
        external = steps * self._weights(at_one_daemon) + rows * (forward + backward) / self.rates.external
        memory = exact.memory + copies * rows / trainers * self.model.row_bytes
        compute = steps * exact.compute + rows / trainers * predicted * (8 / 3) / self.rates.vertices
        compute += again * self.model.layers * own / self.rates.vertices
        loss = self.losses.get(measured, "")
        return replace(
            exact,
            steps=steps,
            compute=compute,
            internal=exact.internal + handed * self.model.layers * own / self.rates.internal,
            external=external,
            memory=memory,
            fits=memory <= self.machines.memory,
            row_bytes=rows * (forward + backward) * self.model.row_bytes,
            ages=ages,
            risk=f"{risk}; {loss}" if risk and loss else risk,
            reason=reason,
            settings=settings or {},
            epochs=epochs / min(steps, _STEPS),
            hidden=min(compute, rows * (forward + backward) / self.rates.external) if overlaps else 0.0,
        )

    def sampled(self, batch: MeanBatch, options: tuple[str, ...]) -> Forecast:
        """The forecast of a strategy whose trainers each sample and fetch their own batches."""
        everybody = self.machines.servers * self.machines.trainers
        steps = math.ceil(self.sizes.targets / (everybody * self.sizes.batch_size))
        work = batch.work(reads=self.model.deep)
        inside, outside = self._gradients(steps)
        features = steps * batch.crossing * self.machines.trainers * self.model.feature_rows
        per_layer = self.model.layers * max(1, self.sizes.vertices)
        return self._forecast(
            kind="mini-batch",
            name="mini-batch",
            options=options,
            exact=False,
            steps=steps,
            compute=steps * self._computing(work.rows, work.edges),
            internal=inside,
            external=outside + features / self.rates.external,
            sampling=steps * sum(batch.edges) / self.rates.drawing,
            disk=steps * self.machines.trainers * (sum(batch.vertices) - batch.remote) / self.rates.disk,
            preload=0.0,
            memory=self._memory(
                Size(sum(batch.vertices), 0, sum(batch.edges)),
                Size(work.rows / self.model.layers, 0, work.edges / self.model.layers),
            ),
            redundancy=everybody * steps * work.rows / per_layer,
        )

    def _forecast(self, *, memory: float, steps: int, **figures: object) -> Forecast:
        fits, epochs = memory <= self.machines.memory, 1 / min(max(1, steps), _STEPS)
        return Forecast(memory=memory, fits=fits, steps=steps, epochs=epochs, **figures)  # type: ignore[arg-type]

    def _computing(self, rows: float, edges: float) -> float:
        return rows / self.rates.vertices + edges / self.rates.edges

    def _gradients(self, steps: int) -> tuple[float, float]:
        """Seconds to sum up gradients within servers and between them. They cross each link once, for any number of
        trainers."""
        rows = steps * self.rates.parameters / self.model.hidden
        inside, outside = (2 * (n - 1) / n for n in (self.machines.trainers, self.machines.servers))
        return rows * inside / self.rates.internal, rows * outside / self.rates.external

    def _weights(self, at_one_daemon: bool) -> float:
        """Seconds on the busiest link for gradients of weights, in a step of all trainers."""
        if not at_one_daemon:
            return self._gradients(1)[1]
        elsewhere = (self.machines.servers - 1) * self.machines.trainers
        return elsewhere * self.rates.parameters / self.model.hidden / self.rates.external

    def _memory(self, size: Size, mean_layer: Size | None = None) -> float:
        net = self.model
        shape = ModelShape(net.model, net.layers, net.hidden, net.inputs, device=self.machines.device)
        return float(step_bytes(shape, size, self.rates.parameters, mean_layer))
