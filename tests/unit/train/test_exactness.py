"""Where models differ on batches: planted faults are found, in the layer that has them, and with the remedy that works."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import APPNP, GATConv, GCNConv, LayerNorm, SAGEConv, TAGConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.models import GCN, GraphSAGE
from torch_geometric.utils import degree

from atta.errors import ConfigError
from atta.train.models.exactness import check_on
from atta.train.models.forms import BLOCKS, TRIMMED, ReadingLayers, SmallGraph, run
from atta.train.models.remedies import REMEDIES, unbiased, weighted
from atta.train.reports.exactness import ExactnessReport

VERTICES, WIDTH = 90, 6
SEEDS = [1, 2, 5, 7]


def small_graph(seed: int, *, weights: bool = False) -> SmallGraph:
    """Hubs, self-loops, edges that come twice, vertices without in-edges; the edges in no order."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randint(VERTICES, (500,), generator=random)
    target = torch.randint(VERTICES - 8, (500,), generator=random)
    target[:60] = target[:60] % 2
    source[60:63] = target[60:63]
    source[70:75], target[70:75] = source[75:80], target[75:80]
    edge = {"edge_weight": torch.rand(500, generator=random).double() + 0.5} if weights else {}
    return SmallGraph(torch.randn(VERTICES, WIDTH, generator=random).double(), torch.stack([source, target]), edge)


