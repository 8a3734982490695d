"""``digest`` and ``sat`` on real daemons, against the whole graph in one process and against each other.

The other side computes with dense matrices. Edges between servers read rows of earlier epochs there, as constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import atta
from atta.errors import QuotaExceededError
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta.train import fit
from atta.train.models import whole_model
from tests.system import digest as harness
from tests.system.cases import marked, results_of, trainers, which
from tests.system.digest import BASE, FROZEN, HIDDEN, PERIODS, RESUMED, SATS, SGD, UNCUT, VARIANTS, WORLD, TableCase
from tests.waiting import eventually

Results = list[dict[str, Any]]
VERTICES, EDGES, CHANNELS, CLASSES = 120, 800, 5, 3


def whole(between: bool) -> SimpleNamespace:
    """A random graph. ``between``: whether edges lead from one half of the vertices to the other."""

    def draws() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    edges = torch.randint(0, VERTICES, (2, EDGES), generator=draws())
    return SimpleNamespace(
        edges=edges if between else torch.stack([edges[0] // 2 * 2 + edges[1] % 2, edges[1]]),
        x=torch.randn(VERTICES, CHANNELS, generator=draws()).double(),
        y=torch.randint(0, CLASSES, (VERTICES,), generator=draws()),
        train=torch.rand(VERTICES, generator=draws()) < 0.5,
    )


WHOLE = whole(between=True)


def partitioned(graph: SimpleNamespace, folder: Path, method: str) -> Path:
    with GraphWriter(folder / "graph") as out:
        tables, train = {"x": graph.x.float().numpy(), "y": graph.y.numpy()}, np.flatnonzero(graph.train.numpy())
        out.add_nodes("node", VERTICES, tables=tables, splits={"train": train})
        out.add_edges("node__to__node", *graph.edges.numpy())
    partition_graph(folder / "graph", folder / "parts", parts=2, method=method, seed=0)
    return folder / "parts"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.LocalCluster]:
    data = partitioned(WHOLE, tmp_path_factory.mktemp("cut"), "random")
    with atta.local(data, threads=1, options=("--tables", "100KiB")) as running:
        yield running


@pytest.fixture(scope="module")
def results(
    preloaded_trainers: None,
    cluster: atta.LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Results:
    folder = tmp_path_factory.mktemp("digest")
    with atta.local(partitioned(whole(between=False), folder, "metis"), threads=1) as uncut:
        clusters = str(cluster.cluster_file), str(uncut.cluster_file)
        found = results_of("tests.system.digest", folder, *clusters, which(request))
    assert not list(cluster.tables.specs())  # every run has dropped its own
    return found


def matrix(model: str) -> torch.Tensor:
    """Weights of edges [targets, sources]: the mean over in-edges, or GCN's. Multi-edges count several times."""
    source, target = WHOLE.edges
    counts = torch.zeros(VERTICES, VERTICES, dtype=torch.float64)
    counts.index_put_((target, source), torch.ones(EDGES, dtype=torch.float64), accumulate=True)
    if model == "sage":
        return counts / counts.sum(1, keepdim=True).clamp(min=1)
    counts.fill_diagonal_(1.0)
    scale = counts.sum(1).rsqrt()
    return scale.unsqueeze(1) * counts * scale


