"""``historical``: mini-batches of a trainer's own vertices. A batch computes the rows of its seeds and of a few sampled
neighbours; of all other neighbours it reads stale rows (GNNAutoScale: Fey et al., ICML 2021). What the first layer adds
up never changes. So whoever has these sums of a vertex computes its first hidden row, also of HALO vertices."""

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
from atta.train.settings.servers import HistoricalSettings


@dataclass(frozen=True)
class Tree:
    """The vertices whose rows a batch computes: ``rows`` int64 [n], own ones first: the seeds, then hop by hop, of which
    ``ends[h]`` are up to hop h. The first layer also computes the rows of others that follow. ``drawn`` int64 [3, e]: place
    of the source in ``rows``, place of the target, and number of the edge, by target, of which ``drawn_ends[h]`` are of the
    first h hops."""

    rows: Longs
    ends: list[int]
    drawn: Longs
    drawn_ends: list[int]

    def fresh(self, hop: int) -> int:
        """How many of ``rows`` are computed that targets up to ``hop`` read."""
        return self.ends[hop + 1] if hop + 2 < len(self.ends) else len(self.rows)


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
        loops: npt.NDArray[Any] = np.zeros(own)
        if model == "gcn":
            source, target = view.edge_index[:, source != target]
            scale = (view.in_degrees + 1.0) ** -0.5
            weights, loops = scale[source] * scale[target], scale[:own] ** 2
        else:
            weights = 1.0 / np.bincount(target, minlength=own)[target]
        self._like, self.loops = like, torch.from_numpy(loops[:, None]).to(like)
        starts = np.searchsorted(target, np.arange(own + 1))
        self._weights = csr_array((weights, source, starts), shape=(own, view.rows))
        self.ids, self._order = view.global_ids, np.argsort(view.global_ids)
        self._sampler = LocalSampler(LocalGraph.from_edges(source, target, view.rows, keys=self.ids))
        self._place: Longs = np.full(view.rows, -1, np.int64)  # in the tree at hand
        self._whole = self._matrix(target, source, weights, (own, view.rows))

    def of_all(self, rows: torch.Tensor) -> torch.Tensor:
        """[o, d]: what a layer adds up for every own vertex, of ``rows`` [o + r, d]."""
        summed: torch.Tensor = self._whole @ rows
        return summed + self.loops * rows[: len(self.loops)]

    def tree(self, seeds: Longs, fan_outs: Sequence[int], **draw: Any) -> Tree:
        """Sample in-neighbours of own rows ``seeds``; those of others have none here. ``draw``: as of ``LocalSampler.sample``."""
        found = self._sampler.sample(seeds, fan_outs, **draw)
        rows = self._order[np.searchsorted(self.ids, found.n_id, sorter=self._order)]
        own = rows < len(self.loops)
        order = np.argsort(~own, kind="stable")
        place = np.argsort(order)
        drawn = np.stack([place[found.row], place[found.col], found.e_id]).astype(np.int64)
        ends = np.cumsum(own)[np.cumsum(found.num_sampled_nodes) - 1] if len(rows) else [0] * (len(fan_outs) + 1)
        return Tree(rows[order], list(map(int, ends)), drawn, np.cumsum([0, *found.num_sampled_edges]).tolist())

    def sums(self, tree: Tree, hop: int) -> LayerSums:
        """For the vertices of ``tree`` up to ``hop``, of all their in-neighbours."""
        count, fresh = tree.ends[hop], tree.fresh(hop)
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
        """The same of those drawn in-neighbours alone that the batch computes, which weigh as much as all."""
        count, fresh, none = tree.ends[hop], tree.fresh(hop), np.zeros(0, np.int64)
        drawn = tree.drawn[:, : tree.drawn_ends[hop + 1]]
        source, target, edge = drawn[:, drawn[0] < fresh]
        grow = np.diff(self._weights.indptr)[tree.rows[:count]] / np.bincount(target, minlength=count).clip(1)
        weights = self._weights.data[edge] * grow[target]
        return LayerSums(
            self._matrix(target, source, weights, (count, fresh)),
            self._matrix(none, none, np.zeros(0), (count, 0)),
            torch.from_numpy(none).to(self._like.device),
        )

    def _matrix(self, target: Longs, source: Longs, weights: Any, size: tuple[int, int]) -> torch.Tensor:
        sources, targets = (torch.from_numpy(end.astype(np.int64)).to(self._like.device) for end in (source, target))
        return adjacency(sources, targets, torch.from_numpy(weights).to(self._like), size)