class Made(torch.nn.Module):
    def __init__(self, call: Callable[..., Any], **parts: torch.nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.call(self, x, edge_index)


def two_layers(make: Callable[[], torch.nn.Module], between: torch.nn.Module | None = None) -> Made:
    def call(own: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = own.second(own.between(own.first(x, edges)), edges)
        return out

    return Made(call, first=make(), between=between or torch.nn.Tanh(), second=make())


class OwnNorm(torch.nn.Module):
    """A user's own mean over in-neighbours, with the out-degrees of sources, which only one hop more knows in part."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        scale = 1 / degree(target, len(x), dtype=x.dtype).clamp(min=1)
        return torch.zeros_like(x).index_add(0, target, x[source] * scale[source, None])


def form(report: ExactnessReport, name: str) -> Any:
    return next(finding for finding in report.findings if finding.form == name)


def checked(model: torch.nn.Module, draws: int = 0, **options: Any) -> ExactnessReport:
    torch.manual_seed(0)
    return check_on(model, small_graph(3), SEEDS, draws=draws, **options)


def test_batches_are_whole_neighbourhoods_hop_by_hop() -> None:
    graph = small_graph(1, weights=True)
    source, target = graph.edge_index.numpy()
    batch = graph.batch(SEEDS, [-1, -1])
    assert batch.n_id[: len(SEEDS)].tolist() == SEEDS
    reached = [set(SEEDS)]
    for _ in range(2):
        reached.append(reached[-1] | set(source[np.isin(target, [*reached[-1]])].tolist()))
    assert [set(batch.n_id[:count].tolist()) for count in batch.nodes] == reached
    for hop, count in enumerate(batch.edges[1:]):
        there = batch.n_id[batch.edge_index[:, :count]].T.tolist()
        wanted = [pair for pair in graph.edge_index.T.tolist() if pair[1] in reached[hop]]
        assert sorted(there) == sorted(wanted)
    allowed = defaultdict(set)
    for pair, weight in zip(graph.edge_index.T.tolist(), graph.edge["edge_weight"].tolist(), strict=True):
        allowed[tuple(pair)].add(weight)
    ordered = small_graph(2)
    into_seeds = ordered.batch(SEEDS, [-1], in_order=True)
    for place, vertex in enumerate(SEEDS):
        into = ordered.edge_index[0][ordered.edge_index[1] == vertex].tolist()
        assert into_seeds.n_id[into_seeds.edge_index[0][into_seeds.edge_index[1] == place]].tolist() == into
    ends = batch.n_id[batch.edge_index].T.tolist()
    assert all(w in allowed[tuple(pair)] for pair, w in zip(ends, batch.edge["edge_weight"].tolist(), strict=True))


@pytest.mark.parametrize(
    ("make", "reads"),
    [
        (lambda: GraphSAGE(WIDTH, 8, 3), 3),
        (lambda: two_layers(lambda: SAGEConv(WIDTH, WIDTH, aggr="max")), 2),
        (lambda: GATConv(WIDTH, 4, add_self_loops=False), 1),
        (lambda: GCN(WIDTH, 8, 2, normalize=False), 2),
    ],
)
def test_what_is_exact_is_found_equal_in_every_form(make: Callable[[], torch.nn.Module], reads: int) -> None:
    report = checked(make())
    assert report.ok
    assert report.reads == report.hops == reads
    assert report.line == ""
    assert all(found.equal for found in report.findings if found.form != "blocks")


@pytest.mark.parametrize(
    ("make", "layer", "remedy"),
    [
        (lambda: GCN(WIDTH, 8, 2), "convs.0 (GCNConv)", "one hop more"),
        (lambda: GCN(WIDTH, 8, 2), "convs.0 (GCNConv)", 'GCNConv(normalize=False) and edge_norm="gcn"'),
        (lambda: TAGConv(WIDTH, 8), "the model (TAGConv)", "one hop more"),
        (lambda: APPNP(2, 0.1), "the model (APPNP)", 'APPNP(normalize=False) and edge_norm="gcn"'),
        (OwnNorm, "the model (OwnNorm)", "one hop more"),
        (lambda: GraphSAGE(WIDTH, 8, 2, norm="LayerNorm"), "norms.0 (LayerNorm)", 'LayerNorm(mode="node")'),
        (
            lambda: two_layers(lambda: GCNConv(WIDTH, WIDTH), LayerNorm(WIDTH)),
            "first (GCNConv)",
            'LayerNorm(mode="node") and one hop more',
        ),
    ],
)
def test_a_difference_is_found_with_what_helps(make: Callable[[], Any], layer: str, remedy: str) -> None:
    found = form(checked(make()), "batch")
    assert (found.equal, found.layer) == (False, layer)
    assert found.error > 1e-3
    assert remedy in found.remedies


@pytest.mark.parametrize(
    "between", [torch.nn.Softmax(0), torch.nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True)]
)
def test_rows_that_mix_with_others_have_no_remedy(between: torch.nn.Module) -> None:
    report = checked(two_layers(lambda: SAGEConv(WIDTH, WIDTH), between))
    found = form(report, "batch")
    assert found.equal is False
    assert found.remedies == ()
    assert found.layer.startswith("between")
    assert form(report, "beside").equal is False
    assert any("no path leads" in note for note in report.notes)
    report = checked(GraphSAGE(WIDTH, 8, 2), hops=1)  # too few
    found = form(report, "batch")
    assert (report.reads, report.hops, found.equal) == (2, 1, False)
    assert "one hop more" in found.remedies


def test_draws_of_a_model_and_an_order_that_a_layer_wants_are_told() -> None:
    report = checked(Made(lambda own, x, edges: x + torch.rand_like(x)))
    assert "at random" in report.line
    assert not report.ok
    assert [line.split(":")[0].strip() for line in str(report).splitlines() if "at random" in line] == ["batch"]
    report = checked(SAGEConv(WIDTH, 4, aggr="lstm"))
    assert any("sorted by target" in note for note in report.notes)
    assert form(report, "batch").equal is False  # the padding is that of the longest neighbourhood of the batch


def test_bias_under_fan_outs() -> None:
    for make, biased, remedies in (
        (lambda: SAGEConv(WIDTH, 8), False, ()),
        (lambda: SAGEConv(WIDTH, 8, aggr="sum"), True, ()),
        (lambda: GCNConv(WIDTH, 8), True, ('GCNConv(normalize=False) and edge_norm="gcn" and unbiased=True',)),
        (lambda: GCNConv(WIDTH, 8, normalize=False), True, ("unbiased=True",)),
    ):
        report = checked(make(), draws=1000)
        assert (report.biased, report.bias_remedies) == (biased, remedies)


@pytest.mark.parametrize("weights", [False, True])
def test_weights_are_those_of_pyg_and_of_dgl(weights: bool) -> None:
    graph = small_graph(4, weights=weights)
    given = graph.edge.get("edge_weight", torch.ones(500).double())
    found = weighted(graph, "gcn")
    adjacency = torch.zeros(VERTICES, VERTICES).double()
    adjacency.index_put_((*found.edge_index,), found.edge["edge_weight"], accumulate=True)
    ends, theirs = gcn_norm(graph.edge_index, given, VERTICES, dtype=torch.float64)
    wanted = torch.zeros(VERTICES, VERTICES).double().index_put_((*ends,), theirs, accumulate=True)
    assert torch.allclose(adjacency, wanted)
    source, target = graph.edge_index
    into, out_of = (torch.zeros(VERTICES).double().index_add_(0, ends, given) for ends in (target, source))
    assert torch.allclose(weighted(graph, "row").edge["edge_weight"], given / into[target])
    both = given / (out_of[source] * into[target]).sqrt()
    assert torch.allclose(weighted(graph, "both").edge["edge_weight"], both)


@pytest.mark.parametrize("norm", [None, "gcn", "row"])
def test_unbiased_sums_are_those_of_all_edges_on_average_over_all_draws(norm: str | None) -> None:
    """Every choice of two of the edges into a vertex is as likely as any other, so the mean over all is exact."""
    graph = small_graph(5, weights=True)
    vertex = int((graph.in_degrees == 5).nonzero()[0])
    read = graph if norm is None else weighted(graph, norm)

    def summed(edge_index: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, at: int) -> torch.Tensor:
        into = edge_index[1] == at
        return (weight[into, None] * x[edge_index[0][into]]).sum(0)

    whole = summed(read.edge_index, read.edge["edge_weight"], graph.x, vertex)
    batch = graph.batch([vertex], [-1])
    drawn = []
    for pair in itertools.combinations(range(5), 2):
        part = type(batch)(
            batch.x, batch.edge_index[:, pair], {"edge_weight": batch.edge["edge_weight"][[*pair]]}, batch.n_id,
            batch.nodes, [0, 2],
        )  # fmt: skip
        weighed = unbiased(graph, part, norm)
        drawn.append(summed(weighed.edge_index, weighed.edge["edge_weight"], weighed.x, 0))
    assert torch.allclose(torch.stack(drawn).mean(0), whole)


def test_the_model_stays_as_it_is() -> None:
    model = GCN(WIDTH, 8, 2, cached=True, dropout=0.5).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    checked(model)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32
    assert model.convs[0]._cached_edge_index is None
    assert model.convs[0].normalize
    assert not [own.add_self_loops for remedy in REMEDIES if (own := remedy.changed(GATConv(WIDTH, 4)))][-1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_trimmed_and_blocks_are_what_pyg_computes_with_fewer_rows() -> None:
    graph, model = small_graph(6), GraphSAGE(WIDTH, 8, 2).double().eval()
    layers = ReadingLayers.of(model, graph.whole())
    assert (layers.names, layers.calls) == (frozenset({"convs.0", "convs.1"}), 2)
    batch = graph.batch(SEEDS, [-1, -1])
    with torch.no_grad():
        theirs = model(
            batch.x, batch.edge_index,
            num_sampled_nodes_per_hop=np.diff([0, *batch.nodes]).tolist(),
            num_sampled_edges_per_hop=np.diff(batch.edges).tolist(),
        )  # fmt: skip
    for how in (TRIMMED, BLOCKS):
        rows = run(model, layers, batch, how)
        assert torch.allclose(rows[-1].rows[: len(SEEDS)], theirs[: len(SEEDS)])
        assert len(rows[-1].rows) < len(batch.x)
    assert len(run(model, layers, batch, TRIMMED)[-1].rows) == len(theirs)


def test_the_report_as_text_and_json() -> None:
    report = checked(GCN(WIDTH, 8, 2))
    again = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert again["ok"] is False
    assert [found["form"] for found in again["findings"]] == [found.form for found in report.findings]
    text = str(report)
    assert "one hop more" in text
    assert all(found.form in text for found in report.findings)
    assert report.line.startswith("GCN on a batch (batch): off by ")
    assert "\n" not in report.line
    late = checked(GraphSAGE(WIDTH, 8, 2), seconds=1e-9)
    assert {(found.why, found.equal) for found in late.findings} == {("no time was left", None)}
    assert not late.ok


def test_what_cannot_be_checked_is_refused_by_its_cause() -> None:
    for model, cause in (
        (GraphSAGE(WIDTH + 1, 8, 2), "shapes cannot be multiplied"),
        (Made(lambda own, x, edges: x.sum(0, keepdim=True)), "not a row for each"),
        (Made(lambda own, x, edges: None), "returns no tensor"),
        (Made(lambda own, x, edges: x * torch.nan), "gives NaN for every vertex"),
    ):
        with pytest.raises(ConfigError, match=cause):
            checked(model)


def test_every_output_is_compared_and_a_model_may_write_to_its_input() -> None:
    parts = {"sage": SAGEConv(WIDTH, 3).double(), "gcn": GCNConv(WIDTH, 4).double()}
    model = Made(lambda own, x, edges: (own.sage(x, edges), own.gcn(x, edges)), **parts)
    report = check_on(model, small_graph(6), SEEDS, draws=0)
    assert not report.ok
    assert {f.form for f in report.findings if not f.equal} >= {"batch"}
    graph = small_graph(6)
    before = graph.x.clone()
    model = Made(lambda own, x, edges: own.conv(x.add_(1), edges), conv=SAGEConv(WIDTH, 3).double())
    assert check_on(model, graph, SEEDS, draws=0).ok
    assert torch.equal(graph.x, before)


def test_weights_of_the_user_are_not_replaced_by_those_of_degrees() -> None:
    report = check_on(GCNConv(WIDTH, 4).double(), small_graph(6, weights=True), SEEDS, draws=50)
    assert "edge_norm" not in str(report)
    assert "unbiased=True" not in str(report)
    assert "one hop more" in str(report)
    # A norm helps from batch to batch only if it gives the rows of the graph.
    report = check_on(GCNConv(WIDTH, 4, cached=True).double(), small_graph(6), SEEDS, draws=0)
    assert 'edge_norm="both"' not in str(report)
    assert 'edge_norm="row"' not in str(report)
