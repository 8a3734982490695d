"""Random runs of the weights of jobs: trainers and intervals whose messages are lost, late, repeated and out of order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atta.errors import ConfigError, UnknownClientError
from atta.kvstore.parameter_jobs import ArrivalJob, Pushed, SummedJob
from atta.kvstore.parameters import ParameterSpec, VectorStep
from tests.unit.invariants import validate

SGD = VectorStep("sgd", 1.0)
_DRAWN = np.random.default_rng(0)
_NUMBERS = (_DRAWN.normal(size=64) * 10.0 ** _DRAWN.integers(-3, 4, 64)).tolist()


@dataclass
class Network:
    """Requests under way: any of them arrives next; it may be lost or stay to arrive again."""

    rng: random.Random
    lose: float = 0.15
    repeat: float = 0.2
    waiting: list[Callable[[], None]] = field(default_factory=list)
    delivered: int = 0
    lost: int = 0
    repeated: int = 0

    def send(self, request: Callable[[], None]) -> None:
        if self.rng.random() >= self.lose:
            self.waiting.append(request)
        else:
            self.lost += 1

    def deliver(self) -> bool:
        if not self.waiting:
            return False
        at = self.rng.randrange(len(self.waiting))
        again = self.rng.random() < self.repeat
        request = self.waiting[at] if again else self.waiting.pop(at)
        self.delivered += 1
        self.repeated += again
        request()
        return True


class ArrivalRun:
    """Trainers that die and start again, on one job; ``play`` checks each answer."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.members, self.steps = self.rng.randint(1, 4), self.rng.randint(1, 4)
        self.bound = self.rng.choice([None, 0, 1, 2])
        self.spec = ParameterSpec("job", (self.members,), self.members, "arrival", SGD, "<f8", self.bound, lease_s=10.0)
        self.job = ArrivalJob(self.spec, np.zeros(self.members), 0.0)
        self.now, self.network = 0.0, Network(self.rng)
        self.lives = [1] * self.members
        self.joins = [0] * self.members  # the last life that has joined
        self.knows: list[int | None] = [None] * self.members  # the step that the present life may go on with
        self.began = [-1] * self.members
        self.applied: set[tuple[int, int]] = set()
        self.updates = np.zeros(self.members)
        self.done = [0] * self.members
        self.oldest = 0

    def play(self) -> None:
        """Until each trainer has heard of ``steps`` steps, then every late message comes once more."""
        late = 0
        while min(self.done) < self.steps:
            late += 1
            assert late < 20_000, "the run does not end"
            event = self.rng.random()
            if event < 0.02:
                self.now += self.rng.choice([1.0, 11.0])
            elif event < 0.04:
                self.restart(self.rng.randrange(self.members))
            elif event < 0.5:
                self.act(self.rng.randrange(self.members))
            elif self.network.deliver():
                validate(self.job)
        self.network.repeat = 0.0
        while self.network.deliver():
            validate(self.job)
        assert self.job.weights.stashed == 0
        assert self.job.weights.version == len(self.applied) == int(self.updates.sum())
        assert np.array_equal(self.job.weights.of(self.job.weights.version), -self.updates)

    def restart(self, member: int) -> None:
        self.lives[member] += 1
        self.knows[member], self.began[member] = None, -1

    def act(self, member: int) -> None:
        life, step = self.lives[member], self.knows[member]
        if step is None:
            self.network.send(lambda: self.joined(member, life))
        elif self.began[member] < step:
            self.network.send(lambda: self.begun(member, life, step))
        else:
            self.network.send(lambda: self.pushed(member, life, step))

    def joined(self, member: int, life: int) -> None:
        try:
            step = self.job.join(member, life, self.now)
        except UnknownClientError:
            self.lost(member, life)
            return
        assert life >= self.joins[member]
        self.joins[member] = life
        if life == self.lives[member] and self.knows[member] is None:
            self.knows[member] = step

    def begun(self, member: int, life: int, step: int) -> None:
        try:
            found = self.job.begin(member, life, step, self.now)
        except UnknownClientError:
            self.lost(member, life)
            return
        except ConfigError:  # late: this step is over
            assert (member, step) in self.applied
            return
        if found is not None and life == self.lives[member]:
            assert self.bound is None or self.job.spread <= self.bound
            self.began[member] = max(self.began[member], step)

    def pushed(self, member: int, life: int, step: int) -> None:
        gradient = np.zeros(self.members)
        gradient[member] = 1.0
        before = self.job.weights.version
        try:
            found = self.job.push(member, life, step, gradient, self.now)
        except UnknownClientError:
            assert self.job.weights.version == before
            self.lost(member, life)
            return
        assert found.applied == ((member, step) not in self.applied)
        assert self.job.weights.version == before + found.applied
        if found.applied:
            assert life == self.joins[member], "an earlier life changed the weights"
            self.applied.add((member, step))
            self.updates[member] += 1
        if life == self.lives[member] and self.knows[member] == step:
            self.knows[member] = step + 1
            self.done[member] += 1

    def lost(self, member: int, life: int) -> None:
        """A trainer that is told that its lease is over joins with a later life."""
        if life == self.lives[member]:
            self.restart(member)


