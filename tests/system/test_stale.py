"""Four trainers read each other's rows by way of decisions and messages, against one process and closed formulas."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from atta.train.exchange.budget import LEVELS
from tests.masks import PLACES, Masks
from tests.system import cooperative
from tests.system import stale as harness
from tests.system.cases import marked, results_of, which
from tests.system.cooperative import VERTICES, WORLD
from tests.system.stale import DRIVEN, EPOCHS, EXACT, EXCHANGE, NO_SLACK, StaleCase
from tests.system.test_cooperative import error, reference

HIDDEN = 8
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(
    preloaded_trainers: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Results:
    return results_of("tests.system.stale", tmp_path_factory.mktemp("stale"), which(request))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("case", marked(EXACT, harness.QUICK))
def test_exchange_gives_the_gradient_of_the_whole_graph(results: Results, case: StaleCase) -> None:
    loss, expected = reference(case.base)
    mine = results[0][case.name]
    assert mine["losses"][0] == pytest.approx(loss, rel=1e-10)
    assert error(mine["gradients"], expected) < 1e-10
    assert all(same(other[case.name]["gradients"], mine["gradients"]) for other in results[1:])


@pytest.mark.parametrize("case", marked(NO_SLACK, harness.QUICK))
def test_sancus_without_slack_is_exchange(results: Results, case: StaleCase) -> None:
    """Three bounds without slack, and a bound that the warm-up outlasts: bit for bit."""
    found, exact = results[0][case.name], results[0][EXCHANGE.name]
    assert found["losses"] == exact["losses"]
    assert same(found["weights"], exact["weights"])
    assert found["payload"] == exact["payload"]


@pytest.mark.parametrize("case", marked(harness.BUDGETS, harness.QUICK))
def test_levels_of_a_budget_are_what_they_say(results: Results, case: StaleCase) -> None:
    """Exact rows are those of ``exchange``, bit for bit. Both ends hold the same rows. Bytes are those of the codec, in
    every epoch or every second one, and losses are near."""
    level, plain = LEVELS[case.options["place"]], next(one for one in harness.PLAIN if one.base == case.base)
    found, exact = results[0][case.name], results[0][plain.name]
    if level.name == "exact":
        assert found["losses"] == exact["losses"]
        assert same(found["weights"], exact["weights"])
    else:
        near = {"bf16": 1e-3, "int8": 2e-3}.get(level.name, 0.2)
        assert found["losses"] == pytest.approx(exact["losses"], rel=near)
        assert not same(found["weights"], exact["weights"])
    row = {"none": 4 * HIDDEN, "bf16": 2 * HIDDEN, "int8": 4 + HIDDEN}[level.codec]
    for rank, mine in enumerate(one[case.name] for one in results):
        readers = Counter(f"{layer} {way}" for layer, way, _ in mine["packed"]["sent"])
        for (layer, way, reader), (rows, version) in mine["packed"]["sent"].items():
            held, at = results[reader][case.name]["packed"]["read"][layer, way, rank]
            assert version == at
            assert torch.equal(rows, held)
        for epoch, (payload, whole) in enumerate(
            zip(mine["payload"], results[rank][plain.name]["payload"], strict=True)
        ):
            for key, bytes_ in whole.items():
                heads = 0 if level.codec == "none" else 8 * readers[key]
                assert payload.get(key, 0) == (epoch % level.every == 0) * (bytes_ // (4 * HIDDEN) * row + heads)


def test_pipegcn_waits_for_no_message_of_its_own_epoch(results: Results) -> None:
    assert all(result["ahead"] for result in results)


class Plain:
    """PyG's model on the whole graph in this process, with masks of the oracle."""

    def __init__(self, case: StaleCase) -> None:
        graph, self.case = cooperative.whole(), case
        self.model, self.masks = cooperative.build(case.base), Masks(harness.SEED, graph["edges"], VERTICES)
        self.x, self.edges = torch.from_numpy(graph["x"]), torch.from_numpy(graph["edges"])
        self.targets = torch.from_numpy(np.flatnonzero(graph["train"]))
        self.y = torch.from_numpy(graph["y"])[self.targets]

    def backward(self, scores: torch.Tensor) -> float:
        self.model.zero_grad()
        loss = torch.nn.functional.cross_entropy(scores[self.targets], self.y)
        loss.backward()
        return loss.item()

    def epoch(self, number: int, mask_of: int | None = None) -> float:
        """The loss of an epoch, perhaps with the masks of another; parameters get gradients."""
        places = PLACES[self.case.base.model.removesuffix("-checkpointed")](self.case.base.layers)
        if "checkpointed" in self.case.base.model:
            self.model.checkpointed = False
        with self.masks.instead_of_torch(mask_of or number, places):
            return self.backward(self.model(self.x, self.edges))

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: p.grad for name, p in self.model.named_parameters()}  # type: ignore[misc]


