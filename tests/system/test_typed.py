"""Batches of typed graphs as PyG's ``HeteroData``: all types are there, PyG's layers compute as on the whole graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atta

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from tests.system.conftest import CITES, IN, WRITES  # noqa: E402 - after torch is known to be there


@pytest.fixture
def graph(typed: Any) -> Any:
    return typed[0]


@pytest.fixture
def cluster(typed: Any) -> atta.LocalCluster:
    return typed[1]


NOTES = {"__".join(edge_type): ["note"] for edge_type in (CITES, WRITES, IN)}


@pytest.mark.parametrize("node_type", ["author", "paper", "venue"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_every_type_is_there(cluster: atta.LocalCluster, graph: Any, node_type: str, disjoint: bool) -> None:
    loader = atta.NeighborLoader(
        cluster, [3, 2], (node_type, np.arange(5)), batch_size=5, edge_tables=NOTES, disjoint=disjoint
    )
    (batch,) = loader
    data = batch.to_pyg()
    assert data.validate(raise_on_error=True)
    assert data.node_types == graph.node_types
    assert data.edge_types == sorted(graph.edge_types)
    for there, whole in ((data[key], graph[key]) for key in (*graph.node_types, *graph.edge_types)):
        for name, expected in whole.items():
            assert there[name].dtype == expected.dtype, name
            wanted = expected.shape[1:] if name != "edge_index" else expected.shape[:1]
            assert (there[name].shape[1:] if name != "edge_index" else there[name].shape[:1]) == wanted, name
    for key in graph.node_types:
        assert torch.equal(data[key].x, graph[key].x[data[key].n_id])
        assert sum(data[key].num_sampled_nodes) == data[key].num_nodes == len(batch.n_id(key))
        assert len(data[key].num_sampled_nodes) == 3
        assert ("batch" in data[key]) == disjoint
    for key in graph.edge_types:
        ends = torch.stack([data[key[i]].n_id[data[key].edge_index[row]] for row, i in ((0, 0), (1, 2))])
        assert torch.equal(ends, graph[key].edge_index[:, data[key].e_id])
        assert torch.equal(data[key].edge_note, graph[key].edge_note[data[key].e_id])
        assert len(data[key].num_sampled_edges) == 2
    assert data[node_type].batch_size == 5
    if node_type == "author":
        assert data["paper"].num_nodes == data["venue"].num_nodes == data.num_edges == 0


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("node_type", ["author", "paper", "venue"])
def test_layers_of_pyg_compute_as_over_the_whole_graph(cluster: atta.LocalCluster, graph: Any, node_type: str) -> None:
    from torch_geometric.nn import HeteroConv, SAGEConv
    from torch_geometric.utils import trim_to_layer

    torch.manual_seed(1)
    widths = [{t: graph[t].x.shape[1] for t in graph.node_types}, dict.fromkeys(graph.node_types, 5)]
    stack = [HeteroConv({e: SAGEConv((width[e[0]], width[e[2]]), 5) for e in graph.edge_types}) for width in widths]
    own = [{t: torch.rand(width[t], 5) for t in graph.node_types} for width in widths]  # also types without in-edges

    def compute(data: Any, trim: bool) -> Any:
        x, edges = data.x_dict, data.edge_index_dict
        for number, layer in enumerate(stack):
            if trim:
                counts = data.num_sampled_nodes_dict, data.num_sampled_edges_dict
                x, edges, _ = trim_to_layer(number, *counts, x, edges)
            found = layer(x, edges)
            x = {t: found.get(t, 0) + x[t] @ own[number][t] for t in x}
        return x[node_type]

    with torch.no_grad():
        expected = compute(graph, trim=False)
        for batch in atta.NeighborLoader(cluster, [-1, -1], (node_type, None), batch_size=4):
            data = batch.to_pyg()
            seeds = data[node_type].n_id[: batch.batch_size]
            assert torch.allclose(compute(data, trim=True)[: batch.batch_size], expected[seeds], atol=1e-5)


def test_only_the_tables_that_were_asked_for(cluster: atta.LocalCluster) -> None:
    options: dict[str, Any] = {"batch_size": 5, "edge_ids": False}
    (batch,) = atta.NeighborLoader(cluster, [2], ("author", np.arange(5)), tables={"paper": "y"}, **options)
    data = batch.to_pyg()
    assert data["paper"].y.dtype == torch.int64
    assert not any(name in store for store in data.node_stores for name in ("x",))
    assert not any("e_id" in store for store in data.edge_stores)
    assert batch.table("y", "paper").shape == (0,)
    with pytest.raises(atta.ConfigError, match="'x' was not fetched"):
        batch.table("x", "paper")
    for call in (lambda: batch.n_id("papr"), lambda: batch.table("x", "papr"), lambda: batch.num_sampled_nodes("papr")):
        with pytest.raises(atta.UnknownNameError, match="paper"):
            call()
    with pytest.raises(atta.UnknownNameError, match="paper__cites__paper"):
        batch.edge_index("paper__cite__paper")


def test_what_operators_return_comes_along(cluster: atta.LocalCluster) -> None:
    loader = atta.BatchLoader(
        cluster, "walks", {"length": 3}, input_nodes="train", edge_type=CITES, batch_size=10, shuffle=True
    )
    for batch in loader:
        data = batch.to_pyg()
        assert data.validate(raise_on_error=True)
        assert np.array_equal(data.walks.numpy(), batch.extra["walks"])
        assert data.walks.shape == (data["paper"].batch_size, 4)
        assert (
            data["paper"].n_id[data.walks[:, 0]] % 3 == 0
        ).all()  # walks start at the seeds, which are in this split
    (batch,) = atta.BatchLoader(cluster, "pinsage", {"count": 3}, batches=[[5, 6, 7]], edge_type=CITES)
    assert len(batch.to_pyg().weight) == batch.num_edges


def test_pairs_come_along(cluster: atta.LocalCluster, graph: Any) -> None:
    from atta.samplers.dag.spec import Hops, pair_spec

    dag = pair_spec(cluster.schema, Hops([2]), edge_type="__".join(WRITES), negatives=2)
    edges = set(map(tuple, graph[WRITES].edge_index.T.tolist()))
    for batch in atta.DagLoader(cluster, dag, input_nodes=("paper", np.arange(20)), batch_size=10):
        data = batch.to_pyg()
        papers = data["paper"].n_id[: data["paper"].batch_size]  # not the authors, which come first by name
        assert papers.tolist() == list(range(int(papers[0]), int(papers[0]) + 10))
        assert (data.positive.shape, data.negative.shape) == ((10, 1), (10, 2))
        drawn = data["author"].n_id[data.negative]
        assert not {(a, p) for row, p in zip(drawn.tolist(), papers.tolist(), strict=True) for a in row} & edges


def test_seeds_of_a_batch_operator_are_of_its_edges_type(cluster: atta.LocalCluster) -> None:
    loader = atta.BatchLoader(cluster, "induced", input_nodes=np.arange(40, 50), edge_type=CITES, batch_size=5)
    assert [b.n_id("paper").tolist() for b in loader] == [list(range(40, 45)), list(range(45, 50))]
    with pytest.raises(atta.ConfigError, match=r"'author'.*end at 'paper'"):
        atta.BatchLoader(cluster, "induced", input_nodes=("author", [1]), edge_type=CITES)


def test_ids_without_a_type_are_refused(cluster: atta.LocalCluster) -> None:
    with pytest.raises(atta.ConfigError, match=r"name a node type.*author, paper, venue"):
        atta.NeighborLoader(cluster, [2], np.arange(5))
    assert len(atta.NeighborLoader(cluster, [2], "train", batch_size=5)) == 4  # only papers have that split
    with pytest.raises(atta.UnknownNameError, match="train"):
        atta.NeighborLoader(cluster, [2], "tran")


def test_batches_without_seeds_become_data(cluster: atta.LocalCluster) -> None:
    for batch in atta.BatchLoader(cluster, "saint-nodes", {"budget": 9}, batches=2, edge_type=CITES):
        data = batch.to_pyg()
        assert data["paper"].batch_size == 0
        assert data["paper"].num_nodes == len(batch.n_id("paper")) > 0
        assert data.validate(raise_on_error=True)


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_edges_as_seeds(cluster: atta.LocalCluster, graph: Any, mode: str) -> None:
    links = graph[WRITES].edge_index[:, :20]
    (batch,) = atta.LinkNeighborLoader(cluster, [2], (WRITES, links), neg_sampling=mode, batch_size=20, tables="x")
    data = batch.to_pyg()
    assert data.validate(raise_on_error=True)
    assert data["venue"].num_nodes == 0
    assert "x" in data["author"]
    assert "x" in data["paper"]
    store = data[WRITES] if mode == "binary" else data["author"]
    found = store.edge_label_index[0, :20] if mode == "binary" else store.src_index
    assert torch.equal(data["author"].n_id[found], links[0])
