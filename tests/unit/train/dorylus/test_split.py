"""Gather and apply, by intervals in any order, are what autograd and torch's optimisers do on the whole graph."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils import parameters_to_vector
from torch_geometric.nn import GAT, GCN, GCNConv, GraphSAGE

from atta.errors import ConfigError
from atta.kvstore.parameters import VectorStep
from atta.train.cooperative.graph import TrainingGraph
from atta.train.dorylus.gathering import forms_of, interval_rows
from atta.train.dorylus.links import packed, unpacked
from atta.train.dorylus.progress import IntervalTracks, Work, stages_of
from atta.train.dorylus.worker import LayerForm, computed
from atta.train.models import whole_model
from atta.train.settings import TrainSettings
from tests.unit.train.dorylus.running import trained
from tests.unit.train.graphs import training_graph

VERTICES, CHANNELS, CLASSES, EPOCHS = 60, 5, 3, 3
MODELS = {
    "gcn": lambda layers: GCN(CHANNELS, 8, layers, CLASSES),
    "sage": lambda layers: GraphSAGE(CHANNELS, 8, layers, CLASSES),
    "gat": lambda layers: GAT(CHANNELS, 8, layers, CLASSES, heads=2),
}


def graph_of(seed: int = 3) -> TrainingGraph:
    """Loops, parallel edges, and a vertex that reads nothing."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, VERTICES, (2, 240))
    edges = np.concatenate([edges, edges[:, :12], np.tile(np.arange(5), (2, 1))], axis=1)
    edges = edges[:, edges[1] != 7]
    ids = rng.permutation(10 * VERTICES)[:VERTICES].astype(np.int64)
    return training_graph(np.ascontiguousarray(edges), VERTICES, rng, global_ids=ids)


def model_of(kind: str, layers: int) -> Any:
    torch.manual_seed(5)
    return MODELS[kind](layers).double()


def by_autograd(model: Any, graph: TrainingGraph, kind: str, lr: float) -> np.ndarray:
    """Steps of torch.optim on the whole graph in one process."""
    model.train()
    optimiser: torch.optim.Optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](
        model.parameters(), lr, weight_decay=1e-3
    )
    edges, mask = torch.from_numpy(graph.edges), torch.from_numpy(graph.loss_mask)
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        scores = model(torch.from_numpy(graph.features), edges)
        F.cross_entropy(scores[mask], torch.from_numpy(graph.labels)[mask]).backward()
        optimiser.step()
    return parameters_to_vector(model.parameters()).detach().numpy()


@pytest.mark.parametrize("intervals", [1, 4, 16])
@pytest.mark.parametrize("kind", MODELS)
def test_pipe_is_gradient_descent_on_the_whole_graph(kind: str, intervals: int) -> None:
    graph = graph_of()
    for layers in (1, 2, 3) if intervals == 4 else (2,):
        found, engine, job = trained(
            model_of(kind, layers), graph, intervals, epochs=EPOCHS, optimiser=VectorStep("sgd", 0.3, 1e-3)
        )
        wanted = by_autograd(model_of(kind, layers), graph, "sgd", 0.3)
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
        assert not np.allclose(wanted, parameters_to_vector(model_of(kind, layers).parameters()).detach(), atol=1e-3)
        assert job.weights.stashed == 0
        assert engine.progress.oldest == 0
        assert len(engine.ended) == len(engine.losses) == EPOCHS


@pytest.mark.parametrize("intervals", [1, 4, 16])
@pytest.mark.parametrize("mode", ["nopipe", "pipe"])
def test_the_steps_of_adam_are_those_of_torch(mode: Any, intervals: int) -> None:
    found, *_ = trained(
        model_of("gcn", 2), graph_of(), intervals, epochs=EPOCHS, optimiser=VectorStep("adam", 0.02, 1e-3), mode=mode
    )
    np.testing.assert_allclose(found, by_autograd(model_of("gcn", 2), graph_of(), "adam", 0.02), rtol=1e-6)


@pytest.mark.parametrize("step", [VectorStep("adam", 0.02, 1e-3), VectorStep("sgd", 0.3)])
@pytest.mark.parametrize("mode", ["nopipe", "pipe"])
def test_a_run_that_meets_or_goes_on_later_is_the_same_run(mode: Any, step: VectorStep) -> None:
    def train(epochs: int, **how: Any) -> Any:
        return trained(model_of("sage", 2), graph_of(), 4, epochs=epochs, optimiser=step, mode=mode, **how)

    wanted, engine, job = train(5)
    met, *_ = train(5, meetings=(1, 3))
    assert met.tobytes() == wanted.tobytes()
    values, _, half = train(2)
    later, went_on, ended = train(5, begins=(2, values, half.weights.moments))
    assert later.tobytes() == wanted.tobytes()
    assert ended.weights.moments.tobytes() == job.weights.moments.tobytes()
    assert sorted(went_on.losses) == [2, 3, 4]
    for epoch in (2, 3, 4):  # added up in the order of results
        assert went_on.losses[epoch] == pytest.approx(engine.losses[epoch], rel=1e-12)


def test_async_goes_on_with_an_epoch_that_reads_no_older_rows() -> None:
    def train(epochs: int, **how: Any) -> Any:
        step = VectorStep("adam", 0.02)
        return trained(model_of("gcn", 2), graph_of(), 6, epochs=epochs, optimiser=step, mode="async", **how)

    values, _, job = train(10)
    _, engine, _ = train(11, begins=(10, values, job.weights.moments))
    assert engine.progress.oldest == 0
    _, engine, ended = train(20, begins=(10, values, job.weights.moments), meetings=(15,))
    assert engine.progress.oldest == 1
    assert (ended.weights.version, ended.weights.stashed) == (20, 0)


