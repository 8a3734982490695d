"""PyG's own loaders over a cluster: the same batches as Atta's, one fetch each, clear errors for unsupported uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.loader import LinkLoader, NodeLoader

import atta
from atta.client.loaders.pyg import AttaFeatureStore, AttaGraphStore, backends
from tests.system.conftest import CITES, IN, WRITES, SmallGraph


@pytest.fixture
def cluster(pair: atta.LocalCluster) -> atta.LocalCluster:
    return pair


def rows_of(graph: SmallGraph, ids: torch.Tensor) -> np.ndarray:
    order = np.argsort(graph.ids)
    return order[np.searchsorted(graph.ids[order], ids.numpy())]


def test_node_loader_accepts_the_backends(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    features, graph, sampler = backends(cluster, [4, 3], seed=5)
    ids = torch.from_numpy(small_graph.train_ids)
    loader = NodeLoader((features, graph), sampler, input_nodes=ids, batch_size=32)
    before = sum(s.get("batches", 0) for s in cluster.stats())
    seen = []
    for data in loader:
        seen += data.n_id[: data.batch_size].tolist()
        rows = rows_of(small_graph, data.n_id)
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


def test_disjoint_and_temporal(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    features, graph, sampler = backends(cluster, [3, 2], time_attr="time")
    ids = torch.from_numpy(small_graph.train_ids)
    times = torch.arange(len(ids)) % 50
    for data in NodeLoader((features, graph), sampler, input_nodes=ids, input_time=times, batch_size=40):
        assert data.batch[:40].tolist() == list(range(data.batch_size))
        of_edge = data.seed_time[data.batch[data.edge_index[1]]]
        assert (torch.from_numpy(small_graph.edge_time)[data.e_id] <= of_edge).all()


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
        assert np.array_equal(data.x.numpy(), small_graph.x[rows_of(small_graph, data.n_id)])
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


@pytest.mark.parametrize("node_type", ["author", "paper"])
def test_every_type_is_there(typed: Any, node_type: str) -> None:
    """No edge ends at an author, so its batches have no papers. PyG's layers still look for them."""
    features, graph, sampler = backends(typed[1], [3, 3])
    loader = NodeLoader((features, graph), sampler, input_nodes=(node_type, torch.arange(20)), batch_size=10)
    for data in loader:
        assert data.validate(raise_on_error=True)
        assert set(data.node_types) == {"paper", "author", "venue"}
        assert set(data.edge_types) == {CITES, WRITES, IN}
        assert {t: data[t].x.shape[1] for t in data.node_types} == {"paper": 4, "author": 2, "venue": 3}
        assert data["paper"].y.dtype == torch.int64
        assert all(len(counts) == 3 for counts in data.num_sampled_nodes_dict.values())
        assert data[node_type].batch_size == 10
    assert features.get_tensor("paper", "x", index=torch.arange(0)).shape == (0, 4)
    with pytest.raises(atta.ConfigError, match=r"1\.5"):
        features.get_tensor("paper", "x", index=torch.tensor([1.5]))


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
