"""Training on typed graphs with real daemons and trainers, beside the same layers on the whole graph in one process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import atta
from atta.errors import DataError
from atta.kvstore.spec import Normal
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta.train import TrainConfig, fit
from atta.train.checkpoint.files import BEST, fill, load_model
from atta.train.models.typed import TypedModel
from atta.train.tasks.types import TypeReach
from tests.hetero import over_all_vertices
from tests.system.cuts import WITHIN_S, assert_same, begun, command, descend

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

CLASSES, PAPERS, AUTHORS, TERMS, TRAIN = 4, 400, 160, 60, 120
EDGES = (("author", "writes", "paper"), ("paper", "by", "author"), ("term", "in", "paper"))


@dataclass
class World:
    """A typed graph whose papers' own features say nothing; authors and terms tell the class.

    ``clusters``: cluster files, with features of all types, and without those of authors and terms.
    """

    x: dict[str, torch.Tensor]
    y: torch.Tensor
    edges: dict[tuple[str, str, str], torch.Tensor]
    clusters: dict[str, str]
    folders: dict[str, Path]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    rng, folder = np.random.default_rng(4), tmp_path_factory.mktemp("typed")
    counts = {"author": AUTHORS, "paper": PAPERS, "term": TERMS}
    classes = {t: rng.integers(0, CLASSES, n) for t, n in counts.items()}
    widths = {"author": 5, "paper": 3, "term": 6}
    x = {t: rng.standard_normal((n, widths[t])).astype(np.float32) for t, n in counts.items()}
    for t in ("author", "term"):
        x[t][np.arange(counts[t]), classes[t]] += 1.5
    ends = {}
    for t, degree in (("author", 4), ("term", 3)):
        paper = np.repeat(np.arange(PAPERS), degree)
        source = rng.integers(0, counts[t], len(paper))
        for at in np.flatnonzero(rng.random(len(paper)) < 0.7):
            source[at] = rng.choice(np.flatnonzero(classes[t] == classes["paper"][paper[at]]))
        ends[t] = np.stack([source, paper])
    edges = dict(zip(EDGES, (ends["author"], ends["author"][::-1], ends["term"]), strict=True))
    splits = {"train": np.arange(TRAIN), "val": np.arange(TRAIN, 200), "test": np.arange(200, PAPERS)}
    folders = {}
    for name, featured in (("features", ("author", "paper", "term")), ("embeddings", ("paper",))):
        with GraphWriter(folder / name / "graph") as out:
            for t, n in counts.items():
                tables = {"x": x[t]} if t in featured else {}
                own = {"tables": {**tables, "y": classes[t]}, "splits": splits} if t == "paper" else {"tables": tables}
                out.add_nodes(t, n, **own)  # type: ignore[arg-type]
            for e, pair in edges.items():
                out.add_edges("__".join(e), *pair)
        folders[name] = folder / name / "parts"
        partition_graph(folder / name / "graph", folders[name], parts=2, method="random", seed=0)
    folders["other"] = folder / "other"
    partition_graph(folder / "embeddings" / "graph", folders["other"], parts=2, method="random", seed=1)
    with ExitStack() as stack:
        running = {n: stack.enter_context(atta.local(folders[n], threads=1)) for n in ("features", "embeddings")}
        yield World(
            {t: torch.from_numpy(rows) for t, rows in x.items()}, torch.from_numpy(classes["paper"]),
            {e: torch.from_numpy(np.ascontiguousarray(pair)) for e, pair in edges.items()},
            {n: str(cluster.cluster_file) for n, cluster in running.items()}, folders,
        )  # fmt: skip


def config(world: World, name: str, **settings: Any) -> TrainConfig:
    given: dict[str, Any] = {"model": "hetero-sage", "trainers": 2, "epochs": 6, "hidden": 16, "heads": 2}
    given |= {"num_neighbors": (-1, -1), "batch_size": TRAIN // 2, "dropout": 0.0, "seed": 3}
    given |= {"device": "cpu", "verbose": False}
    return TrainConfig(cluster=world.clusters[name], **{**given, **settings})


def in_one_process(world: World, settings: TrainConfig) -> tuple[list[float], torch.Tensor]:
    widths = {t: rows.shape[1] for t, rows in world.x.items()}
    torch.manual_seed(settings.seed)
    reach = TypeReach("paper", settings.depth, tuple(sorted(EDGES)), widths)
    model = TypedModel(settings.own, reach, CLASSES)

    def loss_of(_: int) -> torch.Tensor:
        return F.cross_entropy(over_all_vertices(model, world.x, world.edges)[:TRAIN], world.y[:TRAIN])

    losses = descend(model, settings.lr, settings.epochs, loss_of)
    return losses, over_all_vertices(model, world.x, world.edges).detach()


SLOW = ("hetero-sage", "hetero-gat", "hgt")


@pytest.mark.parametrize("model", ["rgcn", *(pytest.param(m, marks=pytest.mark.slow) for m in SLOW)])
def test_all_neighbours_give_the_losses_of_the_whole_graph(world: World, model: str) -> None:
    """Two daemons, two trainers, one batch each: every step is the one of PyG's layers on the whole graph."""
    settings = config(world, "features", model=model, eval_every=6)
    report = fit(settings)
    losses, scores = in_one_process(world, settings)
    assert [e.loss for e in report.epochs] == pytest.approx(losses, rel=1e-4)
    test = float((scores[200:].argmax(1) == world.y[200:]).float().mean())
    assert report.epochs[-1].test_accuracy == pytest.approx(test, abs=0.011)
    assert report.epochs[-1].loss < 0.97 * report.epochs[0].loss


