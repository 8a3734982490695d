"""Predicts how a layer's rows change after their last synchronisation. At the start the change is zero. A row that was
synchronised a part of the period ago has changed by this part. Trainers learn in three steps: each studies by itself,
all add up what they share, and each takes the sums. So all have the same predictor."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import GCNConv
from torch_geometric.utils import add_self_loops, k_hop_subgraph, remove_self_loops, to_undirected

from atta.errors import ConfigError
from atta.train.models import adjacency
from atta.train.settings.servers import PREDICTORS

HOPS = 2
"""A predictor's layers: as many hops around a row decide its prediction."""


@dataclass(frozen=True)
class PublishedGraph:
    """``own`` rows that others read, then HALO rows: a partition with one hop around it, less the rows without a past.

    A partition has no in-edges of HALO rows, so edges are taken in both directions. Each row has an edge to itself. The
    weights of a row's in-edges add up to 1, so hubs do not get larger rows than others.

    Attributes:
        edge_index: int64 [2, e], sources and targets.
        weights: [e].
    """

    own: int
    rows: int
    edge_index: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, edge_index: torch.Tensor, *, own: int, rows: int) -> PublishedGraph:
        """The graph of a partition's edges ``edge_index`` int64 [2, e] among these rows, in one direction or both.
        Raises ConfigError: an edge ends outside the rows."""
        if not 0 <= own <= rows or (
            edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < rows
        ):
            raise ConfigError(f"predictor: edges do not fit {own} own rows of {rows}")
        edges = add_self_loops(to_undirected(remove_self_loops(edge_index)[0], num_nodes=rows), num_nodes=rows)[0]
        edges = edges[:, torch.argsort(edges[1], stable=True)]
        degrees = torch.bincount(edges[1], minlength=rows)
        return cls(own, rows, edges, 1.0 / degrees[edges[1]])

    def adjacency(self, like: torch.Tensor) -> torch.Tensor:
        """CSR [targets, sources] in the dtype and on the device of ``like``; PyG multiplies rows by it."""
        sources, targets = self.edge_index
        csr = adjacency(sources, targets, self.weights, (self.rows, self.rows))
        return csr.to(device=like.device, dtype=like.dtype)

    def around(self, targets: torch.Tensor) -> tuple[PublishedGraph, torch.Tensor, torch.Tensor]:
        """What decides the predictions of ``targets`` (distinct rows): a smaller graph, its rows here, the targets
        there. Weights stay as they are, so predictions of the targets are those of the whole graph."""
        subset, edges, places, kept = k_hop_subgraph(
            targets, HOPS, self.edge_index, relabel_nodes=True, num_nodes=self.rows
        )
        return PublishedGraph(0, len(subset), edges, self.weights[kept]), subset, places


