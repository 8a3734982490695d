"""SAT in one process: DIGEST whose stale rows are predicted."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from atta.train.exchange.predictors import predictor
from tests.oracles.rows import Digest, Rows


class PlainNet(torch.nn.Module):
    """An LSTM over the changes of a row, each divided by its root mean square, then twice a dense matrix of mean weights."""

    def __init__(self, like: Any, width: int) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(width, width)
        self.lstm.load_state_dict(like.net.lstm.state_dict())
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(2))
        for layer, conv in zip(self.layers, (like.net.first, like.net.last), strict=True):
            layer.load_state_dict({"weight": conv.lin.weight, "bias": conv.bias})

    def forward(self, window: Rows, mixing: torch.Tensor) -> Rows:
        changes = window[1:] - window[:-1]
        scale = (changes**2).mean((0, 2)).sqrt()[:, None]
        last = self.lstm(changes / scale.clamp(min=1e-300))[0][-1]
        hidden = (mixing @ last @ self.layers[0].weight.T + self.layers[0].bias).relu()
        change: Rows = scale * (mixing @ hidden @ self.layers[1].weight.T + self.layers[1].bias)
        return change


class LstmGuess:
    """A network. Each trainer lets a pupil learn from the rows that it publishes; then all take the mean of their weights."""

    def __init__(self, program: Sat, width: int, seed: int) -> None:
        self.own = [program.shared & (program.owners == trainer) for trainer in range(program.world)]
        self.near = [program.near(own, read) for own, read in zip(self.own, program.read, strict=True)]
        self.net = PlainNet(predictor("lstm", width, program.options.window, seed=seed), width).double()
        self.pupils = [copy.deepcopy(self.net) for _ in self.own]
        self.adams = [torch.optim.Adam(pupil.parameters(), 0.01) for pupil in self.pupils]

    @torch.no_grad()
    def change(self, window: Rows) -> Rows:
        """[readers, n, d]."""
        return torch.stack([self.net(window, near) for near in self.near])

    def study(self, window: Rows, fresh: Rows, ahead: float) -> None:
        for pupil, adam, own, near in zip(self.pupils, self.adams, self.own, self.near, strict=True):
            for _ in range(4):
                adam.zero_grad()
                ((window[-1] + ahead * pupil(window, near) - fresh)[own] ** 2).mean().backward()
                adam.step()

    @torch.no_grad()
    def take(self) -> None:
        for same in zip(self.net.parameters(), *(pupil.parameters() for pupil in self.pupils), strict=True):
            mean = torch.stack(same[1:]).mean(0)
            for parameter in same:
                parameter.copy_(mean)


class LinearGuess:
    """A weighted sum of the changes, by least squares over all rows that are published."""

    def __init__(self, program: Sat, width: int, seed: int) -> None:
        self.shared, self.weights = program.shared, torch.zeros(program.options.window - 1, dtype=torch.float64)
        self.learnt = self.weights

    def change(self, window: Rows) -> Rows:
        return torch.tensordot(self.weights, window.diff(dim=0), 1)

    def study(self, window: Rows, fresh: Rows, ahead: float) -> None:
        changes = ahead * window[:, self.shared].diff(dim=0).flatten(1)
        square, product = changes @ changes.T, changes @ (fresh - window[-1])[self.shared].flatten()
        self.learnt = self.weights
        if square.trace() > 0:
            damping = 1e-6 * square.diagonal().mean() * torch.eye(len(square), dtype=torch.float64)
            self.learnt = torch.linalg.solve(square + damping, product)

    def take(self) -> None:
        self.weights = self.learnt


class LayerGuess:
    """What SAT knows of a layer."""

    def __init__(self, program: Sat, layer: int, width: int) -> None:
        kind: Any = {"lstm": LstmGuess, "linear": LinearGuess}[program.options.predictor]
        self.guess: LstmGuess | LinearGuess = kind(program, width, program.options.seed + layer)
        self.count, self.past = program.options.window, list[Rows]()
        self.uses = self.learns = False
        self.best, self.waited = math.inf, 0

    @property
    def window(self) -> Rows:
        kept = self.past[-self.count :]
        return torch.stack(kept[:1] * (self.count - len(kept)) + kept)

    def change(self) -> Rows:
        return self.guess.change(self.window)

    def judge(self, predicted: float, stale: float, most: float) -> None:
        """Squared errors of the HALO rows of all readers."""
        ratio = (predicted / stale) ** 0.5 if stale else 1.0
        self.uses = stale > 0 and ratio <= most
        self.best, self.waited = (ratio, 0) if ratio < self.best else (self.best, self.waited + 1)


class Sat(Digest):
    """As DIGEST, with rows that are predicted from the last synchronisations where the guard lets them: where the rows that
    came last were predicted well enough beforehand."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.layers: dict[int, LayerGuess] = {}
        self.errors: dict[int, tuple[float, float]] = {}
        self.last = 0

    def near(self, own: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """Mean weights [n, n] of a trainer's graph: rows that it publishes and rows that it reads, edges both ways."""
        edges = torch.zeros(len(own), len(own), dtype=torch.bool)
        edges[self.graph.edges[1], self.graph.edges[0]] = True
        edges &= own.unsqueeze(1) & (own | read)  # a partition has the in-edges of its own vertices
        edges = edges | edges.T | torch.eye(len(own), dtype=torch.bool)
        return edges.double() / edges.sum(1, keepdim=True)

    def step(self) -> float:
        self.errors = {}
        return super().step()

    def rows(self, layer: int, fresh: Rows) -> Rows:
        stale, every = super().rows(layer, fresh), self.options.sync_every
        of_layer = self.layers.setdefault(layer, LayerGuess(self, layer, stale.shape[1]))
        if self.pulls and of_layer.past:
            older = of_layer.past[-1]
            guess = older + (self.version - self.last) / every * of_layer.change()
            self.errors[layer] = self.distance(guess, stale), self.distance(older, stale)
        if self.pulls:
            of_layer.past.append(stale)
        return stale + (self.epoch - self.version) / every * of_layer.change() if of_layer.uses else stale

    def distance(self, guess: Rows, came: Rows) -> float:
        return float(((guess - came) ** 2).expand(self.world, *came.shape)[self.read].sum())

    def end(self) -> None:
        super().end()
        self.last = self.version
        for layer, errors in self.errors.items():
            self.layers[layer].judge(*errors, self.options.guard)
        every, half = self.options.train_every, max(1, self.options.train_every // 2)
        for layer, of_layer in self.layers.items():
            if of_layer.learns and (self.epoch - half) % every == 0:
                of_layer.guess.take()
                of_layer.learns = False
            if self.epoch % every == 0 and (of_layer.waited < 10 or not of_layer.uses):
                ahead = (self.epoch - self.version) / self.options.sync_every
                of_layer.guess.study(of_layer.window, self.hidden[layer], ahead)
                of_layer.learns = True