@pytest.mark.parametrize("name", ["features", "embeddings"])
def test_a_typed_graph_trains_without_any_option(world: World, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = fit(TrainConfig(cluster=world.clusters[name], epochs=1, device="cpu"))
    assert (report.config.model, len(report.epochs)) == ("rgcn", 1)
    assert capfd.readouterr().err.count("so the model is rgcn") == 1
    with pytest.raises(
        atta.ConfigError, match=r"so the model is rgcn, but .* belongs to --strategy minibatch, not full"
    ):
        fit(TrainConfig(cluster=world.clusters[name], strategy="full"))


@pytest.mark.slow
def test_sampled_batches_learn_what_the_other_types_tell(world: World) -> None:
    fan_outs = {"num_neighbors": (5, 3), "num_neighbors_by_type": "in=3,0"}
    report = fit(config(world, "features", batch_size=20, epochs=12, eval_every=12, dropout=0.2, **fan_outs))
    assert report.epochs[-1].test_accuracy is not None
    assert report.epochs[-1].test_accuracy > 0.6  # 0.25 is chance, and all that the papers' own features allow
    assert report.config.target is None  # as the user has left it
    assert report.epochs[-1].edges_per_s > 0


# -- embeddings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "embed"), [pytest.param("embeddings", None, marks=pytest.mark.slow), ("features", "author, term")]
)
def test_embeddings_learn_as_torch_s_in_one_process(world: World, name: str, embed: str | None, tmp_path: Path) -> None:
    """Authors and terms have no features, or do not read them. One trainer, full batches: every step beside torch's Adam
    and SparseAdam."""
    settings = config(world, name, trainers=1, batch_size=TRAIN, epochs=5, eval_every=5, embedding_lr=0.05, embed=embed)
    with atta.connect(world.clusters[name]) as cluster:
        initial = {t: initial_rows(cluster, t, number, settings) for number, t in enumerate(("author", "term"))}
        report = fit(replace(settings, checkpoint=str(tmp_path)))
        assert not [name for name in cluster.tables.specs() if name.startswith("train-")]  # their memory is free again
        predicted = atta.predict(cluster, tmp_path, what="scores")
    tables = {t: torch.nn.Parameter(rows) for t, rows in initial.items()}
    torch.manual_seed(settings.seed)
    reach = TypeReach("paper", settings.depth, tuple(sorted(EDGES)), {"author": None, "paper": 3, "term": None})
    model = TypedModel(settings.own, reach, CLASSES)
    dense = torch.optim.Adam(model.parameters(), settings.lr)
    assert settings.embedding_lr is not None
    sparse = torch.optim.SparseAdam(list(tables.values()), settings.embedding_lr)
    losses = []
    for _ in range(settings.epochs):
        rows = {t: F.embedding(torch.arange(len(table)), table, sparse=True) for t, table in tables.items()}
        scores = over_all_vertices(model, {"paper": world.x["paper"], **rows}, world.edges)
        loss = F.cross_entropy(scores[:TRAIN], world.y[:TRAIN])
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        losses.append(loss.item())
    assert [e.loss for e in report.epochs] == pytest.approx(losses, rel=1e-3)
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert best["embedding_ids"] == {}  # they are numbered from 0
    for t, table in tables.items():
        torch.testing.assert_close(best["model"][f"embeddings.{t}"], table.detach(), rtol=0, atol=2e-2)
    fill(model, load_model(tmp_path).weights, tmp_path)
    kept = {t: best["model"][f"embeddings.{t}"] for t in tables}
    scores = over_all_vertices(model, {"paper": world.x["paper"], **kept}, world.edges).detach()
    assert np.allclose(predicted.values, scores[predicted.ids], rtol=1e-4, atol=1e-5)


