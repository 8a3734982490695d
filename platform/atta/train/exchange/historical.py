"""``historical``: mini-batches of a trainer's own vertices. A batch computes the rows of its seeds and of a few sampled
neighbours; of all other neighbours it reads stale rows (GNNAutoScale: Fey et al., ICML 2021). What the first layer adds
up never changes. So whoever has these sums of a vertex computes its first hidden row, also of HALO vertices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array, diags_array

import atta
from atta.nn import first_layer
from atta.samplers import LocalGraph, LocalSampler
from atta.train.cooperative.exchange import TrainerBatch, sum_gradients
from atta.train.cooperative.graph import Longs, WorkerView
from atta.train.cooperative.subgraphs import divide_targets
from atta.train.exchange.policies import DigestPolicy
from atta.train.exchange.tables import TableRows
from atta.train.exchange.trainer import DigestTrainer
from atta.train.models import csr_matrix
from atta.train.reports.epochs import EpochReport
from atta.train.settings.servers import HistoricalSettings

_SPARSE = 0.08
"""Share of numbers that are not 0 up to which a step is faster with sparse rows."""


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


def torch_csr(found: csr_array, like: torch.Tensor) -> torch.Tensor:
    """The same matrix on the device of ``like``, in its numbers."""
    starts, columns, values = map(torch.from_numpy, (found.indptr, found.indices, found.data))
    return csr_matrix(starts, columns, values, found.shape).to(like)


class FixedRows:
    """``rows`` [n, c] of vertices ``places`` int64 [n], ascending, that never change. On processors words of texts are kept
    sparse: a layer computes rows of so few numbers in a tenth of the time."""

    def __init__(self, rows: torch.Tensor, places: torch.Tensor) -> None:
        self.rows, self._places, self._sparse = rows, places, None
        if rows.device.type == "cpu" and int(rows.count_nonzero()) <= _SPARSE * rows.numel():
            self._sparse = csr_array(rows.numpy())
            self.rows = torch_csr(self._sparse, rows)

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """Those of vertices ``places`` int64 [m]: [m, c]."""
        at = torch.searchsorted(self._places, places)
        return self.rows[at] if self._sparse is None else torch_csr(self._sparse[at.numpy()], self.rows)


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
        self._all = self._weights + diags_array(loops, shape=self._weights.shape)
        self.ids, self._order = view.global_ids, np.argsort(view.global_ids)
        self._sampler = LocalSampler(LocalGraph.from_edges(source, target, view.rows, keys=self.ids))

    def read_for(self, places: Longs) -> Longs:
        """Rows that a layer reads for own rows ``places``: they and their in-neighbours, int64, ascending."""
        return np.union1d(places, self._weights[places].indices)

    def whole(self, places: Longs) -> torch.Tensor:
        """What adds up all rows [o + r, d] for own rows ``places`` int64 [n], loops included: sparse [n, o + r]."""
        return torch_csr(self._all[places], self._like)

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

    def drawn(self, tree: Tree, hop: int) -> torch.Tensor:
        """What adds up rows for the t vertices of ``tree`` up to ``hop``, of those drawn in-neighbours alone that the batch
        computes, which weigh as much as all: sparse [t, f]."""
        count, fresh = tree.ends[hop], tree.fresh(hop)
        drawn = tree.drawn[:, : tree.drawn_ends[hop + 1]]
        source, target, edge = drawn[:, drawn[0] < fresh]
        grow = np.diff(self._weights.indptr)[tree.rows[:count]] / np.bincount(target, minlength=count).clip(1)
        weights = self._weights.data[edge] * grow[target]
        return torch_csr(csr_array((weights, (target, source)), shape=(count, fresh)), self._like)


class HistoricalRows(TableRows):
    """Stale ``rows`` [o + r, d] by layer: own ones, as batches have written them, and those of others: of the first hidden
    layer as they are computed here, of further ones as they were pulled last. Those that are read nowhere stay as they are."""

    rows: dict[int, torch.Tensor]

    def only(self, mine: Longs, others: Longs) -> None:
        """Before ``fill``: own rows ``mine`` and rows ``others`` are all that travel; int64, places in ``rows``."""
        self._shared, self._pulled_at = (torch.from_numpy(places).to(self._device) for places in (mine, others))
        self._own_ids, self._read_ids = self._ids[mine], self._ids[others]
        self._far = int(self._far_rows[others - self._own].sum())

    def take(self) -> None:
        """Take the rows that the epoch has begun to pull, if any."""
        for layer in self._published:
            self.rows[layer][self._pulled_at] = self._read(layer, first=True)

    def write(self, layer: int, places: torch.Tensor, values: torch.Tensor, momentum: float) -> None:
        """Move rows ``places`` int64 [n] towards ``values`` [n, d]; ``momentum``: how far, 1 replaces them."""
        rows = self.rows[layer]
        rows[places] = values if momentum == 1 else torch.lerp(rows[places], values, momentum)

    def publish(self) -> None:
        """Push own rows of the layers that travel, if it is time."""
        for layer in self._published:
            self._push(layer, self.rows[layer])

    def state(self) -> dict[str, Any]:
        return super().state() | {"rows": self.rows}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.rows = {layer: rows.to(self._device) for layer, rows in state["rows"].items()}


class HistoricalTrainer(DigestTrainer):
    """Trains on mini-batches of its own vertices.

    Attributes:
        sizes: targets of all trainers, by step of an epoch.
        first, further: places int64 [n] of the rows that are read, here or elsewhere, and so computed anew: of the first
            hidden layer, own ones first; of further ones, own ones alone, with what adds up rows for them.
        features, sums: of the vertices ``first``, what the first layer reads, and adds up.
    """

    rows = HistoricalRows
    averages_weights = False
    slots = 1  # a step, which all take together, lies between a pull and the next push
    options: HistoricalSettings  # type: ignore[assignment]
    stale: HistoricalRows
    model: Any

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
        tree = self.edges.tree(batch.graph.view.targets[chosen], [config.fan_out] * (config.depth - 1), **draw)
        scores, hidden = self._forward(tree)
        loss = self.objective.loss_sum(scores, batch.y[places])
        self.optimizer.zero_grad()
        (loss / self.sizes[number]).backward()
        sum_gradients(self.model.parameters(), self.groups, codec=config.codec)
        self.update_weights()
        rows = torch.from_numpy(tree.rows).to(self.device)
        for layer, values in enumerate(hidden, 1):
            self.stale.write(layer, rows[: len(values)], values, config.momentum)
        return loss.detach()

    def _forward(self, tree: Tree) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Scores of the seeds, and the rows that each hidden layer has computed, before dropout."""
        first, *more = self.model.convs
        rows, hidden = torch.from_numpy(tree.rows).to(self.device), list[torch.Tensor]()
        h = first_layer(first, self.features.at(rows), self.sums.at(rows))
        for layer, conv in enumerate(more, 1):
            h = self.model.act(h)
            hidden.append(h.detach())
            h, hop = self.model.dropout(h), len(more) - layer
            count = tree.ends[hop]
            summed = self.edges.drawn(tree, hop) @ h + self.edges.loops[rows[:count]] * h[:count]
            if self.options.max_age:  # the sum of all, with gradients as if it were that of the drawn ones
                now = self.model.dropout(self.stale.rows[layer]).index_copy(0, rows[: len(h)], h.detach())
                summed = summed + (self.edges.whole(tree.rows[:count]) @ now - summed).detach()
            h = first_layer(conv, h, summed)
        return h, hidden

    @torch.no_grad()
    def _refresh(self) -> None:
        """Compute rows that are read anew, of the present weights."""
        momentum = self.options.momentum
        self._refresh_first(momentum)
        for layer, (places, sums) in enumerate(self.further, 1):
            rows, conv = self.stale.rows[layer], self.model.convs[layer]
            self.stale.write(layer + 1, places, self.model.act(first_layer(conv, rows[places], sums @ rows)), momentum)

    @torch.no_grad()
    def _refresh_first(self, momentum: float) -> None:
        first = self.model.act(first_layer(self.model.convs[0], self.features.rows, self.sums.rows))
        self.stale.write(1, self.first, first, momentum)

    def _fill(self, batch: TrainerBatch) -> dict[int, torch.Tensor]:
        """Before that, find what the first layer adds up: for own vertices, and, of their owners, for others."""
        graph, view = batch.graph, batch.graph.view
        assert graph.source is not None
        self.edges = OwnEdges(view, self.config.model, batch.x)
        self._agree(batch)
        every = torch.cat([batch.x, graph.source.start(0, "forward", batch.x).finish()])
        mine = self.edges.whole(np.arange(len(view.own))) @ every
        self.features = FixedRows(every[self.first], self.first)
        every = torch.cat([mine, self.exact.start(0, "forward", mine).finish()])
        self.sums = FixedRows(every[self.first], self.first)
        rows = super()._fill(batch)
        self.stale.rows = {n: F.pad(of_mine, (0, 0, 0, view.rows - len(of_mine))) for n, of_mine in rows.items()}
        self.stale.rows[1] = batch.x.new_zeros((view.rows, self.config.hidden))
        self._refresh_first(1)
        steps = max(1, int(self._max(-(-len(batch.targets) // self.options.batch_size))))
        sizes = [len(part) for part in np.array_split(np.arange(len(batch.targets)), steps)]
        self.sizes = [int(n) for n in self._sum(sizes)]
        return rows

    def _agree(self, batch: TrainerBatch) -> None:
        """Find out which rows batches read, or what is computed anew of the next layer, here and elsewhere."""
        view, self.further = batch.graph.view, list[tuple[torch.Tensor, torch.Tensor]]()
        places, own = view.targets, len(view.own)
        for _ in range(self.config.depth - 2):
            read = self.edges.read_for(places)
            asked = batch.x.new_zeros((view.rows - own, 1))
            asked[read[read >= own] - own] = 1
            of_mine = self.exact.start(0, "backward", asked).finish()[:, 0].cpu().numpy()
            shared = np.arange(own) if self.options.rows == "all" else np.flatnonzero(of_mine)
            self.stale.only(shared, read[read >= own])
            places = np.union1d(read[read < own], shared)
            self.further.insert(0, (torch.from_numpy(places).to(self.device), self.edges.whole(places)))
        self.first = torch.from_numpy(self.edges.read_for(places)).to(self.device)

    def travelling(self, rows: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Others compute the first hidden layer's rows themselves."""
        return {layer: of_layer for layer, of_layer in rows.items() if layer > 1}
