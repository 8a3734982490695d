"""Generated graphs: the same seed gives the same files, sizes are as asked, only neighbours tell classes."""

from __future__ import annotations

import numpy as np
import pytest

from atta import _native
from atta.errors import ConfigError
from atta.partition import Graph
from atta.partition.generate import KINDS, TARGETS, GenerateOptions, _Communities, generate
from tests.unit.partition.oracles import refuses

SIZES = {"nodes": 3000, "edges": 60_000, "features": 32, "classes": 6}
ETYPE = "node__to__node"


@pytest.fixture(scope="module", params=KINDS)
def graph(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("generated") / request.param
    generate(request.param, path, GenerateOptions(**SIZES))
    return Graph.open(path)


def arrays(graph: Graph):
    edges = graph.edges(ETYPE)
    return [np.array(of) for of in (edges.src, edges.dst, graph.table("node", "x"), graph.table("node", "y"))]


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


def test_other_targets_follow_from_the_class(tmp_path):
    sizes = {"nodes": 2000, "edges": 8000, "features": 2, "classes": 5, "seed": 4}
    found = {}
    for targets in TARGETS:
        generate("sbm", tmp_path / targets, GenerateOptions(**sizes, targets=targets))
        found[targets] = Graph.open(tmp_path / targets)
    classes, labels, numbers = (np.array(graph.table("node", "y")) for graph in found.values())
    assert [graph.schema.num_classes for graph in found.values()] == [5, None, None]
    assert (labels.shape, labels.dtype, numbers.shape, numbers.dtype) == ((2000, 5), np.int8, (2000,), np.float32)
    for c in range(5):
        mine = labels[classes == c]
        assert (mine == mine[0]).all()
        assert mine[0, c] == 1
        assert 0.08 < numbers[classes == c].std() < 0.12
    means = [numbers[classes == c].mean() for c in range(5)]
    assert np.std(means) > 0.3
    for name in ("x.npy", "split_train.npy"):  # nothing else differs
        assert len({(tmp_path / t / "nodes/node" / name).read_bytes() for t in TARGETS}) == 1


def test_power_law(tmp_path):
    degrees = []
    for exponent in (2.2, 3.5):
        options = GenerateOptions(nodes=20_000, edges=200_000, features=0, classes=4, exponent=exponent)
        generate("powerlaw", tmp_path / str(exponent), options)
        edges = Graph.open(tmp_path / str(exponent)).edges(ETYPE)
        degrees.append(np.bincount(edges.dst, minlength=20_000))
    share = [np.sort(d)[-200:].sum() / d.sum() for d in degrees]  # share of the top percent
    assert share[0] > 1.5 * share[1]
    # Slope of the tail: P(degree > d) falls like d^-(exponent - 1).
    tail = [(degrees[0] > d).mean() for d in (20, 80)]
    assert 0.8 < np.log(tail[0] / tail[1]) / np.log(4) < 1.7


def model_degrees(options: GenerateOptions, communities: int, rng: np.random.Generator):
    """Degrees and classes of the model, drawn the simple way: pairs in proportion to weights, once each."""
    n, pairs = options.nodes, options.edges // 2
    weight = _Communities.plant("powerlaw", options).weights
    community = np.arange(n) * communities // n
    found: set[tuple[int, int]] = set()
    anywhere = rng.choice(n, (round(pairs * options.inter), 2), p=weight / weight.sum())
    shares = np.bincount(community, weight) / weight.sum()
    for c, share in enumerate(shares):
        mine = np.flatnonzero(community == c)
        wanted = round(share * pairs * (1 - options.inter))
        within: set[tuple[int, int]] = set()
        for _ in range(20):
            ends = rng.choice(mine, (wanted - len(within), 2), p=weight[mine] / weight[mine].sum())
            within |= {(min(p), max(p)) for p in ends.tolist() if p[0] != p[1]}
            if len(within) >= 0.999 * wanted:
                break
        found |= within
    ends = np.concatenate([np.array(sorted(found)), anywhere[anywhere[:, 0] != anywhere[:, 1]]])
    label = community % options.classes
    inside = (community[ends[:, 0]] == community[ends[:, 1]]).mean()
    return np.bincount(ends.reshape(-1), minlength=n), inside, label[ends]


def exponent_of(degrees: np.ndarray) -> float:
    """The maximum-likelihood exponent of the tail (Clauset et al., 2009) above the 90th percentile."""
    least = np.quantile(degrees, 0.9)
    tail = degrees[degrees >= least]
    return 1 + len(tail) / np.log(tail / (least - 0.5)).sum()


def test_generated_graphs_have_the_statistics_of_the_model(tmp_path):
    options = GenerateOptions(nodes=20_000, edges=200_000, features=0, classes=4, communities=10, seed=3)
    generate("powerlaw", tmp_path / "g", options)
    graph = Graph.open(tmp_path / "g")
    edges, y = graph.edges(ETYPE), np.array(graph.table("node", "y"))
    wanted, inside, labels = model_degrees(options, 10, np.random.default_rng(5))
    degrees = np.bincount(edges.dst, minlength=20_000)
    assert abs(degrees.sum() - wanted.sum()) < 0.01 * wanted.sum()
    assert abs(exponent_of(degrees) - exponent_of(wanted)) < 0.05
    for share, room in ((0.5, 0.05), (0.9, 0.05), (0.99, 0.05)):
        have, want = np.quantile(degrees, share), np.quantile(wanted, share)
        assert abs(have - want) <= max(1, room * want)
    assert abs((degrees == 0).mean() - (wanted == 0).mean()) < 0.01
    assert abs(np.sort(degrees)[-200:].sum() / degrees.sum() - np.sort(wanted)[-200:].sum() / wanted.sum()) < 0.02
    assert abs((y[edges.src] == y[edges.dst]).mean() - (labels[:, 0] == labels[:, 1]).mean()) < 0.01
    assert abs(inside - (1 - options.inter * 0.9)) < 0.01


@pytest.mark.parametrize("kind", ["sbm", "powerlaw"])
def test_neither_threads_nor_chunks_change_a_graph(tmp_path, monkeypatch, kind):
    options = GenerateOptions(nodes=2000, edges=30_000, features=2, classes=3, communities=20, inter=0)
    pairs = []
    for threads, chunk in ((1, 1 << 20), (1, 500), (3, 500), (8, 4000)):
        monkeypatch.setattr("atta.partition.generate._CHUNK_EDGES", chunk)
        generate(kind, tmp_path / f"{threads}-{chunk}", options, threads=threads)
        graph = Graph.open(tmp_path / f"{threads}-{chunk}")
        pairs.append((np.sort(np.array(graph.edges(ETYPE).src) * 2000 + graph.edges(ETYPE).dst), graph.files))
    assert all(np.array_equal(pairs[0][0], other) for other, _ in pairs)
    assert pairs[1][1] == pairs[2][1]  # the very same files
    assert len(np.unique(pairs[0][0])) == len(pairs[0][0]), "no pair of a community is drawn twice"
    monkeypatch.setattr("atta.partition.generate._CHUNK_VALUES", 256)
    mixed = GenerateOptions(nodes=2000, edges=30_000, features=2, classes=3, inter=0.5)
    for threads in (1, 5):
        generate(kind, tmp_path / f"mixed-{threads}", mixed, threads=threads)
    graph = Graph.open(tmp_path / "mixed-1")
    assert graph.files == Graph.open(tmp_path / "mixed-5").files
    assert abs(graph.schema.edge_counts[ETYPE] - 30_000) < 1500


def test_vertices_are_drawn_in_proportion_to_their_weights():
    rng = np.random.default_rng(0)
    weights = rng.pareto(1.2, 300) + 0.01
    wheel, rows = _native.Wheel(weights), np.arange(300)
    seen = np.zeros(300)
    for key in range(3000):  # few pairs at a time: duplicates and self-loops change little
        src, dst = _native.draw_planted(wheel, rows, np.array([0, 100, 300]), np.array([1, 2]), key, 0)
        assert ((src < 100) == (dst < 100)).all()
        seen += np.bincount(src, minlength=300)
    for low, high in ((0, 100), (100, 300)):
        w = weights[low:high] / weights[low:high].sum()
        expected = w * (1 - w)  # not joined to itself
        expected = expected / expected.sum() * seen[low:high].sum()
        # The two ends of a pair depend on each other a little, so the bound is generous.
        assert (((seen[low:high] - expected) ** 2 / expected).sum()) < 1.5 * (high - low)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bounds": [0, 301]}, "bounds"), ({"bounds": [5, 2]}, "bounds"), ({"bounds": [0, 10, 20]}, "bounds"),
        ({"wants": [-1]}, "wants"), ({"wants": [2**60]}, "wants"), ({"row_of": range(9)}, "row_of"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_the_kernel_are_named(change, says):
    wheel = _native.Wheel(np.ones(300))
    given = {"row_of": range(300), "bounds": [0, 300], "wants": [1], **change}
    with pytest.raises(ValueError, match=says):
        _native.draw_planted(wheel, *(np.array(list(given[k])) for k in ("row_of", "bounds", "wants")), 0, 0)
    for weights in ([], [1, 0], [1, np.nan], [-1.0]):
        refuses(ValueError, "weights", _native.Wheel, np.array(weights, np.float64))


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
    refuses(ConfigError, says, GenerateOptions, **{**SIZES, **wrong})
    refuses(ConfigError, "unknown kind", generate, "lattice", "nowhere", GenerateOptions(**SIZES))
