"""PyG's own loaders over a cluster: the same batches as Atta's, one fetch each, clear errors for unsupported uses. Typed
batches as ``HeteroData``: all types are there, PyG's layers compute as on the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader

import atta
from atta.client.loaders.pyg import AttaFeatureStore, AttaGraphStore, backends
from atta.partition import GraphWriter, partition_graph
from atta.partition.importers import import_graph
from tests.system.conftest import CITES, IN, WRITES, SmallGraph


@pytest.fixture
def cluster(pair: atta.LocalCluster) -> atta.LocalCluster:
    return pair


def test_node_loader_accepts_the_backends(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    features, graph, sampler = backends(cluster, [4, 3], seed=5)
    ids = torch.from_numpy(small_graph.train_ids)
    loader = NodeLoader((features, graph), sampler, input_nodes=ids, batch_size=32)
    before = sum(s.get("batches", 0) for s in cluster.stats())
    seen = []
    for data in loader:
        seen += data.n_id[: data.batch_size].tolist()
        rows = small_graph.rows(data.n_id)
        assert np.array_equal(data.x.numpy(), small_graph.x[rows])
        assert np.array_equal(data.y.numpy(), small_graph.y[rows])
        assert np.array_equal(small_graph.src_ids[data.e_id], data.n_id[data.edge_index[0]])
        assert np.array_equal(small_graph.dst_ids[data.e_id], data.n_id[data.edge_index[1]])
        assert sum(data.num_sampled_nodes) == data.num_nodes
    assert seen == ids.tolist()
    assert sum(s.get("batches", 0) for s in cluster.stats()) - before == len(loader)  # one fetch per batch
    again = backends(cluster, [4, 3], seed=5)
    first, other = next(iter(loader)), next(iter(NodeLoader(again[:2], again[2], input_nodes=ids, batch_size=32)))
    own = next(iter(atta.NeighborLoader(cluster, [4, 3], ids.numpy()[:32], batch_size=32, seed=5))).to_pyg()
    assert torch.equal(other.edge_index, own.edge_index)  # call 0 is epoch 0
    assert not torch.equal(first.n_id, other.n_id)


def test_a_prefetch_loader_gives_the_data_of_its_loader(cluster: atta.LocalCluster) -> None:
    loader = atta.NeighborLoader(cluster, [4, 3], "train", batch_size=32, shuffle=True)
    moved = atta.PrefetchLoader(loader, "cpu")
    assert len(moved) == len(loader)
    expected = [batch.to_pyg() for batch in loader]
    loader.set_epoch(0)
    for data, same in zip(moved, expected, strict=True):
        assert data.keys() == same.keys()
        assert all(torch.equal(data[name], same[name]) for name in ("x", "y", "edge_index", "n_id", "e_id", "input_id"))


def test_what_a_prefetch_loader_refuses(cluster: atta.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loader = atta.NeighborLoader(cluster, [2], "train", batch_size=32, transform=atta.MiniBatch.to_pyg)
    with pytest.raises(atta.ConfigError, match="gives Data, not MiniBatch: leave out its transform"):
        next(iter(atta.PrefetchLoader(loader, "cpu")))
    with pytest.raises(atta.ConfigError, match="'abacus': torch knows no such device"):
        atta.PrefetchLoader(loader, "abacus")
    with pytest.raises(atta.ConfigError, match="'cuda': torch sees no GPU"):
        atta.PrefetchLoader(loader, "cuda")
    with pytest.raises(TypeError, match="list_iterator has no length"):
        len(atta.PrefetchLoader(iter([]), "cpu"))


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_link_loader_accepts_the_backends(cluster: atta.LocalCluster, small_graph: SmallGraph, mode: str) -> None:
    features, graph, sampler = backends(cluster, [4, 3])
    links = torch.from_numpy(np.stack([small_graph.src_ids[:90], small_graph.dst_ids[:90]]))
    edge_type = ("node", "to", "node")
    loader = LinkLoader(
        (features, graph), sampler, edge_label_index=(edge_type, links), neg_sampling=mode, batch_size=30
    )
    for data in loader:
        chosen = links[:, data.input_id]
        if mode == "binary":
            assert torch.equal(data.n_id[data.edge_label_index[:, :30]], chosen)
            assert data.edge_label.tolist() == [1.0] * 30 + [0.0] * 30
        else:
            assert torch.equal(data.n_id[data.src_index], chosen[0])
            assert torch.equal(data.n_id[data.dst_pos_index], chosen[1])
            assert data.dst_neg_index.shape == (30,)
        assert np.array_equal(data.x.numpy(), small_graph.x[small_graph.rows(data.n_id)])
        sampled = set(zip(*data.n_id[data.edge_index].tolist(), strict=True))
        assert not sampled & set(zip(*chosen.tolist(), strict=True))


def test_several_types(typed: Any) -> None:
    features, graph, sampler = backends(typed[1], [3, 3])
    loader = NodeLoader((features, graph), sampler, input_nodes=("paper", torch.arange(40)), batch_size=20)
    for data in loader:
        assert torch.equal(data["paper"].y, data["paper"].n_id)
        assert data["author"].x.shape == (data["author"].num_nodes, 2)
        assert data[WRITES].edge_index[0].max() < data["author"].num_nodes
        assert data["paper"].batch_size == 20
        assert data.validate(raise_on_error=True)
    # No edge ends at an author, so its batches have no papers. PyG's layers still look for them.
    (alone,) = NodeLoader((features, graph), sampler, input_nodes=("author", torch.arange(10)), batch_size=10)
    assert alone.validate(raise_on_error=True)
    assert {t: alone[t].x.shape[1] for t in alone.node_types} == {"paper": 4, "author": 2, "venue": 3}
    assert set(alone.edge_types) == {CITES, WRITES, IN}
    assert (alone["paper"].y.dtype, alone["author"].batch_size) == (torch.int64, 10)
    assert all(len(counts) == 3 for counts in alone.num_sampled_nodes_dict.values())
    with pytest.raises(atta.ConfigError, match=r"1\.5"):
        features.get_tensor("paper", "x", index=torch.tensor([1.5]))
    links = torch.stack([torch.arange(30), torch.arange(30)])
    linked = next(iter(LinkLoader((features, graph), sampler, edge_label_index=(WRITES, links), batch_size=30)))
    assert torch.equal(linked["author"].n_id[linked[WRITES].edge_label_index[0]], links[0])
    assert torch.equal(linked["paper"].n_id[linked[WRITES].edge_label_index[1]], links[1])


def test_stores_alone(cluster: atta.LocalCluster, typed: Any, small_graph: SmallGraph) -> None:
    features, graph = AttaFeatureStore(cluster), AttaGraphStore(cluster)
    ids = torch.from_numpy(small_graph.ids[[5, 9, 5, 250]])
    assert np.array_equal(features.get_tensor("node", "x", index=ids).numpy(), small_graph.x[[5, 9, 5, 250]])
    everything = features.get_tensor("node", "y", index=None)
    assert np.array_equal(everything.numpy(), small_graph.y[np.argsort(small_graph.ids)])
    assert features.get_tensor_size("node", "x") == (300, 16)
    row, col = graph.get_edge_index(graph.get_all_edge_attrs()[0])
    assert np.array_equal(row.numpy(), small_graph.src_ids)
    assert np.array_equal(col.numpy(), small_graph.dst_ids)
    sizes = {attr.edge_type: attr.size for attr in AttaGraphStore(typed[1]).get_all_edge_attrs()}
    assert sizes == {CITES: (60, 60), WRITES: (30, 60), IN: (60, 7)}
    for forbidden in (
        lambda: features.put_tensor(torch.ones(1), "node", "x", index=None),
        lambda: features.remove_tensor("node", "x", None),
        lambda: features.get_tensor("node", "z", index=ids),
        lambda: graph.put_edge_index((row, col), ("node", "to", "node"), "coo"),
    ):
        with pytest.raises((atta.ConfigError, atta.UnknownNameError)):
            forbidden()


def test_weights_of_negatives_and_forks_are_refused(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    from torch_geometric.sampler import NegativeSampling

    features, graph, sampler = backends(cluster, [2])
    links = torch.from_numpy(np.stack([small_graph.src_ids[:8], small_graph.dst_ids[:8]]))
    weighted = NegativeSampling("triplet", dst_weight=torch.ones(300))
    label_index = (("node", "to", "node"), links)
    loader = LinkLoader((features, graph), sampler, edge_label_index=label_index, neg_sampling=weighted)
    with pytest.raises(atta.ConfigError, match="weights of vertices"):
        next(iter(loader))
    sampler._pid -= 1  # as in a forked worker
    with pytest.raises(atta.ConfigError, match="num_workers"):
        next(iter(NodeLoader((features, graph), sampler, input_nodes=torch.from_numpy(small_graph.ids[:4]))))


def test_a_seed_named_twice_counts_once(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    a, b, c = small_graph.ids[:3].tolist()
    features, graph, sampler = backends(cluster, [3], time_attr="time", disjoint=False)
    features, graph, plain = backends(cluster, [3])
    ids = torch.tensor([a, b, a, c])
    (data,) = NodeLoader((features, graph), plain, input_nodes=ids, batch_size=4)
    assert data.n_id[: data.batch_size].tolist() == [a, b, c]
    assert data.input_id.tolist() == [0, 1, 3]
    times = torch.tensor([3, 4, 5, 6])
    (data,) = NodeLoader((features, graph), sampler, input_nodes=ids, input_time=times, batch_size=4)
    assert data.n_id[: data.batch_size].tolist() == [a, b, a, c]  # trees of their own
    assert data.seed_time.tolist() == [3, 4, 5, 6]


def test_triplets_have_the_times_of_their_edges(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    """Under PyG's name, and the same through PyG's own loader."""
    links, times = np.stack([small_graph.src_ids[:40], small_graph.dst_ids[:40]]), np.arange(40) + 10
    how = {"time_attr": "time"}
    (batch,) = atta.LinkNeighborLoader(
        cluster, [3], links, edge_label_time=times, neg_sampling="triplet", batch_size=40, **how
    )
    features, graph, sampler = backends(cluster, [3], **how)
    (theirs,) = LinkLoader(
        (features, graph), sampler, edge_label_index=(("node", "to", "node"), torch.from_numpy(links)),
        edge_label_time=torch.from_numpy(times), neg_sampling="triplet", batch_size=40,
    )  # fmt: skip
    data = batch.to_pyg()
    assert data.seed_time.tolist() == theirs.seed_time.tolist() == times.tolist()


def test_induced_trees_have_no_later_edges(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    """All edges among the vertices of a tree that are not later than its seed, and no others."""
    ids, times = small_graph.train_ids[:24], np.arange(24) * 2
    how = {"input_time": times, "time_attr": "time", "subgraph_type": "induced", "batch_size": 24}
    (batch,) = atta.NeighborLoader(cluster, [3, 2], ids, **how)
    n_id, tree, found = batch.n_id(), batch.tree(), batch.tree()[batch.edge_index()[1]]
    assert np.array_equal(found, batch.tree()[batch.edge_index()[0]])
    for number in range(24):
        there = n_id[tree == number]
        among = np.isin(small_graph.src_ids, there) & np.isin(small_graph.dst_ids, there)
        among &= small_graph.edge_time <= times[batch.input_id[number]]
        assert sorted(batch.e_id()[found == number].tolist()) == np.flatnonzero(among).tolist()


# -- one named type, names of tensors, indices of stores ------------------------------------------------------------------

KNOWS = ("person", "knows", "person")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """PyG's data of one named type, and a cluster of it that came through a file."""
    rng, data = np.random.default_rng(4), HeteroData()
    data["person"].x = torch.from_numpy(rng.random((40, 3), dtype=np.float32))
    data[KNOWS].edge_index = torch.from_numpy(rng.integers(0, 40, (2, 200)))
    folder = tmp_path_factory.mktemp("people")
    torch.save(data, folder / "people.pt")
    import_graph("pyg", folder / "people.pt", folder / "graph")
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random")
    with atta.local(folder / "parts", threads=1) as cluster:
        yield data, cluster


