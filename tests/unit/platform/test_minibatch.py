"""The arrays of a batch become a mini-batch without a daemon, and blocks for DGL as DGL makes them."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atta
from atta.client.loaders import dgl as ours
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.sampled import Origin
from atta.client.sessions.stream import RawBatch
from atta.errors import ConfigError
from atta.partition.schema import Schema, TableSpec

E = "node__to__node"
SCHEMA = Schema(("node",), (E,), {"node": 9}, {E: 9}, {"node": {"x": TableSpec("<f4", (2,)), "hop": TableSpec("<i8")}})
TYPED = Schema(("a", "b"), ("a__to__b",), {"a": 9, "b": 9}, {"a__to__b": 9}, {"b": {"x": TableSpec("<f2", (3, 2))}})


def batch_of(schema: Schema, origin: Origin | None = None, **arrays: Any) -> MiniBatch:
    found = {name.replace("_of_", "/"): np.asarray(array) for name, array in arrays.items()}
    return MiniBatch(RawBatch(0, found, {}), schema, origin=origin or Origin("node"))


def homogeneous(origin: Origin | None = None, **more: Any) -> MiniBatch:
    arrays = {"input_id": [0], "n_id_of_node": [4, 5], "hops_of_node": [1, 1], f"hops_of_{E}": [1]}
    return batch_of(SCHEMA, origin, **arrays, **{f"row_of_{E}": [1], f"col_of_{E}": [0]}, **more)


def test_results_of_operators_and_partners_of_seeds_stand_beside_tables() -> None:
    data = homogeneous(table_of_node_of_hop=[7, 8], extra_of_hop=[0, 1], extra_of_degree=[3, 4]).to_pyg()
    assert (data.hop.tolist(), data.extra_hop.tolist(), data.degree.tolist()) == ([7, 8], [0, 1], [3, 4])
    data = homogeneous(pairs_of_positive=[[1]], pairs_of_x=[[1]], table_of_node_of_x=np.zeros((2, 2))).to_pyg()
    assert (data.positive.tolist(), data.pairs_x.tolist(), data.x.shape) == ([[1]], [[1]], (2, 2))


def test_what_needs_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # Python does this for a missing package
    monkeypatch.delitem(sys.modules, "atta.client.loaders.pyg_data", raising=False)
    monkeypatch.delitem(sys.modules, "atta.client.loaders.prefetch", raising=False)
    with pytest.raises(ConfigError, match=r"to_pyg needs torch and torch_geometric: install atta\[train\]"):
        homogeneous().to_pyg()
    with pytest.raises(ConfigError, match=r"atta\.PrefetchLoader needs torch: install atta\[train\]"):
        _ = atta.PrefetchLoader


def test_types_that_are_not_reached_have_no_rows() -> None:
    arrays = {"input_id": [0], "n_id_of_a": [3], "hops_of_a": [1, 0, 0]}
    batch = batch_of(TYPED, Origin("a", edge_ids=False), **arrays)
    assert batch.node_types == ("a",)
    assert batch.n_id("b").dtype == np.int64
    assert batch.table("x", "b").shape == (0, 3, 2)
    assert batch.table("x", "b").dtype == np.float16
    assert batch.edge_index("a__to__b").shape == (2, 0)
    assert batch.e_id("a__to__b") is None
    assert (batch.num_sampled_nodes("b"), batch.num_sampled_edges("a__to__b")) == ([0, 0, 0], [0, 0])
    assert batch.tree_of_seed("b") is None
    unread = batch_of(TYPED, Origin("a", tables={"a": []}), **arrays)
    assert unread.tables == {"a": {}, "b": {}}


def test_what_has_no_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="as a whole"):
        homogeneous(Origin("node", whole=True)).to_dgl()
    with pytest.raises(ConfigError, match="one node type and one edge type"):
        batch_of(TYPED, Origin("a"), input_id=[0], n_id_of_a=[3], hops_of_a=[1]).to_dgl()


dgl = pytest.importorskip("dgl")
pytest.importorskip("torch_geometric")
torch = pytest.importorskip("torch")

SOURCES, TARGETS = 9, 5
EDGES = st.lists(st.tuples(st.integers(0, SOURCES - 1), st.integers(0, TARGETS - 1)), max_size=30)


def both(edges: list[tuple[int, int]], *, by_target: bool = True) -> tuple[Any, Any]:
    """Our block and DGL's. Edges weigh differently each."""
    ends = np.array(sorted(edges, key=lambda edge: edge[1]) if by_target else edges, np.int64).reshape(-1, 2)
    row, col = np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])
    made = ours.block(row, col, torch.arange(SOURCES), torch.arange(TARGETS), torch.arange(len(row)) + 70)
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


SOME = [(3, 0), (1, 0), (8, 2), (1, 4)]


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
@settings(max_examples=30)
@given(EDGES)
def test_layers_compute_and_learn_the_same(layer: Any, by_target: bool, edges: list[tuple[int, int]]) -> None:
    made, theirs = both(edges, by_target=by_target)
    assert torch.equal(torch.stack(made.edges(form="all")), torch.stack(theirs.edges(form="all")))
    assert made.edata[dgl.EID].tolist() == list(range(70, 70 + len(edges)))
    for count in ("in_degrees", "out_degrees"):
        assert getattr(made, count)().tolist() == getattr(theirs, count)().tolist()
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(SOURCES, 4)).astype(np.float32))
    for _ in range(2):  # once reversed, it is so the next time
        for found, expected in zip(gradient(layer, made, x), gradient(layer, theirs, x), strict=True):
            torch.testing.assert_close(found, expected)


def test_layers_do_not_sort_the_edges_again() -> None:
    made, theirs = both(SOME)
    x = torch.ones(SOURCES, 4)
    for block in (made, theirs):
        gradient(sage, block, x)
    assert made.formats()["created"] == ["csc"]
    assert "csr" in theirs.formats()["created"]  # else this shows nothing


@pytest.mark.parametrize(
    "change", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b)), lambda b: b.int()]
)
def test_copies_of_a_block_are_blocks(change: Any) -> None:
    made, theirs = both(SOME)
    x = torch.ones(SOURCES, 4)
    gradient(sage, made, x)
    found, expected = gradient(sage, change(made), x), gradient(sage, theirs, x)
    torch.testing.assert_close(found[1], expected[1])


def test_the_reverse_of_a_block_has_its_edges() -> None:
    made, theirs = both(SOME)
    found, expected = (block._graph.reverse().edges(0, "eid") for block in (made, theirs))
    assert [end.tolist() for end in found] == [end.tolist() for end in expected]
    assert made._graph.reverse().number_of_nodes(0) == SOURCES
