"""DGL blocks of batches: layers over them compute the same as layers over the whole graph, or over the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atta
from tests.system.conftest import SmallGraph

dgl = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")

PLACEMENT = "2 parts by metis, 1 threads"


@pytest.fixture
def cluster(placements: dict[str, atta.LocalCluster]) -> atta.LocalCluster:
    return placements[PLACEMENT]


def layers(kind: str, count: int) -> list[Any]:
    from dgl.nn import GraphConv, SAGEConv

    torch.manual_seed(5)
    if kind == "sage":
        return [SAGEConv(16, 16, "mean") for _ in range(count)]
    return [GraphConv(16, 16, norm="right", allow_zero_in_degree=True) for _ in range(count)]


def over_graph(graph: Any, x: Any, stack: list[Any]) -> Any:
    with torch.no_grad():
        for layer in stack:
            x = layer(graph, x).tanh()
    return x


def over_blocks(blocks: list[Any], x: Any, stack: list[Any]) -> Any:
    with torch.no_grad():
        for block, layer in zip(blocks, stack, strict=True):
            x = layer(block, (x, x[: block.num_dst_nodes()])).tanh()
    return x


def check(loader: Any, graph: SmallGraph, expected: Any, stack: list[Any]) -> int:
    """Seeds have what layers over the graph give them. Their number."""
    seen = 0
    for batch in loader:
        found = over_blocks(batch.to_dgl(), torch.from_numpy(batch.table("x")), stack)
        assert torch.allclose(found, expected[graph.rows(batch.n_id()[: len(found)])], atol=1e-5)
        seen += len(found)
    return seen


@pytest.fixture(scope="module")
def whole(small_graph: SmallGraph) -> Any:
    return dgl.graph((torch.from_numpy(small_graph.src), torch.from_numpy(small_graph.dst)), num_nodes=300)


@pytest.mark.parametrize("kind", ["sage", "gcn"])
@pytest.mark.parametrize(
    "options", [{}, {"frontier": "all"}, {"disjoint": True}, {"disjoint": True, "frontier": "all"}]
)
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_blocks_of_full_neighbourhoods_compute_as_the_whole_graph(
    cluster: atta.LocalCluster, small_graph: SmallGraph, whole: Any, kind: str, options: dict[str, Any], hops: int
) -> None:
    stack = layers(kind, hops)
    expected = over_graph(whole, torch.from_numpy(small_graph.x), stack)
    loader = atta.NeighborLoader(cluster, [-1] * hops, small_graph.train_ids[:60], batch_size=20, **options)
    assert check(loader, small_graph, expected, stack) == 60


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"weight_attr": "weight"}, {"method": "labor"}])
def test_blocks_of_drawn_neighbours_compute_as_the_batch(cluster: atta.LocalCluster, options: dict[str, Any]) -> None:
    """With ``frontier="new"``, every layer of PyG goes over all edges of the batch."""
    stack = layers("sage", 3)
    for batch in atta.NeighborLoader(cluster, [4, 3, 2], "train", batch_size=20, **options):
        row, col = torch.from_numpy(batch.edge_index())
        x = torch.from_numpy(batch.table("x"))
        expected = over_graph(dgl.graph((row, col), num_nodes=batch.num_nodes), x, stack)[: batch.batch_size]
        assert torch.allclose(over_blocks(batch.to_dgl(), x, stack), expected, atol=1e-5)


@pytest.mark.parametrize("frontier", ["new", "all"])
def test_blocks_keep_the_contract_of_dgl(cluster: atta.LocalCluster, small_graph: SmallGraph, frontier: str) -> None:
    fan_outs = [4, 0, 3]
    for batch in atta.NeighborLoader(cluster, fan_outs, "train", batch_size=20, frontier=frontier):
        blocks = batch.to_dgl()
        assert all(block.formats()["created"] == ["csc"] for block in blocks)  # so layers need not sort edges
        assert blocks[0].srcdata[dgl.NID].tolist() == batch.n_id().tolist()
        assert blocks[-1].dstdata[dgl.NID].tolist() == batch.n_id()[: batch.batch_size].tolist()
        for nearer, block in zip([*blocks[1:], None], blocks, strict=True):
            source, target = block.srcdata[dgl.NID], block.dstdata[dgl.NID]
            assert source[: len(target)].tolist() == target.tolist()
            assert nearer is None or nearer.srcdata[dgl.NID].tolist() == target.tolist()
            row, col = block.edges()
            e_id = block.edata[dgl.EID].numpy()
            assert np.array_equal(small_graph.src_ids[e_id], source[row].numpy())
            assert np.array_equal(small_graph.dst_ids[e_id], target[col].numpy())
        if frontier == "all":  # every hop draws again for all known vertices
            assert [block.num_edges() for block in reversed(blocks)] == batch.num_sampled_edges()
            for fan_out, block in zip(fan_outs, reversed(blocks), strict=True):
                assert int(block.in_degrees().max()) <= fan_out
        else:
            assert [b.num_edges() for b in reversed(blocks)] == np.cumsum(batch.num_sampled_edges()).tolist()


def test_hops_may_differ_in_their_frontiers(cluster: atta.LocalCluster, small_graph: SmallGraph, whole: Any) -> None:
    from atta.protos.v1 import dag_pb2
    from atta.samplers.dag.spec import Hops, neighbor_spec

    stack = layers("sage", 4)
    expected = over_graph(whole, torch.from_numpy(small_graph.x), stack)
    dag = neighbor_spec(cluster.schema, Hops([-1] * 4), seed_type="node")
    (third,) = (op.neighborhood for op in dag.operators if op.neighborhood.hop == 3)
    third.frontier = dag_pb2.FRONTIER_ALL
    loader = atta.DagLoader(cluster, dag, input_nodes=small_graph.train_ids[:20], batch_size=10)
    assert check(loader, small_graph, expected, stack) == 20


def test_blocks_of_edges_as_seeds(cluster: atta.LocalCluster, small_graph: SmallGraph, whole: Any) -> None:
    stack = layers("sage", 2)
    expected = over_graph(whole, torch.from_numpy(small_graph.x), stack)
    links = np.stack([small_graph.src_ids[:40], small_graph.dst_ids[:40]])
    options: dict[str, Any] = {"neg_sampling": "binary", "exclude_edges": None, "batch_size": 40}
    (batch,) = atta.LinkNeighborLoader(cluster, [-1, -1], links, **options)
    assert check([batch], small_graph, expected, stack) == batch.num_sampled_nodes()[0] > 40


def test_what_has_no_blocks_is_refused(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    batch = next(iter(atta.BatchLoader(cluster, "induced", batches=[small_graph.ids[:50]])))
    with pytest.raises(atta.ConfigError, match="sampled this batch as a whole"):
        batch.to_dgl()
    assert next(iter(atta.NeighborLoader(cluster, [], "train", batch_size=4))).to_dgl() == []