def test_a_named_type_stays_named(people: Any) -> None:
    whole, cluster = people
    for batch in atta.NeighborLoader(cluster, [3, 2], ("person", np.arange(40)), batch_size=8):
        data = batch.to_pyg()
        assert data.metadata() == (["person"], [KNOWS])
        assert data.input_type == "person"
        assert torch.equal(data["person"].x, whole["person"].x[data["person"].n_id])
        ends = data["person"].n_id[data[KNOWS].edge_index]
        assert torch.equal(ends, whole[KNOWS].edge_index[:, data[KNOWS].e_id])
        plain = batch.to_pyg(plain=True)
        assert torch.equal(plain.x, data["person"].x)
        assert torch.equal(plain.edge_index, data[KNOWS].edge_index)


def test_loaders_of_pyg_keep_the_name(people: Any) -> None:
    whole, cluster = people
    features, graph, sampler = backends(cluster, [3])
    (data,) = NodeLoader((features, graph), sampler, input_nodes=("person", torch.arange(9)), batch_size=9)
    assert isinstance(data, HeteroData)
    assert data.input_type == "person"
    assert torch.equal(data["person"].x, whole["person"].x[data["person"].n_id])
    links = KNOWS, whole[KNOWS].edge_index[:, :9]
    (linked,) = LinkLoader((features, graph), sampler, edge_label_index=links, batch_size=9)
    assert linked.input_type == KNOWS
    assert torch.equal(linked["person"].n_id[linked[KNOWS].edge_label_index], links[1])
    (plain,) = NodeLoader((features, graph), sampler, input_nodes=torch.arange(9), batch_size=9)
    assert isinstance(plain, Data)  # no type was named