def test_tracks_have_each_stage_once_and_no_overlap() -> None:
    stages = stages_of(2)
    tracks = IntervalTracks(stages, 3)
    trained(model_of("gcn", 2), graph_of(), 3, epochs=2, optimiser=VectorStep("sgd", 0.1), tracks=tracks)
    for interval in range(3):
        mine = [span for span in tracks.spans if span.work.interval == interval]
        assert [span.work for span in mine] == [Work(e, s, interval) for e in range(2) for s in range(len(stages))]
        assert all(0 <= a.start <= a.end <= b.start for a, b in pairwise(mine))


def test_the_order_of_results_changes_no_bit() -> None:
    found = [
        trained(model_of("sage", 2), graph_of(), 7, epochs=3, optimiser=VectorStep("adam", 0.02), seed=seed)[
            0
        ].tobytes()
        for seed in range(4)
    ]
    assert len(set(found)) == 1


@pytest.mark.parametrize("staleness", [0, 1])
def test_async_reads_older_rows_and_learns(staleness: int) -> None:
    _, engine, job = trained(
        model_of("gcn", 2), graph_of(), 6, epochs=20, optimiser=VectorStep("adam", 0.02), mode="async",
        staleness=staleness,
    )  # fmt: skip
    assert 1 <= engine.progress.oldest <= staleness + 1
    assert engine.losses[19] < 0.9 * engine.losses[0]
    assert (job.weights.version, job.weights.stashed) == (20, 0)


def test_a_mistake_in_a_gradient_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison has no tolerance that hides a lost interval."""
    graph = graph_of()
    graph.loss_mask[int(np.flatnonzero(graph.loss_mask)[0])] = False
    found, *_ = trained(model_of("gcn", 2), graph, 4, epochs=EPOCHS, optimiser=VectorStep("sgd", 0.3, 1e-3))
    wanted = by_autograd(model_of("gcn", 2), graph_of(), "sgd", 0.3)
    assert np.abs(found - wanted).max() > 1e-6


def test_models_without_a_split_form_are_refused() -> None:
    deep = whole_model(TrainSettings(model="resgcn+", hidden=8, layers=3), CHANNELS, CLASSES)
    with pytest.raises(ConfigError, match="DeepGNN cannot be split"):
        forms_of(deep)
    with pytest.raises(ConfigError, match="cannot be split"):
        forms_of(GCN(CHANNELS, 8, 2, CLASSES, norm="layer_norm"))
    odd = GCN(CHANNELS, 8, 2, CLASSES)
    odd.convs[0] = GCNConv(CHANNELS, 8, improved=True)
    with pytest.raises(ConfigError, match="GCNConv with these options"):
        forms_of(odd)


def task(**changed: Any) -> tuple[LayerForm, dict[str, np.ndarray]]:
    form = forms_of(model_of("gcn", 2))[1]
    arrays = {
        "sums": np.ones((4, form.reads)), "weights": np.ones(form.size), "keys": np.arange(4),
        "places": np.array([1]), "targets": np.array([2]),
    }  # fmt: skip
    return form, {**arrays, **changed}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sums": np.ones((4, 3))}, r"sums has shape \[4, 3\]"),
        ({"sums": np.ones((5, 8))}, r"sums has shape \[5, 8\]"),
        ({"weights": np.ones(5)}, r"weights has shape \[5\]"),
        ({"weights": np.full(27, np.nan)}, "an infinity or NaN"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changed: dict[str, np.ndarray], words: str) -> None:
    form, arrays = task(**changed)
    with pytest.raises(ConfigError, match=words):
        computed("loss", form, {"seed": 0, "epoch": 0, "divisor": 1}, arrays, lambda rows, targets: rows.sum())


def test_forms_survive_json_and_nothing_else_passes() -> None:
    for kind in MODELS:
        for form in forms_of(model_of(kind, 2)):
            about, _ = unpacked(packed(asdict(form), {}))
            assert LayerForm.from_dict(about) == form
    good = asdict(form)
    for bad in ({}, {**good, "kind": "gin"}, {**good, "more": 1}, {**good, "weights": 5}):
        with pytest.raises(ConfigError, match="describes no layer"):
            LayerForm.from_dict(bad)


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(0, 300), st.integers(0, 20))
def test_intervals_balance_vertices_and_edges(seed: int, vertices: int, edges: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    ends = np.stack([rng.integers(0, vertices + others, edges), rng.integers(0, vertices, edges)])
    intervals = int(rng.integers(1, vertices + 1))
    rows = interval_rows(ends, vertices, intervals)
    assert sorted(np.concatenate(rows).tolist()) == list(range(vertices))
    assert all((np.diff(one) > 0).all() for one in rows)
    sizes = [len(one) for one in rows]
    assert max(sizes) - min(sizes) <= 1
    degrees = np.zeros(vertices, np.int64)
    for source, target in ends.T.tolist():
        if source != target:
            degrees[target] += 1
            if source < vertices:
                degrees[source] += 1
    sums = [int(degrees[one].sum()) for one in rows]
    assert max(sums) - min(sums) <= degrees.max()


@pytest.mark.parametrize(
    ("vertices", "intervals", "cause"),
    [
        (3, 4, "intervals=4.*take fewer intervals"),
        (5, 0, "intervals=0"),
        (0, 1, "has no vertices.*take fewer partitions"),
    ],
)
def test_intervals_that_cannot_be_are_refused(vertices: int, intervals: int, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        interval_rows(np.zeros((2, 0), np.int64), vertices, intervals)
