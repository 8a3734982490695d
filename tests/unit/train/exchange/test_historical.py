"""Batches with stale rows where there are none: with all neighbours they are the whole graph, without stale rows plain
mini-batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCN, GraphSAGE

from atta.errors import AttaError, RestartedError, UnknownNameError
from atta.samplers import LocalGraph, LocalSampler
from atta.train.exchange.historical import FixedRows, HistoricalTrainer, OwnEdges, Tree
from atta.train.exchange.trainer import DigestTrainer, ExchangeTrainer
from atta.train.models import SampledModel
from tests.unit.train.graphs import batch_of, training_graph

VERTICES, EDGES, SEEDS = 40, 160, np.array([3, 17, 5, 30])
MODELS = {"sage": GraphSAGE, "gcn": GCN}


def scores(kind: str, fan_outs: tuple[int, int], max_age: int, filled: float = 1.0) -> tuple[torch.Tensor, Tree, Any]:
    rng = np.random.default_rng(2)
    batch = batch_of(training_graph(rng.integers(0, VERTICES, (2, EDGES)), VERTICES, rng))
    batch.x[torch.from_numpy(rng.random(batch.x.shape) >= filled)] = 0
    torch.manual_seed(0)
    model = MODELS[kind](5, 6, 3, 2).double()
    edges = OwnEdges(batch.graph.view, kind, batch.x)
    tree, sums = edges.tree(SEEDS, fan_outs, seed=1, epoch=2, batch=3), edges.whole(np.arange(VERTICES)) @ batch.x
    every, stale = torch.arange(VERTICES), batch.x.new_full((VERTICES, 6), np.nan)
    trainer: Any = SimpleNamespace(
        model=model, edges=edges, features=FixedRows(batch.x, every), sums=FixedRows(sums, every),
        device=batch.x.device, options=SimpleNamespace(max_age=max_age), stale=SimpleNamespace(rows={1: stale, 2: stale}),
    )  # fmt: skip
    found, hidden = HistoricalTrainer._forward(trainer, tree)
    assert [len(rows) for rows in hidden] == tree.ends[:0:-1]
    return found, tree, (model, batch)


def gradients(loss: torch.Tensor, model: torch.nn.Module) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss.square().sum(), list(model.parameters())))


@pytest.mark.parametrize("filled", [1.0, 0.02])
@pytest.mark.parametrize("kind", MODELS)
def test_all_neighbours_give_the_whole_graph(kind: str, filled: float) -> None:
    """Also of features that are nearly all 0, which are kept sparse."""
    found, tree, (model, batch) = scores(kind, (-1, -1), 1, filled)
    assert FixedRows(batch.x, torch.arange(VERTICES)).at(torch.arange(3)).is_sparse_csr == (filled < 1)
    view = batch.graph.view
    expected = model(batch.x, torch.from_numpy(view.edge_index))[tree.rows[: len(SEEDS)]]
    assert tree.rows[: len(SEEDS)].tolist() == SEEDS.tolist()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(gradients(found, model), gradients(expected, model), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_without_stale_rows_it_is_a_mini_batch() -> None:
    """Of the same draws; the first layer reads all in-neighbours, as with sums by the daemons."""
    found, tree, (model, batch) = scores("sage", (2, 3), max_age=0)
    view = batch.graph.view
    source, target = view.edge_index
    sampler = LocalSampler(LocalGraph.from_edges(source, target, VERTICES, keys=view.global_ids))
    plain = sampler.sample(SEEDS, (2, 3), seed=1, epoch=2, batch=3)
    assert plain.n_id.tolist() == view.global_ids[tree.rows].tolist()
    ends = torch.from_numpy(np.stack([plain.row, plain.col]).astype(np.int64))
    counts = np.zeros((VERTICES, VERTICES))
    np.add.at(counts, (target, source), 1)
    sums = torch.from_numpy(counts / counts.sum(1, keepdims=True).clip(1)) @ batch.x
    sizes = plain.num_sampled_nodes, plain.num_sampled_edges
    expected = SampledModel(model)(batch.x[tree.rows], ends, *sizes, aggregated=sums[tree.rows])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(gradients(found, model), gradients(expected, model), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("filled", "expected"), [(False, UnknownNameError), (True, RestartedError)])
@pytest.mark.parametrize("kind", [DigestTrainer, HistoricalTrainer])
def test_trainers_may_start_again_when_a_daemon_has_lost_their_tables(
    kind: type[DigestTrainer], filled: bool, expected: type[AttaError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then: before there are tables, an unknown name is a mistake of the user, which would come again."""

    def fails(_: ExchangeTrainer) -> None:
        raise UnknownNameError("there is no table 'h1'")

    monkeypatch.setattr(ExchangeTrainer, "_fit", fails)
    trainer = object.__new__(kind)
    trainer._filled = filled
    with pytest.raises(AttaError, match="no table 'h1'") as raised:
        trainer._fit()
    assert type(raised.value) is expected
