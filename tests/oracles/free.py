"""Training without barriers in one process, in the order in which things have happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from atta.train.models import whole_model
from tests.oracles.rows import Digest, Rows, mixing


class AsyncDigest(Digest):
    """DIGEST-A: in a turn, a trainer takes the weights and rows that there are and computes a gradient. In its next turn the
    gradient becomes a step of Adam on the weights that there are by then."""

    def updates(self, turns: Sequence[int]) -> Iterator[Rows]:
        """The weights after each update. turns: the trainer of each turn."""
        start = parameters_to_vector(self.models[0].parameters()).detach().clone()
        weights = torch.nn.Parameter(start)
        adam = torch.optim.Adam([weights], self.options.lr / self.world, weight_decay=self.options.weight_decay)
        self.table, steps, waiting = dict(self.pushed[0]), [0] * self.world, dict[int, Rows]()
        self.held = {layer: rows.repeat(self.world, 1, 1) for layer, rows in self.table.items()}
        for trainer in turns:
            if trainer not in waiting:
                steps[trainer] += 1
                waiting[trainer] = self.gradient(trainer, steps[trainer], weights.detach())
                continue
            weights.grad = waiting.pop(trainer)
            adam.step()
            yield weights.detach().clone()

    def gradient(self, trainer: int, step: int, weights: Rows) -> Rows:
        mine, model = self.owners == trainer, self.models[trainer]
        vector_to_parameters(weights.clone(), model.parameters())
        for layer, rows in self.table.items() if (step - 1) % self.options.sync_every == 0 else ():
            self.held[layer][trainer] = rows
        scores, chosen = self.forward(), mine & self.graph.train
        model.zero_grad()
        loss = F.cross_entropy(scores[chosen], self.graph.y[chosen], reduction="sum") / self.graph.train.sum()
        loss.backward()
        if step % self.options.sync_every == 0:
            for layer, rows in self.hidden.items():
                self.table[layer] = torch.where(mine.unsqueeze(1), rows, self.table[layer])
        return parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None])

    def rows(self, layer: int, fresh: Rows) -> Rows:
        return self.held[layer]

    def back(self, layer: int) -> Sequence[Rows | None]:
        return [torch.zeros_like(self.hidden[layer])] * self.world


Interval = tuple[int, int]
"""Of a trainer: its rank, and a number."""


class Dorylus:
    """GCN in intervals. An interval computes an epoch, forward and backward, with the weights of one version. It gathers
    rows and gradients of the epochs that others have scattered last. Weights change when all intervals have a gradient."""

    def __init__(
        self,
        graph: SimpleNamespace,
        options: Any,
        intervals: Mapping[Interval, torch.Tensor],
        read: Mapping[tuple[str, int, Interval, int], Mapping[Interval, int]],
        version: Mapping[tuple[Interval, int], int],
    ) -> None:
        """``intervals``: vertices, int64; ``read``: by part, layer, interval and epoch, the epoch of what it gathers of each
        interval; ``version``: of the weights, by interval and epoch. Epochs count from 0."""
        self.graph, self.members, self.read, self.version = graph, intervals, read, version
        torch.manual_seed(options.seed)
        model = whole_model(options.own, graph.x.shape[1], int(graph.y.max()) + 1).double()
        self.mixing, self.layers = mixing(graph, "gcn"), options.layers
        self.shapes = [[tuple(p.shape) for p in conv.parameters()] for conv in model.convs]  # type: ignore[union-attr]
        self.names = [[name for name, _ in conv.named_parameters()] for conv in model.convs]  # type: ignore[union-attr]
        self.parameters = list(model.parameters())
        self.adam = torch.optim.Adam(self.parameters, options.lr, weight_decay=options.weight_decay)
        self.weights = [[p.detach().clone() for p in self.parameters]]
        self.apply, self.gathered = cache(self._apply), cache(self._gathered)

    def epoch(self, number: int) -> tuple[float, Rows]:
        """The loss of an epoch, and the weights after it."""
        while len(self.weights) < number + 2:
            done = [
                self.apply(layer, one, len(self.weights) - 1) for layer in range(self.layers) for one in self.members
            ]
            gradients = [torch.stack(same).sum(0) for same in zip(*self._by_layer(done), strict=True)]
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            self.adam.step()
            self.weights.append([p.detach().clone() for p in self.parameters])
        losses = [float(self.apply(self.layers - 1, one, number)[0].detach()) for one in self.members]
        return sum(losses), torch.cat([p.flatten() for p in self.weights[number + 1]])

    def _by_layer(self, done: list[Any]) -> Iterator[list[Rows]]:
        """The gradients of all parameters, of each interval."""
        count = len(self.members)
        for one in range(count):
            yield [gradient for layer in range(self.layers) for gradient in done[layer * count + one][2]]

    def _apply(self, layer: int, one: Interval, epoch: int) -> tuple[Rows, Rows, list[Rows]]:
        """What a layer makes (the loss, of the last one), and the gradients of its sums and of its weights."""
        sums = self.gathered("gather", layer, one, epoch).clone().requires_grad_()
        first = sum(len(names) for names in self.names[:layer])
        held = self.weights[self.version[one, epoch]][first : first + len(self.names[layer])]
        own = {name: weight.clone().requires_grad_() for name, weight in zip(self.names[layer], held, strict=True)}
        made = sums @ own["lin.weight"].T + own["bias"]
        if layer < self.layers - 1:
            gradient = self.gathered("gather-back", layer, one, epoch)
            found = torch.autograd.grad(made.relu(), [sums, *own.values()], gradient)
            return made.relu().detach(), found[0], list(found[1:])
        rows = self.members[one]
        each = F.cross_entropy(made, self.graph.y[rows], reduction="none") * self.graph.train[rows]
        loss = each.sum() / self.graph.train.sum()
        found = torch.autograd.grad(loss, [sums, *own.values()])
        return loss, found[0], list(found[1:])

    def _gathered(self, part: str, layer: int, one: Interval, epoch: int) -> Rows:
        """Sums that a layer reads, or the gradient of the rows that it makes."""
        mine = self.members[one]
        if part == "gather" and layer == 0:
            return self.mixing[mine] @ self.graph.x
        total, forward = torch.zeros((), dtype=torch.float64), part == "gather"
        for other, of_epoch in self.read[part, layer, one, epoch].items():
            theirs = self.members[other]
            if forward:
                total = total + self.mixing[mine][:, theirs] @ self.made(layer - 1, other, of_epoch)
            else:
                total = total + self.mixing[theirs][:, mine].T @ self.apply(layer + 1, other, of_epoch)[1]
        return total

    @cache  # noqa: B019
    def made(self, layer: int, one: Interval, epoch: int) -> Rows:
        """The rows of an interval, without what backward needs."""
        weights = self.weights[self.version[one, epoch]]
        first = sum(len(names) for names in self.names[:layer])
        own = dict(zip(self.names[layer], weights[first:], strict=False))
        return (self.gathered("gather", layer, one, epoch) @ own["lin.weight"].T + own["bias"]).relu()
