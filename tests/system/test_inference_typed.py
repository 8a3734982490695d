"""Predictions on typed graphs beside the same weights on the whole graph, layer by layer and type by type."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atta
from atta.cli import main as root
from atta.client.tables.versions import publish_edges
from atta.daemon.services.queries import PointQuery
from atta.errors import ConfigError
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, fit
from atta.train.checkpoint.files import SavedEmbeddings, load_model
from atta.train.checkpoint.run import save_best
from atta.train.models.links import PairClasses, decoder_named
from atta.train.models.typed import TypedLinkModel, TypedModel
from atta.train.models.typed_layers import SavedTypedModel
from atta.train.reports.epochs import PHASES, EpochReport
from atta.train.tasks.types import TypeReach
from atta.wire.bulk import UnseenVertices
from tests.hetero import hidden_over_all_vertices, over_all_vertices
from tests.system.conftest import ran
from tests.system.test_inference import checkpoint as checkpoint_of_one_type
from tests.system.test_queries import answers_of

EPOCH = EpochReport(3, 1.0, 0.5, 10.0, 20.0, 30.0, dict.fromkeys(PHASES, 0.1), val_accuracy=0.25)
COUNTS = {"author": 40, "paper": 90, "term": 25, "venue": 6}
WIDTHS = {"author": 3, "paper": 5}  # terms and venues have no features
DEGREES = {
    ("author", "writes", "paper"): 4,
    ("paper", "by", "author"): 3,
    ("paper", "cites", "paper"): 2,
    ("term", "in", "paper"): 3,
    ("author", "edits", "venue"): 2,  # no model for papers of two layers needs it
}
CLASSES, HIDDEN = 3, 8
NAMES = ["art", "law", "war"]
SPLITS = {"train": np.arange(30), "val": np.arange(30, 60), "test": np.arange(60, 90)}
MODELS = ("rgcn", "hetero-sage", "hetero-gat", "hgt")
SHARED = ("rgcn", "hgt", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("hetero-sage", "hetero-gat")))
"""Models of which the quick tests try each way of sharing weights among relations once."""


@dataclass
class World:
    """A typed graph with scattered ids; some papers have no in-edges of a type, some edges come twice."""

    folder: Path
    ids: dict[str, np.ndarray]
    x: dict[str, torch.Tensor]
    y: np.ndarray
    edges: dict[tuple[str, str, str], torch.Tensor]

    def places(self, node_type: str, ids: np.ndarray) -> np.ndarray:
        """Where ``ids`` stand in those of the type."""
        order = np.argsort(self.ids[node_type])
        return order[np.searchsorted(self.ids[node_type], ids, sorter=order)]

    def into(self, node_type: str) -> int:
        return sum(pair.shape[1] for e, pair in self.edges.items() if e[2] == node_type)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    rng, folder = np.random.default_rng(11), tmp_path_factory.mktemp("typed")
    ids = {t: rng.permutation(5 * n)[:n] for t, n in COUNTS.items()}
    x = {t: rng.standard_normal((COUNTS[t], w)).astype(np.float32) for t, w in WIDTHS.items()}
    y = rng.integers(0, CLASSES, COUNTS["paper"])
    edges = {}
    for (source, relation, target), degree in DEGREES.items():
        n = degree * COUNTS[target]
        edges[source, relation, target] = np.stack(
            [rng.integers(0, COUNTS[source], n), rng.integers(0, COUNTS[target], n)]
        )
    with GraphWriter(folder / "graph") as out:
        for t, n in COUNTS.items():
            tables: dict[str, Any] = {"x": x[t]} if t in x else {}
            own = {"splits": SPLITS} if t == "paper" else {}
            out.add_nodes(t, n, ids=ids[t], tables={**tables, **({"y": y} if t == "paper" else {})}, **own)
        out.note_classes("paper", "y", NAMES)
        for e, pair in edges.items():
            out.add_edges("__".join(e), *pair)
    return World(
        folder, ids, {t: torch.from_numpy(rows) for t, rows in x.items()}, y,
        {e: torch.from_numpy(pair) for e, pair in edges.items()},
    )  # fmt: skip


@pytest.fixture(scope="module")
def cluster(world: World) -> Iterator[atta.LocalCluster]:
    partition_graph(world.folder / "graph", world.folder / "parts", parts=2, method="random", seed=3)
    with atta.local(world.folder / "parts", threads=1) as running:
        yield running


def checkpoint(folder: Path, world: World, cluster: atta.Cluster, kind: str) -> torch.Tensor:
    """A folder with random weights and embeddings. Returns the scores of all papers on the whole graph."""
    settings = TrainConfig(
        data="x", model=kind, num_neighbors=(2, 2), hidden=HIDDEN, heads=2, task="classes", target="paper"
    )
    reach = TypeReach.of(cluster.schema, "paper", 2)
    torch.manual_seed(5)
    model = TypedModel(settings.own, reach, CLASSES)
    rows = {t: torch.randn(COUNTS[t], HIDDEN) for t in reach.learnt}
    save_best(folder, settings.own, model, EPOCH, embeddings=by_ascending_ids(world, rows))
    with torch.no_grad():
        return over_all_vertices(model.eval(), {**world.x, **rows}, world.edges)


def by_ascending_ids(world: World, rows: dict[str, torch.Tensor]) -> SavedEmbeddings:
    order = {t: np.argsort(world.ids[t]) for t in rows}
    ids = {t: torch.from_numpy(world.ids[t][order[t]]) for t in rows}
    return SavedEmbeddings({t: learnt[order[t]] for t, learnt in rows.items()}, ids)


def edges_read(cluster: atta.Cluster) -> float:
    return sum(stats.get("edges", 0.0) for stats in cluster.stats())


@pytest.mark.parametrize("kind", SHARED)
def test_scores_are_those_of_the_whole_graph_layer_by_layer_and_on_sampled_batches(
    world: World, cluster: atta.LocalCluster, tmp_path: Path, kind: str
) -> None:
    expected = checkpoint(tmp_path, world, cluster, kind)
    before = edges_read(cluster)
    found = atta.predict(cluster, tmp_path, what="scores", batch_size=17)
    assert sorted(found.ids) == sorted(world.ids["paper"])
    np.testing.assert_allclose(found.values, expected[world.places("paper", found.ids)], rtol=1e-5, atol=1e-5)
    # The first layer computes authors, papers and terms, the second one papers. Edges into venues are never read.
    assert edges_read(cluster) - before == world.into("author") + 2 * world.into("paper") + world.into("term")
    assert not [name for name in cluster.tables.specs() if name.startswith("predict.")]
    found = atta.predict(cluster, tmp_path, "val", what="scores", num_neighbors=[-1], batch_size=11)
    own = expected[world.places("paper", found.ids)].numpy()
    assert len(own) == 30
    np.testing.assert_allclose(found.values, own, rtol=1e-5, atol=1e-5)
    drawn = [atta.predict(cluster, tmp_path, "val", what="scores", num_neighbors=[2, 1], seed=s) for s in (0, 0, 1)]
    rows = [one.values for one in drawn]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert np.abs(rows[0] - rows[2]).max() > 1e-3  # other draws
    assert np.abs(rows[0] - own).max() > 1e-3  # fewer neighbours


@pytest.mark.parametrize("kind", SHARED)
def test_point_queries_have_the_scores_of_the_whole_graph(
    world: World, cluster: atta.LocalCluster, tmp_path: Path, kind: str
) -> None:
    expected, asked = checkpoint(tmp_path, world, cluster, kind), world.ids["paper"][40:60]
    answers = answers_of(cluster, world.folder / "parts", tmp_path)
    answer, unknown = answers.answer([PointQuery("scores", asked), PointQuery("scores", np.array([-7]))])
    np.testing.assert_allclose(answer.values, expected[40:60], rtol=1e-5, atol=1e-5)
    assert "'paper'; this query is about node type 'paper'" in str(unknown)
    (classes,) = answers.answer([PointQuery("classes", asked)])
    assert (classes.names, classes.values.tolist()) == (NAMES, expected[40:60].argmax(1).tolist())
    for name in cluster.tables.specs():
        cluster.tables.delete(name)  # learnt rows, which daemons keep for an hour


@pytest.mark.parametrize("kind", SHARED)
def test_new_vertices_have_the_scores_of_a_graph_with_them(
    world: World, cluster: atta.LocalCluster, tmp_path: Path, kind: str
) -> None:
    expected, rng = checkpoint(tmp_path, world, cluster, kind), np.random.default_rng(3)
    saved = load_model(tmp_path)
    model = SavedTypedModel.of(saved, cluster, torch.device("cpu"), types=["paper"], hidden=False)
    x = torch.from_numpy(rng.standard_normal((3, WIDTHS["paper"])).astype(np.float32))
    names, given, edges = np.array(["a", "b", "c"]), {}, dict(world.edges)
    for e in [e for e in world.edges if e[2] == "paper" and e[1] != "in"]:
        sources, targets = rng.integers(0, COUNTS[e[0]], 5), rng.integers(0, 2, 5)  # c has no edge
        given[e[1] if e[1] == "cites" else "__".join(e)] = (world.ids[e[0]][sources], names[targets])
        coming = torch.from_numpy(np.stack([sources, targets + COUNTS["paper"]]))
        edges[e] = torch.cat([world.edges[e], coming], 1)
    learnt = {t: torch.empty_like(rows) for t, rows in saved.embeddings.rows.items()}
    for t, rows in saved.embeddings.rows.items():
        learnt[t][np.argsort(world.ids[t])] = rows
    with torch.no_grad():
        grown = {**world.x, "paper": torch.cat([world.x["paper"], x])}
        wanted = over_all_vertices(model.model, {**grown, **learnt}, edges)
    np.testing.assert_allclose(wanted[:-3], expected, rtol=1e-5, atol=1e-5)
    new = UnseenVertices.of(names, {"x": x.numpy(), "edges": given})
    answers = answers_of(cluster, world.folder / "parts", tmp_path)
    (answer,) = answers.answer([PointQuery("scores", names, new=new)])
    np.testing.assert_allclose(answer.values, wanted[-3:], rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="learns rows in place of features: it can have no new vertices"):
        answers._located(new, next(iter(learnt)))
    for name in cluster.tables.specs():
        cluster.tables.delete(name)


def test_embeddings_classes_splits_ids_and_pairs(world: World, cluster: atta.LocalCluster, tmp_path: Path) -> None:
    scores = checkpoint(tmp_path, world, cluster, "hetero-sage")
    ids = world.ids["paper"]
    test = atta.predict(cluster, tmp_path, "test", what="classes")
    said = dict(zip(ids.tolist(), scores.argmax(1).tolist(), strict=True))
    assert dict(zip(test.ids.tolist(), test.values.tolist(), strict=True)) == {v: said[v] for v in ids[60:90].tolist()}
    embeddings = atta.predict(cluster, tmp_path, ids[:7])
    assert embeddings.values.shape == (7, HIDDEN)
    weights = torch.load(tmp_path / "best.pt", weights_only=True)["model"]
    decoded = torch.from_numpy(embeddings.values) @ weights["decoder.weight"].T + weights["decoder.bias"]
    np.testing.assert_allclose(decoded, scores[world.places("paper", embeddings.ids)], rtol=1e-4, atol=1e-5)
    pairs = embeddings.ids[[[0, 1], [6, 2]]]
    products = (embeddings.values[[0, 6]] * embeddings.values[[1, 2]]).sum(1)
    scored = atta.predict(cluster, tmp_path, links=pairs)
    assert scored.values == pytest.approx(products, rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_trainers")
def test_what_training_says_is_what_prediction_says(world: World, cluster: atta.LocalCluster, tmp_path: Path) -> None:
    settings = TrainConfig(
        cluster=str(cluster.cluster_file), model="rgcn", num_neighbors=(-1, -1), hidden=HIDDEN, epochs=2, dropout=0.0,
        checkpoint=str(tmp_path / "run"), device="cpu", verbose=False, batch_size=10,
    )  # fmt: skip
    report = fit(settings)
    expected = report.best.metrics["test_accuracy"]
    found = atta.predict(cluster, tmp_path / "run", "test", what="classes")
    truth = dict(zip(world.ids["paper"].tolist(), world.y.tolist(), strict=True))
    assert np.mean([truth[v] == c for v, c in zip(found.ids.tolist(), found.values.tolist(), strict=True)]) == expected


@dataclass
class Pairs:
    rows: dict[str, torch.Tensor]
    decoder: torch.nn.Module

    @torch.no_grad()
    def scores(self, world: World, pairs: np.ndarray) -> torch.Tensor:
        return self.decoder(*(self.rows[t][world.places(t, ids)] for t, ids in zip(WRITES[::2], pairs.T, strict=True)))


WRITES = ("author", "writes", "paper")


def checkpoint_of_pairs(folder: Path, world: World, cluster: atta.Cluster, kind: str, decoder: str) -> Pairs:
    """``decoder``: of links, or ``"classes"`` of classes of edges."""
    classes = decoder == "classes"
    settings = TrainConfig(
        data="x", model=kind, num_neighbors=(2, 2), hidden=HIDDEN, heads=2, edge_type="__".join(WRITES),
        task="edge-classes" if classes else "link", **({} if classes else {"decoder": decoder}),
    )  # fmt: skip
    reach = TypeReach.of(cluster.schema, "paper", 2, ("author",))
    torch.manual_seed(6)
    of_pairs = PairClasses(HIDDEN, HIDDEN, CLASSES) if classes else decoder_named(decoder, HIDDEN, HIDDEN)
    model = TypedLinkModel(settings.own, reach, ("author", "paper"), of_pairs)
    rows = {t: torch.randn(COUNTS[t], HIDDEN) for t in reach.learnt}
    save_best(folder, settings.own, model, EPOCH, embeddings=by_ascending_ids(world, rows))
    with torch.no_grad():
        h = hidden_over_all_vertices(model.eval(), {**world.x, **rows}, world.edges)
        return Pairs({t: model.outputs[t](h[t]) for t in ("author", "paper")}, of_pairs)


def some_pairs(world: World) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.stack([rng.choice(world.ids[t], 45) for t in ("author", "paper")], axis=1)


FAN_OUTS = (None, [-1, -1])


@pytest.mark.parametrize(("kind", "decoder", "sampled"), [
    ("hetero-sage", "distmult", None), ("hgt", "mlp", [-1, -1]),
    *(
        pytest.param(*how, marks=pytest.mark.slow)
        for how in (
            *(("rgcn", "dot", how) for how in FAN_OUTS), ("hetero-sage", "distmult", [-1, -1]), ("hgt", "mlp", None),
            *(("hetero-gat", "mlp", how) for how in FAN_OUTS),
        )
    ),
])  # fmt: skip
def test_links_have_the_scores_of_the_whole_graph(
    world: World, cluster: atta.LocalCluster, tmp_path: Path, kind: str, decoder: str, sampled: list[int] | None
) -> None:
    expected, pairs = checkpoint_of_pairs(tmp_path, world, cluster, kind, decoder), some_pairs(world)
    found = atta.predict(cluster, tmp_path, links=pairs, num_neighbors=sampled)
    np.testing.assert_array_equal(found.ids, pairs)
    np.testing.assert_allclose(found.values, expected.scores(world, pairs), rtol=1e-5, atol=1e-5)
    for node_type, asked in (("author", "author"), ("paper", None)):
        rows = atta.predict(cluster, tmp_path, num_neighbors=sampled, node_type=asked)
        own = world.places(node_type, rows.ids)
        assert sorted(own) == list(range(COUNTS[node_type]))
        np.testing.assert_allclose(rows.values, expected.rows[node_type][own], rtol=1e-5, atol=1e-5)


def test_predictions_are_the_same_however_the_graph_is_cut(world: World, tmp_path: Path) -> None:
    found = []
    for parts, method in ((1, "random"), (2, "ldg"), (4, "metis")):
        data = tmp_path / f"{method}-{parts}"
        partition_graph(world.folder / "graph", data, parts=parts, method=method, seed=5)
        with atta.local(data, threads=1) as cluster:
            if not found:
                checkpoint(tmp_path / "run", world, cluster, "hgt")
            rows = atta.predict(cluster, tmp_path / "run", what="scores", batch_size=1000, files=1)
            order = np.argsort(rows.ids)
            found.append((rows.ids[order], rows.values[order]))
    for ids, values in found[1:]:
        np.testing.assert_array_equal(ids, found[0][0])
        np.testing.assert_array_equal(values, found[0][1])


def best_unread(world: World, expected: Pairs, authors: np.ndarray, count: int) -> list[list[int]]:
    """Pairs of authors with the papers that they would write next, by a sort of all scores."""
    papers, found = world.ids["paper"], []
    written = {tuple(pair) for pair in world.edges[WRITES].T.tolist()}
    for author in authors:
        row = int(np.flatnonzero(world.ids["author"] == author)[0])
        scores = expected.scores(world, np.stack([np.full(len(papers), author), papers], axis=1)).numpy()
        free = [place for place in range(len(papers)) if (row, place) not in written]
        best = sorted(free, key=lambda place: -scores[place])[:count]
        found += [[int(author), int(papers[place])] for place in best]
    return found


@pytest.mark.parametrize("decoder", [*(pytest.param(d, marks=pytest.mark.slow) for d in ("dot", "distmult")), "mlp"])
def test_the_best_targets_are_those_of_all_pairs_without_edges_that_exist(
    world: World, cluster: atta.LocalCluster, tmp_path: Path, decoder: str
) -> None:
    expected = checkpoint_of_pairs(tmp_path / "run", world, cluster, "hetero-sage", decoder)
    found = atta.predict(cluster, tmp_path / "run", world.ids["author"][3:20], top=4, files=3)
    authors = list(dict.fromkeys(found.ids[:, 0].tolist()))
    assert sorted(authors) == sorted(world.ids["author"][3:20].tolist())
    assert found.ids.tolist() == best_unread(world, expected, np.array(authors), 4)
    asked = np.array(authors[::-2])
    answers = answers_of(cluster, world.folder / "parts", tmp_path / "run")
    (answer,) = answers.answer([PointQuery("targets", asked, 4, "writes")])
    pairs = np.stack([np.repeat(asked, answer.counts), answer.targets], axis=1)
    assert pairs.tolist() == best_unread(world, expected, asked, 4)
    np.testing.assert_allclose(answer.values, expected.scores(world, pairs), rtol=1e-4, atol=1e-5)
    # A new author like a known one has its scores. It is not offered the papers that it is read by.
    sources, targets = world.edges["paper", "by", "author"].numpy()
    read, alike = world.ids["paper"][sources[targets == 7]], world.ids["author"][7]
    new = UnseenVertices.of(
        np.array([-1]), {"x": world.x["author"][7:8], "edges": {"by": (read, np.full(len(read), -1))}}
    )
    (answer,) = answers.answer([PointQuery("targets", np.array([-1]), COUNTS["paper"], "writes", new)])
    assert sorted(answer.targets.tolist()) == sorted(set(world.ids["paper"].tolist()) - set(read.tolist()))
    pairs = np.stack([np.full(len(answer.targets), alike), answer.targets], axis=1)
    np.testing.assert_allclose(answer.values, expected.scores(world, pairs), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.values, expected.scores(world, found.ids), rtol=1e-4, atol=1e-5)
    everything = atta.predict(cluster, tmp_path / "run", world.ids["author"][:1], top=10**4, relation="writes")
    written = int((world.edges[WRITES].unique(dim=1)[0] == 0).sum())
    assert len(everything.ids) == COUNTS["paper"] - written


def test_point_queries_are_about_the_end_that_they_name(
    world: World, cluster: atta.LocalCluster, tmp_path: Path
) -> None:
    expected = checkpoint_of_pairs(tmp_path, world, cluster, "hetero-sage", "dot")
    answers = answers_of(cluster, world.folder / "parts", tmp_path, table="of-papers")  # read for papers alone
    for named, node_type in (("author", "author"), ("author", "author"), ("paper", "paper"), ("", "paper")):
        if named == "paper":
            atta.predict(cluster, tmp_path, table="of-papers")
        (answer,) = answers.answer([PointQuery("embeddings", world.ids[node_type][3:9], node_type=named)])
        np.testing.assert_allclose(answer.values, expected.rows[node_type][3:9], rtol=1e-5, atol=1e-5)
        assert answer.version == (0 if named == "author" else -1)
    with pytest.raises(ConfigError, match="node type 'term': the model computes vertices of author and paper"):
        answers.answer([PointQuery("embeddings", world.ids["term"][:1], node_type="term")])
    cluster.tables.delete("of-papers")


@pytest.mark.parametrize("sampled", [None, pytest.param([-1, -1], marks=pytest.mark.slow)], ids=["exact", "sampled"])
def test_pairs_have_the_classes_of_the_whole_graph(
    world: World, cluster: atta.LocalCluster, tmp_path: Path, sampled: list[int] | None
) -> None:
    expected = checkpoint_of_pairs(tmp_path / "run", world, cluster, "hetero-sage", "classes")
    pairs = some_pairs(world)
    before = edges_read(cluster)
    found = atta.predict(cluster, tmp_path / "run", links=pairs, num_neighbors=sampled)
    scores = expected.scores(world, pairs)
    assert scores.shape == (45, CLASSES)
    np.testing.assert_allclose(found.values, scores, rtol=1e-5, atol=1e-5)
    if sampled is None:  # the last layer only reads what the pairs depend on
        assert edges_read(cluster) - before <= 2 * (world.into("author") + world.into("paper")) + world.into("term")
    report = tmp_path / "report.json"
    np.save(tmp_path / "pairs.npy", pairs)
    given = (
        f"--checkpoint {tmp_path}/run --out {tmp_path}/out --links {tmp_path}/pairs.npy --json {report} --format npy"
    )
    mode = "" if sampled is None else "--mode sampled --num-neighbors -1,-1"
    ran("predict --what classes --device cpu --cluster", cluster.cluster_file, given, mode)
    rows = np.concatenate([np.load(file) for file in json.loads(report.read_text())["files"]])
    assert rows.dtype.names == ("source", "target", "class")
    np.testing.assert_array_equal(np.stack([rows["source"], rows["target"]], axis=1), pairs)
    np.testing.assert_array_equal(rows["class"], scores.argmax(1))


@pytest.fixture
def line(cluster: atta.LocalCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    def line_of(run: Path, *options: str) -> str:
        given = ["--cluster", str(cluster.cluster_file), "--checkpoint", str(run), "--out", str(run / "out"), "--quiet"]
        monkeypatch.setattr(sys, "argv", ["atta", "predict", *given, *options])
        with pytest.raises(SystemExit) as stopped:
            root.main()
        text = capfd.readouterr().err
        assert stopped.value.code == 2
        assert len(text.strip().splitlines()) == 1
        return text

    return line_of


REFUSED = [
    ("types", "--mode sampled --num-neighbors 5,4,3", "3 fan-outs for 2 layers that are computed"),
    ("types", "--split nobody", "unknown split 'nobody'"),
    ("types", "--node-type author", "the model computes vertices of paper"),
    ("links", "--top 3 --relation edits", "unknown edge type 'edits'"),
    ("classes", "--top 3", "no score to rank them by"),
    ("links", "--relation writes", "--relation: goes with --top"),
    ("links", "--top 3 --node-type author", "--top: does not go with --node-type"),
    ("links", "--top 3 --what classes", "does not go with --what classes"),
    ("links", "--top 0", "--top"),
    ("links", "--node-type venue", "the model computes vertices of author and paper"),
    ("links", "--what scores", "ask for embeddings, or give pairs"),
    ("links", "--links pairs.npy --what classes", "pairs have scores, but no classes"),
    ("links", "--links pairs.npy --node-type paper", "does not go with --node-type"),
    ("links", "--links unknown.npy", "1000000000"),
]


def test_bad_input_is_one_line_and_exit_code_2(
    world: World, cluster: atta.LocalCluster, tmp_path: Path, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "types", world, cluster, "rgcn")
    checkpoint_of_pairs(tmp_path / "links", world, cluster, "rgcn", "dot")
    checkpoint_of_pairs(tmp_path / "classes", world, cluster, "rgcn", "classes")
    np.save("pairs.npy", some_pairs(world))
    np.save("unknown.npy", np.array([[10**9, int(world.ids["paper"][0])]]))
    for run, options, said in REFUSED:
        assert said in line(tmp_path / run, *options.split()), options


def test_checkpoints_of_other_graphs(world: World, cluster: atta.LocalCluster, tmp_path: Path, line: Any) -> None:
    checkpoint(tmp_path, world, cluster, "rgcn")
    saved = torch.load(tmp_path / "best.pt", weights_only=True)

    def refused(**changes: Any) -> str:
        reach = TypeReach.of(cluster.schema, "paper", 2)
        shape = {**saved["shape"], **changes.pop("shape", {})}
        settings = TrainConfig(data="x", model=shape["model"], num_neighbors=(2,) * shape["depth"], hidden=shape["hidden"],
                               heads=2, task="classes", target=shape["target"])  # fmt: skip
        model = TypedModel(settings.own, reach, CLASSES)
        rows = {t: torch.zeros(COUNTS[t], HIDDEN) for t in reach.learnt}
        given = by_ascending_ids(world, rows)
        given = SavedEmbeddings(changes.get("rows", given.rows), given.ids | changes.get("ids", {}))
        save_best(tmp_path, settings.own, model, EPOCH, embeddings=given if given.rows else None)
        return line(tmp_path)

    ids = torch.from_numpy(np.sort(world.ids["term"]))
    other = "its embeddings are of another graph: "
    assert f"{other}-7 is not a vertex of node type 'term'" in refused(
        ids={"term": torch.cat([torch.tensor([-7]), ids[1:]])}
    )
    fewer = {"term": torch.zeros(24, HIDDEN)}
    assert f"{other}there are 25 nodes of type 'term', not 24" in refused(rows=fewer, ids={"term": ids[1:]})
    assert "embeddings of term: 25 rows, ids torch.int64 [24]" in refused(ids={"term": ids[1:]})
    assert "has no embeddings: runs write them into best.pt" in refused(rows={})
    assert "trained for node type 'book', which this graph does not have" in refused(shape={"target": "book"})
    plain, _ = checkpoint_of_one_type(tmp_path / "plain", "sage")
    said = line(plain)
    assert (
        f"{plain / 'best.pt'}: has a model of graphs with one node and one edge type: this graph has node types author"
        in said
    )
    assert "term, venue and edge types author__edits__venue, author__writes__paper" in said


@pytest.mark.parametrize("kind", [pytest.param("rgcn", marks=pytest.mark.slow), "hgt"])
def test_a_follower_of_a_typed_graph(world: World, tmp_path: Path, kind: str) -> None:
    rng, data = np.random.default_rng(2), tmp_path / "data"
    partition_graph(world.folder / "graph", data, parts=2, method="random", seed=3)
    with atta.local(data, threads=1) as running:
        checkpoint(tmp_path / "run", world, running, kind)
        follower = atta.InferenceFollower(running, tmp_path / "run", table="rows", what="scores")
        assert follower.catch_up().since is None
        addresses = dict(enumerate(running.addresses))
        for source, relation, target in world.edges:
            np.save(tmp_path / "src.npy", rng.choice(world.ids[source], 2))
            np.save(tmp_path / "dst.npy", rng.choice(world.ids[target], 2))
            np.save(data / "gone.npy", rng.integers(0, 12, 1))
            edges: dict[str, Any] = {"added": tmp_path, "removed": data / "gone.npy"}
            publish_edges(data, f"{source}__{relation}__{target}", addresses, **edges)
            done, wanted = follower.catch_up(), atta.predict(running, tmp_path / "run", what="scores")
            assert (done.since, done.changed > 0) == (done.version - 1, relation != "edits")
            found, version = follower.tables.read(wanted.ids)
            assert version == done.version
            np.testing.assert_allclose(found, wanted.values, rtol=1e-5, atol=1e-5)