OWN = [
    "batch", "batch_size", "e_id", "edge_index", "edge_label_index", "input_id", "input_type", "n_id", "num_nodes",
    "num_sampled_edges", "num_sampled_nodes", "root_n_id", "seed_time", "src_index",
]  # fmt: skip


@pytest.mark.parametrize("node_type", ["node", "person"])
def test_tables_named_like_what_a_batch_has(tmp_path: Path, node_type: str) -> None:
    """They come under another name, and what PyG says under this one stays what it is."""
    tables = {name: np.arange(6) * 3 + place for place, name in enumerate([*OWN, "edge_mark"])}
    relation = "to" if node_type == "node" else "knows"
    edge_tables = {name: np.arange(5) + 70 for name in ("index", "label", "mark")}
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes(node_type, 6, tables=tables)
        out.add_edges(f"{node_type}__{relation}__{node_type}", [0, 1, 2, 3, 4], [1, 2, 3, 4, 5], tables=edge_tables)
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=2, method="random")
    with atta.local(tmp_path / "parts", threads=1) as cluster:
        (batch,) = atta.NeighborLoader(cluster, [2], (node_type, [2, 5]), batch_size=2, edge_tables=[*edge_tables])
        data = batch.to_pyg()
        features, graph, sampler = backends(cluster, [2])
        (other,) = NodeLoader((features, graph), sampler, input_nodes=(node_type, torch.tensor([2, 5])), batch_size=2)
    stores = (data, data) if node_type == "node" else (data[node_type], data[data.edge_types[0]])
    n_id, e_id = batch.n_id(node_type), batch.e_id()
    for store in (stores[0], other if node_type == "node" else other[node_type]):
        for name in OWN:
            assert np.array_equal(store[f"table_{name}"], tables[name][n_id]), name
        assert store["edge_mark"].tolist() == tables["edge_mark"][n_id].tolist()
        assert store.input_id.tolist() == [0, 1]
        assert store.batch_size == 2
        assert store.num_nodes == len(n_id)
    named = {"index": "table_edge_index", "label": "table_edge_label", "mark": "edge_mark"}
    if node_type == "node":  # vertices and edges share a store
        named |= {"index": "table_table_edge_index", "mark": "table_edge_mark"}
    for name, there in named.items():
        assert stores[1][there].tolist() == edge_tables[name][e_id].tolist()


