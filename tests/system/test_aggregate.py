"""Batches whose last hop's rows are summed: the same edges, and sums that are the same bits wherever rows lie. Layers of PyG
give on them what they give on the batch with all of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.errors import ConfigError
from tests.system.conftest import CITES, IN, WRITES, SmallGraph

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

FAN_OUTS, SEEDS, BATCH = [6, 5, 4], 100, 50
OPTIONS: list[dict[str, Any]] = [
    {"aggregate": "mean"},
    {"aggregate": "sum"},
    {"aggregate": "gcn"},
    {"aggregate": "mean", "frontier": "all"},
    {"aggregate": "mean", "method": "labor", "dependency": 4},
    {"aggregate": "sum", "replace": True, "disjoint": True},
    {"aggregate": "sum", "edge_norm": "gcn", "unbiased": True},
    {"aggregate": "sum", "weight_attr": "weight", "norm_attr": "weight", "unbiased": True},
    {"aggregate": "sum", "edge_norm": "row", "frontier": "all", "unbiased": True},
]

MEANS_AND_SUMS = [
    pytest.param({"aggregate": "mean"}, marks=pytest.mark.slow),
    {"aggregate": "sum", "norm_attr": "weight"},
]


def batches(cluster: atta.Cluster, **options: Any) -> list[atta.MiniBatch]:
    fan_outs = options.pop("fan_outs", FAN_OUTS)
    return [*atta.NeighborLoader(cluster, fan_outs, "train", batch_size=BATCH, seed=7, shuffle=True, **options)]


def summed(batch: atta.MiniBatch, aggregate: str, known: int, *, last: bool) -> np.ndarray:
    """In float64, from the batch with all rows."""
    (row, col), weight = batch.edge_index(), batch.edge_weight()
    if last:
        row, col = row[-batch.num_sampled_edges()[-1] :], col[-batch.num_sampled_edges()[-1] :]
        weight = None if weight is None else weight[-len(row) :]
    if aggregate == "gcn":
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        ends, found = gcn_norm(torch.from_numpy(np.stack([row, col])), num_nodes=batch.num_nodes, dtype=torch.float64)
        (row, col), weight = ends.numpy(), found.numpy()
    out = np.zeros((batch.num_nodes, batch.table("x").shape[1]))
    np.add.at(out, col, batch.table("x")[row] * np.float64(1 if weight is None else weight[:, None]))
    if aggregate == "mean":
        out /= np.maximum(1, np.bincount(col, minlength=len(out)))[:, None]
    return out[:known]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda given: " ".join(map(str, given.values())))
def test_sums_are_those_of_the_batch_and_the_same_bits_everywhere(
    placements: Mapping[str, atta.LocalCluster], options: dict[str, Any]
) -> None:
    first = None
    for name in (
        "1 parts by random, 1 threads",
        "2 parts by metis, 1 threads",
        "4 parts by random on 3 daemons, 1 threads",
    ):
        found = batches(placements[name], **options)
        rest = {key: value for key, value in options.items() if key != "aggregate"}
        for batch, whole in zip(found, batches(placements[name], **rest), strict=True):
            known = len(batch.table("x"))
            assert known == sum(whole.num_sampled_nodes()[:-1]) < whole.num_nodes
            np.testing.assert_array_equal(batch.n_id(), whole.n_id())
            np.testing.assert_array_equal(batch.edge_index(), whole.edge_index())
            np.testing.assert_array_equal(batch.e_id(), whole.e_id())
            np.testing.assert_array_equal(batch.table("x"), whole.table("x")[:known])
            np.testing.assert_array_equal(batch.table("y"), whole.table("y")[:known])
            expected = summed(whole, options["aggregate"], known, last=options.get("frontier") == "all")
            np.testing.assert_allclose(batch.aggregated(), expected, rtol=2e-6, atol=2e-6)
        bits = [batch.aggregated().tobytes() for batch in found]
        first = first or bits
        assert bits == first


@pytest.mark.parametrize(
    "options", [{}, {"frontier": "all"}, {"disjoint": True}, {"method": "labor"}, {"replace": True, "fan_outs": [3, 9]}]
)
def test_without_ids_of_edges_the_last_hop_stays_away(
    placements: Mapping[str, atta.LocalCluster], options: dict[str, Any]
) -> None:
    alone = "1 parts by random, 1 threads"
    whole = batches(placements[alone], aggregate="mean", **options)
    for name in (alone, "4 parts by random, 1 threads", "4 parts by random on 3 daemons, 1 threads"):
        for batch, other in zip(
            batches(placements[name], aggregate="mean", edge_ids=False, **options), whole, strict=True
        ):
            known, edges = len(other.table("x")), sum(other.num_sampled_edges()[:-1])
            np.testing.assert_array_equal(batch.n_id(), other.n_id()[:known])
            np.testing.assert_array_equal(batch.edge_index(), other.edge_index()[:, :edges])
            np.testing.assert_array_equal(batch.aggregated(), other.aggregated())
            assert batch.stats["edges"] == other.stats["edges"]
            data = batch.to_pyg()
            assert data.validate(raise_on_error=True)
            assert data.num_sampled_edges == other.num_sampled_edges()[:-1]


@pytest.mark.parametrize("links", [True, False])
def test_sums_over_links_and_messages_without_a_cache(small_graph: SmallGraph, links: bool) -> None:
    options = ("--cache", "0", *(() if links else ("--no-links",)))
    with atta.local(small_graph.dataset(4, "random"), threads=1, options=options) as cluster:
        found = batches(cluster, aggregate="mean", fan_outs=[10, 10])
        assert sum(batch.stats["summed_rows"] for batch in found) > 0
        ids_only = batches(cluster, aggregate="mean", fan_outs=[10, 10], edge_ids=False)
        weighed = batches(cluster, aggregate="sum", fan_outs=[10, -1], edge_norm="gcn")
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        for alone, apart in zip(batches(cluster, aggregate="mean", fan_outs=[10, 10]), found, strict=True):
            np.testing.assert_array_equal(alone.aggregated(), apart.aggregated())
        for one, other in zip(ids_only, found, strict=True):
            np.testing.assert_array_equal(one.aggregated(), other.aggregated())
        again = batches(cluster, aggregate="sum", fan_outs=[10, -1], edge_norm="gcn")
        for alone, apart in zip(again, weighed, strict=True):
            np.testing.assert_array_equal(alone.aggregated(), apart.aggregated())


@pytest.mark.parametrize("options", MEANS_AND_SUMS)
def test_dependent_batches_keep_sums(tmp_path: Path, options: dict[str, Any]) -> None:
    from atta.partition import partition_graph
    from atta.partition.graph import GraphWriter

    rng = np.random.default_rng(3)
    n, m = 4000, 80_000
    with GraphWriter(tmp_path / "graph") as writer:
        x = rng.standard_normal((n, 16)).astype(np.float32)
        writer.add_nodes("node", n, tables={"x": x}, splits={"train": np.arange(16)})
        weight = rng.random(m).astype(np.float32)
        writer.add_edges("node__to__node", *rng.integers(0, n, (2, m)), tables={"weight": weight})
    bits, figures = set(), []
    for parts, share in ((1, "0"), (2, "0"), (2, "5")):
        partition_graph(tmp_path / "graph", tmp_path / str(parts), parts=parts, method="random", seed=1, overwrite=True)
        rest = {"fan_outs": [10, 10], "dependency": 64, "epochs": 6, "edge_ids": False, "seed_policy": "global"}
        with atta.local(tmp_path / str(parts), threads=1, options=("--cache-share", share)) as cluster:
            loader = atta.NeighborLoader(
                cluster, rest.pop("fan_outs"), "train", batch_size=4, seed=7, shuffle=True, **options, **rest
            )
            found = [batch for _ in range(6) for batch in loader]
        bits.add(b"".join(batch.aggregated().tobytes() for batch in found))
        figures.append([sum(batch.stats[key] for batch in found) for key in ("summed_rows", "cached_rows")])
    _, (summed_rows, cached), (fewer, kept) = figures
    assert len(bits) == 1
    assert cached == 0
    assert kept > 0.5 * summed_rows
    assert fewer < 0.5 * summed_rows


@pytest.mark.parametrize("options", MEANS_AND_SUMS)
def test_columns_and_weights_of_any_size_are_summed(tmp_path: Path, options: dict[str, Any]) -> None:
    """Each column is counted in units of its own, weights of all edges fit, and targets without a value do not matter."""
    from atta.partition import partition_graph
    from atta.partition.graph import GraphWriter

    rng = np.random.default_rng(3)
    n, m, sizes = 200, 9000, np.array([1, 1.6e12, 1e-9, 1e-40, 1e25, 0])
    x, y = (rng.random((n, 6)) * sizes).astype(np.float32), np.full(n, np.nan, np.float32)
    weight = np.where(rng.random(m) < 0.5, 1, 2e5).astype(np.float32)
    with GraphWriter(tmp_path / "graph") as writer:
        writer.add_nodes("node", n, tables={"x": x, "y": y}, splits={"train": np.arange(n)})
        ends = rng.integers(0, n, m), np.where(rng.random(m) < 0.5, 0, rng.integers(0, n, m))
        writer.add_edges("node__to__node", *ends, tables={"weight": weight})
    bits = set()
    for parts in (1, 2):
        partition_graph(tmp_path / "graph", tmp_path / str(parts), parts=parts, method="random", seed=1)
        rest = {"tables": ["x"], "seed_tables": ["y"], "fan_outs": [-1], "seed_policy": "global"}
        with atta.local(tmp_path / str(parts), threads=1, options=("--cache", "0")) as cluster:
            found = batches(cluster, **options, **rest)
            wholes = batches(cluster, **{**options, **rest, "aggregate": None})
        bits.add(b"".join(batch.aggregated().tobytes() for batch in found))
        for batch, whole in zip(found, wholes, strict=True):
            expected = summed(whole, options["aggregate"], BATCH, last=False)
            apart = np.abs(batch.aggregated() - expected)
            assert np.all(apart <= np.maximum(2e-6 * np.abs(expected).max(0), 1e-45))
            assert np.isnan(batch.table("y")).all()
    assert len(bits) == 1


def layers(kind: str) -> tuple[Any, Any, dict[str, Any]]:
    """A first layer of PyG, one that takes sums with the same weights, and the loader's options."""
    from torch_geometric.nn import GINConv, GraphConv, SAGEConv

    from atta.nn import FirstLayer, GCNFirst, SAGEFirst

    torch.manual_seed(2)
    made = {
        "sage": lambda: SAGEFirst(16, 8),
        "sage-sum": lambda: FirstLayer(SAGEConv(16, 8, aggr="sum", normalize=True)),
        "gcn": lambda: GCNFirst(16, 8),
        "gcn-graph": lambda: GCNFirst(16, 8, normalize=False),
        "graph": lambda: FirstLayer(GraphConv(16, 8, aggr="mean")),
        "gin": lambda: FirstLayer(GINConv(torch.nn.Linear(16, 8), train_eps=True)),
    }[kind]()
    return made.conv, made, {"edge_norm": "gcn", "unbiased": True} if kind == "gcn-graph" else {}


