"""A graph whose types have names of all kinds, from a file of PyG through every output: it is the same graph there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.tables.versions import publish, publish_edges
from atta.partition import Graph
from atta.partition.names import join_edge_type, split_edge_type
from tests.system.conftest import ran

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

GENE, EFFECT, STREET, DOUBLE = "gene/protein", "has side effect", "Straße", "a__b"
COUNTS = {GENE: 30, EFFECT: 20, STREET: 15, DOUBLE: 10, "gene": 6}
TRIPLES = [
    (GENE, "interacts", GENE),
    (EFFECT, "führt / to", GENE),
    (STREET, "führt", EFFECT),
    (DOUBLE, "_r__", STREET),
    (DOUBLE, "a=b;c", GENE),
    (GENE, "has, side: 100%", EFFECT),
    (GENE, "to", "gene"),
    (GENE, "to", GENE),
]
NAMED = {join_edge_type(*names): names for names in TRIPLES}
HAS = TRIPLES[5]


@pytest.fixture(scope="module")
def graph() -> Any:
    from torch_geometric.data import HeteroData

    rng, data = np.random.default_rng(5), HeteroData()
    warnings.filterwarnings("ignore", "There exist type names", UserWarning)
    for name, count in COUNTS.items():
        data[name].num_nodes = count
        if name != DOUBLE:
            data[name].x = torch.from_numpy(rng.random((count, 3), dtype=np.float32))
    data[GENE].y = torch.arange(30) % 3
    data[GENE].train_mask = torch.arange(30) < 20
    data[GENE].val_mask = torch.arange(30) >= 20
    for source, relation, target in TRIPLES:
        ends = [rng.integers(0, COUNTS[name], 60) for name in (source, target)]
        data[source, relation, target].edge_index = torch.from_numpy(np.stack(ends))
    data[HAS].note = torch.arange(60)
    data[GENE, "to", "gene"].note = torch.arange(60) + 100
    return data


@pytest.fixture(scope="module")
def folder(graph: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("names")
    torch.save(graph, found / "g.pt")
    ran("import", "pyg", found / "g.pt", found / "g", "-q")
    return found


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[atta.LocalCluster]:
    ran("partition", folder / "g", folder / "p", "--parts 2 --method random -q")
    with atta.local(folder / "p", threads=1, options=("--snapshots", str(folder / "kept"))) as made:
        yield made


def same(found: Any, graph: Any) -> None:
    """Every edge of a batch of all vertices and edges is one of the graph, under the same names."""
    assert set(found.edge_types) == set(TRIPLES)
    assert set(found.node_types) == set(COUNTS)
    for source, relation, target in TRIPLES:
        store, whole = found[source, relation, target], graph[source, relation, target]
        ends = torch.stack([found[n].n_id[r] for n, r in zip((source, target), store.edge_index, strict=True)])
        assert torch.equal(ends, whole.edge_index[:, store.e_id])
        for name in {"note"} & {*whole.keys()}:
            assert torch.equal(store[f"edge_{name}"], whole[name][store.e_id])
    for name in COUNTS:
        assert "x" not in graph[name] or torch.equal(found[name].x, graph[name].x[found[name].n_id])


def test_batches_have_the_names(cluster: atta.LocalCluster, graph: Any) -> None:
    notes = {join_edge_type(*names): ["note"] for names in (HAS, (GENE, "to", "gene"))}
    (batch,) = atta.NeighborLoader(cluster, [-1, -1], (GENE, np.arange(30)), batch_size=30, edge_tables=notes)
    data = batch.to_pyg()
    same(data, graph)
    assert data[GENE, "to", GENE].num_edges == data[GENE, "interacts", GENE].num_edges == 60
    assert sorted(batch.edge_tables(join_edge_type(GENE, "to", "gene"))) == ["note"]
    drawn = batch.to_networkx()
    assert {d["edge_type"] for *_, d in drawn.edges(data=True)} <= NAMED.keys()
    assert {n for n, _ in drawn.nodes} <= COUNTS.keys()
    fan_outs = {names: [-1 if names == TRIPLES[1] else 0] for names in TRIPLES}
    (seen,) = atta.NeighborLoader(cluster, fan_outs, (GENE, [3]), batch_size=1)
    assert seen.num_edges == int((graph[TRIPLES[1]].edge_index[1] == 3).sum())


@pytest.mark.parametrize("written", [HAS, "__".join(HAS), join_edge_type(*HAS)])
def test_edges_are_seeds_by_triple_and_by_text(cluster: atta.LocalCluster, graph: Any, written: Any) -> None:
    index = graph[HAS].edge_index
    for batch in atta.LinkNeighborLoader(cluster, [2], (written, index), batch_size=60, neg_sampling=None):
        found, data = batch.links()["edge_label_index"], batch.to_pyg()
        assert torch.equal(data[GENE].n_id[found[0]], index[0][data[HAS].input_id])


def test_tables_of_daemons_follow_types_of_any_name(cluster: atta.LocalCluster) -> None:
    policies = {"vertices": (30, f"nodes:{GENE}"), "edges": (60, f"edges:{join_edge_type(*HAS)}")}
    for name, (rows, policy) in policies.items():
        table = atta.DistEmbedding(cluster, rows, 2, name=name, policy=policy)
        assert table(torch.arange(rows)).shape == (rows, 2)
        values = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        cluster.tables.open(name).push(np.arange(rows), values).wait()
    cluster.tables.save("kept")
    for name in policies:
        cluster.tables.delete(name)
    cluster.tables.load("kept")
    for name, (rows, policy) in policies.items():
        found = cluster.tables.open(name)
        assert found.spec.policy == policy
        assert found.pull(np.arange(rows)).values.reshape(-1).tolist() == list(range(rows * 2))


def test_new_rows_and_edges(cluster: atta.LocalCluster, folder: Path, graph: Any, tmp_path: Path) -> None:
    rows, ends = np.full((30, 3), 7, np.float32), {"src": np.array([1, 2]), "dst": np.array([3, 3])}
    np.save(tmp_path / "x.npy", rows)
    for name, ids in ends.items():
        np.save(tmp_path / f"{name}.npy", ids)
    data, where = folder / "p", dict(enumerate(cluster.addresses))
    assert publish(data, f"{GENE}/x", tmp_path / "x.npy", where).table == f"{GENE}/x"
    (tmp_path / "x.npy").unlink()
    assert publish_edges(data, "__".join(TRIPLES[4]), where, added=tmp_path).rows == 2
    (batch,) = atta.NeighborLoader(cluster, [-1], (GENE, [3]), batch_size=1)
    found = batch.to_pyg()
    assert (found[GENE].x == 7).all()
    assert found[TRIPLES[4]].num_edges == 2 + int((graph[TRIPLES[4]].edge_index[1] == 3).sum())


@pytest.mark.parametrize("form", ["pyg", "npz", "table", pytest.param("dgl", marks=pytest.mark.slow)])
def test_exports_give_the_graph_back(folder: Path, tmp_path: Path, form: str) -> None:
    if form == "dgl":
        pytest.importorskip("dgl")
    source = folder / "g"
    if form == "npz":  # which holds no edge tables of several types
        plain = torch.load(folder / "g.pt", weights_only=False)
        for names in TRIPLES:
            plain[names].pop("note", None)
        torch.save(plain, tmp_path / "g.pt")
        ran("import", "pyg", tmp_path / "g.pt", source := tmp_path / "g", "-q")
    ran("export", form, source, tmp_path / "out", "-q")
    ran("import", form, tmp_path / "out", tmp_path / "back", "-q")
    first, again = Graph.open(source), Graph.open(tmp_path / "back")
    assert first.schema == again.schema
    assert {split_edge_type(e) for e in again.schema.edge_types} == set(TRIPLES)
    assert {name: r.xxh3 for name, r in first.files.items()} == {name: r.xxh3 for name, r in again.files.items()}


def test_partitions_of_pyg_have_its_file_names(folder: Path, tmp_path: Path) -> None:
    from torch_geometric.distributed.partition import load_partition_info

    ran("partition", folder / "g", tmp_path / "p", "--parts", 2, "--method", "random", "-q")
    ran("export", "pyg-parts", tmp_path / "p", tmp_path / "out", "-q")
    meta, _, _, nodes, edges = load_partition_info(str(tmp_path / "out"), 0)
    assert {*map(tuple, meta["edge_types"])} == {*edges} == set(TRIPLES)
    assert {name: len(parts) for name, parts in nodes.items()} == COUNTS
    ran("import", "pyg-parts", tmp_path / "out", tmp_path / "back", "-q")
    assert {split_edge_type(e) for e in Graph.open(tmp_path / "back").schema.edge_types} == set(TRIPLES)
