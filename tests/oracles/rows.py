"""What training must come to: each strategy as one process with dense float64 matrices, written from its paper.

All vertices are rows of one matrix. Each trainer computes the rows of its own vertices with weights of its own, which
an epoch makes equal again. ``cuts`` has the edges of each reader that come from trainers whose rows may be stale.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from atta.train.models import whole_model

Rows = torch.Tensor
NOW = None
"""Gradients that come back in the epoch in which the rows were read."""


class Epoch(NamedTuple):
    """The mean loss of an epoch, and the gradients and weights after it."""

    loss: float
    gradients: list[torch.Tensor]
    weights: list[torch.Tensor]


def mixing(graph: SimpleNamespace, model: str) -> torch.Tensor:
    """Weights of edges [targets, sources]: the mean over in-edges, or GCN's. Multi-edges count several times."""
    source, target = graph.edges
    counts = torch.zeros(len(graph.x), len(graph.x), dtype=torch.float64)
    counts.index_put_((target, source), torch.ones(len(source), dtype=torch.float64), accumulate=True)
    if model == "sage":
        return counts / counts.sum(1, keepdim=True).clamp(min=1)
    counts.fill_diagonal_(1.0)
    scale = counts.sum(1).rsqrt()
    return scale.unsqueeze(1) * counts * scale


class Exact:
    """Edges over the cut read rows of this epoch, and their gradients come back in it. Other programs differ in ``rows``
    and ``back``."""

    def __init__(self, graph: SimpleNamespace, options: Any, owners: torch.Tensor, rate: float | None = None) -> None:
        """``options``: of ``atta train``; ``owners``: int64 [n], the trainer of each vertex; ``rate``: of plain descent."""
        self.graph, self.options, self.owners, self.world = graph, options, owners, options.trainers
        group = owners if options.stale_across == "trainers" else owners // options.trainers_per_server
        weights, cut = mixing(graph, options.model), group.unsqueeze(1) != group
        self.inner = weights * ~cut
        self.cuts = torch.stack([weights * cut * (owners == reader).unsqueeze(1) for reader in range(self.world)])
        self.read = (self.cuts != 0).any(1)  # [reader, vertex]: HALO vertices of each reader
        self.shared = self.read.any(0)
        torch.manual_seed(options.seed)
        model = whole_model(options.own, graph.x.shape[1], int(graph.y.max()) + 1).double()
        self.models = [copy.deepcopy(model) for _ in range(self.world)]
        kind: Any = torch.optim.SGD if rate is not None else torch.optim.Adam
        how = {"lr": rate} if rate is not None else {"lr": options.lr, "weight_decay": options.weight_decay}
        self.optimisers = [kind(one.parameters(), **how) for one in self.models]
        self.epoch = 0
        self.returned: dict[int, list[Rows]] = {}  # by layer: gradients of what each reader has read in the last epoch
        self._leaves: dict[int, list[Rows]] = {}

    def run(self) -> Iterator[Epoch]:
        for epoch in range(1, self.options.epochs + 1):
            self.epoch = epoch
            loss = self.step()
            gradients = [p.grad.clone() for p in self.models[0].parameters() if p.grad is not None]
            yield Epoch(loss, gradients, [p.detach().clone() for p in self.models[0].parameters()])

    def rows(self, layer: int, fresh: Rows) -> Rows:
        """What edges over the cut read in this epoch, [n, d] or [readers, n, d]; ``fresh``: rows of this epoch."""
        return fresh

    def back(self, layer: int) -> Sequence[Rows | None]:
        """For each reader the gradients [n, d] that come back from it."""
        return [NOW] * self.world

    def end(self) -> None:
        """Called when the weights have changed."""

    def step(self) -> float:
        scores = self.forward()
        for one in self.models:
            one.zero_grad()
        each = F.cross_entropy(scores, self.graph.y, reduction="none") * self.graph.train
        (self.objective(each) + self._older).backward()
        self.returned = {
            layer: [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in of_layer]
            for layer, of_layer in self._leaves.items()
        }
        self.update()
        self.end()
        return float(each.detach().sum() / self.graph.train.sum())

    def objective(self, each: torch.Tensor) -> torch.Tensor:
        if getattr(self.options, "loss", "global") == "global":
            return each.sum() / self.graph.train.sum()
        mine = [self.owners == reader for reader in range(self.world)]
        return torch.stack([each[of_one].sum() / self.graph.train[of_one].sum().clamp(min=1) for of_one in mine]).mean()

    def forward(self, *, exact: bool = False) -> Rows:
        h, everybody = self.graph.x, torch.arange(len(self.owners))
        self._older = torch.zeros((), dtype=torch.float64)
        self.hidden: dict[int, Rows] = {}
        for layer, convs in enumerate(zip(*(one.convs for one in self.models), strict=True)):  # type: ignore[arg-type]
            if layer:
                h = h.relu()
                self.hidden[layer] = h.detach()
            across = self._across(layer, h) if layer and not exact else h
            mixed = self.inner @ h + (self.cuts @ across).sum(0)
            h = torch.stack([self.layer(conv, mixed, h) for conv in convs])[self.owners, everybody]
        return h

    def layer(self, conv: Any, mixed: Rows, h: Rows) -> Rows:
        if self.options.model == "sage":
            return conv.lin_l(mixed) + conv.lin_r(h)  # type: ignore[no-any-return]
        return conv.lin(mixed) + conv.bias  # type: ignore[no-any-return]

    def _across(self, layer: int, h: Rows) -> Rows:
        read = self.rows(layer, h.detach()).expand(self.world, *h.shape)
        leaves = self._leaves[layer] = []
        for rows, gradient in zip(read, self.back(layer), strict=True):
            leaf = h + (rows - h).detach() if gradient is NOW else rows.clone().requires_grad_()
            leaf.retain_grad()
            leaves.append(leaf)
            if gradient is not NOW:
                self._older = self._older + (h * gradient).sum()
        return torch.stack(leaves)

    def update(self) -> None:
        """One step of all trainers on the sum of their gradients, or the mean of the weights that each comes to."""
        alone, clip = getattr(self.options, "average", "") == "weights", getattr(self.options, "clip_grad", None)
        every = [list(one.parameters()) for one in self.models]
        for parameters in every:
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(parameters, clip / self.world**0.5)
        for same in zip(*every, strict=True):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in same]
            for parameter, own in zip(same, gradients, strict=True):
                parameter.grad = own * self.world if alone else torch.stack(gradients).sum(0)
        for optimiser in self.optimisers:
            optimiser.step()
        with torch.no_grad():
            for same in zip(*every, strict=True):
                mean = torch.stack(same).mean(0)  # type: ignore[arg-type]
                for parameter in same:
                    parameter.copy_(mean)