@pytest.mark.parametrize("kind", ["sage", "sage-sum", "gcn", "gcn-graph", "graph", "gin"])
def test_models_compute_and_learn_the_same(pair: atta.LocalCluster, kind: str) -> None:
    from torch_geometric.nn import SAGEConv

    conv, first, options = layers(kind)
    second = SAGEConv(8, 4)
    sums = batches(pair, aggregate=first.aggregate, **options)
    grads = []
    for batch, whole in zip(sums, batches(pair, **options), strict=True):
        data, full = batch.to_pyg(), whole.to_pyg()
        assert "aggregated" in data
        assert data.validate(raise_on_error=True)
        assert data.num_nodes == len(data.x) == len(data.aggregated)
        size = full.batch_size
        weight = {"edge_weight": full.edge_weight} if kind == "gcn-graph" else {}
        given = [
            (first(data.x, data.aggregated), data.edge_index),
            (conv(full.x, full.edge_index, **weight), full.edge_index),
        ]
        outs = []
        for hidden, edges in given:
            first.zero_grad()
            second.zero_grad()
            out = second(hidden.relu(), edges)[:size]
            (out**2).sum().backward()
            outs.append(out.detach())
            grads.append([p.grad.clone() for p in (*first.parameters(), *second.parameters())])
        torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-5)
        for one, other in zip(grads[-2], grads[-1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


def test_typed_graphs_have_sums_by_edge_type(typed: Any) -> None:
    graph, cluster = typed
    what: Any = {"batch_size": 8, "seed": 1}
    sums: Any = {"aggregate": "mean", **what}
    for batch, other in zip(
        atta.NeighborLoader(cluster, [4, 3], ("paper", np.arange(16)), edge_ids=False, **sums),
        atta.NeighborLoader(cluster, [4, 3], ("paper", np.arange(16)), **sums),
        strict=True,
    ):
        for edge_type, of_type in other.aggregates.items():
            np.testing.assert_array_equal(batch.aggregated(edge_type=edge_type), of_type["x"])
    for batch, whole in zip(
        atta.NeighborLoader(cluster, [4, 3], ("paper", np.arange(16)), aggregate="mean", **what),
        atta.NeighborLoader(cluster, [4, 3], ("paper", np.arange(16)), **what),
        strict=True,
    ):
        data = batch.to_pyg()
        assert batch.aggregates.keys() == {"__".join(e) for e in (CITES, WRITES, IN)}
        assert len(batch.aggregated(edge_type="__".join(IN))) == 0
        for edge_type in (CITES, WRITES):
            row, col = whole.edge_index("__".join(edge_type))
            known = sum(whole.num_sampled_nodes("paper")[:-1])
            mean = torch.zeros(known, graph[edge_type[0]].x.shape[1])
            mean.index_add_(0, torch.from_numpy(col), torch.from_numpy(whole.table("x", edge_type[0])[row]))
            counts = torch.bincount(torch.from_numpy(col), minlength=known).clamp(min=1)
            torch.testing.assert_close(data[edge_type].aggregated, mean / counts[:, None], rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(batch.e_id("__".join(edge_type)), whole.e_id("__".join(edge_type)))


def test_links_as_seeds(pair: atta.LocalCluster) -> None:
    ids = np.sort(next(iter(atta.NeighborLoader(pair, [1], None, batch_size=300))).n_id())
    ends = np.stack([ids[:120], ids[120:240]])
    seeds: Any = {"edge_label_index": ends, "batch_size": 60, "neg_sampling": "binary", "seed": 4}
    loaders = [atta.LinkNeighborLoader(pair, [5, 4], **seeds, **more) for more in ({"aggregate": "sum"}, {})]
    for batch, whole in zip(*(iter(loader) for loader in loaders), strict=True):
        known = len(batch.table("x"))
        np.testing.assert_allclose(batch.aggregated(), summed(whole, "sum", known, last=False), rtol=2e-6, atol=2e-6)
        np.testing.assert_array_equal(batch.links()["edge_label_index"], whole.links()["edge_label_index"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"aggregate": "max"}, "'max': must be one of sum, mean, gcn; attention and maxima need every row"),
        ({"aggregate": ["mean"]}, r"\['mean'\]: must be one of sum, mean, gcn"),
        ({"aggregate": "mean", "fan_outs": [2, 0]}, "num_neighbors must have a last hop whose fan-outs are not 0"),
        ({"aggregate": "mean", "fan_outs": []}, "num_neighbors must have a last hop whose fan-outs are not 0"),
        ({"aggregate": "gcn", "norm_attr": "weight", "unbiased": True}, "edges that have weights need edge_norm='gcn'"),
        ({"aggregate": "mean", "tables": ["y"]}, "no table of float32 is fetched"),
        ({"aggregate": "mean", "subgraph_type": "induced"}, "only along drawn edges"),
        ({"aggregate": "mean", "subgraph_type": "bidirectional"}, "only along drawn edges"),
    ],
)
def test_what_cannot_be_summed_is_refused(pair: atta.LocalCluster, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        batches(pair, **options)


def test_layers_that_need_every_row_are_refused() -> None:
    from torch_geometric.nn import GATConv, MeanAggregation, SAGEConv

    from atta.nn import FirstLayer, GCNFirst, first_layer

    class Gated(SAGEConv):
        def message(self, x_j: Any) -> Any:
            return x_j.sigmoid()

    assert FirstLayer(SAGEConv(4, 4, aggr=MeanAggregation())).aggregate == "mean"
    for layer, why in (
        (lambda: FirstLayer(GATConv(4, 4)), "GATConv cannot be a first layer of sums"),
        (lambda: FirstLayer(SAGEConv(4, 4, aggr="max")), "aggr 'max' is no sum or mean"),
        (lambda: FirstLayer(SAGEConv(4, 4, project=True)), "project=True"),
        (lambda: GCNFirst(4, 4, improved=True), "improved=True"),
        (lambda: GCNFirst(4, 4, aggr="mean"), "aggr 'mean' is no sum, so"),
        (lambda: FirstLayer(SAGEConv(4, 4, flow="target_to_source")), "flow 'target_to_source'"),
        (lambda: FirstLayer(Gated(4, 4)), "Gated is more than SAGEConv"),
        (lambda: first_layer(SAGEConv(4, 4, aggr="max"), *torch.ones(2, 3, 4)), "aggr 'max' is no sum or mean"),
    ):
        with pytest.raises(ConfigError, match=why):
            layer()
