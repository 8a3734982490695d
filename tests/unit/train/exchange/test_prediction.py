"""Predictors of stale rows: nothing changes before they learn, no loss reaches the other's weights, the guard."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train.exchange.predictions import Errors, Guard
from atta.train.exchange.predictors import LinearPredictor, LstmPredictor, PublishedGraph, predict_changes, predictor
from atta.train.settings.servers import PREDICTORS
from tests.oracles.predicted import PlainNet

OWN, ROWS, WIDTH, COUNT = 30, 50, 6, 5


def learn(by: LstmPredictor | LinearPredictor, *given: Any, ahead: float = 1.0, seed: int = 0) -> None:
    by.study(*given, ahead=ahead, seed=seed)
    by.take(by.shares())


def together(trainers: Sequence[LstmPredictor | LinearPredictor]) -> None:
    shares = [by.shares() for by in trainers]
    for by in trainers:
        by.take([torch.stack(of_all).sum(0) for of_all in zip(*shares, strict=True)])


def some_graph(seed: int = 0) -> PublishedGraph:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.stack(
        [torch.randint(0, ROWS, (200,), generator=generator), torch.randint(0, OWN, (200,), generator=generator)]
    )
    return PublishedGraph.of(edges, own=OWN, rows=ROWS)


def drifting(seed: int, count: int = COUNT + 1) -> torch.Tensor:
    """[count, rows, width]: rows that move on curves, as those of a network that converges."""
    rng = np.random.default_rng(seed)
    start, goal = rng.normal(size=(2, ROWS, WIDTH))
    rate = rng.uniform(0.7, 0.8)
    return torch.tensor(np.stack([goal + (start - goal) * rate**t for t in range(count)]), dtype=torch.float32)


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(0, 40))
@settings(max_examples=30)
def test_the_graph_has_edges_both_ways_a_loop_each_and_mean_weights(seed: int, rows: int, edges: int) -> None:
    index = torch.randint(0, rows, (2, edges), generator=torch.Generator().manual_seed(seed))
    graph = PublishedGraph.of(index, own=rows // 2, rows=rows)
    reference = nx.Graph(index.T.tolist())
    reference.add_nodes_from(range(rows))
    reference.add_edges_from((v, v) for v in range(rows))
    dense = torch.from_numpy(nx.to_numpy_array(reference, nodelist=range(rows)))
    dense = (dense > 0).double()
    assert torch.allclose(graph.adjacency(dense).to_dense(), dense / dense.sum(1, keepdim=True))


def test_a_smaller_graph_around_some_rows_predicts_the_same() -> None:
    graph, window = some_graph(), drifting(1)[:-1]
    lstm = LstmPredictor(WIDTH)
    torch.nn.init.normal_(lstm.net.last.lin.weight)
    targets = torch.tensor([3, 17, 8])
    near, rows, places = graph.around(targets)
    assert near.rows < graph.rows
    assert torch.equal(rows[places], targets)
    with torch.no_grad():
        assert torch.allclose(lstm(window[:, rows], near)[places], lstm(window, graph)[targets], atol=1e-6)


@pytest.mark.parametrize("kind", PREDICTORS)
def test_no_row_changes_before_the_first_step_nor_without_rows_to_learn_from(kind: str) -> None:
    window = drifting(2)[:-1].relu()
    new, same = (predictor(kind, WIDTH, COUNT, seed=4) for _ in range(2))
    found = window[-1] + 0.3 * predict_changes(new, window, some_graph())
    assert torch.equal(found.view(torch.int32), window[-1].view(torch.int32))
    assert all(torch.equal(a, b) for a, b in zip(new.state_dict().values(), same.state_dict().values(), strict=True))
    graph = PublishedGraph.of(torch.empty(2, 0, dtype=torch.int64), own=0, rows=0)
    by, other = (predictor(kind, WIDTH, COUNT) for _ in range(2))
    before = {name: value.clone() for name, value in by.state_dict().items()}
    by.study(torch.empty(COUNT, 0, WIDTH), graph, torch.empty(0, WIDTH), ahead=1.0, seed=0)
    other.study(drifting(1)[:-1], some_graph(), drifting(1)[-1, :OWN], ahead=1.0, seed=0)
    assert [share.shape for share in by.shares()] == [share.shape for share in other.shares()]
    assert not any(bool(share.any()) for share in by.shares())
    by.take(by.shares())
    assert all(torch.equal(value, before[name]) for name, value in by.state_dict().items())


@pytest.mark.parametrize("kind", PREDICTORS)
def test_neither_loss_reaches_the_weights_of_the_other(kind: str) -> None:
    graph, gnn = some_graph(), torch.nn.Linear(WIDTH, WIDTH)
    by = predictor(kind, WIDTH, COUNT)
    rows = torch.stack([gnn(h) for h in drifting(3)])  # a history that still has the graph of autograd
    before = [p.detach().clone() for p in gnn.parameters()]
    learn(by, rows[:-1], graph, rows[-1, :OWN])
    assert all(p.grad is None for p in gnn.parameters())
    assert all(torch.equal(p, b) for p, b in zip(gnn.parameters(), before, strict=True))
    learnt = {name: value.clone() for name, value in by.state_dict().items()}
    assert any(value.abs().sum() > 0 for name, value in learnt.items() if name in ("weights", "net.last.lin.weight"))
    found = predict_changes(by, rows[:-1], graph)
    assert not found.requires_grad
    gnn(found).square().sum().backward()
    assert all(p.grad is not None for p in gnn.parameters())
    assert all(p.grad is None for p in by.parameters())
    assert all(torch.equal(value, learnt[name]) for name, value in by.state_dict().items())


@pytest.mark.parametrize("kind", PREDICTORS)
def test_a_predictor_goes_on_where_it_was_saved(kind: str) -> None:
    graph, rows = some_graph(), drifting(9, COUNT + 3)
    through, again = predictor(kind, WIDTH, COUNT, seed=1), predictor(kind, WIDTH, COUNT, seed=2)
    for now in range(COUNT, COUNT + 3):
        if now == COUNT + 1:
            through.study(rows[:COUNT], graph, rows[-1, :OWN], ahead=0.5, seed=7)
            again.load_state(copy.deepcopy(through.state()))
            for by in (through, again):
                by.take(by.shares())
        for by in (through, again):
            learn(by, rows[now - COUNT : now], graph, rows[now, :OWN], seed=now)
    assert all(
        torch.equal(a, b) for a, b in zip(through.state_dict().values(), again.state_dict().values(), strict=True)
    )


def test_lstms_learn_by_themselves_and_take_the_mean_of_their_weights() -> None:
    trainers = [predictor("lstm", WIDTH, COUNT, seed=3) for _ in range(3)]
    graphs, nobody = [some_graph(seed) for seed in (1, 2)], PublishedGraph.of(torch.empty(2, 0).long(), own=0, rows=0)
    plain = [PlainNet(trainers[0], WIDTH) for _ in graphs]
    adams = [torch.optim.Adam(net.parameters(), 0.01) for net in plain]
    for seed, ahead in ((5, 0.4), (6, 1.0)):
        paths = [drifting(10 * seed + n) for n in range(2)]
        for by, path, graph in zip(trainers, paths, graphs, strict=False):
            before = by(path[:-1], graph)
            by.study(path[:-1], graph, path[-1, :OWN], ahead=ahead, seed=seed)
            assert torch.equal(by(path[:-1], graph), before)
        trainers[2].study(torch.empty(COUNT, 0, WIDTH), nobody, torch.empty(0, WIDTH), ahead=ahead, seed=seed)
        together(trainers)
        for net, adam, path, graph in zip(plain, adams, paths, graphs, strict=True):
            mixing = graph.adjacency(path).to_dense()
            for _ in range(4):
                adam.zero_grad()
                found = path[-2] + ahead * net(path[:-1], mixing)
                ((found[:OWN] - path[-1, :OWN]) ** 2).mean().backward()
                adam.step()
        with torch.no_grad():
            for weights in zip(*(net.parameters() for net in plain), strict=True):
                mean = sum(weights) / len(weights)
                for weight in weights:
                    weight.copy_(mean)
    for by in trainers:
        for path, graph in zip(paths, graphs, strict=True):
            expected = plain[0](path[:-1], graph.adjacency(path).to_dense())
            assert expected.abs().max() > 0.02
            assert torch.allclose(predict_changes(by, path[:-1], graph), expected, atol=1e-4)
    # A trainer learns with its weights once on the link: 41,600 numbers, and how many trainers they are of.
    shares = predictor("lstm", 64, COUNT).shares()
    assert sum(share.nbytes for share in shares) == 4 * (4 * 64 * (64 + 64 + 2) + 2 * 64 * (64 + 1) + 1) == 166_404


def test_weights_that_are_not_finite_are_forgotten() -> None:
    by, graph, path = predictor("lstm", WIDTH, COUNT), some_graph(), drifting(4)
    learn(by, path[:-1], graph, path[-1, :OWN])
    before = {name: value.clone() for name, value in by.state_dict().items()}
    learn(by, path[:-1], graph, torch.full((OWN, WIDTH), math.nan))
    assert all(torch.equal(value, before[name]) for name, value in by.state_dict().items())
    learn(by, path[:-1], graph, path[-1, :OWN])
    assert all(bool(torch.isfinite(value).all()) for value in by.state_dict().values())
    assert not torch.equal(by.state_dict()["net.last.lin.weight"], before["net.last.lin.weight"])


def test_linear_weights_are_the_least_squares_solution_over_all_trainers() -> None:
    paths = [drifting(seed) + 0.1 * torch.randn(COUNT + 1, ROWS, WIDTH) for seed in (5, 6)]
    graph, trainers, ahead = some_graph(), [LinearPredictor(COUNT, damping=0.0) for _ in paths], 0.4
    for by, path in zip(trainers, paths, strict=True):
        by.study(path[:-1], graph, path[-1, :OWN], ahead=ahead, seed=0)
    together(trainers)
    changes = torch.cat([path[:-1, :OWN].double().diff(dim=0).flatten(1) for path in paths], 1).numpy()
    error = torch.cat([(path[-1, :OWN].double() - path[-2, :OWN].double()).flatten() for path in paths]).numpy()
    expected = np.linalg.lstsq(ahead * changes.T, error, rcond=None)[0]
    for by in trainers:
        assert np.allclose(by.weights.numpy(), expected, atol=1e-8)
        found = predict_changes(by, paths[0][:-1], graph).numpy()
        assert np.allclose(found, np.tensordot(expected, np.diff(paths[0][:-1].numpy(), axis=0), 1), atol=1e-5)
    by, still = LinearPredictor(COUNT), torch.ones(COUNT, ROWS, WIDTH)
    learn(by, still, graph, still[-1, :OWN] + 1)  # rows that do not change leave it at zero
    assert by.weights.tolist() == [0.0] * (COUNT - 1)


def test_the_guard_uses_predictions_only_where_they_are_much_better() -> None:
    guess, stale, fresh = torch.randn(3, 10, 4)
    found = Errors.of(guess, stale, fresh)
    assert found.predicted == pytest.approx(float((guess - fresh).square().sum()), rel=1e-5)
    assert found.ratio == pytest.approx(float((guess - fresh).norm() / (stale - fresh).norm()), rel=1e-5)
    assert (Errors(1.0, 0.0).ratio, Errors().ratio) == (math.inf, 1.0)
    guard = Guard(patience=3)
    assert not guard.uses
    for errors, uses in [
        (Errors(1.0, 1.0), False), (Errors(0.25, 1.0), True), (Errors(0.26, 1.0), False), (Errors(1.1, 1.0), False),
        (Errors(math.nan, 1.0), False), (Errors(0.0, 0.0), False), (Errors(0.2, 1.0), True),
    ]:  # fmt: skip
        guard.note_errors(errors)
        assert guard.uses == uses
    for _ in range(3):
        assert guard.learns
        guard.note_errors(Errors(0.24, 1.0))
    assert not guard.learns
    guard.note_errors(Errors(2.0, 1.0))
    assert guard.learns
    with pytest.raises(ConfigError, match="lstm, linear"):
        predictor("gru", 3, 5)
    with pytest.raises(ConfigError, match="at least 2"):
        predictor("linear", 3, 1)
    with pytest.raises(ConfigError, match="do not fit 2 own rows of 3"):
        PublishedGraph.of(torch.tensor([[3], [0]]), own=2, rows=3)
