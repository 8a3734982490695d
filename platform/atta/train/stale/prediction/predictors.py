"""Predicts a layer's rows from their last synchronisations: stale rows plus a correction, which is zero at the start.

| predictor | correction |
|---|---|
| ``LstmPredictor`` | LSTM over a row's past, then two GCN layers over its neighbours |
| ``LinearPredictor`` | a weighted sum of the past changes, with one weight per change for all rows and columns |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch_geometric.nn import GCNConv

from atta.errors import ConfigError
from atta.train.settings.stale import PREDICTORS
from atta.train.stale.prediction.graph import PublishedGraph

__all__ = ["LinearPredictor", "LstmPredictor", "Reduce", "RowPredictor", "predicted", "predictor", "solved"]

Reduce = Callable[[list[torch.Tensor]], None]
"""Replaces tensors, in place, by their means over all trainers."""


class RowPredictor(Protocol):
    """One layer's predictor, the same on all trainers."""

    def __call__(self, window: torch.Tensor, graph: PublishedGraph) -> torch.Tensor:
        """[n, d]: predictions of the ``graph``'s rows from their ``window`` [k, n, d], the oldest first."""

    def learn(
        self, window: torch.Tensor, graph: PublishedGraph, fresh: torch.Tensor, *, seed: int, reduce: Reduce
    ) -> None:
        """Move predictions of the own rows towards ``fresh`` [own, d]. No gradient leaves the predictor.

        All trainers call it together: ``reduce`` is called equally often on each. ``seed``: of the mini-batches.
        """

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved."""


class LstmPredictor(nn.Module):
    """LSTM over the window, then two GCN layers (Zhang et al., SAT), added to the last row.

    The LSTM sees the changes from one version of a row to the next, divided by their root mean square, and the
    correction is multiplied by it. So what was learnt from the large steps of early epochs also holds for small ones.
    The last layer is zero at the start, so predictions then equal the stale rows.
    """

    def __init__(self, width: int, *, lr: float = 0.01, steps: int = 4, batch_rows: int = 1024) -> None:
        """``width``: numbers per row. ``steps``: Adam's steps when it learns, each on ``batch_rows`` own rows."""
        super().__init__()
        self.lstm = nn.LSTM(width, width)
        self.first = GCNConv(width, width, normalize=False)
        self.last = GCNConv(width, width, normalize=False)
        nn.init.zeros_(self.last.lin.weight)
        self._steps, self._batch_rows = steps, batch_rows
        self._adam = torch.optim.Adam(self.parameters(), lr=lr)

    def forward(self, window: torch.Tensor, graph: PublishedGraph) -> torch.Tensor:
        """See ``RowPredictor.__call__``."""
        adjacency, changes = graph.adjacency(window), window.diff(dim=0)
        scale = changes.square().mean((0, 2)).sqrt().unsqueeze(1)
        _, (hidden, _) = self.lstm(changes / scale.clamp(min=torch.finfo(scale.dtype).tiny))
        correction: torch.Tensor = self.last(self.first(hidden[-1], adjacency).relu(), adjacency)
        return window[-1] + scale * correction

    def learn(
        self, window: torch.Tensor, graph: PublishedGraph, fresh: torch.Tensor, *, seed: int, reduce: Reduce
    ) -> None:
        """See ``RowPredictor.learn``: steps on the mean squared error of random own rows."""
        window, fresh = window.detach(), fresh.detach()
        draws = torch.Generator().manual_seed(seed)
        for _ in range(self._steps):
            targets = torch.randperm(graph.own, generator=draws)[: self._batch_rows].to(window.device)
            near, rows, places = graph.around(targets)
            with torch.enable_grad():
                loss = (self(window[:, rows], near)[places] - fresh[targets]).square().sum()
                loss = loss / max(1, targets.numel() * window.shape[2])
            self._adam.zero_grad(set_to_none=False)
            gradients = torch.autograd.grad(loss, list(self.parameters()))
            for parameter, gradient in zip(self.parameters(), gradients, strict=True):
                parameter.grad = gradient
            reduce(list(gradients))
            self._adam.step()
        for parameter in self.parameters():
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves."""
        return {"weights": self.state_dict(), "adam": self._adam.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved."""
        self.load_state_dict(state["weights"])
        self._adam.load_state_dict(state["adam"])


class LinearPredictor(nn.Module):
    """The last row plus a weighted sum of the changes from one version of the window to the next.

    Its weights are the least-squares solution of the last ``learn``.
    """

    weights: torch.Tensor

    def __init__(self, count: int, *, damping: float = 1e-6) -> None:
        """``count``: versions of the window, at least 2. ``damping``: added to the diagonal, as a share of its mean."""
        super().__init__()
        if count < 2:
            raise ConfigError(f"linear predictor: a window of {count} versions has no changes; take at least 2")
        self.register_buffer("weights", torch.zeros(count - 1, dtype=torch.float64))
        self._damping = damping

    def forward(self, window: torch.Tensor, graph: PublishedGraph) -> torch.Tensor:
        """See ``RowPredictor.__call__``; neighbours do not count."""
        return window[-1] + torch.einsum("k,knd->nd", self.weights.to(window.dtype), window.diff(dim=0))

    def learn(
        self, window: torch.Tensor, graph: PublishedGraph, fresh: torch.Tensor, *, seed: int, reduce: Reduce
    ) -> None:
        """See ``RowPredictor.learn``. The normal equations of all trainers are averaged, so all get the same weights."""
        own = window[:, : graph.own].detach().double()
        changes = own.diff(dim=0).flatten(1)
        error = (fresh.detach().double() - own[-1]).flatten()
        square, product = changes @ changes.T, changes @ error
        reduce([square, product])
        if float(square.diagonal().sum()) > 0:
            damping = self._damping * square.diagonal().mean()
            self.weights.copy_(solved(square + damping * torch.eye(len(square)).to(square), product))

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves."""
        return {"weights": self.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved."""
        self.load_state_dict(state["weights"])


def solved(square: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    """[k]: x with ``square @ x = product``, for a positive definite ``square`` [k, k], by elimination.

    The last bits of LAPACK's solution depend on where its buffers lie, so a run that is resumed would differ.
    """
    rows = torch.cat([square, product.unsqueeze(1)], 1).cpu()
    for pivot in range(len(rows)):
        rows[pivot] /= rows[pivot, pivot].clone()
        others = rows[:, pivot].clone()
        others[pivot] = 0
        rows -= others.unsqueeze(1) * rows[pivot]
    return rows[:, -1].to(square.device)


def predictor(kind: str, width: int, count: int, *, seed: int = 0) -> LstmPredictor | LinearPredictor:
    """A new predictor of rows of ``width`` numbers from ``count`` versions; equal seeds give equal weights.

    Raises:
        ConfigError: an unknown kind, or too few versions for it.
    """
    if kind not in PREDICTORS:
        raise ConfigError(f"predictor {kind!r}: must be one of {', '.join(PREDICTORS)}")
    if kind == "linear":
        return LinearPredictor(count)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LstmPredictor(width)


@torch.no_grad()
def predicted(by: RowPredictor, window: torch.Tensor, graph: PublishedGraph) -> torch.Tensor:
    """[rows, d]: constants for the GNN, so its loss does not reach the predictor."""
    return by(window, graph)
