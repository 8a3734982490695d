"""Learning without labels: losses beside loops and PyG's own, the linear probe beside scipy's solver."""

from __future__ import annotations

from math import exp, inf, log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch_geometric.nn import DeepGraphInfomax, GraphSAGE

from atta.errors import ConfigError
from atta.partition.schema import Schema, TableSpec
from atta.train import TrainConfig
from atta.train.models.links import InfomaxModel, WalkModel
from atta.train.steps.embedding import LinearProbe
from atta.train.steps.unlabelled import chosen_places, in_batch
from atta.train.tasks.choice import task_on, watched_by
from atta.train.tasks.pairs import Unlabelled

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 3], [1, 2, 3, 4, 5, 0, 3, 0]])


def model() -> GraphSAGE:
    torch.manual_seed(1)
    return GraphSAGE(4, 8, 2, 5)


# -- loss --------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from([-inf, -2.0, 0.0, 0.5, 3.0]), min_size=3, max_size=3)))
)
def test_loss_is_that_of_equation_1(rows: list[tuple[bool, list[float]]]) -> None:
    """Brute force, one sample at a time."""
    scores = torch.tensor([row for _, row in rows]).reshape(-1, 3)
    scores[:, 0].clamp_(min=-5)  # a positive sample that is not there has target 0
    there = torch.tensor([known for known, _ in rows], dtype=torch.int64)
    expected = 0.0
    for known, row in rows:
        if known:
            expected -= log(1 / (1 + exp(-max(row[0], -5))))
            expected -= sum(log(1 - 1 / (1 + exp(-s))) for s in row[1:] if s > -inf)
    task = Unlabelled("unsupervised", "classes")
    assert task.loss(scores, there, None).item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert task.known(there).tolist() == [known for known, _ in rows]


def test_scores_of_walks_are_inner_products_of_pygs_embeddings() -> None:
    gnn, x = model(), torch.randn(6, 4)
    others = torch.tensor([[1, 2], [3, 3], [0, 5], [4, 1], [2, 2], [0, 1]])
    rows = gnn(x, EDGES)
    samples = torch.cat([torch.arange(6)[:, None], others], dim=1)
    found = _whole(WalkModel(gnn), x, samples)
    for seed, places in enumerate(others.tolist()):
        for column, other in enumerate(places):
            assert found[seed, column].item() == pytest.approx(float(rows[seed] @ rows[other]), abs=1e-5)


def test_infomax_is_that_of_pyg() -> None:
    gnn, x, order = model(), torch.randn(6, 4), torch.tensor([5, 3, 1, 0, 2, 4])
    own = InfomaxModel(gnn, 5)
    theirs = DeepGraphInfomax(5, gnn, lambda z, *_: z.mean(0).sigmoid(), lambda x, edges: (x[order], edges))
    theirs.weight.data = own.link_decoder.weight.data
    expected = theirs.loss(*theirs(x, EDGES))
    scores = _whole(own, x, order)
    found = Unlabelled("dgi", "links").loss(scores, torch.ones(6, dtype=torch.int64), None) / 6
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def _whole(model: Any, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """A model on the whole graph: targets ascend, as batches have them, and every vertex is a seed."""
    found: torch.Tensor = model(x, EDGES[:, EDGES[1].argsort(stable=True)], [6, 0, 0], [8, 0], places=given)
    return found


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data(), st.integers(1, 9))
def test_in_batch_negatives_are_positive_samples_of_others(
    positives: list[int], data: st.DataObject, count: int
) -> None:
    there = data.draw(st.lists(st.booleans(), min_size=len(positives), max_size=len(positives)))
    found = in_batch(torch.tensor(positives), torch.tensor(there), count).tolist()
    known = [number for number, has in enumerate(there) if has]
    for seed, row in enumerate(found):
        assert len(row) == count
        if len(known) < 2:
            assert row == [seed] * count  # a pair that does not count
        elif there[seed]:
            at = known.index(seed)
            others = known[at + 1 :] + known[:at]
            assert row == [positives[others[k % len(others)]] for k in range(count)]


