"""``historical`` on real daemons, against dense matrices in one process that take the same steps on the same samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import atta
from atta.train.models import whole_model
from tests.oracles.rows import mixing
from tests.system.cases import marked, results_of, which
from tests.system.historical import CASES, QUICK, RESUMED
from tests.system.strategies import HIDDEN, LAYERS, WORLD, TableCase
from tests.system.test_strategies import CHANNELS, CLASSES, VERTICES, WHOLE, partitioned

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(
    preloaded_trainers: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Results:
    folder = tmp_path_factory.mktemp("historical")
    with atta.local(partitioned(WHOLE, folder, "random"), threads=1, options=("--tables", "100KiB")) as running:
        found = results_of("tests.system.historical", folder, str(running.cluster_file), which(request))
        assert not list(running.tables.specs())  # every run has dropped its own
    return found


class InOneProcess:
    """The epochs of a case. ``tables`` are the stale rows of all vertices by rank and layer, as far as it has them."""

    def __init__(self, case: TableCase, results: Results) -> None:
        self.options = case.config("nowhere")
        self.weights = mixing(WHOLE, self.options.model)
        self.loops = self.weights.diagonal() if self.options.model == "gcn" else torch.zeros(VERTICES).double()
        self.first, self.weights = self.weights @ WHOLE.x, self.weights - self.loops.diag()
        torch.manual_seed(self.options.seed)
        self.model = whole_model(self.options.own, CHANNELS, CLASSES).double()
        optimizer = torch.optim.Adam(self.model.parameters(), self.options.lr)
        self.owned = [result[case.name]["ids"][: result[case.name]["own"]] for result in results]
        self.tables = [self.exact() for _ in range(WORLD)]
        self.computed, self.pulled = self.needed()
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
                    for layer, values in enumerate(hidden):
                        self.write(rank, layer, tree["rows"][: len(values)], values)
                optimizer.step()
            self.losses.append(total / int(WHOLE.train.sum()))
            due = self.options.max_age and (epoch + 1) % self.options.max_age == 0
            for rank in range(WORLD) if due else ():
                self.refresh(rank)
            for rank in range(WORLD):
                self.check(results[rank][case.name], epoch, rank)
            if due:
                self.publish()

    def needed(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """By hidden layer whose rows [rank, vertex] are computed anew, and the rows of others that are pulled."""
        edges = self.weights != 0
        mine = torch.zeros(WORLD, VERTICES, dtype=torch.bool)
        for rank, own in enumerate(self.owned):
            mine[rank, own] = True
        read = mine & WHOLE.train
        found, pulled = list[torch.Tensor](), torch.zeros_like(mine)
        for layer in reversed(range(self.options.depth - 1)):
            read = read | torch.stack([edges[places].any(0) for places in read])
            if layer:
                pulled = read & ~mine
                read = mine & (read | pulled.any(0))
            found.insert(0, read)
        return found, pulled

    def check(self, found: dict[str, Any], epoch: int, rank: int) -> None:
        of_epoch = found["epochs"][epoch]
        assert of_epoch["loss"] == pytest.approx(self.losses[-1], rel=1e-9)
        assert sorted(of_epoch["tables"]) == list(range(1, self.options.depth))
        for layer, rows in of_epoch["tables"].items():
            read = (self.computed[layer - 1] | self.pulled)[rank, found["ids"]]
            expected = self.tables[rank][layer - 1][found["ids"]]
            torch.testing.assert_close(rows[read], expected[read], rtol=1e-9, atol=1e-10)
        for found_weight, parameter in zip(of_epoch["weights"], self.model.parameters(), strict=True):
            torch.testing.assert_close(found_weight, parameter.detach(), rtol=1e-8, atol=1e-10)

    def write(self, rank: int, layer: int, places: torch.Tensor, values: torch.Tensor) -> None:
        rows = self.tables[rank][layer].clone()
        rows[places] += self.options.momentum * (values - rows[places])
        self.tables[rank][layer] = rows

    def convolved(self, layer: int, own: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
        conv: Any = self.model.convs[layer]  # type: ignore[index, union-attr]
        if self.options.model == "gcn":
            return conv.lin(summed) + conv.bias  # type: ignore[no-any-return]
        return conv.lin_l(summed) + conv.lin_r(own)  # type: ignore[no-any-return]

    def of_all(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        return self.convolved(layer, rows, (self.weights + self.loops.diag()) @ rows).relu()

    @torch.no_grad()
    def exact(self) -> list[torch.Tensor]:
        h, hidden = WHOLE.x, []
        for layer in range(self.options.depth - 1):
            h = self.of_all(layer, h)
            hidden.append(h)
        return hidden

    @torch.no_grad()
    def refresh(self, rank: int) -> None:
        first, *further = self.computed
        self.write(rank, 0, first[rank], self.of_all(0, WHOLE.x)[first[rank]])
        for layer, places in enumerate(further, 1):
            self.write(rank, layer, places[rank], self.of_all(layer, self.tables[rank][layer - 1])[places[rank]])

    def publish(self) -> None:
        for layer in range(1, self.options.depth - 1):
            every = torch.stack([table[layer] for table in self.tables])
            for rank, own in enumerate(self.owned):
                for table in self.tables:
                    table[layer] = table[layer].clone()
                    table[layer][own] = every[rank, own]

    def forward(self, tree: dict[str, Any], rank: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Scores of the seeds, and the rows of each hidden layer that the batch has computed."""
        rows, ends, depth = tree["rows"], tree["ends"], self.options.depth
        assert set(rows[: ends[-1]].tolist()) <= set(self.owned[rank].tolist())
        h, hidden = self.convolved(0, WHOLE.x[rows], self.first[rows]), []
        for layer in range(1, depth):
            hop, h = depth - 1 - layer, h.relu()
            hidden.append(h.detach())
            fresh, targets = rows[: len(h)], rows[: ends[hop]]
            assert len(h) == (len(rows) if layer == 1 else ends[hop + 1])
            summed, own = self.drawn(tree, hop, len(h))[:, fresh] @ h, h[: len(targets)]
            if self.options.max_age:
                rows_now = self.tables[rank][layer - 1].clone()
                rows_now[fresh] = h.detach()
                summed = summed + (self.weights[targets] @ rows_now - summed).detach()
            h = self.convolved(layer, own, summed + self.loops[targets, None] * own)
        return h, hidden

    def drawn(self, tree: dict[str, Any], hop: int, fresh: int) -> torch.Tensor:
        """Weights [t, n] of the drawn edges from computed rows alone: each counts for as many as are missing."""
        count, ids, edges = tree["ends"][hop], tree["rows"], tree["drawn"][:, : tree["drawn_ends"][hop + 1]]
        source, target = edges[:, edges[0] < fresh]
        between = WHOLE.edges[:, WHOLE.edges[0] != WHOLE.edges[1]] if self.options.model == "gcn" else WHOLE.edges
        degree, drawn = torch.bincount(between[1], minlength=VERTICES), torch.bincount(target, minlength=count)
        parallel = torch.zeros(VERTICES, VERTICES, dtype=torch.float64)
        parallel.index_put_((between[1], between[0]), torch.ones(between.shape[1]).double(), accumulate=True)
        each = self.weights[ids[target], ids[source]] / parallel[ids[target], ids[source]]
        found = torch.zeros(count, VERTICES, dtype=torch.float64)
        found.index_put_((target, ids[source]), each * degree[ids[target]] / drawn[target], accumulate=True)
        return found