class Sancus(Exact):
    """Definitions 1 to 3: rows, or with ``skip=gradients`` gradients, are sent when the copies of readers are too old or,
    with ``bound=gap``, too different. ``behind``: by how many epochs each trainer lags, for definition 2."""

    def __init__(self, *given: Any, behind: Callable[[int], Sequence[int]] = lambda epoch: (0,) * 99) -> None:
        super().__init__(*given)
        self.behind, self.limit = behind, self.options.eps
        self.sent: dict[int, list[int]] = {}
        self.held: dict[int, Rows] = {}
        self.due: dict[int, list[bool]] = {}

    def rows(self, layer: int, fresh: Rows) -> Rows:
        if self.options.skip == "gradients":
            return fresh
        due = torch.tensor(self._due(layer, fresh))[self.owners]
        self.held[layer] = torch.where(due.unsqueeze(1), fresh, self.held.get(layer, fresh))
        return self.held[layer]

    def back(self, layer: int) -> Sequence[Rows | None]:
        if self.options.skip == "rows":
            return super().back(layer)
        due = self._due(layer, None)
        return [NOW if now else self.held[layer][reader] for reader, now in enumerate(due)]

    def end(self) -> None:
        for layer in self.returned if self.options.skip == "gradients" else ():
            fresh, due = torch.stack(self.returned[layer]), torch.tensor(self.due[layer])[:, None, None]
            self.held[layer] = torch.where(due, fresh, self.held.get(layer, fresh))

    def _due(self, layer: int, fresh: Rows | None) -> list[bool]:
        sent, behind = self.sent.setdefault(layer, [-99] * self.world), self.behind(self.epoch)
        found = []
        for trainer in range(self.world):
            mine = self.shared & (self.owners == trainer)
            far = self.epoch - sent[trainer] > self.limit
            if self.options.bound == "adaptive":
                far = self.epoch - sent[trainer] + behind[trainer] > self.limit
            elif self.options.bound == "gap" and sent[trainer] > 0:
                assert fresh is not None
                far = bool((fresh - self.held[layer])[mine].abs().mean() > self.limit)
            found.append(bool(self.epoch <= self.options.warmup or far))
        self.sent[layer] = [self.epoch if now else then for now, then in zip(found, sent, strict=True)]
        self.due[layer] = found
        return found


class PipeGcn(Exact):
    """Rows and gradients of the epoch before, or their moving means; the first epoch is exact."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.before: dict[int, Rows] = {}
        self.means: dict[Any, Rows] = {}

    def rows(self, layer: int, fresh: Rows) -> Rows:
        found = self._mean(("rows", layer), self.before.get(layer, fresh))
        self.before[layer] = fresh
        return found

    def back(self, layer: int) -> Sequence[Rows | None]:
        if self.epoch == 1:
            return super().back(layer)
        return [self._mean((layer, n), gradient) for n, gradient in enumerate(self.returned[layer])]

    def _mean(self, key: Any, new: Rows) -> Rows:
        decay = self.options.smooth or 0.0
        self.means[key] = (1 - decay) * new + decay * self.means.get(key, new)
        return self.means[key]


class Digest(Exact):
    """Algorithm 1: rows of the last synchronisation, which an exact pass before the first epoch fills; gradients end at the
    cut, or are those of a synchronisation of their own. ``phase=early`` pulls an epoch after each push."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.forward(exact=True)
        self.pushed: dict[int, dict[int, Rows]] = {0: self.hidden}  # rows by epoch and layer
        self.came: dict[int, dict[int, list[Rows]]] = {}  # gradients
        self.version = self.gradient_version = 0

    def step(self) -> float:
        early = self.options.phase == "early"
        self.pulls = self.epoch == 1 or (self.epoch - early) % self.options.sync_every == 0
        if self.pulls and self.epoch > 1:
            self.version = max(self.pushed)
        every = self.options.grad_sync_every
        if every is not None and self.came and (self.epoch - early) % every == 0:
            self.gradient_version = max(self.came)
        return super().step()

    def end(self) -> None:
        ago = 0 if self.options.phase == "early" else 1
        if (self.epoch - ago) % self.options.sync_every == 0:
            self.pushed[self.epoch] = self.hidden
        every = self.options.grad_sync_every
        if every is not None and (self.epoch - ago) % every == 0:
            self.came[self.epoch] = self.returned

    def rows(self, layer: int, fresh: Rows) -> Rows:
        found = self.pushed[self.version][layer]
        return F.normalize(found, dim=1) if self.options.normalize_rows else found

    def back(self, layer: int) -> Sequence[Rows | None]:
        if self.gradient_version == 0:
            return [torch.zeros_like(self.hidden[layer])] * self.world
        return self.came[self.gradient_version][layer]