class InOneProcess:
    """The epochs of a case, with dense matrices."""

    def __init__(self, case: TableCase, owners: torch.Tensor) -> None:
        """``owners``: int64 [n], the rank of each vertex."""
        self.options, self.owners = case.config("nowhere"), owners
        torch.manual_seed(self.options.seed)
        self.model = whole_model(self.options.own, CHANNELS, CLASSES).double()
        group = owners if self.options.stale_across == "trainers" else owners // 2
        weights = matrix(self.options.model)
        cut = group.unsqueeze(1) != group
        self.inner, self.cut = weights * ~cut, weights * cut
        self.read_by_others = cut.logical_and(weights != 0).any(0)
        self.versions: dict[int, list[torch.Tensor]] = {0: self.forward(None)[1]}
        optimizer: Any = torch.optim.Adam(
            self.model.parameters(), self.options.lr, weight_decay=self.options.weight_decay
        )
        if case.rate is not None:
            optimizer = torch.optim.SGD(self.model.parameters(), case.rate)
        self.losses, self.gradients, self.reads, self.fresh = [], [], [], {}  # type: ignore[var-annotated]
        every, early, read = self.options.sync_every, self.options.phase == "early", 0
        for epoch in range(1, self.options.epochs + 1):
            if (epoch - 1 if early else epoch) % every == 0:
                read = max(self.versions)
            scores, hidden = self.forward(self.versions[read])
            self.fresh[epoch] = hidden
            if (epoch if early else epoch - 1) % every == 0:
                self.versions[epoch] = hidden
            optimizer.zero_grad()
            loss = self.loss(scores)
            loss.backward()
            optimizer.step()
            self.losses.append(F.cross_entropy(scores[WHOLE.train], WHOLE.y[WHOLE.train]).item())
            self.gradients.append([p.grad.clone() for p in self.model.parameters() if p.grad is not None])
            self.reads.append(read)

    def loss(self, scores: torch.Tensor) -> torch.Tensor:
        each = F.cross_entropy(scores, WHOLE.y, reduction="none")
        if self.options.loss == "global":
            return each[WHOLE.train].mean()
        return torch.stack([each[WHOLE.train & (self.owners == rank)].mean() for rank in range(WORLD)]).mean()

    def forward(self, stale: list[torch.Tensor] | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Scores, and the hidden rows that travel. ``stale``: the rows that edges between servers read."""
        h, hidden = WHOLE.x, []
        for layer, conv in enumerate(self.model.convs):  # type: ignore[arg-type, var-annotated]
            across = h
            if layer:
                hidden.append(h.detach())
                across = h if stale is None else stale[layer - 1]
                if stale is not None and self.options.normalize_rows:
                    across = across / across.norm(dim=1, keepdim=True).clamp(min=1e-12)
            mixed = self.inner @ h + self.cut @ across
            h = conv.lin_l(mixed) + conv.lin_r(h) if self.options.model == "sage" else conv.lin(mixed) + conv.bias
            h = h if layer == harness.LAYERS - 1 else h.relu()
        return h, hidden


def owners_of(results: Results, case: TableCase) -> torch.Tensor:
    owners = torch.full((VERTICES,), -1)
    for rank, result in enumerate(results):
        owners[result[case.name]["own"]] = rank
    assert owners.min() == 0
    return owners


@pytest.mark.parametrize("case", marked([*PERIODS, *VARIANTS, SGD[0]], harness.QUICK))
def test_gradients_end_at_the_cut_and_rows_are_of_the_last_synchronisation(results: Results, case: TableCase) -> None:
    expected = InOneProcess(case, owners_of(results, case))
    for rank in range(WORLD):
        epochs = results[rank][case.name]["epochs"]
        assert [e["loss"] for e in epochs] == pytest.approx(expected.losses, rel=1e-10)
        for epoch, (found, read) in enumerate(zip(epochs, expected.reads, strict=True), 1):
            for mine, theirs in zip(found["gradients"], expected.gradients[epoch - 1], strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
            age = epoch - read
            assert {key: ages[:2] for key, ages in found["ages"].items()} == {
                "1 forward": (age, age),
                "2 forward": (age, age),
            }
            new = epoch == 1 or read != expected.reads[epoch - 2]
            rows = found["ages"]["1 forward"][2]
            assert found["sent"] == new * rows * 2 * HIDDEN * 8
            assert found["gradients_kept"] == 0
            assert (found["crossed"] == found["sent"]) == (not new or case.options.get("stale_across") is None)
    every, phase = case.options["sync_every"], case.options.get("phase", "early")
    ages = [epoch - read for epoch, read in enumerate(expected.reads, 1)]
    if phase == "early":
        assert set(ages) == set(range(1, every + 1))
    elif every > 1:
        assert set(ages[every - 1 :]) <= set(range(every - 1, 2 * every - 1))


def test_gradients_of_every_epoch_close_the_gap_of_digest(results: Results) -> None:
    """Rows every 3 epochs, gradients each. With frozen weights the loss and the whole gradient become exact."""
    whole = InOneProcess(FROZEN, owners_of(results, FROZEN))
    whole.model.zero_grad()
    loss = whole.loss(whole.forward(None)[0])
    loss.backward()
    exact = [p.grad for p in whole.model.parameters()]
    for result in results:
        epochs = result[FROZEN.name]["epochs"]
        assert epochs[-1]["loss"] == pytest.approx(loss.item(), rel=1e-12)
        for mine, theirs in zip(epochs[-1]["gradients"], exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
        # Before that, gradients end at the cut, in all layers but the last.
        assert not torch.allclose(epochs[0]["gradients"][0], exact[0], rtol=1e-3)


@pytest.mark.slow
def test_all_rows_are_pushed_if_asked_for(results: Results) -> None:
    for rank in range(WORLD):
        case = VARIANTS[0]
        found = results[rank][case.name]
        pushed = [e["pushed"] for e in found["epochs"]]
        assert pushed == [(epoch % 2 == 0) * len(found["own"]) * 2 * HIDDEN * 8 for epoch in range(1, 8)]
    owners = owners_of(results, BASE)
    for rank in range(WORLD):
        read = int((InOneProcess(BASE, owners).read_by_others & (owners == rank)).sum())
        pushed = [e["pushed"] for e in results[rank][BASE.name]["epochs"]]
        assert pushed == [(epoch % 3 == 0) * read * 2 * HIDDEN * 8 for epoch in range(1, 8)]


def weights(results: Results, case: TableCase, rank: int = 0) -> list[list[torch.Tensor]]:
    found: list[list[torch.Tensor]] = [epoch["weights"] for epoch in results[rank][case.name]["epochs"]]
    return found


def same(a: list[list[torch.Tensor]], b: list[list[torch.Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("case", marked(harness.CASES, harness.QUICK))
def test_all_trainers_have_the_same_weights_and_they_move(results: Results, case: TableCase) -> None:
    for rank in range(1, WORLD):
        assert same(weights(results, case), weights(results, case, rank))
    assert same(weights(results, case)[:1], weights(results, case)[1:2]) == (case.rate == 0)


def test_without_cut_edges_weights_are_those_of_exchange(results: Results) -> None:
    assert [result[UNCUT[0].name]["halo"] for result in results] == [0] * WORLD
    for case in UNCUT[1:]:
        assert same(weights(results, UNCUT[0]), weights(results, case))


@pytest.mark.slow
def test_delays_change_no_bit(results: Results) -> None:
    assert same(weights(results, BASE), weights(results, harness.DELAYED))


@pytest.mark.parametrize(
    "cases", [RESUMED, pytest.param(harness.SAT_RESUMED, marks=pytest.mark.slow)], ids=["digest", "sat"]
)
def test_a_run_that_goes_on_repeats_every_bit(results: Results, cases: tuple[TableCase, TableCase]) -> None:
    through, resumed = cases
    assert same(weights(results, through), weights(results, resumed))
    for rank in range(WORLD):
        for a, b in zip(results[rank][through.name]["epochs"], results[rank][resumed.name]["epochs"], strict=True):
            assert all(a[key] == b[key] for key in ("loss", "ages", "errors", "uses", "broadcasts"))


@pytest.mark.slow
def test_with_plain_descent_means_of_weights_are_means_of_gradients(results: Results) -> None:
    for one, other in zip(weights(results, SGD[0]), weights(results, SGD[1]), strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_rows_that_backward_computes_again_are_published_once(results: Results) -> None:
    plain, checkpointed = harness.CHECKPOINTED
    for a, b in zip(weights(results, plain)[0], weights(results, checkpointed)[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    for rank in range(WORLD):
        for a, b in zip(results[rank][plain.name]["epochs"], results[rank][checkpointed.name]["epochs"], strict=True):
            assert all(a[key] == b[key] for key in ("ages", "sent", "pushed", "broadcasts"))


@pytest.mark.parametrize("case", marked(SATS[:2], harness.QUICK))
def test_predictions_are_read_only_where_they_are_better(results: Results, case: TableCase) -> None:
    plain, epochs = SATS[2], results[0][case.name]["epochs"]
    # The predictor takes its first step in epoch 2, and is measured again in epoch 4, before backward's step.
    assert same(weights(results, plain)[:4], weights(results, case)[:4])
    expected = InOneProcess(plain, owners_of(results, plain))
    rows = expected.read_by_others
    for layer in (1, 2):
        for epoch in (2, 4):
            fresh, stale = (h[layer - 1][rows] for h in (expected.fresh[epoch], expected.versions[epoch - 1]))
            assert epochs[epoch - 1]["errors"][layer][1] == pytest.approx(
                (fresh - stale).square().sum().item(), rel=1e-8
            )
    used = dict.fromkeys((1, 2), False)
    ever = False
    for epoch, found in enumerate(epochs, 1):
        assert set(found["errors"]) == ({1, 2} if epoch % 2 == 0 else set())
        for layer, (predicted, stale) in found["errors"].items():
            used[layer] = predicted < stale
        assert found["uses"] == used
        for layer, predicts in found["predicts"].items():
            assert used[layer] or not predicts
            ever |= predicts
    assert ever
    assert not same(weights(results, plain), weights(results, case))


def digest_config(cluster: atta.LocalCluster, **options: Any) -> Any:
    return TableCase("digest", {"epochs": 2, **options}).config(str(cluster.cluster_file))


def test_tables_that_do_not_fit_name_the_bytes(preloaded_trainers: None, cluster: atta.LocalCluster) -> None:
    config = digest_config(cluster, hidden=500)
    before = set(cluster.tables.specs())
    needed = 2 * VERTICES * 2 * (500 * 4 + 8)  # two slots, two layers, versions
    with pytest.raises(
        QuotaExceededError, match=rf"stale rows need {needed} bytes .* start the daemons with more --tables"
    ):
        fit(config)
    assert set(cluster.tables.specs()) == before


@pytest.mark.slow
def test_a_killed_run_leaves_no_tables(preloaded_trainers: None, cluster: atta.LocalCluster, tmp_path: Path) -> None:
    before = set(cluster.tables.specs())
    with trainers("tests.system.digest", tmp_path, str(cluster.cluster_file), "forever") as started:
        assert eventually(lambda: len(set(cluster.tables.specs()) - before) == 4, seconds=60)
        assert all(t.poll() is None for t in started)
    assert eventually(lambda: set(cluster.tables.specs()) == before, seconds=60)
