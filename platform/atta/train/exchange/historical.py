"""``historical``: mini-batches of a trainer's own vertices. A batch computes the rows of its seeds and of a few sampled
neighbours; of all other neighbours it reads stale rows (GNNAutoScale: Fey et al., ICML 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array

import atta
from atta.nn import first_layer
from atta.samplers import LocalGraph, LocalSampler
from atta.train.cooperative.exchange import TrainerBatch, sum_gradients
from atta.train.cooperative.graph import Longs, WorkerView
from atta.train.cooperative.subgraphs import divide_targets
from atta.train.exchange.policies import DigestPolicy
from atta.train.exchange.tables import DaemonTable, TableRows
from atta.train.exchange.trainer import DigestTrainer
from atta.train.models import adjacency
from atta.train.reports.epochs import EpochReport
from atta.train.settings import HistoricalSettings
from atta.train.steps.timing import Stopwatch


@dataclass(frozen=True)
class Tree:
    """The vertices whose rows a batch computes: ``rows`` int64 [n], own rows, the seeds first, then hop by hop, of which
    ``ends[h]`` are up to hop h. ``drawn`` int64 [3, e]: place of the source in ``rows``, place of the target, and number
    of the edge, by target, of which ``drawn_ends[h]`` are of the first h hops."""

    rows: Longs
    ends: list[int]
    drawn: Longs
    drawn_ends: list[int]


@dataclass(frozen=True)
class LayerSums:
    """How a layer adds up rows for its t targets: ``fresh`` [t, f] those that the batch computes, ``stale`` [t, s] those of
    the stale ``rows``, int64 [s]."""

    fresh: torch.Tensor
    stale: torch.Tensor
    rows: torch.Tensor


class OwnEdges:
    """In-edges of own vertices, with the weights by which a layer adds up rows: a mean's (sage), or those of a GCN, whose
    self-loops stand apart. ``loops``: [o, 1]."""

    def __init__(self, view: WorkerView, model: str, like: torch.Tensor) -> None:
        """``like``: numbers and device of the rows."""
        own, (source, target) = len(view.own), view.edge_index
        loops: npt.NDArray[np.float64] = np.zeros(own)
        if model == "gcn":
            source, target = view.edge_index[:, source != target]
            scale = (view.in_degrees + 1.0) ** -0.5
            weights, loops = scale[source] * scale[target], scale[:own] ** 2
        else:
            weights = 1.0 / np.bincount(target, minlength=own)[target]
        self._like, self.loops = like, torch.from_numpy(loops[:, None]).to(like)
        starts = np.searchsorted(target, np.arange(own + 1))
        self._weights = csr_array((weights, source, starts), shape=(own, view.rows))
        self._inner, ids = np.flatnonzero(source < own), view.global_ids[:own]
        self._sampler = LocalSampler(LocalGraph.from_edges(source[self._inner], target[self._inner], own, keys=ids))
        self._ids, self._order = ids, np.argsort(ids)
        self._place: Longs = np.full(view.rows, -1, np.int64)  # in the tree at hand
        self._whole = self._matrix(target, source, weights, (own, view.rows))

    def of_all(self, rows: torch.Tensor) -> torch.Tensor:
        """[o, d]: what a layer adds up for every own vertex, of ``rows`` [o + r, d]."""
        summed: torch.Tensor = self._whole @ rows
        return summed + self.loops * rows[: len(self.loops)]

    def tree(self, seeds: Longs, fan_outs: Sequence[int], **draw: int) -> Tree:
        """Sample in-neighbours of own rows ``seeds``, among own vertices."""
        found = self._sampler.sample(seeds, fan_outs, **draw)
        rows = self._order[np.searchsorted(self._ids, found.n_id, sorter=self._order)]
        drawn = np.stack([found.row, found.col, self._inner[found.e_id]]).astype(np.int64)
        ends = np.cumsum(found.num_sampled_nodes).tolist(), np.cumsum([0, *found.num_sampled_edges]).tolist()
        return Tree(rows, ends[0], drawn, ends[1])

    def sums(self, tree: Tree, hop: int) -> LayerSums:
        """For the vertices of ``tree`` up to ``hop``, of all their in-neighbours."""
        count, fresh = tree.ends[hop], tree.ends[hop + 1]
        self._place[tree.rows[:fresh]] = np.arange(fresh)
        edges = self._weights[tree.rows[:count]]
        target, column = np.repeat(np.arange(count), np.diff(edges.indptr)), self._place[edges.indices]
        self._place[tree.rows[:fresh]] = -1
        known, weights = column >= 0, edges.data
        rows, columns = np.unique(edges.indices[~known], return_inverse=True)
        return LayerSums(
            self._matrix(target[known], column[known], weights[known], (count, fresh)),
            self._matrix(target[~known], columns, weights[~known], (count, len(rows))),
            torch.from_numpy(rows.astype(np.int64)).to(self._like.device),
        )

    def drawn(self, tree: Tree, hop: int) -> LayerSums:
        """The same of drawn in-neighbours alone, which weigh as much as all."""
        count, fresh, none = tree.ends[hop], tree.ends[hop + 1], np.zeros(0, np.int64)
        source, target, edge = tree.drawn[:, : tree.drawn_ends[hop + 1]]
        grow = np.diff(self._weights.indptr)[tree.rows[:count]] / np.bincount(target, minlength=count).clip(1)
        weights = self._weights.data[edge] * grow[target]
        return LayerSums(
            self._matrix(target, source, weights, (count, fresh)),
            self._matrix(none, none, np.zeros(0), (count, 0)),
            torch.from_numpy(none).to(self._like.device),
        )

    def _matrix(self, target: Longs, source: Longs, weights: Any, size: tuple[int, int]) -> torch.Tensor:
        ends = (torch.from_numpy(end.astype(np.int64)).to(self._like.device) for end in (source, target))
        return adjacency(*ends, torch.from_numpy(weights).to(self._like), size)


class HistoricalRows(TableRows):
    """Stale rows: own ones, as batches have written them, and those of others, as they were pulled last.

    Attributes:
        rows: [o + r, d] by layer.
    """

    rows: dict[int, torch.Tensor]

    def fill(self, table: DaemonTable, rows: Mapping[int, torch.Tensor]) -> None:
        super().fill(table, rows)
        others = self._received if self._places is None else len(self._places)
        self.rows = {n: torch.cat([own, own.new_zeros((others, own.shape[1]))]) for n, own in rows.items()}

    def take(self) -> None:
        """Take the rows that the epoch has begun to pull, if any."""
        for layer, rows in self.rows.items():
            found = self._read(layer, first=True)
            rows[self._own :] = found if self._places is None else found.index_select(0, self._places)

    def write(self, layer: int, places: torch.Tensor, values: torch.Tensor, momentum: float) -> None:
        """Move own rows ``places`` int64 [n] towards ``values`` [n, d]; ``momentum``: how far, 1 replaces them."""
        rows = self.rows[layer]
        rows[places] = values if momentum == 1 else torch.lerp(rows[places], values, momentum)

    def publish(self) -> None:
        """Push own rows of all layers, if it is time."""
        publishes = self.policy.publishes(self._epoch, "forward", self._rank)
        for layer, rows in self.rows.items():
            self.figures.count((layer, "forward"), broadcast=publishes)
            if publishes:
                self._publish(layer, self._mine(rows[: self._own]), self._epoch)

    def state(self) -> dict[str, Any]:
        return super().state() | {"rows": {layer: rows[: self._own] for layer, rows in self.rows.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        for layer, own in state["rows"].items():
            self.rows[layer][: self._own] = own.to(self._device)


class HistoricalTrainer(DigestTrainer):
    """Trains on mini-batches of its own vertices.

    Attributes:
        sizes: targets of all trainers, by step of an epoch.
        edges: in-edges of own vertices.
        sums: [o, channels]: what the first layer adds up. Features never change, so all in-neighbours count.
    """

    rows = HistoricalRows
    averages_weights = False
    slots = 1  # a step, which all take together, lies between a pull and the next push
    options: HistoricalSettings  # type: ignore[assignment]
    stale: HistoricalRows
    sizes: list[int]
    edges: OwnEdges
    sums: torch.Tensor

    def __init__(self, config: HistoricalSettings, cluster: atta.Cluster, device: torch.device) -> None:
        super().__init__(config, cluster, device, DigestPolicy(sync_every=config.max_age or config.epochs + 1))

    def train_epoch(self, epoch: int) -> EpochReport:
        return replace(super().train_epoch(epoch), steps=len(self.sizes))

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """All steps of an epoch; then owners bring their rows up to date, and push them, if it is time."""
        epoch, targets = len(self.done), np.arange(len(batch.targets))
        self.stale.take()
        total = torch.zeros((), dtype=batch.x.dtype, device=self.device)
        for number, chosen in enumerate(divide_targets(targets, len(self.sizes), self.config.seed, epoch)):
            total += self._step(batch, chosen, epoch, number)
        if self.policy.publishes(epoch + 1, "forward", self.rank):
            self._refresh(batch)
        self.stale.publish()
        self.stale.flush()
        return self.groups.sum_(total) / count  # no trainer pulls before all have pushed

    def _step(self, batch: TrainerBatch, chosen: Longs, epoch: int, number: int) -> torch.Tensor:
        """One optimiser step on the targets ``chosen``; returns this trainer's sum of losses."""
        config, places = self.options, torch.from_numpy(chosen).to(self.device)
        draw = {"seed": config.seed, "epoch": epoch, "batch": number * self.world + self.rank}
        # The first layer reads features of all in-neighbours: there is one hop less than there are layers.
        fan_outs = [config.fan_out] * (config.depth - 1)
        tree = self.edges.tree(batch.graph.view.targets[chosen], fan_outs, **draw)
        scores, hidden = self._forward(batch, tree)
        loss = self.objective.loss_sum(scores, batch.y[places])
        self.optimizer.zero_grad()
        (loss / self.sizes[number]).backward()
        sum_gradients(self.model.parameters(), self.groups)
        self.update_weights()
        rows = torch.from_numpy(tree.rows).to(self.device)
        for layer, values in enumerate(hidden, 1):
            self.stale.write(layer, rows[: len(values)], values, config.momentum)
        return loss.detach()

    def _forward(self, batch: TrainerBatch, tree: Tree) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Scores of the seeds, and the rows that each hidden layer has computed, before dropout."""
        gnn: Any = self.model
        first, *more = gnn.convs
        rows, hidden = torch.from_numpy(tree.rows).to(self.device), list[torch.Tensor]()
        h = first_layer(first, batch.x[rows], self.sums[rows])
        for layer, conv in enumerate(more, 1):
            h = gnn.act(h)
            hidden.append(h.detach())
            h = gnn.dropout(h)
            hop = len(more) - layer
            sums = self.edges.sums(tree, hop) if self.options.max_age else self.edges.drawn(tree, hop)
            summed = sums.fresh @ h
            if len(sums.rows):
                summed = summed + sums.stale @ gnn.dropout(self.stale.rows[layer][sums.rows])
            h = first_layer(conv, h, summed + self.edges.loops[rows[: tree.ends[hop]]] * h[: tree.ends[hop]])
        return h, hidden

    @torch.no_grad()
    def _refresh(self, batch: TrainerBatch) -> None:
        """Compute all own rows anew, of the present weights and of stale rows of others."""
        gnn: Any = self.model
        every, h = torch.arange(len(self.sums), device=self.device), first_layer(gnn.convs[0], batch.x, self.sums)
        for layer, conv in enumerate(gnn.convs[1:], 1):
            self.stale.write(layer, every, gnn.act(h), self.options.momentum)
            rows = self.stale.rows[layer]
            h = first_layer(conv, rows, self.edges.of_all(rows))

    def _on_device(self, view: WorkerView, watch: Stopwatch) -> TrainerBatch:
        batch = super()._on_device(view, watch)
        graph = batch.graph
        assert graph.source is not None
        self.edges = OwnEdges(graph.view, self.config.model, batch.x)
        others = graph.source.start(0, "forward", batch.x).finish()
        self.sums = self.edges.of_all(torch.cat([batch.x, others]))
        count = len(batch.targets)
        steps = max(1, int(self._max(-(-count // self.options.batch_size))))
        self.sizes = [int(n) for n in self._sum([len(part) for part in np.array_split(np.arange(count), steps)])]
        return batch
