"""Explanations of planted models: what the prediction rests on is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import atta
from atta.errors import ConfigError
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig
from atta.train.checkpoint.run import save_best
from atta.train.models import build_model
from atta.train.reports.epochs import PHASES, EpochReport

EPOCH = EpochReport(3, 1.0, 0.5, 10.0, 20.0, 30.0, dict.fromkeys(PHASES, 0.1), val_accuracy=0.25)
VERTICES, CHANNELS = 40, 4
IDS = np.arange(VERTICES) * 7 + 2
TELLING = [1, 2, 3]
"""Neighbours of vertex 0 whose feature 2 tells its class; those of its other neighbours is 0."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.Cluster]:
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("explain")
    x = rng.standard_normal((VERTICES, CHANNELS)).astype(np.float32)
    x[:, 2] = 0
    x[TELLING, 2] = 4
    around = np.arange(1, 11)  # neighbours of vertex 0
    sources = np.concatenate([around, rng.integers(11, VERTICES, 60)])
    targets = np.concatenate([np.zeros(10, np.int64), rng.integers(1, VERTICES, 60)])
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", VERTICES, ids=IDS, tables={"x": x, "y": np.arange(VERTICES) % 2})
        out.add_edges("node__to__node", sources, targets)
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    with ExitStack() as stack:
        yield stack.enter_context(atta.local(folder / "parts", threads=1))


def checkpoint(folder: Path, model: str, layers: int, task: str = "classes") -> torch.nn.Module:
    config = TrainConfig(data="x", model=model, num_neighbors=(2,), layers=layers, hidden=8, heads=2, task=task)
    torch.manual_seed(3)
    made = build_model(config, CHANNELS, 2)
    if layers == 1:  # class 1 where neighbours have feature 2, and nothing else counts
        conv = made.gnn.convs[0]
        with torch.no_grad():
            for weight in conv.parameters():
                weight.zero_()
            conv.lin_l.weight[1, 2] = 5.0
            conv.lin_l.bias[0] = 1.0
    save_best(folder, config, made, EPOCH)
    return made.gnn


def test_the_edges_and_the_feature_that_tell_are_found(cluster: atta.Cluster, tmp_path: Path) -> None:
    checkpoint(tmp_path, "sage", 1)
    picture = tmp_path / "vertex.svg"
    found = atta.explain(cluster, tmp_path, int(IDS[0]), out=picture)
    assert found.prediction.argmax() == 1
    first = {tuple(pair) for pair in found.edges[:, found.top(3)].T.tolist()}
    assert first == {(int(IDS[v]), int(IDS[0])) for v in TELLING}
    assert found.features.argmax() == 2
    drawn = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    count = {kind: len(drawn.findall(f"{{http://www.w3.org/2000/svg}}{kind}")) for kind in ("line", "circle")}
    assert count["line"] == min(40, found.edges.shape[1])
    names = {title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")}
    assert {str(IDS[v]) for v in (0, *TELLING)} <= names
    again = atta.explain(cluster, tmp_path, int(IDS[0]))
    assert (again.edge_importance == found.edge_importance).all()


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_the_prediction_is_that_of_the_whole_graph(cluster: atta.Cluster, tmp_path: Path, model: str) -> None:
    checkpoint(tmp_path, model, 2)
    for vertex in IDS[[0, 20]]:
        found = atta.explain(cluster, tmp_path, int(vertex), epochs=2)
        expected = atta.predict(cluster, tmp_path, [int(vertex)], what="scores")
        assert expected is not None
        assert found.prediction == pytest.approx(expected.values[0], abs=1e-5)
        assert found.edge_importance.shape == (found.edges.shape[1],)
        assert ((found.edge_importance >= 0) & (found.edge_importance <= 1)).all()


def test_bad_input_is_named(cluster: atta.Cluster, tmp_path: Path) -> None:
    checkpoint(tmp_path, "sage", 2, task="link")
    with pytest.raises(ConfigError, match="was trained for --task link: there is no prediction of a vertex to explain"):
        atta.explain(cluster, tmp_path, int(IDS[0]))
    checkpoint(tmp_path, "sage", 2)
    with pytest.raises(atta.errors.AttaError, match=r"\b3\b"):
        atta.explain(cluster, tmp_path, 3)
