"""Models for cooperative training in one process: which are accepted, which are refused and why.

Nothing else changes.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import nn as pyg

from atta.errors import ConfigError, UnknownNameError
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.server import server_subgraph
from atta.samplers.operators.server import Closure
from atta.train.cooperative.exchange import CooperativeGraph, TrainerBatch, backward, count_targets, start_exchange
from atta.train.cooperative.graph import TrainingGraph, worker_view
from atta.train.cooperative.model import CooperativeModel, Exchanged
from atta.train.cooperative.source import Arrival, Direction, JoinedSource, Payload, RowPart, Source, source_inside
from atta.train.models.deep import DeepGNN
from tests.unit.train.graphs import batch_of, training_graph

VERTICES = 30
Model = Callable[[], torch.nn.Module]
"""Made in its test: PyG looks through all sources for some of them, which each worker would wait for."""


@pytest.fixture
def graph(rng: np.random.Generator) -> TrainingGraph:
    edges = rng.integers(0, VERTICES, (2, 90))
    return training_graph(edges[:, edges[0] != edges[1]], VERTICES, rng)


@pytest.fixture
def batch(graph: TrainingGraph) -> TrainerBatch:
    return batch_of(graph)


def two_layers(middle: torch.nn.Module) -> torch.nn.Module:
    first, last = ((pyg.SAGEConv(*widths), "x, edge_index -> x") for widths in ((5, 8), (8, 3)))
    return pyg.Sequential("x, edge_index", [first, middle, last]).double()


@pytest.mark.parametrize(
    "model",
    [
        lambda: pyg.GraphSAGE(5, 8, 2, 3, norm="LayerNorm", norm_kwargs={"mode": "node"}),
        lambda: pyg.GCN(5, 8, 2, 3, jk="lstm"),
        lambda: pyg.GAT(5, 8, 2, 3, heads=2),
        lambda: pyg.GIN(5, 8, 2, 3, norm=None),
        lambda: DeepGNN(5, 8, 3, num_layers=112, kind="deepergcn", dropout=0.0),
        lambda: two_layers(torch.nn.ReLU()),
    ],
    ids=["sage", "gcn", "gat", "gin", "deep", "sequential"],
)
def test_a_single_trainer_computes_what_the_model_does(model: Model, batch: TrainerBatch) -> None:
    model = model().double()
    plain, names = copy.deepcopy(model), list(model.state_dict())
    cooperative = CooperativeModel(model)
    loss = backward(cooperative, batch, None, count_targets(batch, None))
    view = batch.graph.view
    x, edges = torch.from_numpy(view.features), torch.from_numpy(view.edge_index)
    expected = torch.nn.functional.cross_entropy(plain(x, edges)[batch.targets], batch.y)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name)
    # The model itself is unchanged: it has the same names and still runs on its own.
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x, edges), plain(x, edges))


@pytest.mark.parametrize("kind", [pyg.GCN, pyg.GAT, pyg.GraphSAGE])
def test_an_extracted_closure_gives_the_gradient_of_the_whole_graph(rng: np.random.Generator, kind: Any) -> None:
    """Loops among the edges, of inner and of other vertices.

    Targets: inner training vertices, then a co-batch of them.
    """
    n = 400
    target = np.sort(rng.integers(0, n, 900))
    source = (target + rng.integers(-3, 4, len(target))) % n
    local = LocalGraph.from_csc(np.searchsorted(target, np.arange(n + 1)), source)
    whole = server_subgraph(local, rng.permutation(n // 3), Closure(2))
    x, y, train = rng.standard_normal((n, 5)), rng.integers(0, 3, n), rng.random(n) < 0.5
    whole = replace(whole, tables={"x": x[whole.n_id], "y": y[whole.n_id, None]}, splits={"train": train[whole.n_id]})
    some = np.flatnonzero(whole.inner & whole.splits["train"])[:20]
    for found, seeds in ((whole, np.flatnonzero(train[: n // 3])), (whole.co_batch(some, 2), whole.n_id[some])):
        graph = TrainingGraph.of(found)
        exact = graph.exact_layers()
        assert exact is None or exact >= 2
        assert set(graph.global_ids[graph.loss_mask].tolist()) == set(seeds.tolist())
        model = kind(5, 8, 2, 3).double()
        backward(CooperativeModel(model), batch_of(graph), None, graph.num_targets)
        mine = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        scores = model(torch.from_numpy(x), torch.from_numpy(np.stack([source, target])))[seeds]
        torch.nn.functional.cross_entropy(scores, torch.from_numpy(y[seeds])).backward()
        torch.testing.assert_close(mine, [p.grad for p in model.parameters()])


def test_what_was_extracted_without_labels_is_refused(rng: np.random.Generator) -> None:
    local = LocalGraph.from_csc(np.array([0, 1, 2]), np.array([1, 0]))
    found = server_subgraph(local, np.arange(2), Closure(1))
    tables, splits = {"x": np.ones((2, 3)), "y": np.zeros(2)}, {"train": np.ones(2, np.bool_)}
    with pytest.raises(UnknownNameError, match="unknown node table 'x'"):
        TrainingGraph.of(replace(found, splits=splits))
    with pytest.raises(UnknownNameError, match="unknown split 'train'"):
        TrainingGraph.of(replace(found, tables=tables))
    with pytest.raises(ConfigError, match="expected a row and a label per vertex"):
        TrainingGraph.of(replace(found, tables=tables | {"y": np.zeros((2, 2))}, splits=splits))


def test_train_and_eval_reach_the_layers(batch: TrainerBatch) -> None:
    model = CooperativeModel(pyg.GraphSAGE(5, 64, 2, 3, dropout=0.5).double())
    assert not torch.equal(model(batch.x, batch.graph), model(batch.x, batch.graph))
    model.eval()
    assert torch.equal(model(batch.x, batch.graph), model(batch.x, batch.graph))


class Empty(Source):
    sent = crossed = Payload()

    def __init__(self) -> None:
        self.asked: list[tuple[int, Direction]] = []

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        self.asked.append((layer, direction))
        return Arrival(lambda: rows[:0] if direction == "forward" else rows.new_zeros((VERTICES, *rows.shape[1:])))


@pytest.mark.parametrize("kind", [pyg.SAGEConv, pyg.GCNConv])
def test_rows_are_computed_while_others_travel(
    kind: type, batch: TrainerBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward: send, compute, wait. Backward: send gradients, compute, wait."""
    events: list[str] = []

    class Alone(Empty):
        def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
            events.append(direction)
            return super().start(layer, direction, rows).then(lambda found: events.append("wait") or found)  # type: ignore[func-returns-value]

    def computed(_: torch.nn.Module, inputs: Any, out: torch.Tensor) -> None:
        events.append("compute")
        out.register_hook(lambda _: events.append("compute"))

    monkeypatch.setattr(batch.graph, "source", Alone())
    # All rows are interior here. The other half of the layer has none.
    layer = kind(5, 3).double()
    layer.register_propagate_forward_hook(lambda m, i, out: computed(m, i, out) if len(out) else None)
    Exchanged(layer)(batch.x.requires_grad_(), batch.graph).sum().backward()
    assert events == ["forward", "compute", "wait", "backward", "compute", "wait"]


