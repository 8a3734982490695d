"""Generated graphs: same seed same files, sizes as asked, symmetric, and a class that only neighbours reveal."""

from __future__ import annotations

import numpy as np
import pytest

from atta.errors import ConfigError
from atta.partition import Graph
from atta.partition.generate import KINDS, GenerateOptions, generate

SIZES = {"nodes": 3000, "edges": 60_000, "features": 32, "classes": 6}
ETYPE = "node__to__node"


@pytest.fixture(scope="module", params=KINDS)
def graph(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("generated") / request.param
    generate(request.param, path, GenerateOptions(**SIZES))
    return Graph.open(path)


def arrays(graph: Graph):
    edges = graph.edges(ETYPE)
    return (
        np.array(edges.src),
        np.array(edges.dst),
        np.array(graph.table("node", "x")),
        np.array(graph.table("node", "y")),
    )


def test_sizes(graph):
    src, _, x, y = arrays(graph)
    assert abs(len(src) - 60_000) < 1200
    assert x.shape == (3000, 32)
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert set(y) == set(range(6))
    assert graph.schema.num_classes == 6
    splits = {name: set(graph.split("node", name)) for name in ("train", "val", "test")}
    assert [len(s) for s in splits.values()] == [240, 60, 150]
    assert len(set.union(*splits.values())) == 450


def test_edges_are_symmetric_without_loops(graph):
    src, dst, *_ = arrays(graph)
    forward, backward = np.sort(src.astype(np.int64) * 3000 + dst), np.sort(dst.astype(np.int64) * 3000 + src)
    assert np.array_equal(forward, backward)
    assert (src != dst).all()


def nearest_class(rows, y, train):
    """A plain classifier: the nearest class mean of the training rows."""
    means = np.stack([rows[train][y[train] == c].mean(0) for c in range(6)])
    return (rows @ means.T - (means**2).sum(1) / 2).argmax(1)


def test_neighbours_reveal_the_class(graph):
    src, dst, x, y = arrays(graph)
    train = np.concatenate([graph.split("node", "train"), graph.split("node", "val")])
    rest = np.setdiff1d(np.arange(3000), train)
    degree = np.bincount(dst, minlength=3000)
    total = np.zeros_like(x)
    np.add.at(total, dst, x[src])
    around = total / np.maximum(degree, 1)[:, None]
    rest = rest[degree[rest] > 0]
    alone = (nearest_class(x, y, train) == y)[rest].mean()
    together = (nearest_class(around, y, train) == y)[rest].mean()
    assert alone < 0.65
    assert together > alone + 0.2


def test_vertex_numbers_say_nothing(graph):
    src, dst, _, y = arrays(graph)
    near = np.abs(src.astype(int) - dst) < 300
    assert near.mean() < 0.25  # 0.19 if independent
    assert abs((y[1:] == y[:-1]).mean() - (np.bincount(y) ** 2).sum() / 3000**2) < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_files(tmp_path, kind):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        generate(kind, tmp_path / name, GenerateOptions(nodes=300, edges=2000, features=4, classes=3, seed=seed))
    files = {name: Graph.open(tmp_path / name).files for name in "abc"}
    assert files["a"] == files["b"]
    assert all(files["a"][f] != files["c"][f] for f in files["a"])


@pytest.mark.parametrize("kind", ["sbm", "powerlaw"])
def test_chunks_do_not_lose_edges(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("atta.partition.generate._CHUNK_EDGES", 1000)
    monkeypatch.setattr("atta.partition.generate._CHUNK_VALUES", 64)
    generate(kind, tmp_path / "g", GenerateOptions(nodes=2000, edges=30_000, features=4, classes=3, communities=40))
    graph = Graph.open(tmp_path / "g")
    assert abs(graph.schema.edge_counts[ETYPE] - 30_000) < 1500
    assert graph.table("node", "x").shape == (2000, 4)


def test_power_law(tmp_path):
    for exponent in (2.2, 3.5):
        options = GenerateOptions(nodes=20_000, edges=200_000, features=0, classes=4, exponent=exponent)
        generate("powerlaw", tmp_path / str(exponent), options)
    degrees = [np.bincount(arrays_dst(tmp_path / str(e)), minlength=20_000) for e in (2.2, 3.5)]
    share = [np.sort(d)[-200:].sum() / d.sum() for d in degrees]  # of the top percent
    assert share[0] > 1.5 * share[1]
    # Slope of the tail: P(degree > d) falls like d^-(exponent - 1).
    tail = [(degrees[0] > d).mean() for d in (20, 80)]
    assert 0.8 < np.log(tail[0] / tail[1]) / np.log(4) < 1.7


def arrays_dst(path):
    return np.array(Graph.open(path).edges(ETYPE).dst)


def test_share_of_edges_between_communities(tmp_path):
    for inter in (0.0, 0.5):
        options = GenerateOptions(nodes=1000, edges=10_000, features=0, classes=5, inter=inter)
        generate("sbm", tmp_path / str(inter), options)
        graph = Graph.open(tmp_path / str(inter))
        y, edges = np.array(graph.table("node", "y")), graph.edges(ETYPE)
        assert abs((y[edges.src] != y[edges.dst]).mean() - inter * 0.8) < 0.03


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"nodes": 1}, "--nodes"),
        ({"edges": -1}, "--edges"),
        ({"edges": 10**9}, "too dense"),
        ({"classes": 0}, "--classes"),
        ({"classes": 5000}, "--classes"),
        ({"seed": -1}, "--seed"),
        ({"inter": 1.5}, "--inter"),
        ({"exponent": 1}, "--exponent"),
        ({"signal": float("nan")}, "--signal"),
        ({"train": 0.9, "test": 0.2}, "add up"),
        ({"communities": 2}, "--communities"),
    ],
)
def test_bad_options(wrong, says):
    with pytest.raises(ConfigError, match=says):
        GenerateOptions(**{**SIZES, **wrong})


def test_unknown_kind(tmp_path):
    with pytest.raises(ConfigError, match="unknown kind"):
        generate("lattice", tmp_path / "g", GenerateOptions(**SIZES))