class SummedRun:
    """Intervals of one job, each computed by several processes; ages of the values that intervals read."""

    def __init__(self, seed: int, step: VectorStep = SGD, bound: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.bound = self.rng.randint(0, 2) if bound is None else bound
        self.intervals, self.epochs = self.rng.randint(1, 4), self.rng.randint(1, 3)
        self.layers = tuple(self.rng.randint(1, 3) for _ in range(self.rng.randint(1, 2)))
        self.spec = ParameterSpec("job", self.layers, self.intervals, "summed", step, "<f8", self.bound)
        self.start = np.arange(sum(self.layers), dtype=float)
        self.job = SummedJob(self.spec, self.start)
        self.network = Network(self.rng)
        self.epoch = [0] * self.intervals
        self.version: dict[tuple[int, int], int] = {}
        self.values = [-1] * self.intervals  # the epoch of the newest value of each interval; -1: from before the first
        self.ages: set[int] = set()
        self.heard: set[tuple[int, int, int]] = set()
        self.applied: set[tuple[int, int, int]] = set()
        self.vectors: dict[int, np.ndarray] = {}

    def gradient(self, epoch: int, interval: int, layer: int) -> np.ndarray:
        """Sums of these depend on the order, so equal bits mean an equal order."""
        return np.array([_NUMBERS[(7 * epoch + 5 * interval + 3 * layer + n) % 64] for n in range(self.layers[layer])])

    def play(self) -> None:
        """Until every interval has ended its epochs, then every late message comes once more."""
        late = 0
        while min(self.epoch) < self.epochs:
            late += 1
            assert late < 20_000, "the run does not end"
            if self.rng.random() < 0.55:
                self.act(self.rng.randrange(self.intervals))
            elif self.network.deliver():
                validate(self.job)
        self.network.repeat = 0.0
        while self.network.deliver():
            validate(self.job)
        assert self.job.weights.stashed == 0
        assert self.job.weights.version == self.epochs

    def act(self, interval: int) -> None:
        epoch = self.epoch[interval]
        if epoch == self.epochs:
            return
        if (epoch, interval) not in self.version:
            self.network.send(lambda: self.begun(interval, epoch))
            return
        layers = [n for n in range(len(self.layers)) if (epoch, interval, n) not in self.heard]
        layer, version = self.rng.choice(layers), self.version[epoch, interval]
        self.network.send(lambda: self.pushed(interval, epoch, layer, version))

    def begun(self, interval: int, epoch: int) -> None:
        if epoch == self.epochs:
            return
        found = self.job.begin(interval, epoch)
        if found is None or found.values is None:
            return
        first = self.version.setdefault((epoch, interval), found.version)
        assert first == found.version, "forward and backward use different versions"
        kept = self.vectors.setdefault(found.version, found.values.copy())
        assert np.array_equal(kept, found.values)
        assert epoch - self.bound <= found.version <= epoch
        if self.values[interval] < epoch:
            self.ages |= {epoch - value for other, value in enumerate(self.values) if other != interval}
            self.values[interval] = epoch

    def pushed(self, interval: int, epoch: int, layer: int, version: int) -> None:
        found: Pushed = self.job.push(interval, epoch, layer, version, self.gradient(epoch, interval, layer))
        assert found.applied == ((epoch, interval, layer) not in self.applied)
        self.applied.add((epoch, interval, layer))
        self.heard.add((epoch, interval, layer))
        if epoch == self.epoch[interval] and all((epoch, interval, n) in self.heard for n in range(len(self.layers))):
            self.epoch[interval] += 1

    def summed(self, epoch: int) -> np.ndarray:
        """The gradient of an epoch, added up in the order of the intervals."""
        of_layers: list[Any] = []
        for layer in range(len(self.layers)):
            total = self.gradient(epoch, 0, layer)
            for interval in range(1, self.intervals):
                total = total + self.gradient(epoch, interval, layer)
            of_layers.append(total)
        return np.concatenate(of_layers)
