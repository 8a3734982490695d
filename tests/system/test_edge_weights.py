"""Edges of batches are weighed by degrees of the whole graph. Layers of PyG and DGL give the graph's values on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atta
from atta.errors import ConfigError, UnknownNameError
from tests.system.conftest import CITES, IN, WRITES, SmallGraph

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

CLOSE = 1e-6


@pytest.fixture
def cluster(placements: dict[str, atta.LocalCluster]) -> atta.LocalCluster:
    return placements["4 parts by metis on 2 daemons, 1 threads"]


def gcn(normalize: bool) -> Any:
    from torch_geometric.nn import GCN

    torch.manual_seed(5)
    return GCN(16, 16, num_layers=2, out_channels=4, normalize=normalize).double()


def of_whole(graph: SmallGraph, weight: np.ndarray | None = None) -> Any:
    edges, given = (
        torch.from_numpy(np.stack([graph.src, graph.dst])),
        None if weight is None else torch.from_numpy(weight),
    )
    with torch.no_grad():
        return gcn(normalize=True)(torch.from_numpy(graph.x).double(), edges, given)


def of_data(data: Any, **trimmed: Any) -> Any:
    with torch.no_grad():
        return gcn(normalize=False)(data.x.double(), data.edge_index, data.edge_weight.double(), **trimmed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unbiased": True, "method": "labor"},
        {"frontier": "all"},
        {"frontier": "all", "disjoint": True},
        {"subgraph_type": "induced"},
        {"edge_tables": ["weight", "note"], "edge_ids": False},
        {"norm_attr": "weight"},
        {"norm_attr": "weight", "unbiased": True, "frontier": "all", "disjoint": True},
        {"norm_attr": "weight", "subgraph_type": "induced"},
    ],
)
@pytest.mark.filterwarnings("ignore:edge_tables")
def test_a_gcn_computes_as_on_the_graph(
    cluster: atta.LocalCluster, small_graph: SmallGraph, options: dict[str, Any]
) -> None:
    whole = of_whole(small_graph, small_graph.edge_weight.astype(float) if "norm_attr" in options else None)
    loader = atta.NeighborLoader(cluster, [-1, -1], None, batch_size=40, edge_norm="gcn", **options)
    for batch in loader:
        data = batch.to_pyg()
        wanted = whole[small_graph.rows(batch.n_id()[: batch.batch_size])]
        assert torch.allclose(of_data(data)[: batch.batch_size], wanted, atol=CLOSE, rtol=0)
        if batch.origin.by_hop and "frontier" not in options:
            per_hop = {f"num_sampled_{kind}_per_hop": data[f"num_sampled_{kind}"] for kind in ("nodes", "edges")}
            assert torch.allclose(of_data(data, **per_hop)[: batch.batch_size], wanted, atol=CLOSE, rtol=0)
        if "edge_tables" in options:
            loops = data.edge_index[0] == data.edge_index[1]
            assert (data.table_edge_weight[loops & (data.edge_weight > 0)] == 0).all()


def test_links_have_the_weights_of_the_graph(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    ends = np.stack([small_graph.src_ids, small_graph.dst_ids])[:, 100:140]
    whole = of_whole(small_graph)
    loader = atta.LinkNeighborLoader(
        cluster, [-1, -1], ends, neg_sampling="binary", batch_size=16, edge_norm="gcn", exclude_edges=None
    )
    for batch in loader:
        data = batch.to_pyg()
        ends_of = torch.unique(data.edge_label_index)
        wanted = whole[small_graph.rows(data.n_id[ends_of])]
        assert torch.allclose(of_data(data)[ends_of], wanted, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("frontier", ["new", "all"])
@pytest.mark.parametrize("norm", ["both", "row"])
def test_blocks_of_dgl(cluster: atta.LocalCluster, small_graph: SmallGraph, norm: str, frontier: str) -> None:
    dgl = pytest.importorskip("dgl")
    ours = [dgl.nn.GraphConv(16, 16, norm="none", allow_zero_in_degree=True).double() for _ in range(2)]
    theirs = [
        dgl.nn.GraphConv(16, 16, norm="both" if norm == "both" else "right", allow_zero_in_degree=True).double()
        for _ in range(2)
    ]
    graph = dgl.graph((torch.from_numpy(small_graph.src), torch.from_numpy(small_graph.dst)), num_nodes=300)
    loader = atta.NeighborLoader(cluster, [-1, -1], None, batch_size=40, edge_norm=norm, frontier=frontier)
    with torch.no_grad():
        whole = torch.from_numpy(small_graph.x).double()
        for layer, other in zip(theirs, ours, strict=True):
            other.load_state_dict(layer.state_dict())
            whole = layer(graph, whole).tanh()
        for batch in loader:
            blocks, x = batch.to_dgl(), torch.from_numpy(batch.table("x")).double()
            for block, layer in zip(blocks, ours, strict=True):
                x = layer(block, x, edge_weight=block.edata["edge_weight"].double()).tanh()
            assert torch.allclose(x, whole[small_graph.rows(batch.n_id()[: batch.batch_size])], atol=CLOSE, rtol=0)


def test_edges_of_several_types(typed: tuple[Any, atta.LocalCluster]) -> None:
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    whole, cluster = typed
    names = {"__".join(WRITES): "both", "__".join(CITES): "gcn"}
    src, dst = whole[WRITES].edge_index.numpy()
    of_writes = (np.bincount(src)[src] * np.bincount(dst)[dst]) ** -0.5
    found, weight = gcn_norm(whole[CITES].edge_index, None, whole["paper"].num_nodes)
    pairs = zip(*found.tolist(), weight.tolist(), strict=True)
    of_cites = {(u, v): w for u, v, w in pairs}  # parallel edges weigh the same
    for batch in atta.NeighborLoader(cluster, [-1, -1], ("venue", None), batch_size=3, edge_norm=names, unbiased=False):
        data = batch.to_pyg()
        assert data[IN].num_edges
        assert "edge_weight" not in data[IN]
        assert np.allclose(data[WRITES].edge_weight, of_writes[data[WRITES].e_id], rtol=1e-6)
        at = data["paper"].n_id[data[CITES].edge_index].tolist()
        for u, v, w, e in zip(*at, data[CITES].edge_weight.tolist(), data[CITES].e_id.tolist(), strict=True):
            assert w == pytest.approx(0 if u == v and e >= 0 else of_cites[u, v], rel=1e-6)
    with pytest.raises(ConfigError, match="author__writes__paper lead from 'author' to 'paper'"):
        atta.NeighborLoader(cluster, [-1], ("paper", None), edge_norm="gcn")


@pytest.mark.parametrize(
    ("options", "kind", "cause"),
    [
        ({"edge_norm": "gcm"}, UnknownNameError, "unknown edge_norm 'gcm'; did you mean 'gcn'"),
        ({"edge_norm": ["gcn"]}, UnknownNameError, "unknown edge_norm"),
        ({"method": ["labor"]}, UnknownNameError, "unknown neighbour method"),
        ({"frontier": ["all"]}, ConfigError, "frontier is"),
        ({"weight_attr": ["weight"]}, UnknownNameError, "unknown attribute"),
        ({"time_attr": "time", "temporal_strategy": ["last"]}, UnknownNameError, "unknown temporal strategy"),
        ({"edge_norm": "gcn", "norm_attr": "wight"}, UnknownNameError, r"\(norm_attr\) 'wight'; did you mean 'weight'"),
        ({"edge_norm": "gcn", "edge_tables": ["weight"]}, UserWarning, "'weight' comes as data.table_edge_weight"),
        ({"edge_norm": "row"}, UserWarning, r"fan-outs leave are smaller .* unbiased=True makes up"),
        ({"edge_norm": "row", "subgraph_type": "bidirectional"}, ConfigError, "bidirectional"),
    ],
)
def test_what_is_refused_or_warned_of(
    cluster: atta.LocalCluster, small_graph: SmallGraph, options: dict[str, Any], kind: Any, cause: str
) -> None:
    with pytest.warns(kind, match=cause) if kind is UserWarning else pytest.raises(kind, match=cause):
        atta.NeighborLoader(cluster, [3], small_graph.train_ids, **options)