class _Net(nn.Module):
    """LSTM over a row's changes, then two GCN layers, of which the last is zero at the start. Changes are scaled by their
    root mean square, so that what was learnt from large steps of early epochs also holds for small ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width)
        self.first = GCNConv(width, width, normalize=False)
        self.last = GCNConv(width, width, normalize=False)
        nn.init.zeros_(self.last.lin.weight)

    def forward(self, window: torch.Tensor, graph: PublishedGraph) -> torch.Tensor:
        adjacency, changes = graph.adjacency(window), window.diff(dim=0)
        scale = changes.square().mean((0, 2)).sqrt().unsqueeze(1)
        _, (hidden, _) = self.lstm(changes / scale.clamp(min=torch.finfo(scale.dtype).tiny))
        change: torch.Tensor = self.last(self.first(hidden[-1], adjacency).relu(), adjacency)
        return scale * change


class LstmPredictor(nn.Module):
    """A network (Zhang et al., SAT) that each trainer improves by itself; then the weights are averaged. So to learn
    takes one sum of weights, not one of gradients per step. Adam's moments stay on each trainer. While it learns,
    ``net`` predicts and ``pupil`` changes; both are equal after ``take``."""

    def __init__(self, width: int, *, lr: float = 0.01, steps: int = 4, batch_rows: int = 1024) -> None:
        """``width``: numbers per row. ``steps``: Adam's steps of a ``study``, each on ``batch_rows`` own rows."""
        super().__init__()
        self.net = _Net(width)
        self.pupil = copy.deepcopy(self.net)
        self._lr, self._steps, self._batch_rows = lr, steps, batch_rows
        self._adam = torch.optim.Adam(self.pupil.parameters(), lr)
        self._studied = False

    def forward(self, window: torch.Tensor, graph: PublishedGraph) -> torch.Tensor:
        """[n, d]: how the ``graph``'s rows change until the next synchronisation. window: [k, n, d], their last
        synchronisations, the oldest first."""
        change: torch.Tensor = self.net(window, graph)
        return change

    def study(
        self, window: torch.Tensor, graph: PublishedGraph, fresh: torch.Tensor, *, ahead: float, seed: int
    ) -> None:
        """Learn by itself: steps on the mean squared error of random own rows. Another thread may predict meanwhile.
        fresh: [own, d], own rows as they are now, ``ahead`` periods after their synchronisation. seed: of the
        mini-batches."""
        self._studied = graph.own > 0
        window, fresh = window.detach(), fresh.detach()
        draws = torch.Generator().manual_seed(seed)
        for _ in range(self._steps if self._studied else 0):
            targets = torch.randperm(graph.own, generator=draws)[: self._batch_rows].to(window.device)
            near, rows, places = graph.around(targets)
            with torch.enable_grad():
                change = self.pupil(window[:, rows], near)[places]
                loss = (window[-1, targets] + ahead * change - fresh[targets]).square().mean()
            gradients = torch.autograd.grad(loss, list(self.pupil.parameters()))
            for parameter, gradient in zip(self.pupil.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self._adam.step()
        self._adam.zero_grad()

    @torch.no_grad()
    def shares(self) -> list[torch.Tensor]:
        """The weights, then 1. All are 0 of a trainer that has no rows to learn from."""
        flat = torch.cat([parameter.reshape(-1) for parameter in self.pupil.parameters()])
        share = torch.cat([flat, flat.new_ones(1)])
        return [share if self._studied else torch.zeros_like(share)]

    @torch.no_grad()
    def take(self, sums: list[torch.Tensor]) -> None:
        """Weights that are not finite are forgotten, by all trainers alike."""
        (total,) = sums
        means = total[:-1] / total[-1]
        if bool(torch.isfinite(means).all()):
            parameters = list(self.net.parameters())
            for parameter, mean in zip(parameters, means.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(mean.view_as(parameter))
        elif bool(total[-1] > 0):
            self._adam = torch.optim.Adam(self.pupil.parameters(), self._lr)
        self.pupil.load_state_dict(self.net.state_dict())
        self._studied = False

    def state(self) -> dict[str, Any]:
        return {"weights": self.state_dict(), "adam": self._adam.state_dict(), "studied": self._studied}

    def load_state(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state["weights"])
        self._adam.load_state_dict(state["adam"])
        self._studied = bool(state["studied"])


class LinearPredictor(nn.Module):
    """A weighted sum of the changes from one version of the window to the next. Its weights are the least-squares
    solution over the own rows of all trainers, as of the last ``take``."""

    weights: torch.Tensor
    square: torch.Tensor
    product: torch.Tensor

    def __init__(self, count: int, *, damping: float = 1e-6) -> None:
        """``count``: versions of the window, at least 2. ``damping``: added to the diagonal, as a share of its mean."""
        super().__init__()
        if count < 2:
            raise ConfigError(f"linear predictor: a window of {count} versions has no changes; take at least 2")
        self.register_buffer("weights", torch.zeros(count - 1, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(count - 1, count - 1, dtype=torch.float64))
        self.register_buffer("product", torch.zeros(count - 1, dtype=torch.float64))
        self._damping = damping

    def forward(self, window: torch.Tensor, graph: PublishedGraph) -> torch.Tensor:
        """Neighbours do not count."""
        return torch.einsum("k,knd->nd", self.weights.to(window.dtype), window.diff(dim=0))

    def study(
        self, window: torch.Tensor, graph: PublishedGraph, fresh: torch.Tensor, *, ahead: float, seed: int
    ) -> None:
        """This trainer's part of the normal equations."""
        own = window[:, : graph.own].detach().double()
        changes = ahead * own.diff(dim=0).flatten(1)
        error = (fresh.detach().double() - own[-1]).flatten()
        self.square.copy_(changes @ changes.T)
        self.product.copy_(changes @ error)

    def shares(self) -> list[torch.Tensor]:
        return [self.square.clone(), self.product.clone()]

    def take(self, sums: list[torch.Tensor]) -> None:
        """Without changes the weights stay."""
        square, product = sums
        if float(square.diagonal().sum()) > 0:
            damping = self._damping * square.diagonal().mean()
            self.weights.copy_(solve(square + damping * torch.eye(len(square)).to(square), product))

    def state(self) -> dict[str, Any]:
        return {"weights": self.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state["weights"])


def solve(square: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    """[k]: x with ``square @ x = product``, for a positive definite ``square`` [k, k], by elimination. The last bits of
    LAPACK's solution depend on where its buffers lie, so a run that is resumed would differ."""
    rows = torch.cat([square, product.unsqueeze(1)], 1).cpu()
    for pivot in range(len(rows)):
        rows[pivot] /= rows[pivot, pivot].clone()
        others = rows[:, pivot].clone()
        others[pivot] = 0
        rows -= others.unsqueeze(1) * rows[pivot]
    return rows[:, -1].to(square.device)


def predictor(kind: str, width: int, count: int, *, seed: int = 0) -> LstmPredictor | LinearPredictor:
    """A new predictor of rows of ``width`` numbers from ``count`` versions; equal seeds give equal weights. Raises
    ConfigError: an unknown kind, or too few versions for it."""
    if kind not in PREDICTORS:
        raise ConfigError(f"predictor {kind!r}: must be one of {', '.join(PREDICTORS)}")
    if kind == "linear":
        return LinearPredictor(count)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LstmPredictor(width)


@torch.no_grad()
def predict_changes(by: LstmPredictor | LinearPredictor, window: torch.Tensor, graph: PublishedGraph) -> torch.Tensor:
    """[rows, d], changes: constants for the GNN, so its loss does not reach the predictor."""
    change: torch.Tensor = by(window, graph)
    return change
