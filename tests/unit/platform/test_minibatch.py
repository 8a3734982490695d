"""The arrays of a batch become a mini-batch, without a daemon."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import atta
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


def test_a_table_keeps_its_name_beside_an_operators_result() -> None:
    pytest.importorskip("torch_geometric")
    data = homogeneous(table_of_node_of_hop=[7, 8], extra_of_hop=[0, 1], extra_of_degree=[3, 4]).to_pyg()
    assert data.hop.tolist() == [7, 8]
    assert data.extra_hop.tolist() == [0, 1]
    assert data.degree.tolist() == [3, 4]


def test_partners_of_seeds_stand_under_their_names() -> None:
    pytest.importorskip("torch_geometric")
    data = homogeneous(pairs_of_positive=[[1]], pairs_of_x=[[1]], table_of_node_of_x=np.zeros((2, 2))).to_pyg()
    assert data.positive.tolist() == [[1]]
    assert data.pairs_x.tolist() == [[1]]
    assert data.x.shape == (2, 2)


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


@pytest.mark.parametrize("col", [[0, 0, 2, 2, 3], [2, 0, 3, 0, 2], []])
def test_edges_of_a_block_keep_their_order(col: list[int]) -> None:
    dgl = pytest.importorskip("dgl")
    import torch

    from atta.client.loaders.dgl import block

    row, ids = np.array([4, 1, 1, 0, 5])[: len(col)], torch.arange(10, 16)
    e_id = torch.arange(len(col)) + 70
    found = block(row, np.array(col, dtype=np.int64), ids, ids[:4], e_id)
    expected = dgl.create_block((row, np.array(col, dtype=np.int64)), num_src_nodes=6, num_dst_nodes=4)
    assert torch.equal(torch.stack(found.edges(form="all")), torch.stack(expected.edges(form="all")))
    assert found.in_degrees().tolist() == expected.in_degrees().tolist()
    assert found.out_degrees().tolist() == expected.out_degrees().tolist()
    x = torch.arange(12.0).reshape(6, 2)
    for made in (found, expected):
        made.srcdata["x"] = x
        made.update_all(dgl.function.copy_u("x", "m"), dgl.function.sum("m", "y"))
    assert torch.equal(found.dstdata["y"], expected.dstdata["y"])
    assert found.edata[dgl.EID].tolist() == e_id.tolist()


def test_what_has_no_blocks_is_refused() -> None:
    pytest.importorskip("dgl")
    with pytest.raises(ConfigError, match="as a whole"):
        homogeneous(Origin("node", whole=True)).to_dgl()
    with pytest.raises(ConfigError, match="one node type and one edge type"):
        batch_of(TYPED, Origin("a"), input_id=[0], n_id_of_a=[3], hops_of_a=[1]).to_dgl()
