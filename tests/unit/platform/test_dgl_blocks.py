"""Blocks for DGL against those that DGL makes of the same edges, also on the way back through layers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.loaders import dgl as ours

dgl = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")

SOURCES, TARGETS = 9, 5
EDGES = st.lists(st.tuples(st.integers(0, SOURCES - 1), st.integers(0, TARGETS - 1)), max_size=30)


def both(edges: list[tuple[int, int]], *, by_target: bool = True) -> tuple[Any, Any]:
    """Our block and DGL's. Edges weigh differently each."""
    ends = np.array(sorted(edges, key=lambda edge: edge[1]) if by_target else edges, np.int64).reshape(-1, 2)
    row, col = np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])
    made = ours.block(row, col, torch.arange(SOURCES), torch.arange(TARGETS))
    theirs = dgl.create_block((torch.from_numpy(row), torch.from_numpy(col)), SOURCES, TARGETS)
    for graph in (made, theirs):
        graph.edata["weight"] = 1.0 + torch.arange(len(row), dtype=torch.float32)
    return made, theirs


def weighted_mean(block: Any, x: Any) -> Any:
    block = block.local_var()
    block.srcdata["x"] = x
    block.update_all(dgl.function.u_mul_e("x", "weight", "m"), dgl.function.mean("m", "out"))
    return block.dstdata["out"]


def attention(block: Any, x: Any) -> Any:
    torch.manual_seed(1)
    layer = dgl.nn.GATConv(4, 3, num_heads=2, allow_zero_in_degree=True)
    return layer(block, (x, x[:TARGETS]))


def sage(block: Any, x: Any) -> Any:
    torch.manual_seed(1)
    return dgl.nn.SAGEConv(4, 3, "mean")(block, (x, x[:TARGETS]))


def gradient(layer: Any, block: Any, x: Any) -> tuple[Any, Any]:
    x = x.clone().requires_grad_()
    out = layer(block, x)
    (out * torch.arange(out.numel(), dtype=torch.float32).reshape(out.shape)).sum().backward()
    return out.detach(), x.grad


@pytest.mark.parametrize("layer", [sage, weighted_mean, attention])
@pytest.mark.parametrize("by_target", [True, False])
@settings(max_examples=30, deadline=None)
@given(EDGES)
def test_layers_compute_and_learn_the_same(layer: Any, by_target: bool, edges: list[tuple[int, int]]) -> None:
    made, theirs = both(edges, by_target=by_target)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(SOURCES, 4)).astype(np.float32))
    for _ in range(2):  # once reversed, it is so the next time
        for found, expected in zip(gradient(layer, made, x), gradient(layer, theirs, x), strict=True):
            torch.testing.assert_close(found, expected)


def test_layers_do_not_sort_the_edges_again() -> None:
    made, theirs = both([(3, 0), (1, 0), (8, 2), (1, 4)])
    x = torch.ones(SOURCES, 4)
    for block in (made, theirs):
        gradient(sage, block, x)
    assert made.formats()["created"] == ["csc"]
    assert "csr" in theirs.formats()["created"]  # else this shows nothing


@pytest.mark.parametrize(
    "change", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b)), lambda b: b.int()]
)
def test_copies_of_a_block_are_blocks(change: Any) -> None:
    made, theirs = both([(3, 0), (1, 0), (8, 2), (1, 4)])
    x = torch.ones(SOURCES, 4)
    gradient(sage, made, x)
    found, expected = gradient(sage, change(made), x), gradient(sage, theirs, x)
    torch.testing.assert_close(found[1], expected[1])


def test_the_reverse_of_a_block_has_its_edges() -> None:
    made, theirs = both([(3, 0), (1, 0), (8, 2), (1, 4)])
    for found, expected in zip(
        made._graph.reverse().edges(0, "eid"), theirs._graph.reverse().edges(0, "eid"), strict=True
    ):
        assert found.tolist() == expected.tolist()
    assert made._graph.reverse().number_of_nodes(0) == SOURCES
