"""Seconds per epoch and memory per trainer of each strategy, from counted sizes and measured rates.

The terms are those of GraNNDis' equations (3), (4) and (8) with counted sizes in the place of D^alpha: computing, rows inside a
server, rows between servers, and sampling. They are added up as in the paper, nothing is taken to overlap; what training overlaps
makes it faster than predicted, and a strategy that overlaps more gains more. Gradients are counted, which the paper leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from atta.samplers.dag.plan import SpecLimits
from atta.train.cooperative.memory import ModelShape, Size, step_bytes
from atta.train.planning.rates import Machines, Network, Rates
from atta.train.planning.sizes import MiniBatch, Share, Sizes

__all__ = ["Forecast", "forecasts"]


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


def forecasts(sizes: Sizes, machines: Machines, network: Network, rates: Rates) -> list[Forecast]:
    """Every strategy, those that fit first, the fastest first among them. The same arguments give the same result."""
    model = _Model(sizes, machines, network, rates)
    return sorted(model.all(), key=lambda f: (not f.fits, f.seconds, f.name))


@dataclass(frozen=True)
class _Model:
    sizes: Sizes
    machines: Machines
    network: Network
    rates: Rates

    def all(self) -> Iterator[Forecast]:
        s, per_server = self.sizes, ("--trainers-per-server", str(self.machines.trainers))
        options: tuple[str, ...]
        if s.mini_batch is not None and s.targets and self.network.layers <= SpecLimits.hops:
            yield self._mini_batch(s.mini_batch)
        if self.machines.servers > 1:
            # One group of all trainers: rows go wherever they are read, also between servers.
            everybody = str(self.machines.servers * self.machines.trainers)
            options = ("--strategy", "full", "--trainers-per-server", everybody)
            yield self._shared("exchange", "full, exchange between servers", s.exchanged, options, exact=True)
        options = ("--strategy", "full", *per_server)
        yield self._shared("preloading", "full, shared preloading", s.closure, options, exact=True)
        for setting, share in s.sampled.items():
            options = ("--strategy", "full", "--eas", f"{setting.max_hop},{setting.fanout}", *per_server)
            name = f"full, expansion-aware {setting.max_hop},{setting.fanout}"
            exact = setting.fanout < 0 and setting.max_hop >= self.network.layers
            yield self._shared("expansion-aware", name, share, options, exact=exact)
        for batches, share in s.co_batches.items():
            rule = f"{s.co_batch_rule.max_hop},{s.co_batch_rule.fanout}"
            options = ("--strategy", "cooperative", "--co-batches", str(batches), "--eas", rule, *per_server)
            name = f"cooperative, {batches} co-batches"
            yield self._shared("cooperative", name, share, options, steps=batches)

    def _shared(
        self, kind: str, name: str, share: Share, options: tuple[str, ...], *, exact: bool = False, steps: int = 1
    ) -> Forecast:
        """A server's trainers share one subgraph per step."""
        trainers, layers = self.machines.trainers, self.network.layers
        # Co-batches are new in every step; what is trained on as a whole exchanges its features once.
        again, once = (self.network.feature_exchanges, 0.0) if steps > 1 else (0.0, self.network.feature_exchanges)
        width = self.network.exchanges + again
        rows, edges = share.vertices / trainers, share.edges / trainers
        received = share.internal + share.external / trainers
        inside, outside = self._gradients(steps)
        return self._forecast(
            kind=kind,
            name=name,
            options=options,
            exact=exact,
            steps=steps,
            compute=steps * layers * self._computing(rows, edges),
            internal=inside + steps * share.internal * width / self.rates.internal,
            external=outside + steps * share.external * width / self.rates.external,
            # What is trained on as a whole is extracted once; co-batches are extracted anew in every epoch.
            sampling=steps * share.edges / self.rates.extracting if steps > 1 else 0.0,
            preload=(share.preloaded * self.network.feature_rows + share.external * once) / self.rates.external,
            memory=self._memory(Size(rows, received, edges)),
            redundancy=self.machines.servers * steps * share.mean_vertices / max(1, self.sizes.vertices),
        )

    def _mini_batch(self, batch: MiniBatch) -> Forecast:
        """Every trainer fetches what its own batch depends on."""
        everybody = self.machines.servers * self.machines.trainers
        steps = math.ceil(self.sizes.targets / (everybody * self.sizes.batch_size))
        rows, edges = batch.work(self.network.trims, reads=self.network.deep)
        inside, outside = self._gradients(steps)
        features = steps * batch.remote * self.machines.trainers * self.network.feature_rows
        fan_outs = ",".join(map(str, self.sizes.num_neighbors))
        per_layer = self.network.layers * max(1, self.sizes.vertices)
        return self._forecast(
            kind="mini-batch",
            name="mini-batch",
            options=(
                *("--strategy", "minibatch", "--num-neighbors", fan_outs),
                *("--batch-size", str(self.sizes.batch_size)),
            ),
            exact=False,
            steps=steps,
            compute=steps * self._computing(rows, edges),
            internal=inside,
            external=outside + features / self.rates.external,
            sampling=steps * sum(batch.edges) / self.rates.drawing,
            preload=0.0,
            memory=self._memory(
                Size(sum(batch.vertices), 0, sum(batch.edges)),
                Size(rows / self.network.layers, 0, edges / self.network.layers),
            ),
            redundancy=everybody * steps * rows / per_layer,
        )

    def _forecast(self, *, memory: float, **figures: object) -> Forecast:
        return Forecast(memory=memory, fits=memory <= self.machines.memory, **figures)  # type: ignore[arg-type]

    def _computing(self, rows: float, edges: float) -> float:
        return rows / self.rates.vertices + edges / self.rates.edges

    def _gradients(self, steps: int) -> tuple[float, float]:
        """Seconds inside servers and between them for summing up gradients, once over each link however many trainers there are."""
        rows = steps * self.rates.parameters / self.network.hidden
        inside, outside = (2 * (n - 1) / n for n in (self.machines.trainers, self.machines.servers))
        return rows * inside / self.rates.internal, rows * outside / self.rates.external

    def _memory(self, size: Size, mean_layer: Size | None = None) -> float:
        net = self.network
        shape = ModelShape(net.model, net.layers, net.hidden, net.inputs, device=self.machines.device)
        return float(step_bytes(shape, size, self.rates.parameters, mean_layer))