@pytest.mark.parametrize("case", marked(harness.DROPPED, harness.QUICK))
def test_dropout_is_that_of_one_process(results: Results, case: StaleCase) -> None:
    """For any number of servers and trainers, in each epoch, of rows and of attention."""
    plain, mine = Plain(case), results[0][case.name]
    assert mine["losses"] == pytest.approx([plain.epoch(1), plain.epoch(2)], rel=1e-10)
    assert error(mine["gradients"], plain.gradients) < 1e-10
    assert all(same(other[case.name]["gradients"], mine["gradients"]) for other in results[1:])
    plain.epoch(2, mask_of=1)
    assert error(mine["gradients"], plain.gradients) > 1e-2  # other masks would have been seen


class Stale(Plain):
    """Rows that another server computes come from the epoch in which they were sent last. Their masks do not.

    Gradients go to the rows of this epoch. ``frozen`` is the mistake: the mask of the epoch in which rows were sent.
    """

    def __init__(self, case: StaleCase, *, frozen: bool) -> None:
        super().__init__(case)
        self.frozen, self.optimizer = frozen, torch.optim.Adam(self.model.parameters(), 0.01)
        self.sent: dict[int, torch.Tensor] = {}
        self.sent_in = 0
        server = torch.arange(VERTICES) * (WORLD // case.base.trainers) // VERTICES
        self.cut = self.edges.clone()
        self.cut[0, server[self.edges[0]] != server[self.edges[1]]] += VERTICES

    def step(self, epoch: int, *, fresh: bool) -> float:
        if fresh:
            self.sent_in = epoch
        attention = [(f"layer {n}", 0) for n in range(3)] if self.case.base.model == "gat" else []
        with self.masks.instead_of_torch(epoch, attention):
            h = self.model.convs[0](self.x, self.edges)
            for layer in (1, 2):
                h = self.model.convs[layer](*self.read(layer, h.relu(), epoch, fresh=fresh))
        loss = self.backward(h)
        self.optimizer.step()
        return loss

    def read(self, layer: int, rows: torch.Tensor, epoch: int, *, fresh: bool) -> tuple[Any, torch.Tensor]:
        """What a layer is called with: rows of this server and then those of others, both of all vertices."""
        if fresh:
            self.sent[layer] = rows.detach()
        others = rows + (self.sent[layer] - rows).detach()
        place = ("model", layer - 1)
        own = rows * self.masks.factors(epoch, place, rows.shape, 0.5)
        others = others * self.masks.factors(self.sent_in if self.frozen else epoch, place, rows.shape, 0.5)
        return (torch.cat([own, others]), own), self.cut


@pytest.mark.parametrize("case", marked(harness.STALE_DROPPED, harness.QUICK))
def test_stale_rows_have_the_masks_of_the_present_epoch(results: Results, case: StaleCase) -> None:
    mine, plain, frozen = results[0][case.name], Stale(case, frozen=False), Stale(case, frozen=True)
    ages = [{age[:2] for age in epoch.values()} for rank in results for epoch in rank[case.name]["ages"]]
    assert [max(most for _, most in age) for age in ages] == [0, 1] * WORLD
    losses = [plain.step(1, fresh=True), plain.step(2, fresh=False)]
    assert mine["losses"] == pytest.approx(losses, rel=1e-10)
    assert error(mine["gradients"], plain.gradients) < 1e-10
    wrong = [frozen.step(1, fresh=True), frozen.step(2, fresh=False)]
    assert wrong[0] == losses[0]
    assert abs(wrong[1] / losses[1] - 1) > 1e-4


@pytest.mark.parametrize(
    "cases", [harness.RECOMPUTED, pytest.param(harness.CHECKPOINTED, marks=pytest.mark.slow)], ids=["dropout", "none"]
)
def test_layers_that_are_computed_again_have_the_same_masks_and_send_nothing_twice(
    results: Results, cases: tuple[StaleCase, ...]
) -> None:
    for kept, again in zip(cases[::2], cases[1::2], strict=True):
        for rank in results:
            assert rank[kept.name]["payload"] == rank[again.name]["payload"]
            assert rank[kept.name]["losses"] == pytest.approx(rank[again.name]["losses"], rel=1e-12)
        assert error(results[0][again.name]["weights"], results[0][kept.name]["weights"]) < 1e-12


def read_ages(results: Results, case: StaleCase) -> list[list[torch.Tensor]]:
    return [[epoch - rows for epoch, rows in enumerate(rank[f"driven {case.name}"]["read"], 1)] for rank in results]


@pytest.mark.parametrize("case", marked(DRIVEN, harness.QUICK))
def test_figures_tell_the_ages_of_rows(results: Results, case: StaleCase) -> None:
    for rank, ages in zip(results, read_ages(results, case), strict=True):
        for figures, found in zip(rank[f"driven {case.name}"]["figures"], ages, strict=True):
            least, most, total = figures["ages"]
            # With all rows of others the figures count those too that are kept and not read.
            assert least <= found.min() <= found.max() <= most
            if case.rows == "halo":
                assert (least, most, total) == (found.min(), found.max(), found.sum())


@pytest.mark.parametrize(
    "case", marked([c for c in DRIVEN if "eps" in c.options and "bound" not in c.options], harness.QUICK)
)
def test_sancus_keeps_its_bound_and_skips_the_rest(results: Results, case: StaleCase) -> None:
    eps, warmup = case.options["eps"], case.options["warmup"]
    ages = read_ages(results, case)
    assert max(float(found.max()) for rank in ages for found in rank) == eps  # reached, never passed
    assert all(float(found.max()) == 0 for rank in ages for found in rank[:warmup])
    for rank in results:
        figures = rank[f"driven {case.name}"]["figures"]
        sent = [epoch for epoch, f in enumerate(figures, 1) if f["broadcasts"]]
        assert sent == [*range(1, warmup + 1), *range(warmup + eps + 1, EPOCHS + 1, eps + 1)]
        assert [f["skipped"] for f in figures] == [int(epoch not in sent) for epoch in range(1, EPOCHS + 1)]


def test_the_gap_rule_sends_when_rows_have_changed_enough(results: Results) -> None:
    """Rows grow by 1 in each epoch, so with a bound of 2.5 they are sent every third epoch."""
    case = next(c for c in DRIVEN if c.options.get("bound") == "gap")
    for rank, ages in zip(results, read_ages(results, case), strict=True):
        figures = rank[f"driven {case.name}"]["figures"]
        assert [epoch for epoch, f in enumerate(figures, 1) if f["broadcasts"]] == list(range(1, EPOCHS + 1, 3))
        assert [float(found.max()) for found in ages] == [0, 1, 2] * (EPOCHS // 3)
        assert rank[f"driven {case.name}"]["copied"] > 0


@pytest.mark.parametrize("case", marked(DRIVEN, harness.QUICK))
def test_payload_and_copies_are_what_the_formulas_say(results: Results, case: StaleCase) -> None:
    row = 8 * harness.WIDTH
    for rank in results:
        found = rank[f"driven {case.name}"]
        assert [f["sent"] for f in found["figures"]] == [
            found["sends"] * row * f["broadcasts"] for f in found["figures"]
        ]
        if case.rows == "all":  # two servers of two trainers: each row goes to the two trainers of the other server
            assert found["sends"] == 2 * found["own"]
        slots = {"exchange": 0, "sancus": 1, "pipegcn": 2}[case.system]
        gradients = found["sends"] if case.system == "pipegcn" else 0
        assert found["kept"] == slots * (found["received"] + gradients) * row
    if case.rows == "all":
        # Each trainer keeps the half of the vertices that the other server has: (1 - 1/p) N d numbers.
        assert [rank[f"driven {case.name}"]["received"] for rank in results] == [VERTICES // 2] * WORLD