def initial_rows(cluster: atta.Cluster, node_type: str, number: int, settings: TrainConfig) -> torch.Tensor:
    count = cluster.schema.node_counts[node_type]
    init = Normal(0.0, 1.0, settings.seed * 31 + number)
    table = atta.DistEmbedding(
        cluster, count, settings.hidden, name=f"copy-{node_type}", policy=f"nodes:{node_type}", init=init
    )
    rows = table.eval()(torch.arange(count)).clone()
    cluster.tables.delete(f"copy-{node_type}")
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("max_restarts", [0, 1])
def test_embeddings_go_on_in_mid_epoch(world: World, tmp_path: Path, max_restarts: int) -> None:
    """One trainer: several push in any order. It is killed, and the next one has the rows of the checkpoint."""
    settings = config(
        world, "embeddings", trainers=1, batch_size=8, epochs=6, eval_every=6, dropout=0.3, checkpoint_every=1000,
        num_neighbors=(4, 4),
    )  # fmt: skip
    through = fit(replace(settings, checkpoint=str(tmp_path / "through"))).epochs
    folder = tmp_path / "killed"
    cut = replace(settings, checkpoint=str(folder), checkpoint_steps=4, max_restarts=max_restarts)
    with subprocess.Popen([*command(cut), "--quiet"], stderr=subprocess.PIPE, text=True) as job:
        begun(cut, job, 1)[0].kill()
        job.communicate(timeout=WITHIN_S)
    assert job.returncode == 1 - max_restarts
    found = fit(replace(cut, resume=True)).epochs
    assert_same(found, folder, through, tmp_path / "through")
    best = [torch.load(place / "best.pt", weights_only=True)["model"] for place in (folder, tmp_path / "through")]
    assert any(name.startswith("embeddings.") for name in best[0])
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[1])


@pytest.mark.slow
def test_beginning_with_another_run(world: World, tmp_path: Path) -> None:
    settings = config(world, "embeddings", epochs=3, checkpoint=str(tmp_path))
    best = fit(settings).best
    onward = replace(settings, checkpoint=None, epochs=1, lr=1e-30, embedding_lr=1e-30, init_from=str(tmp_path))
    assert fit(onward).epochs[0].metrics == pytest.approx(best.metrics, rel=1e-5)
    other = replace(onward, cluster=None, data=str(world.folders["other"]))  # the same graph, cut in another way
    assert fit(other).epochs[0].metrics == pytest.approx(best.metrics, rel=1e-5)
    with pytest.raises(DataError, match="does not fit this model: encoders"):
        fit(replace(onward, cluster=world.clusters["features"]))


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD = [
    ("--model rgcn --target papr", "unknown node type 'papr'"),
    ("--model rgcn --num-neighbors-by-type wrote=3", "unknown edge type 'wrote'"),
    ("--strategy full --model gcn", "--model gcn: takes graphs with one node type and one edge type"),
    ("--model rgcn --embedding-lr 0", "--embedding-lr 0.0: must be positive"),
    ("--model rgcn --embed papr", "unknown node type 'papr'"),
    ("--model gcn --embed paper", "--embed: goes with --model rgcn, hetero-sage, hetero-gat, hgt, not gcn"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[options for options, _ in BAD])
def test_bad_input_is_refused(world: World, refused: Any, options: str, said: str) -> None:
    given = ["--cluster", world.clusters["features"], "--trainers", "1", "--device", "cpu", "--quiet"]
    assert said in refused("train", *given, *options.split())


def test_a_run_without_validation_leaves_a_model_with_its_embeddings(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("paper", 60, tables={"y": rng.integers(0, 3, 60)}, splits={"train": np.arange(40)})
        out.add_nodes("author", 20)  # no type has features
        out.add_edges("author__writes__paper", rng.integers(0, 20, 200), rng.integers(0, 60, 200))
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=2, method="random")
    with atta.local(tmp_path / "data", threads=1) as cluster:
        folder = tmp_path / "saved"
        settings = TrainConfig(
            cluster=str(cluster.cluster_file), model="rgcn", trainers=2, epochs=3, hidden=4, num_neighbors=(3, 3),
            batch_size=20, device="cpu", verbose=False, checkpoint=str(folder), checkpoint_every=1,
        )  # fmt: skip
        fit(settings)
        saved = load_model(folder)
        assert {name: rows.shape for name, rows in saved.embeddings.rows.items()} == {
            "author": (20, 4),
            "paper": (60, 4),
        }
        assert atta.predict(cluster, folder).values.shape == (60, 4)
        again = fit(replace(settings, init_from=str(folder), checkpoint=None, epochs=1))
        assert len(again.epochs) == 1
        (folder / BEST).unlink()  # as where a run was broken off
        with pytest.raises(DataError, match=r"has no embeddings: runs write them into best\.pt"):
            atta.predict(cluster, folder)
        with pytest.raises(DataError, match=r"has no embeddings: runs write them into best\.pt"):
            fit(replace(settings, init_from=str(folder), checkpoint=None, epochs=1))
