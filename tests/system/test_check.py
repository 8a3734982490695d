"""``atta.check`` and ``atta check`` on daemons, the order of a batch's edges, and seeds that come twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch_geometric.nn import GATConv, GCNConv, GraphConv, PNAConv
from torch_geometric.nn.models import GraphSAGE

import atta
from atta.cli.main import cli
from atta.partition import GraphWriter, partition_graph
from atta.train.launching.check import imported_model
from atta.train.launching.check import small_graph as fetched
from atta.train.models import build_model
from atta.train.settings.common import MODELS
from atta.train.steps.minibatch import MinibatchTrainer
from tests.system.conftest import SmallGraph, ran


@pytest.fixture
def cluster(placements: Mapping[str, atta.LocalCluster]) -> atta.LocalCluster:
    return placements["2 parts by random, 2 threads"]


class Weighted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = GraphConv(16, 4)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x, edge_index, edge_weight)
        return found


class NeedsMore(torch.nn.Module):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return x


def test_what_is_fetched_is_all_edges_among_some_vertices(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    found = fetched(cluster, "x", ["edge_weight", "edge_unknown"], 0)
    rows = {row.tobytes(): place for place, row in enumerate(small_graph.x)}
    places = np.array([rows[row.tobytes()] for row in found.x.numpy()])
    assert len(np.unique(places)) == len(places) > 50
    among = np.isin(small_graph.src, places) & np.isin(small_graph.dst, places)
    wanted = np.stack([small_graph.src[among], small_graph.dst[among]])
    assert np.array_equal(places[found.edge_index.numpy()], wanted)  # in the order of the file
    assert list(found.edge) == ["edge_weight"]
    assert np.array_equal(found.edge["edge_weight"].numpy(), small_graph.edge_weight[among])


@pytest.mark.parametrize("name", MODELS)
def test_training_says_what_a_batch_would_change(cluster: atta.LocalCluster, name: str) -> None:
    torch.manual_seed(1)
    wanted: dict[str, Any] = {"model": name, "depth": 3, "hidden": 8, "heads": 2, "dropped": 0.5, "seed": 0}
    config: Any = SimpleNamespace(**wanted, fan_outs=(2, 2, 2), checkpoint_layers=False)
    model, said = build_model(config, 16, 4).eval(), list[str]()
    trainer: Any = SimpleNamespace(config=config, cluster=cluster, display=SimpleNamespace(line=said.append))
    trainer.norms = MinibatchTrainer.norms.fget(trainer)  # type: ignore[attr-defined]
    MinibatchTrainer._say_difference(trainer, model)
    assert said == []
    trainer.norms = {}  # a GCN would count the edges of its batches
    MinibatchTrainer._say_difference(trainer, model)
    assert [line for line in said if 'edge_norm="gcn"' in line] == said
    assert len(said) == (name == "gcn")


def test_models_are_checked_on_a_cluster(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    exact = atta.check(GraphSAGE(16, 8, 2), cluster)
    assert exact.ok
    differs = atta.check(GCNConv(16, 4), cluster)
    assert not differs.ok
    assert differs.findings[0].remedies[0] == "one hop more"
    assert atta.check(Weighted(), cluster).ok
    assert not atta.check(GraphSAGE(16, 8, 2), cluster, hops=1).ok
    degrees = torch.from_numpy(np.bincount(small_graph.dst, minlength=300))
    how = {"aggregators": ["mean"], "scalers": ["linear"]}
    whole = atta.check(PNAConv(16, 4, deg=torch.bincount(degrees), **how), cluster, draws=0)
    part = atta.check(PNAConv(16, 4, deg=torch.bincount(degrees[:100]), **how), cluster, draws=0)
    assert not any("histogram" in note for note in whole.notes)
    assert any("the graph one of 10" in note for note in part.notes)
    for model, options, error, cause in [
        (NeedsMore(), {}, atta.ConfigError, "'batch'"),
        (torch.nn.Linear(16, 4), {}, atta.ConfigError, r"model\(x, edge_index\)"),
        (GraphSAGE(16, 8, 2), {"features": "z"}, atta.UnknownNameError, "'z'"),
        (GraphSAGE(16, 8, 2), {"hops": 0}, atta.ConfigError, "hops"),
        (GraphSAGE(16, 8, 2), {"seconds": 0}, atta.ConfigError, "seconds"),
    ]:
        with pytest.raises(error, match=cause):
            atta.check(model, cluster, **options)


def test_a_graph_without_edges_is_refused(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 5, tables={"x": np.ones((5, 16), np.float32)})
        out.add_edges("node__to__node", np.empty(0, np.int64), np.empty(0, np.int64))
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=1, method="random", seed=0)
    with atta.local(tmp_path / "parts") as running, pytest.raises(atta.ConfigError, match="no edges"):
        atta.check(GraphSAGE(16, 8, 2), running)


def test_the_command(small_graph: SmallGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_models.py").write_text(
        "from torch_geometric.nn import GCNConv, SAGEConv\n"
        "exact = SAGEConv(16, 4)\n"
        "def other():\n    return GCNConv(16, 4)\n"
    )
    data = str(small_graph.dataset(2, "random"))
    assert ran("check own_models:exact --data", data).startswith(
        "SAGEConv reads neighbours over 1 hop, in 1 layer; batches of 1 hop\n"
    )
    how = ["check", "own_models:other", "--data", data, "--json", "-"]
    for more, code, hops in (["--hops", "2"], 0, 2), ([], 1, 1):  # exact with one hop more than it reads
        done = CliRunner().invoke(cli, [*how, *more])
        report = json.loads(done.stdout)
        assert (done.exit_code, report["ok"], report["hops"], report["reads"]) == (code, code == 0, hops, 1)
    done = CliRunner().invoke(cli, ["check", "own_models:exact"])
    assert isinstance(done.exception, atta.ConfigError)
    assert "--data" in str(done.exception)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("models_of_test:asks", "without arguments"),
        ("models_of_test:text", "not a module of torch"),
        ("models_of_test:nobody", "nobody"),
        ("models_of_test:fails", "no file"),
        ("breaks_in_test:net", "division by zero"),
        ("nowhere:net", "nowhere"),
        ("models_of_test", "MODULE:NAME"),
        (":net", "MODULE:NAME"),
    ],
)
def test_names_that_give_no_model(name: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models_of_test.py").write_text(
        "text = 'no model'\ndef asks(width): pass\ndef fails():\n    raise OSError('no file')\n"
    )
    (tmp_path / "breaks_in_test.py").write_text("1 / 0\n")
    with pytest.raises(atta.ConfigError, match=cause):
        imported_model(name)
    assert "" not in sys.path


@pytest.mark.parametrize("options", [{}, {"frontier": "all"}, {"subgraph_type": "induced"}, {"disjoint": True}])
def test_edges_in_file_order(cluster: atta.LocalCluster, small_graph: SmallGraph, options: dict[str, object]) -> None:
    how = {"batch_size": 40, "edge_tables": ["note", "weight"], **options}
    plain, ordered = (
        next(iter(atta.NeighborLoader(cluster, [4, 3], small_graph.train_ids, edge_order=order, **how)))
        for order in ("source", "file")
    )
    e_id, (row, col) = ordered.e_id(), ordered.edge_index()
    n_id = ordered.n_id()
    assert np.array_equal(n_id, plain.n_id())
    assert np.array_equal(n_id[row], small_graph.src_ids[e_id])
    assert np.array_equal(n_id[col], small_graph.dst_ids[e_id])
    assert np.array_equal(ordered.edge_table("note"), small_graph.note[e_id])
    assert np.array_equal(ordered.edge_table("weight"), small_graph.edge_weight[e_id])
    assert ordered.num_sampled_edges() == plain.num_sampled_edges()
    ends = np.cumsum([0, *ordered.num_sampled_edges()])
    for first, last in pairwise(ends.tolist()):
        part = slice(first, last)
        assert sorted(e_id[part]) == sorted(plain.e_id()[part])
        assert np.array_equal(np.lexsort((e_id[part], col[part])), np.arange(last - first))
    assert not np.array_equal(e_id, plain.e_id())


def test_an_order_that_there_is_none_of_is_refused(cluster: atta.LocalCluster) -> None:
    with pytest.raises(atta.UnknownNameError, match="edge_order"):
        atta.NeighborLoader(cluster, [2], edge_order="target")
    with pytest.raises(atta.ConfigError, match="edge_ids"):
        atta.NeighborLoader(cluster, [2], edge_order="file", edge_ids=False)


def test_a_seed_that_comes_twice(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    """It counts once; where trees are disjoint each has a tree of its own, as in PyG."""
    a, b, c = small_graph.train_ids[:3].tolist()
    given = np.array([a, b, a, c, a])
    (once,) = atta.NeighborLoader(cluster, [-1], given, batch_size=5)
    assert once.n_id()[: once.batch_size].tolist() == [a, b, c]
    assert once.input_id.tolist() == [0, 1, 3]
    (each,) = atta.NeighborLoader(cluster, [-1], given, batch_size=5, disjoint=True)
    data = each.to_pyg()
    assert data.batch_size == 5
    assert data.input_id.tolist() == [0, 1, 2, 3, 4]
    assert data.n_id[:5].tolist() == given.tolist()
    torch.manual_seed(0)
    layer = GATConv(16, 4)
    rows = layer(data.x, data.edge_index)[:5].detach()
    assert torch.allclose(rows[0], rows[2])
    assert torch.allclose(rows[0], rows[4])
    plain = once.to_pyg()
    assert torch.allclose(layer(plain.x, plain.edge_index)[:3].detach(), rows[[0, 1, 3]], atol=1e-6)
