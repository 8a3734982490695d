"""What scripts of PyG call, typed graphs of one type, names of tensors, indices of stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.partition import GraphWriter, partition_graph
from atta.partition.importers import import_graph

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

KNOWS = ("person", "knows", "person")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """PyG's data of one named type, and a cluster of it that came through a file."""
    from torch_geometric.data import HeteroData

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
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.loader import LinkLoader, NodeLoader

    from atta.client.loaders.pyg import backends

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
    from torch_geometric.loader import NodeLoader

    from atta.client.loaders.pyg import backends

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


def test_indices_of_stores(tmp_path: Path) -> None:
    """Masks and slices go by ascending user id, as the rows of the whole table; numbers are user ids."""
    from atta.client.loaders.pyg import AttaFeatureStore

    ids, x = np.array([70, 10, 50, 30, 20]), np.random.default_rng(1).random((5, 2), dtype=np.float32)
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 5, ids=ids, tables={"x": x})
        out.add_edges("node__to__node", [0], [1])
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=2, method="random")
    whole = torch.from_numpy(x[np.argsort(ids)])
    mask = torch.tensor([True, False, False, True, True])
    with atta.local(tmp_path / "parts", threads=1) as cluster:
        store = AttaFeatureStore(cluster)
        for index in (slice(None), slice(1, 4), slice(None, None, 2), slice(-2, None), mask):
            assert torch.equal(store["node", "x", index], whole[index])
        assert torch.equal(store["node", "x", 50], whole[3])
        assert torch.equal(store["node", "x", torch.tensor(50)], whole[3])
        assert torch.equal(store["node", "x", [50, 10]], whole[[3, 0]])
        with pytest.raises(atta.ConfigError, match=r"mask of shape \[2\] for 5 vertices"):
            store.get_tensor("node", "x", mask[:2])
        with pytest.raises(atta.AttaError, match="3"):
            store.get_tensor("node", "x", 3)


def test_rows_of_edges_are_refused_where_pyg_drops_them(people: Any) -> None:
    from atta.client.loaders.pyg import backends

    with pytest.raises(atta.ConfigError, match=r"edge_tables \['weight'\]: .* atta.NeighborLoader"):
        backends(people[1], [3], edge_tables=["weight"])


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
def test_loaders_of_pyg_get_other_edges(people: Any, subgraph_type: str) -> None:
    from torch_geometric.loader import NodeLoader

    from atta.client.loaders.pyg import backends

    features, graph, sampler = backends(people[1], [3, 2], subgraph_type=subgraph_type)
    for named in (False, True):
        input_nodes = ("person", torch.arange(9)) if named else torch.arange(9)
        (data,) = NodeLoader((features, graph), sampler, input_nodes=input_nodes, batch_size=9)
        nodes, edges = (data["person"], data[KNOWS]) if named else (data, data)
        whole = people[0][KNOWS].edge_index
        ends = nodes.n_id[edges.edge_index]
        if subgraph_type == "induced":
            among = torch.isin(whole, nodes.n_id).all(0).nonzero().view(-1)
            assert edges.e_id.sort().values.tolist() == among.tolist()
            assert torch.equal(ends, whole[:, edges.e_id])
        else:
            pairs = {*map(tuple, ends.T.tolist())}
            assert len(pairs) == edges.edge_index.shape[1]
            assert pairs == {(b, a) for a, b in pairs}
            assert all({*pair} == {*whole[:, e].tolist()} for pair, e in zip(ends.T.tolist(), edges.e_id, strict=True))
        assert edges.get("num_sampled_edges") is None
