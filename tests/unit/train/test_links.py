"""Link prediction and learning without labels: figures, losses, candidates, splits and the probe beside brute force."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import exp, inf, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch_geometric.nn import DeepGraphInfomax, GraphSAGE

from atta.errors import ConfigError
from atta.partition.schema import Schema, TableSpec
from atta.samplers.hashing import mix64
from atta.train import TrainConfig
from atta.train.models.links import InfomaxModel, decoder_named
from atta.train.settings.minibatch import parse_eval_negatives, parse_shares
from atta.train.steps.embedding import LinearProbe
from atta.train.steps.masks import mixed
from atta.train.steps.unlabelled import chosen_places, in_batch
from atta.train.tasks.choice import task_on, watched_by
from atta.train.tasks.edges import GraphPairs
from atta.train.tasks.pairs import HITS, Links, Unlabelled, auc_sums, check_labels, rank_sums, ranks_of, sortable
from atta.train.tasks.splits import EdgeSplit, TimeSplit

NAN = float("nan")
few_scores = st.sampled_from([-1.0, 0.0, 0.5, 2.0])  # so that there are ties


@given(st.lists(st.lists(few_scores, min_size=1, max_size=5), min_size=1, max_size=4))
def test_ranks_are_those_of_all_orders_of_the_tied(rows: list[list[float]]) -> None:
    width = max(map(len, rows))
    scores = torch.tensor([row + [9.0] * (width - len(row)) for row in rows])
    there = torch.tensor([[place < len(row) - 1 for place in range(width - 1)] for row in rows], dtype=torch.bool)
    there = there.reshape(len(rows), width - 1)
    ranks, hits = ranks_of(scores, there, (1, 2, 3))
    for number, row in enumerate(rows):
        orders = {tuple(order) for order in permutations(range(len(row)))}
        fair = [o for o in orders if all(row[a] >= row[b] for a, b in pairwise(o))]
        places = [order.index(0) + 1 for order in fair]
        assert ranks[number].item() == pytest.approx(np.mean(places))
        for most, found in zip((1, 2, 3), hits, strict=True):
            assert found[number].item() == pytest.approx(np.mean([place <= most for place in places]))


def test_a_constant_scorer_is_no_better_than_chance() -> None:
    candidates = 150
    scores, there = torch.ones(8, 1 + candidates), torch.ones(8, candidates, dtype=torch.bool)
    sums = torch.cat([rank_sums(scores, there), auc_sums(scores[:, 0], scores[:, 1:].reshape(-1))]).numpy()
    figures = {metric.name: metric.of(sums) for metric in Links().metrics}
    places = candidates + 1
    assert figures["mrr"] == pytest.approx(1 / (1 + candidates / 2))
    assert [figures[f"hits@{k}"] for k in HITS] == pytest.approx([k / places for k in HITS])
    assert figures["auc"] == 0.5
    labels = torch.randint(0, 2, (20,))
    expected = F.binary_cross_entropy(scores.reshape(-1)[:20].sigmoid(), labels.float(), reduction="sum")
    assert Links().loss(scores.reshape(-1)[:20], labels, None).item() == pytest.approx(expected.item())


def test_what_is_no_number_is_wrong() -> None:
    scores = torch.tensor([[NAN, 1.0, NAN], [1.0, NAN, 0.0]])
    ranks, _ = ranks_of(scores, torch.ones(2, 2, dtype=torch.bool))
    assert ranks.tolist() == [3.0, 2.0]
    positives = sortable(scores[:, 0], positive=True).sort().values
    won, pairs = auc_sums(positives, sortable(scores[:, 1:].reshape(-1), positive=False)).tolist()
    assert (won, pairs) == (1.5, 8.0)  # 1 is above 0, and ties with 1


@given(st.lists(few_scores, min_size=1, max_size=8), st.lists(st.lists(few_scores, max_size=5), min_size=1, max_size=3))
def test_auc_counts_all_pairs_of_all_batches(positives: list[float], batches: list[list[float]]) -> None:
    ordered = torch.tensor(sorted(positives))
    won, pairs = sum((auc_sums(ordered, torch.tensor(batch)) for batch in batches), torch.zeros(2)).tolist()
    negatives = [score for batch in batches for score in batch]
    assert pairs == len(positives) * len(negatives)
    assert won == sum((p > n) + (p == n) / 2 for p in positives for n in negatives)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    ids = draw(st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=12, unique=True))
    ends = st.sampled_from(ids)
    return ids, draw(st.lists(st.tuples(ends, ends), min_size=1, max_size=40))


@settings(deadline=None)
@given(graphs(), st.one_of(st.none(), st.integers(1, 14)), st.randoms(use_true_random=False))
def test_candidates_are_never_edges(graph: tuple[list[int], list[tuple[int, int]]], count: int | None, order) -> None:  # type: ignore[no-untyped-def]
    ids, edges = graph
    pairs = GraphPairs.of(np.array(ids), *np.array(edges).T)
    different = sorted({(s, t) for s, t in edges if s != t})
    assert sorted(map(tuple, pairs.user_ids(pairs.keys).T.tolist())) == different
    found = pairs.candidates(pairs.keys, count)
    drawn: dict[tuple[int, int], list[int]] = {}
    for pair, places, there in zip(pairs.user_ids(pairs.keys).T.tolist(), found.places, found.there, strict=True):
        source, allowed = pair[0], set(ids) - {t for s, t in different if s == pair[0]} - {pair[0]}
        given_ids = pairs.ids[places[there]].tolist()
        assert set(given_ids) <= allowed
        if count is None or len(allowed) <= count:
            assert given_ids == sorted(allowed)
        else:
            assert len(given_ids) == count
        drawn[source, pair[1]] = given_ids
    # In any order of vertices and edges, and for any part of the positives, the candidates are the same.
    order.shuffle(edges)
    again = GraphPairs.of(np.array(ids[::-1]), *np.array(edges).T)
    some = again.keys[::2]
    lists = again.candidates(some, count)
    for pair, places, there in zip(again.user_ids(some).T.tolist(), lists.places, lists.there, strict=True):
        assert again.ids[places[there]].tolist() == drawn[tuple(pair)]


def test_candidates_are_uniform() -> None:
    ids = np.arange(0, 60, 3)
    pairs = GraphPairs.of(ids, np.zeros(4, np.int64), np.array([3, 6, 9, 57]))
    found = pairs.ids[pairs.candidates(pairs.keys, 1500).places]
    assert found.shape == (4, 15)  # no more than there are
    many = GraphPairs.of(np.arange(4000), np.zeros(1, np.int64), np.ones(1, np.int64))
    drawn = many.candidates(many.keys, 3990).places[0]
    assert abs(drawn.mean() - 2001) < 80  # standard error: 18
    assert 0.6 < len(np.unique(drawn)) / 3990 < 0.66  # with replacement: 1 - 1/e


def test_settings_that_are_none() -> None:
    for text in ("0", "-1", "many", "1.5", ""):
        with pytest.raises(ConfigError, match=f"--eval-negatives {text}: give a number"):
            parse_eval_negatives(text)
    assert (parse_eval_negatives("all"), parse_eval_negatives("50")) == (None, 50)
    for text in ("0.8,0.2", "0.8,0.3,-0.1", "0.8,0.1,0.2", "a,b,c", "0,0.5,0.5", "nan,0,0", ""):
        with pytest.raises(ConfigError, match=f"--edge-split {text}: "):
            parse_shares(text)
    with pytest.raises(ConfigError, match="--decoder transe: there is no such decoder"):
        decoder_named("transe", 4, 4)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_the_hash_is_that_of_samplers(values: list[int]) -> None:
    found = mixed(torch.tensor(values, dtype=torch.int64)).numpy().view(np.uint64)
    assert found.tolist() == mix64(np.array(values, np.int64).view(np.uint64)).tolist()


def test_an_edge_has_one_split_in_both_directions() -> None:
    ends = torch.randint(-(2**60), 2**60, (2, 20_000))
    split = EdgeSplit((0.7, 0.2, 0.1))
    found = split.of(ends[0], ends[1])
    assert torch.equal(found, split.of(ends[1], ends[0]))
    assert torch.equal(split.messages(ends[0], ends[1]), found == 0)
    shares = found.bincount(minlength=3) / 20_000
    assert shares.tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.015)  # more than four standard errors
    assert not EdgeSplit((1, 0, 0)).of(ends[0], ends[1]).any()


@pytest.mark.parametrize("name", ["dot", "distmult", "mlp"])
def test_a_decoder_scores_pairs_one_at_a_time(name: str) -> None:
    torch.manual_seed(2)
    decoder = decoder_named(name, 5, 7)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    sources, targets = torch.randn(4, 5), torch.randn(4, 6, 5)
    found = decoder(sources[:, None], targets)
    assert found.shape == (4, 6)
    weights = {key: tensor.numpy() for key, tensor in decoder.state_dict().items()}
    for row in range(4):
        for column in range(6):
            terms = sources[row].numpy() * targets[row, column].numpy()
            if name == "mlp":
                hidden = np.maximum(weights["hidden.weight"] @ terms + weights["hidden.bias"], 0)
                expected = (weights["score.weight"] @ hidden + weights["score.bias"])[0]
            else:
                expected = (terms * weights.get("relation", 1)).sum()
            assert found[row, column].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_edges_may_be_read_until_the_last_time_of_training() -> None:
    for dtype in ("u1", "u2", "u4", "u8", "i2", "i8", "f2", "f8"):
        times = np.array([5, 0, 9, 7, 7, 200], dtype)
        split = TimeSplit.by(times, (0.5, 0.2, 0.3))
        read = split.readable(SimpleNamespace(edge_time=torch.from_numpy(times)), torch.zeros(6), torch.zeros(6))
        assert read.tolist() == (split.of(times) == 0).tolist() == [True, True, False, True, True, False]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_times_divide_edges_as_far_as_equal_times_allow(times: list[int]) -> None:
    given = np.array(times)
    split = TimeSplit.by(given, (0.5, 0.25, 0.25))
    of = split.of(given)
    for a, b in permutations(range(len(times)), 2):
        assert (times[a] <= times[b]) <= (of[a] <= of[b])  # earlier edges never come later
    at_least = -(-len(times) // 2)
    assert (of == 0).sum() >= at_least
    assert (given < split.until[0]).sum() < at_least  # one time less would be too few


def test_labels_that_nothing_can_be_learnt_from() -> None:
    for labels, training, said in (
        ([0, -2, 1], [0, 1], "numbers below -1"),
        ([-1, 0, 1], [], "no training edge has a label"),
        ([0, 1, 1], [1, 1], "all training edges are of class 1"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_labels(np.array(labels), np.array(training))
    assert check_labels(np.array([-1, 3, 0]), np.array([3, 0])) == 4


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 3], [1, 2, 3, 4, 5, 0, 3, 0]])


def model() -> GraphSAGE:
    torch.manual_seed(1)
    return GraphSAGE(4, 8, 2, 5)


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from([-inf, -2.0, 0.0, 0.5, 3.0]), min_size=3, max_size=3)))
)
def test_loss_is_that_of_equation_1(rows: list[tuple[bool, list[float]]]) -> None:
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
def test_in_batch_negatives_are_positives_of_others(positives: list[int], data: st.DataObject, count: int) -> None:
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
