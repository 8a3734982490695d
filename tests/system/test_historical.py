"""``historical`` on real daemons, against dense matrices in one process that take the same steps on the same samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import atta
from atta.train.models import whole_model
from tests.system.cases import results_of
from tests.system.digest import HIDDEN, LAYERS, WORLD, TableCase
from tests.system.historical import CASES, RESUMED
from tests.system.test_digest import CHANNELS, CLASSES, VERTICES, WHOLE, matrix, partitioned

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(preloaded_trainers: None, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("historical")
    with atta.local(partitioned(WHOLE, folder, "random"), threads=1, options=("--tables", "100KiB")) as running:
        found = results_of("tests.system.historical", folder, str(running.cluster_file))
        assert not list(running.tables.specs())  # every run has dropped its own
    return found


class InOneProcess:
    """The epochs of a case. ``mine`` are the older rows of all vertices as their owners have them, ``theirs`` as the other
    trainers do, by layer."""

    def __init__(self, case: TableCase, results: Results) -> None:
        self.options = case.config("nowhere")
        self.weights, self.counts = matrix(self.options.model), matrix("sage") != 0
        self.loops = self.weights.diagonal() if self.options.model == "gcn" else torch.zeros(VERTICES).double()
        self.weights = self.weights - self.loops.diag()
        torch.manual_seed(self.options.seed)
        self.model = whole_model(self.options.own, CHANNELS, CLASSES).double()
        optimizer = torch.optim.Adam(self.model.parameters(), self.options.lr)
        self.owned = [result[case.name]["ids"][: result[case.name]["own"]] for result in results]
        self.mine = self.theirs = self.exact()
        self.losses: list[float] = []
        for epoch in range(self.options.epochs):
            done = [result[case.name]["epochs"][epoch] for result in results]
            total = 0.0
            for step, size in enumerate(done[0]["sizes"]):
                optimizer.zero_grad()
                for rank in range(WORLD):
                    tree = done[rank]["trees"][step]
                    scores, hidden = self.forward(tree, rank)
                    seeds = tree["rows"][: tree["ends"][0]]
                    loss = F.cross_entropy(scores, WHOLE.y[seeds], reduction="sum")
                    (loss / size).backward()
                    total += loss.item()
                    self.write([(tree["rows"][: len(values)], values) for values in hidden])
                optimizer.step()
            if self.options.max_age and (epoch + 1) % self.options.max_age == 0:
                self.refresh()
            self.losses.append(total / int(WHOLE.train.sum()))
            for rank in range(WORLD):
                self.check(results[rank][case.name], epoch, rank)

    def check(self, found: dict[str, Any], epoch: int, rank: int) -> None:
        ids, own = found["ids"], found["own"]
        of_epoch = found["epochs"][epoch]
        assert of_epoch["loss"] == pytest.approx(self.losses[-1], rel=1e-9)
        for layer, rows in of_epoch["tables"].items():
            torch.testing.assert_close(rows[:own], self.mine[layer - 1][ids[:own]], rtol=1e-9, atol=1e-10)
        for found_weight, parameter in zip(of_epoch["weights"], self.model.parameters(), strict=True):
            torch.testing.assert_close(found_weight, parameter.detach(), rtol=1e-8, atol=1e-10)

    def write(self, writes: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.mine = [rows.clone() for rows in self.mine]
        for table, (places, values) in zip(self.mine, writes, strict=True):
            table[places] += self.options.momentum * (values - table[places])

    def convolved(self, layer: int, own: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
        conv: Any = self.model.convs[layer]  # type: ignore[index, union-attr]
        if self.options.model == "gcn":
            return conv.lin(summed) + conv.bias  # type: ignore[no-any-return]
        return conv.lin_l(summed) + conv.lin_r(own)  # type: ignore[no-any-return]

    @torch.no_grad()
    def exact(self) -> list[torch.Tensor]:
        h, hidden = WHOLE.x, []
        for layer in range(LAYERS - 1):
            h = self.convolved(layer, h, (self.weights + self.loops.diag()) @ h).relu()
            hidden.append(h)
        return hidden

    def older(self, layer: int, rank: int) -> torch.Tensor:
        rows = self.theirs[layer].clone()
        rows[self.owned[rank]] = self.mine[layer][self.owned[rank]]
        return rows

    @torch.no_grad()
    def refresh(self) -> None:
        whole = self.weights + self.loops.diag()
        for rank in range(WORLD):
            own, h = self.owned[rank], self.convolved(0, WHOLE.x, whole @ WHOLE.x).relu()
            for layer in range(LAYERS - 1):
                rows = self.mine[layer].clone()
                rows[own] += self.options.momentum * (h[own] - rows[own])
                self.mine = [rows if n == layer else other for n, other in enumerate(self.mine)]
                older = self.older(layer, rank)
                h = self.convolved(layer + 1, older, whole @ older).relu()
        self.theirs = self.mine

    def forward(self, tree: dict[str, Any], rank: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Scores of the seeds, and the rows of each hidden layer that the batch has computed."""
        rows, ends = tree["rows"], tree["ends"]
        first = (self.weights + self.loops.diag()) @ WHOLE.x
        h, hidden = self.convolved(0, WHOLE.x[rows], first[rows]), []
        for layer in range(1, LAYERS):
            hop = LAYERS - 1 - layer
            h = h.relu()
            hidden.append(h.detach())
            fresh, targets = rows[: ends[hop + 1]], rows[: ends[hop]]
            assert len(h) == len(fresh)
            weights = self.weights[targets]
            if not self.options.max_age:
                weights = self.drawn(tree, hop)
            computed = weights[:, fresh] @ h
            old = self.older(layer - 1, rank)
            old[fresh] = 0
            summed = computed + weights @ old * bool(self.options.max_age)
            own = h[: len(targets)]
            h = self.convolved(layer, own, summed + self.loops[targets, None] * own)
        return h, hidden

    def drawn(self, tree: dict[str, Any], hop: int) -> torch.Tensor:
        """Weights [t, n] of the drawn edges alone: each counts for as many as were not drawn."""
        count, edges = tree["ends"][hop], tree["drawn"][:, : tree["drawn_ends"][hop + 1]]
        found = torch.zeros(count, VERTICES, dtype=torch.float64)
        source, target = edges
        ids = tree["rows"]
        between = WHOLE.edges[:, WHOLE.edges[0] != WHOLE.edges[1]] if self.options.model == "gcn" else WHOLE.edges
        degree = torch.bincount(between[1], minlength=VERTICES)
        drawn = torch.bincount(target, minlength=count)
        many = torch.zeros(VERTICES, VERTICES).index_put_(
            (between[1], between[0]), torch.ones(len(between[0])), accumulate=True
        )
        each = self.weights[ids[target], ids[source]] / many[ids[target], ids[source]]
        found.index_put_((target, ids[source]), each * degree[ids[target]] / drawn[target], accumulate=True)
        return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_step_is_that_of_dense_matrices(results: Results, case: TableCase) -> None:
    """Losses, weights and own older rows, in float64."""
    InOneProcess(case, results)
    every = case.options.get("max_age", 1)
    for result in results:
        for epoch, found in enumerate(result[case.name]["epochs"], 1):
            age = epoch if not every else (epoch - 1) % every + 1
            assert {key: ages[:2] for key, ages in found["ages"].items()} == {
                "1 forward": (age, age), "2 forward": (age, age)
            }  # fmt: skip
            rows = len(result[case.name]["ids"]) - result[case.name]["own"]
            assert found["sent"] == (age == 1) * rows * 2 * HIDDEN * 8
            assert (found["pushed"] > 0) == (every > 0 and epoch % every == 0)


def test_a_run_that_goes_on_repeats_every_bit(results: Results) -> None:
    through, resumed = RESUMED
    for result in results:
        for one, other in zip(result[through.name]["epochs"], result[resumed.name]["epochs"], strict=True):
            assert one["loss"] == other["loss"]
            assert one["ages"] == other["ages"]
            for kind in ("weights", "gradients"):
                assert all(torch.equal(a, b) for a, b in zip(one[kind], other[kind], strict=True))