def test_indices_of_stores(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    """Masks and slices go by ascending user id, as the rows of the whole table; numbers are user ids."""
    store, order = AttaFeatureStore(cluster), np.argsort(small_graph.ids)
    whole, ids = torch.from_numpy(small_graph.x[order]), small_graph.ids[order].tolist()
    mask = torch.arange(300) % 7 == 2
    for index in (slice(None), slice(1, 4), slice(None, None, 2), slice(-2, None), mask):
        assert torch.equal(store["node", "x", index], whole[index])
    assert torch.equal(store["node", "x", ids[3]], whole[3])
    assert torch.equal(store["node", "x", torch.tensor(ids[3])], whole[3])
    assert torch.equal(store["node", "x", [ids[3], ids[0]]], whole[[3, 0]])
    with pytest.raises(atta.ConfigError, match=r"mask of shape \[2\] for 300 vertices"):
        store.get_tensor("node", "x", mask[:2])
    nobody = next(number for number in range(300) if number not in ids)
    with pytest.raises(atta.AttaError, match=str(nobody)):
        store.get_tensor("node", "x", nobody)


def test_rows_of_edges_are_refused_where_pyg_drops_them(people: Any) -> None:
    with pytest.raises(atta.ConfigError, match=r"edge_tables \['weight'\]: .* atta.NeighborLoader"):
        backends(people[1], [3], edge_tables=["weight"])


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
def test_loaders_of_pyg_get_other_edges(people: Any, subgraph_type: str) -> None:
    features, graph, sampler = backends(people[1], [3, 2], subgraph_type=subgraph_type)
    how = {"input_nodes": ("person", np.arange(9)), "subgraph_type": subgraph_type, "batch_size": 9}
    own = atta.NeighborLoader(people[1], [3, 2], **how)
    for input_nodes in (torch.arange(9), ("person", torch.arange(9))):
        (data,), (wanted,) = NodeLoader((features, graph), sampler, input_nodes=input_nodes, batch_size=9), own
        named = isinstance(input_nodes, tuple)
        nodes, edges = (data["person"], data[KNOWS]) if named else (data, data)
        assert nodes.n_id.tolist() == wanted.n_id().tolist()
        assert edges.edge_index.tolist() == wanted.edge_index().tolist()
        assert edges.e_id.tolist() == wanted.e_id().tolist()
        assert edges.get("num_sampled_edges") is None


# -- several types -----------------------------------------------------------------------------------------------------


@pytest.fixture
def graph(typed: Any) -> Any:
    return typed[0]


@pytest.fixture
def types(typed: Any) -> atta.LocalCluster:
    return typed[1]


NOTES = {"__".join(edge_type): ["note"] for edge_type in (CITES, WRITES, IN)}


@pytest.mark.parametrize("node_type", ["author", "paper", "venue"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_every_type_is_there(types: atta.LocalCluster, graph: Any, node_type: str, disjoint: bool) -> None:
    loader = atta.NeighborLoader(
        types, [3, 2], (node_type, np.arange(5)), batch_size=5, edge_tables=NOTES, disjoint=disjoint
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
def test_layers_of_pyg_compute_as_over_the_whole_graph(types: atta.LocalCluster, graph: Any, node_type: str) -> None:
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
        for batch in atta.NeighborLoader(types, [-1, -1], (node_type, None), batch_size=4):
            data = batch.to_pyg()
            seeds = data[node_type].n_id[: batch.batch_size]
            assert torch.allclose(compute(data, trim=True)[: batch.batch_size], expected[seeds], atol=1e-5)


def test_only_the_tables_that_were_asked_for(types: atta.LocalCluster) -> None:
    options: dict[str, Any] = {"batch_size": 5, "edge_ids": False}
    (batch,) = atta.NeighborLoader(types, [2], ("author", np.arange(5)), tables={"paper": "y"}, **options)
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


def test_what_operators_return_comes_along(types: atta.LocalCluster) -> None:
    loader = atta.BatchLoader(
        types, "walks", {"length": 3}, input_nodes="train", edge_type=CITES, batch_size=10, shuffle=True
    )
    for batch in loader:
        data = batch.to_pyg()
        assert data.validate(raise_on_error=True)
        assert np.array_equal(data.walks.numpy(), batch.extra["walks"])
        assert data.walks.shape == (data["paper"].batch_size, 4)
        assert (
            data["paper"].n_id[data.walks[:, 0]] % 3 == 0
        ).all()  # walks start at the seeds, which are in this split
    (batch,) = atta.BatchLoader(types, "pinsage", {"count": 3}, batches=[[5, 6, 7]], edge_type=CITES)
    assert len(batch.to_pyg().weight) == batch.num_edges


def test_pairs_come_along(types: atta.LocalCluster, graph: Any) -> None:
    from atta.samplers.dag.spec import Hops, pair_spec

    dag = pair_spec(types.schema, Hops([2]), edge_type="__".join(WRITES), negatives=2)
    edges = set(map(tuple, graph[WRITES].edge_index.T.tolist()))
    for batch in atta.DagLoader(types, dag, input_nodes=("paper", np.arange(20)), batch_size=10):
        data = batch.to_pyg()
        papers = data["paper"].n_id[: data["paper"].batch_size]  # not the authors, which come first by name
        assert papers.tolist() == list(range(int(papers[0]), int(papers[0]) + 10))
        assert (data.positive.shape, data.negative.shape) == ((10, 1), (10, 2))
        drawn = data["author"].n_id[data.negative]
        assert not {(a, p) for row, p in zip(drawn.tolist(), papers.tolist(), strict=True) for a in row} & edges


def test_seeds_of_a_batch_operator_are_of_its_edges_type(types: atta.LocalCluster) -> None:
    loader = atta.BatchLoader(types, "induced", input_nodes=np.arange(40, 50), edge_type=CITES, batch_size=5)
    assert [b.n_id("paper").tolist() for b in loader] == [list(range(40, 45)), list(range(45, 50))]
    with pytest.raises(atta.ConfigError, match=r"'author'.*end at 'paper'"):
        atta.BatchLoader(types, "induced", input_nodes=("author", [1]), edge_type=CITES)


def test_ids_without_a_type_are_refused(types: atta.LocalCluster) -> None:
    with pytest.raises(atta.ConfigError, match=r"name a node type.*author, paper, venue"):
        atta.NeighborLoader(types, [2], np.arange(5))
    assert len(atta.NeighborLoader(types, [2], "train", batch_size=5)) == 4  # only papers have that split
    with pytest.raises(atta.UnknownNameError, match="train"):
        atta.NeighborLoader(types, [2], "tran")


def test_batches_without_seeds_become_data(types: atta.LocalCluster) -> None:
    for batch in atta.BatchLoader(types, "saint-nodes", {"budget": 9}, batches=2, edge_type=CITES):
        data = batch.to_pyg()
        assert data["paper"].batch_size == 0
        assert data["paper"].num_nodes == len(batch.n_id("paper")) > 0
        assert data.validate(raise_on_error=True)