def test_nothing_of_an_exchange_is_left_to_collect(batch: TrainerBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch.graph, "source", Empty())
    gc.collect()
    gc.disable()
    try:
        pending = start_exchange(batch.x.requires_grad_(), batch.graph)
        left = weakref.ref(pending)
        pending.finish().sum().backward()
        del pending
        assert left() is None
    finally:
        gc.enable()


def test_layers_of_ones_own(batch: TrainerBatch) -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Exchanged(pyg.GATConv(5, 3))

        def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
            return self.layer(x, graph)

    module = Wrapped().double()
    by_hand = module.layer.layer(batch.graph.exchange(batch.x), batch.graph.edge_index)
    assert torch.equal(CooperativeModel(module)(batch.x, batch.graph), by_hand)
    on_the_whole = module(batch.x, batch.graph.edge_index)  # no cooperative graph: the plain layer
    torch.testing.assert_close(on_the_whole, by_hand)


NORMS = [norm(8) for norm in (pyg.BatchNorm, pyg.GraphNorm, pyg.LayerNorm)]
NORMS += [torch.nn.BatchNorm1d(8), torch.nn.InstanceNorm1d(8), pyg.PairNorm()]


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        *((partial(two_layers, n), f"{type(n).__name__} normalises over rows, which breaks equality") for n in NORMS),
        (
            lambda: pyg.DeepGCNLayer(pyg.GENConv(8, 8), torch.nn.LayerNorm(8), torch.nn.ReLU()),
            "for GENConv: norm='layer'",
        ),
        (lambda: pyg.APPNP(3, 0.1), "APPNP: takes one set of vertices"),
        (lambda: pyg.TAGConv(5, 3), "TAGConv: takes one set of vertices"),
        (lambda: pyg.SAGEConv(5, 3, flow="target_to_source"), "SAGEConv: flow 'target_to_source'"),
        (lambda: pyg.GCNConv(5, 3, improved=True), r"improved=True\): has no cooperative form"),
        (lambda: torch.nn.Linear(5, 3), "has no message-passing layer"),
    ],
)
def test_models_that_mix_rows_or_sources_with_targets_are_refused(model: Model, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        CooperativeModel(model())


def test_other_mistakes_name_their_cause(batch: TrainerBatch, graph: TrainingGraph) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'convs'"):
        CooperativeModel(pyg.GraphSAGE(5, 8, 2, 3), layers=["conv"])
    with pytest.raises(ConfigError, match="argument edge_weight has no cooperative form"):
        CooperativeModel(pyg.GCN(5, 8, 2, 3).double())(batch.x, batch.graph, torch.ones(3))
    with pytest.raises(ConfigError, match="trainer 1 of 2, the group has this as 0 of 1"):
        source_inside(worker_view(graph, np.arange(VERTICES) % 2, 1, 2))
    with pytest.raises(ConfigError, match="rows of other trainers: it needs a source of them"):
        CooperativeGraph(worker_view(graph, np.arange(VERTICES) % 2, 1, 2))
    with pytest.raises(ConfigError, match="this trainer is the only one"):
        start_exchange(batch.x, batch.graph)
    with pytest.raises(ConfigError, match="there are no targets"):
        backward(CooperativeModel(pyg.SAGEConv(5, 3).double()), batch, None, 0)
    with pytest.raises(UnknownNameError, match="deep model"):
        DeepGNN(5, 8, 3, kind="resgcn")
    with pytest.raises(ConfigError, match="num_layers 0"):
        DeepGNN(5, 8, 3, num_layers=0)
    loops = batch_of(training_graph(np.array([[0, 1], [0, 0]]), 2, np.random.default_rng(0)))
    with pytest.raises(ConfigError, match="has self-loops"):
        CooperativeModel(pyg.GCNConv(5, 3, add_self_loops=False).double())(loops.x, loops.graph)


class Numbered(Source):
    """Remote rows that say which source they come from; gradients are counted, not computed."""

    def __init__(self, number: float, rows: int) -> None:
        self.number, self.rows = number, rows
        self.asked: list[tuple[int, Direction, list[float]]] = []

    @property
    def sent(self) -> Payload:  # type: ignore[override]
        return Payload({(0, "forward"): int(self.number)})

    @property
    def crossed(self) -> Payload:  # type: ignore[override]
        return Payload({(1, "backward"): 10 * int(self.number)})

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        self.asked.append((layer, direction, rows.sum(1).tolist()))
        return Arrival(lambda: torch.full((self.rows if direction == "forward" else 2, 1), self.number))


def test_joined_sources_answer_for_their_rows() -> None:
    parts = Numbered(3, 1), Numbered(5, 2)
    joined = JoinedSource(torch.zeros(2, 1), [RowPart(part, part.rows) for part in parts])
    assert joined.start(7, "forward", torch.ones(2, 1)).finish().tolist() == [[3], [5], [5]]
    assert joined.start(7, "backward", torch.tensor([[1.0], [2], [4]])).finish().tolist() == [[8], [8]]
    assert [part.asked[1] for part in parts] == [(7, "backward", [1]), (7, "backward", [2, 4])]
    assert joined.sent == {(0, "forward"): 8}
    assert joined.crossed == {(1, "backward"): 80}


def test_rows_that_never_change_are_asked_for_once() -> None:
    inner, fixed = Numbered(3, 1), torch.ones(2, 1)
    kept = JoinedSource(fixed, [RowPart(inner, 1)])
    assert [kept.start(0, "forward", fixed).finish().tolist() for _ in range(3)] == [[[3]]] * 3
    assert len(inner.asked) == 1
    for rows in (fixed.clone(), fixed.clone().requires_grad_()):
        kept.start(0, "forward", rows)
    kept.start(0, "backward", fixed[:1])
    assert len(inner.asked) == 4
    known = JoinedSource(fixed, [RowPart(inner, 1, features=torch.full((1, 1), 9.0))])
    assert known.start(0, "forward", fixed).finish().tolist() == [[9]]
    assert len(inner.asked) == 4
    asking = JoinedSource(fixed, [RowPart(inner, 1, keeps=False)])
    assert [asking.start(0, "forward", fixed).finish().tolist() for _ in range(2)] == [[[3]]] * 2
    assert len(inner.asked) == 6
    assert kept.sent == inner.sent


def test_layers_ask_by_their_numbers(batch: TrainerBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the modules; recomputed layers ask by the same number again."""

    model = DeepGNN(5, 8, 3, num_layers=3, dropout=0.0, checkpointed=True).double()
    monkeypatch.setattr(batch.graph, "source", source := Empty())
    backward(CooperativeModel(model), batch, None, count_targets(batch, None))
    again = [(layer, way) for layer in (2, 1, 0) for way in ("forward", "backward")]
    assert source.asked == [(0, "forward"), (1, "forward"), (2, "forward"), *again]
