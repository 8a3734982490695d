"""What the systems compute: two partitions with tables in one process, against autograd on the whole graph.

Each layer is H' = tanh(A H W). The halves of the vertices see each other's rows, and gradients, only through tables.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from atta.train.cooperative.source import Direction
from atta.train.exchange.messages import HeldRows, mean_absolute_difference
from atta.train.exchange.policies import DigestPolicy, ExactPolicy, PipeGcnPolicy, SancusPolicy
from atta.train.exchange.policy import NEVER, RowPolicy

N, LAYERS, WIDTH, RATE = 24, 3, 5, 0.3
HALF = N // 2
PARTS = (slice(0, HALF), slice(HALF, N))


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Adjacency, features, targets and weights in double precision."""
    generator = torch.Generator().manual_seed(0)
    adjacency = (torch.rand(N, N, generator=generator) < 0.3).double()
    adjacency /= adjacency.sum(1, keepdim=True).clamp(min=1)
    x, target = (torch.randn(N, WIDTH, generator=generator).double() for _ in range(2))
    weights = [torch.randn(WIDTH, WIDTH, generator=generator).double() for _ in range(LAYERS)]
    return adjacency, x, target, weights


def loss_of(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (out - target).square().sum() / N


@dataclass
class TwoPartitions:
    """Full-graph training on two trainers. ``held[p, layer, direction]`` is what trainer p reads of the other one."""

    policy: RowPolicy
    held: dict[Any, HeldRows] = field(default_factory=lambda: defaultdict(lambda: HeldRows([HALF], 1)))
    sent: dict[Any, tuple[int, torch.Tensor]] = field(default_factory=dict)

    def fill(self, rows: list[torch.Tensor]) -> None:
        """One exact pass: ``rows`` [N, d] of each hidden layer become version 0."""
        for p, other in enumerate(reversed(PARTS)):
            for layer in range(1, LAYERS):
                self.held[p, layer, "forward"].put(0, rows[layer - 1][other], 0)

    def send(self, epoch: int, layer: int, direction: Direction, rows: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Publish the rows of both trainers, if it is time, then return what each one reads of the other."""
        rule, key = self.policy.reads(epoch, direction), (layer, direction)
        for owner, of_owner in enumerate(rows):
            version, copy = self.sent.get((owner, *key), (NEVER, of_owner))
            if self.policy.publishes(epoch, direction, owner, version, mean_absolute_difference(of_owner, copy)):
                self.held[1 - owner, layer, direction].put(0, of_owner, epoch)
                self.sent[owner, layer, direction] = (epoch, of_owner)
        return [None if rule is None else self.held[p, layer, direction].newest(rule, key)[0] for p in (0, 1)]

    def epoch(self, epoch: int, weights: list[torch.Tensor]) -> tuple[float, list[torch.Tensor]]:
        """The loss, and its gradient with respect to the weights, summed over both trainers."""
        adjacency, x, target, _ = problem()
        rows, steps = [x[part] for part in PARTS], []
        remote: list[torch.Tensor | None] = [x[part] for part in reversed(PARTS)]
        for layer, weight in enumerate(weights):
            if layer:
                remote = self.send(epoch, layer, "forward", rows)
            ends = []
            for p, (own, others) in enumerate(zip(rows, remote, strict=True)):
                assert others is not None
                leaves = [t.detach().clone().requires_grad_() for t in (weight, own, others)]
                mine, other = PARTS[p], PARTS[1 - p]
                mixed = adjacency[mine, mine] @ leaves[1] + adjacency[mine, other] @ leaves[2]
                ends.append((torch.tanh(mixed @ leaves[0]), leaves))
            steps.append(ends)
            rows = [out.detach() for out, _ in ends]
        losses = [loss_of(out, target[part]) for (out, _), part in zip(steps[-1], PARTS, strict=True)]
        flows = [
            torch.autograd.grad(loss, out, retain_graph=True)[0]
            for loss, (out, _) in zip(losses, steps[-1], strict=True)
        ]
        gradients: list[torch.Tensor] = []
        for layer in reversed(range(LAYERS)):
            found = [
                torch.autograd.grad(out, leaves, flow) for (out, leaves), flow in zip(steps[layer], flows, strict=True)
            ]
            gradients.insert(0, found[0][0] + found[1][0])
            flows = [own for _, own, _ in found]
            if layer:
                back = self.send(epoch, layer, "backward", [others for _, _, others in found])
                flows = [flow if b is None else flow + b for flow, b in zip(flows, back, strict=True)]
        return sum(loss.item() for loss in losses), gradients


def whole(
    weights: list[torch.Tensor], stale: dict[int, torch.Tensor] | None = None
) -> tuple[float, list[torch.Tensor], list[torch.Tensor]]:
    """Loss, gradients and hidden rows in one process. ``stale`` [N, d] by layer: what cut edges read, as constants."""
    adjacency, h, target, _ = problem()
    leaves, hidden = [weight.detach().clone().requires_grad_() for weight in weights], []
    cut = torch.zeros(N, N, dtype=torch.bool)
    cut[PARTS[0], PARTS[1]] = cut[PARTS[1], PARTS[0]] = True
    for layer, weight in enumerate(leaves):
        across = h if stale is None or not layer else stale[layer]
        mixed = (adjacency * ~cut) @ h + (adjacency * cut) @ across
        h = torch.tanh(mixed @ weight)
        hidden.append(h.detach())
    loss = loss_of(h, target)
    return float(loss), list(torch.autograd.grad(loss, leaves)), hidden[:-1]


def wrong(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[float]:
    """Relative error of the gradient of each layer."""
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]


def moved(weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return [weight - RATE * gradient for weight, gradient in zip(weights, gradients, strict=True)]


@pytest.mark.parametrize(
    "policy",
    [ExactPolicy(), *(SancusPolicy(bound=bound, eps=0, warmup=0) for bound in ("epoch", "adaptive", "gap"))],
    ids=["exchange", "epoch", "adaptive", "gap"],
)
def test_without_staleness_gradients_are_those_of_one_process(policy: RowPolicy) -> None:
    both, weights = TwoPartitions(policy), problem()[3]
    for epoch in range(1, 6):
        loss, gradients = both.epoch(epoch, weights)
        expected = whole(weights)
        assert loss == pytest.approx(expected[0], rel=1e-12)
        assert max(wrong(gradients, expected[1])) < 1e-12
        weights = moved(weights, gradients)


def test_sancus_without_slack_equals_exchange_bit_for_bit() -> None:
    ends = []
    for policy in (ExactPolicy(), *(SancusPolicy(bound=b, eps=0, warmup=0) for b in ("epoch", "gap"))):
        both, weights = TwoPartitions(policy), problem()[3]
        for epoch in range(1, 8):
            weights = moved(weights, both.epoch(epoch, weights)[1])
        ends.append(weights)
    assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(end, ends[0], strict=True))


@pytest.mark.parametrize(("every", "phase"), [(1, "early"), (3, "early"), (4, "early"), (3, "paper"), (1, "paper")])
def test_digest_is_autograd_with_constants_on_cut_edges(every: int, phase: str) -> None:
    both, weights = TwoPartitions(DigestPolicy(sync_every=every, phase=phase)), problem()[3]
    exact = whole(weights)[2]
    both.fill(exact)
    stale = pushed = dict(enumerate(exact, 1))
    for epoch in range(1, 4 * every + 6):
        if (epoch - 1 if phase == "early" else epoch) % every == 0:
            stale = pushed
        loss, gradients = both.epoch(epoch, weights)
        expected = whole(weights, stale)
        assert loss == pytest.approx(expected[0], rel=1e-12)
        assert max(wrong(gradients, expected[1])) < 1e-12
        if (epoch if phase == "early" else epoch - 1) % every == 0:
            pushed = dict(enumerate(expected[2], 1))
        weights = moved(weights, gradients)


def test_digest_with_frozen_weights_has_the_exact_loss_after_enough_synchronisations() -> None:
    every = 3
    both, weights = TwoPartitions(DigestPolicy(sync_every=every)), problem()[3]
    both.fill(whole(weights)[2])
    epoch = 0
    while epoch < 4 * every:
        epoch += 1
        weights = moved(weights, both.epoch(epoch, weights)[1])
    exact = whole(weights)
    losses = []
    for later in range(epoch + 1, epoch + LAYERS * every + 1):  # the last epoch reads LAYERS - 1 synchronisations
        loss, gradients = both.epoch(later, weights)
        losses.append(abs(loss / exact[0] - 1))
    assert losses[0] > 1e-6
    assert losses[-1] < 1e-12
    errors = wrong(gradients, exact[1])
    assert errors[-1] < 1e-12
    assert min(errors[:-1]) > 1e-3  # gradients do not cross the cut


def test_pipegcn_with_frozen_weights_has_the_exact_gradient_after_two_epochs_per_layer() -> None:
    both, weights = TwoPartitions(PipeGcnPolicy()), problem()[3]
    for epoch in range(1, 6):
        weights = moved(weights, both.epoch(epoch, weights)[1])
    exact = whole(weights)[1]
    errors = [max(wrong(both.epoch(epoch, weights)[1], exact)) for epoch in range(6, 6 + 2 * LAYERS)]
    assert errors[0] > 1e-6
    assert errors[-1] < 1e-12


def test_gradients_of_every_epoch_close_the_gap_of_digest() -> None:
    """Rows every 3 epochs, gradients each: with frozen weights the whole gradient becomes exact."""
    both, weights = TwoPartitions(DigestPolicy(sync_every=3, grad_sync_every=1)), problem()[3]
    both.fill(whole(weights)[2])
    for epoch in range(1, 20):
        _, gradients = both.epoch(epoch, weights)
    assert max(wrong(gradients, whole(weights)[1])) < 1e-12