class HistoricalRows(TableRows):
    """Stale rows: own ones, as batches have written them, and those of others: of the first hidden layer as they are
    computed here, of further ones as they were pulled last.

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
        for layer in self._published:
            found = self._read(layer, first=True)
            self.rows[layer][self._own :] = found if self._places is None else found.index_select(0, self._places)

    def write(self, layer: int, places: torch.Tensor, values: torch.Tensor, momentum: float) -> None:
        """Move rows ``places`` int64 [n] towards ``values`` [n, d]; ``momentum``: how far, 1 replaces them."""
        rows = self.rows[layer]
        rows[places] = values if momentum == 1 else torch.lerp(rows[places], values, momentum)

    def publish(self) -> None:
        """Push own rows of the layers that travel, if it is time."""
        publishes = self.policy.publishes(self._epoch, "forward", self._rank)
        for layer in self._published:
            self.figures.count((layer, "forward"), broadcast=publishes)
            if publishes:
                self._publish(layer, self._mine(self.rows[layer][: self._own]), self._epoch)

    def state(self) -> dict[str, Any]:
        return super().state() | {"rows": self.rows}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.rows = {layer: rows.to(self._device) for layer, rows in state["rows"].items()}


class HistoricalTrainer(DigestTrainer):
    """Trains on mini-batches of its own vertices.

    Attributes:
        sizes: targets of all trainers, by step of an epoch.
        edges: in-edges of own vertices.
        features, sums: of own vertices [o, channels] and of others that are read [r, channels]: what the first layer
            reads, and adds up of in-neighbours. Neither ever changes.
    """

    rows = HistoricalRows
    averages_weights = False
    slots = 1  # a step, which all take together, lies between a pull and the next push
    options: HistoricalSettings  # type: ignore[assignment]
    stale: HistoricalRows
    sizes: list[int]
    edges: OwnEdges
    features: tuple[torch.Tensor, torch.Tensor]
    sums: tuple[torch.Tensor, torch.Tensor]

    def __init__(self, config: HistoricalSettings, cluster: atta.Cluster, device: torch.device) -> None:
        super().__init__(config, cluster, device, DigestPolicy(sync_every=config.max_age or config.epochs + 1))

    def train_epoch(self, epoch: int) -> EpochReport:
        return replace(super().train_epoch(epoch), steps=len(self.sizes))

    def update(self, batch: TrainerBatch, count: int) -> torch.Tensor:
        """All steps of an epoch; then trainers bring their rows up to date, and push them, if it is time."""
        epoch, targets = len(self.done), np.arange(len(batch.targets))
        self.stale.take()
        total = torch.zeros((), dtype=batch.x.dtype, device=self.device)
        for number, chosen in enumerate(divide_targets(targets, len(self.sizes), self.config.seed, epoch)):
            total += self._step(batch, chosen, epoch, number)
        if self.policy.publishes(epoch + 1, "forward", self.rank):
            self._refresh()
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
        scores, hidden = self._forward(tree)
        loss = self.objective.loss_sum(scores, batch.y[places])
        self.optimizer.zero_grad()
        (loss / self.sizes[number]).backward()
        sum_gradients(self.model.parameters(), self.groups)
        self.update_weights()
        rows = torch.from_numpy(tree.rows).to(self.device)
        for layer, values in enumerate(hidden, 1):
            self.stale.write(layer, rows[: len(values)], values, config.momentum)
        return loss.detach()

    def _forward(self, tree: Tree) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Scores of the seeds, and the rows that each hidden layer has computed, before dropout."""
        gnn: Any = self.model
        first, *more = gnn.convs
        rows, hidden, own = torch.from_numpy(tree.rows).to(self.device), list[torch.Tensor](), tree.ends[-1]
        read = [
            torch.cat([mine[rows[:own]], theirs[rows[own:] - len(mine)]]) for mine, theirs in (self.features, self.sums)
        ]
        h = first_layer(first, *read)
        for layer, conv in enumerate(more, 1):
            h = gnn.act(h)
            hidden.append(h.detach())
            h, hop = gnn.dropout(h), len(more) - layer
            sums = self.edges.sums(tree, hop) if self.options.max_age else self.edges.drawn(tree, hop)
            summed, count = sums.fresh @ h, tree.ends[hop]
            if len(sums.rows):
                summed = summed + sums.stale @ gnn.dropout(self.stale.rows[layer][sums.rows])
            h = first_layer(conv, h, summed + self.edges.loops[rows[:count]] * h[:count])
        return h, hidden

    @torch.no_grad()
    def _refresh(self) -> None:
        """Compute rows anew, of the present weights: own ones of all layers, and others' of the first hidden layer."""
        gnn: Any = self.model
        first, *more = gnn.convs
        h = torch.cat([first_layer(first, *read) for read in zip(self.features, self.sums, strict=True)])
        for layer, conv in enumerate(more, 1):
            self.stale.write(layer, torch.arange(len(h), device=self.device), gnn.act(h), self.options.momentum)
            if layer < len(more):
                rows = self.stale.rows[layer]
                h = first_layer(conv, rows, self.edges.of_all(rows))

    def _fill(self, batch: TrainerBatch) -> dict[int, torch.Tensor]:
        """Before that, find what the first layer adds up: for own vertices, and, of their owners, for others."""
        graph, view = batch.graph, batch.graph.view
        assert graph.source is not None
        self.edges = OwnEdges(view, self.config.model, batch.x)
        self.features = batch.x, graph.source.start(0, "forward", batch.x).finish()
        mine = self.edges.of_all(torch.cat(self.features))
        self.sums = mine, self.exact.start(0, "forward", mine).finish()
        first: Any = self.model
        with torch.no_grad():
            parts = zip(self.features, self.sums, strict=True)
            h = torch.cat([first.act(first_layer(first.convs[0], *read)) for read in parts])
        rows = super()._fill(batch)
        self.stale.rows[1] = h
        steps = max(1, int(self._max(-(-len(batch.targets) // self.options.batch_size))))
        sizes = [len(part) for part in np.array_split(np.arange(len(batch.targets)), steps)]
        self.sizes = [int(n) for n in self._sum(sizes)]
        return rows

    def travelling(self, rows: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Others compute the first hidden layer's rows themselves."""
        return {layer: of_layer for layer, of_layer in rows.items() if layer > 1}