@pytest.mark.parametrize("case", marked(CASES, QUICK))
def test_every_step_is_that_of_dense_matrices(results: Results, case: TableCase) -> None:
    """Losses, weights and stale rows, in float64. The first hidden layer's rows never travel."""
    program = InOneProcess(case, results)
    every, travelling = case.options.get("max_age", 1), range(2, case.options.get("layers", LAYERS))
    for rank, result in enumerate(results):
        for epoch, found in enumerate(result[case.name]["epochs"], 1):
            age = epoch if not every else (epoch - 1) % every + 1
            assert {key: ages[:2] for key, ages in found["ages"].items()} == {
                f"{layer} forward": (age, age) for layer in travelling
            }
            rows = int(program.pulled[rank].sum())
            # With four layers of this small graph all are read.
            assert rows < len(result[case.name]["ids"]) - result[case.name]["own"] or len(travelling) > 1
            assert found["sent"] == (age == 1) * len(travelling) * rows * HIDDEN * 8
            assert (found["pushed"] > 0) == (len(travelling) > 0 and every > 0 and epoch % every == 0)


def test_a_run_that_goes_on_repeats_every_bit(results: Results) -> None:
    through, resumed = RESUMED
    for result in results:
        for one, other in zip(result[through.name]["epochs"], result[resumed.name]["epochs"], strict=True):
            assert one["loss"] == other["loss"]
            assert one["ages"] == other["ages"]
            for kind in ("weights", "gradients"):
                assert all(torch.equal(a, b) for a, b in zip(one[kind], other[kind], strict=True))