def test_places_of_walks_are_drawn_alike_and_never_the_start() -> None:
    walks = np.array([[0, 1, 2, 0], [3, -1, -1, -1], [4, 5, -1, -1], [6, 6, 6, 6]])
    for seed in range(20):
        places = chosen_places(walks, np.array([10, 11, 12, 13]), 3, seed)
        assert places[0] in (1, 2)
        assert places[1:].tolist() == [-1, 1, -1]
    many = np.tile([0, 1, 2, 3], (9000, 1))
    drawn = np.bincount(chosen_places(many, np.arange(9000), 3, 5), minlength=4)
    assert drawn[0] == 0
    assert abs(drawn[1:] - 3000).max() < 5 * np.sqrt(2000)  # five standard deviations


# -- probe -------------------------------------------------------------------------------------------------------------


def test_probe_is_the_minimum_that_scipy_finds() -> None:
    rng, n, width, classes = np.random.default_rng(2), 80, 4, 3
    targets = rng.integers(0, classes, n)
    rows = (rng.standard_normal((n, width)) * [1, 5, 0.1, 0] + [0, 3, 0, 7]).astype(np.float32)
    rows[:, 1] += targets
    x = (rows - rows.mean(0, dtype=np.float64)) / np.where(rows.std(0) > 0, rows.std(0, dtype=np.float64), 1)

    def objective(flat: np.ndarray) -> float:
        weight, bias = flat[: classes * width].reshape(classes, width), flat[classes * width :]
        scores = x @ weight.T + bias
        likelihood = scores[np.arange(n), targets] - np.log(np.exp(scores).sum(1))
        return float(-likelihood.sum() + (weight**2).sum() / 2)

    best = minimize(objective, np.zeros(classes * (width + 1)), method="BFGS").x
    probe = LinearProbe.fit(torch.from_numpy(rows), torch.from_numpy(targets), classes)
    assert probe.weight.numpy() == pytest.approx(best[: classes * width].reshape(classes, width), abs=1e-3)
    scores = probe.scores(torch.from_numpy(rows)).numpy()
    theirs = x @ best[: classes * width].reshape(classes, width).T + best[classes * width :]
    assert scores - scores.mean(1, keepdims=True) == pytest.approx(theirs - theirs.mean(1, keepdims=True), abs=5e-3)


# -- which task --------------------------------------------------------------------------------------------------------


def schema(**changes: Any) -> Schema:
    tables = {"node": {"x": TableSpec("<f4", (3,)), "y": TableSpec("<i8")}}
    given: dict[str, Any] = {"node_tables": tables, "splits": {"node": {"train": 3, "val": 2}}, "num_classes": 2}
    given |= {"edge_counts": {"node__to__node": 20}, **changes}
    return Schema(("node",), ("node__to__node",), {"node": 9}, **given)


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"data": "x", "task": "unsupervised", "hidden": 8, **settings})


def test_embeddings_are_judged_by_classes_where_there_are_some() -> None:
    found = task_on(schema(), config().own)
    assert found.resolved == {"task": "unsupervised", "evaluate_by": "classes"}
    assert (found.task.metrics[0].name, found.splits, found.outputs) == ("accuracy", ["val"], 8)
    bare = {"node": {"x": TableSpec("<f4", (3,))}}
    for changes in ({"num_classes": None}, {"splits": {"node": {}}}, {"node_tables": bare}):
        found = task_on(schema(**changes), config().own)
        assert (found.resolved["evaluate_by"], found.task.metrics[0].name) == ("links", "mrr")
        assert found.splits == ["val", "test"]
    assert watched_by(config(task="dgi", evaluate_by="links").own).metric == "val_mrr"


@pytest.mark.parametrize(
    ("changes", "settings", "said"),
    [
        ({"splits": {"node": {}}}, {"evaluate_by": "classes"}, "needs table y and training vertices"),
        ({"num_classes": 1}, {"evaluate_by": "classes"}, "at least two classes"),
        ({"edge_counts": {"node__to__node": 0}}, {}, "edge type node__to__node has no edges"),
        ({"node_tables": {"node": {}}}, {}, "needs the node table x"),
        ({}, {"edge_split": "0.5,0.5,0"}, "--edge-split: goes with --evaluate-by links, not classes"),
        ({}, {"class_weights": "balanced"}, "does not go with --task unsupervised"),
        ({}, {"model": "rgcn"}, "takes graphs with one node type"),
    ],
)
def test_a_graph_that_cannot_serve_is_refused(changes: dict[str, Any], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        task_on(schema(**changes), config(**settings).own)
