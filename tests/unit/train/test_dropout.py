"""Masks of dropout: uniform, independent, the numbers of an oracle, the same for any division into trainers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric import nn as pyg

from atta.errors import ConfigError
from atta.train.cooperative import CooperativeModel, DeepGNN, TrainerBatch, TrainingGraph
from atta.train.cooperative.dropout import RowDropout
from atta.train.steps.masks import edge_keys, keep_mask
from tests import masks as oracle
from tests.unit.train.graphs import batch_of, training_graph

VERTICES = 40
IDS = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(0, 2**64 - 1), st.lists(IDS, max_size=20), st.integers(0, 40), st.floats(0, 1, exclude_max=True))
def test_masks_are_those_of_the_oracle(stream: int, ids: list[int], columns: int, p: float) -> None:
    found = keep_mask(stream, torch.tensor(ids, dtype=torch.int64), columns, p)
    np.testing.assert_array_equal(found.numpy(), oracle.kept(stream, np.array(ids, np.int64), columns, p))


def test_large_masks_are_computed_in_pieces() -> None:
    for rows, columns in ((3, 40_000), (1000, 100)):
        ids, some = torch.arange(rows) * 77, [0, rows // 2, rows - 1]
        found, expected = keep_mask(5, ids, columns, 0.4)[some], oracle.kept(5, ids[some].numpy(), columns, 0.4)
        np.testing.assert_array_equal(found.numpy(), expected)


@given(st.data())
def test_keys_of_edges_are_those_of_the_oracle(data: st.DataObject) -> None:
    ids = np.array(data.draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=5, unique=True)), np.int64)
    ends = st.integers(0, len(ids) - 1)
    pairs = data.draw(st.lists(st.tuples(ends, ends), max_size=30))
    edges = np.array(pairs, np.int64).reshape(-1, 2).T
    found = edge_keys(ids, edges)
    np.testing.assert_array_equal(found.view(np.uint64), oracle.keys_of_edges(ids[edges].reshape(2, -1)))
    assert len(np.unique(found)) == len(found)


@pytest.fixture
def graph(rng: np.random.Generator) -> TrainingGraph:
    edges = rng.integers(0, VERTICES, (2, 120))
    return training_graph(np.concatenate([edges, edges[:, :9]], axis=1), VERTICES, rng)  # some are parallel


def dropping(graph: TrainingGraph, seed: int = 3) -> TrainerBatch:
    batch = batch_of(graph)
    batch.graph.dropout = RowDropout(batch.graph.view, seed)
    return batch


MODELS: dict[str, Any] = {
    "sage": lambda: pyg.GraphSAGE(5, 8, 3, 3, dropout=0.5),
    "gcn": lambda: pyg.GCN(5, 8, 3, 3, dropout=0.5),
    "gat": lambda: pyg.GAT(5, 8, 3, 3, heads=2, dropout=0.5),
    "resgcn": lambda: DeepGNN(5, 8, 3, num_layers=3, kind="resgcn+"),
    "deepergcn": lambda: DeepGNN(5, 8, 3, num_layers=3, kind="deepergcn"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_single_trainer_has_the_masks_of_the_oracle(name: str, graph: TrainingGraph) -> None:
    model, batch = MODELS[name]().double(), dropping(graph)
    masks, x = oracle.Masks(3, batch.graph.view.edge_index, VERTICES), batch.x
    assert batch.graph.view.own.tolist() == list(range(VERTICES))
    cooperative = CooperativeModel(model)
    outputs = []
    for epoch in (0, 1, 0):
        batch.graph.dropout.epoch = epoch
        outputs.append(cooperative(x, batch.graph))
        with masks.instead_of_torch(epoch, oracle.PLACES[name](3)):
            torch.testing.assert_close(outputs[-1], model(x, batch.graph.edge_index))
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.allclose(outputs[0], outputs[1])
    cooperative.eval()
    torch.testing.assert_close(cooperative(x, batch.graph), model(x, batch.graph.edge_index))


def test_several_dropouts_of_a_module_differ_and_others_are_refused(graph: TrainingGraph) -> None:
    class Twice(pyg.GraphSAGE):
        def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
            ones = torch.ones(VERTICES, 300, dtype=torch.float64)
            self.seen = [F.dropout(ones, 0.5), F.dropout(ones, p=0.5, inplace=True), F.dropout(ones, 0.0)]
            return self.convs[0](x, edge_index)

    model, batch = Twice(5, 5, 1).double(), dropping(graph)
    twin = CooperativeModel(model)._twin()[0]
    twin(batch.x, batch.graph)
    first, second, none = twin.seen
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert 0.4 < float((first == second).double().mean()) < 0.6
    assert bool((none == 1).all())
    found = []
    for _ in range(2):  # outside a model torch drops out as ever
        torch.manual_seed(5)
        found.append(F.dropout(torch.ones(1000)))
    assert torch.equal(*found)
    assert not torch.equal(F.dropout(torch.ones(1000)), found[0])

    class Pooled(pyg.GraphSAGE):
        def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
            return self.convs[0](x, edge_index) + F.dropout(x.mean(0, keepdim=True))

    batch = dropping(graph)
    with pytest.raises(ConfigError, match="dropout in model: got 1 rows, the trainer has 40; only rows of vertices"):
        CooperativeModel(Pooled(5, 5, 1).double())(batch.x, batch.graph)
