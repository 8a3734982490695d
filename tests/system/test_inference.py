"""Inference layer by layer equals the forward pass on the whole graph, and survives being broken off."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch_geometric.nn import APPNP, GATConv, GCNConv, GraphConv, GraphSAGE, SAGEConv, SGConv

import atta
from atta.client.inference.sinks import DESCRIPTION
from atta.daemon.config import DaemonConfig
from atta.errors import AttaError, ConfigError, DataError
from atta.observe.progress import Silent
from atta.partition import GraphWriter, partition_graph
from atta.partition.schema import Schema, TableSpec
from atta.train import EpochReport, TrainConfig, fit
from atta.train.checkpoint.files import BEST, BEST_WEIGHTS, seal
from atta.train.checkpoint.run import save_best
from atta.train.launching import predictors
from atta.train.launching.queries import ModelAnswers
from atta.train.models import SampledModel, build_model
from atta.train.models.layers import digest_of
from atta.train.reports.epochs import PHASES
from atta.train.settings.predict import PredictConfig
from tests.system.conftest import SmallGraph, ran

MODELS = ("sage", "gcn", "gat", "resgcn+", "deepergcn")
EPOCH = EpochReport(3, 1.0, 0.5, 10.0, 20.0, 30.0, dict.fromkeys(PHASES, 0.1), val_accuracy=0.25)
CLASSES = 4


def checkpoint(
    folder: Path, model: str, layers: int = 3, channels: int = 16, classes: list[str] | None = None
) -> tuple[Path, torch.nn.Module]:
    config = TrainConfig(data="x", model=model, num_neighbors=(2,), layers=layers, hidden=8, heads=2)
    torch.manual_seed(5)
    made = build_model(config, channels, CLASSES)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.1 * torch.randn_like(weight)  # biases, too
    save_best(folder, config, made, EPOCH, schema=None if classes is None else named(classes))
    return folder, made.gnn.eval()


def named(classes: list[str], columns: Sequence[str] = ()) -> Schema:
    """A graph whose classes and columns have these names."""
    tables = {"node": {"x": TableSpec("<f4", (16,)), "y": TableSpec("<i8")}}
    more = {"columns": {"node": {"x": [*columns]}}} if columns else {}
    return Schema(
        ("node",),
        ("node__to__node",),
        {"node": 3},
        {"node__to__node": 0},
        tables,
        classes={"node": {"y": classes}},
        **more,
    )


def test_other_names_and_another_kind_of_model_are_refused_before_daemons_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["ant", "bee", "cat", "dog"]
    for data, classes, columns in (("same", names, "abcd"), ("swapped", names, "abdc"), ("other", names[::-1], "abcd")):
        with GraphWriter(tmp_path / f"{data}-graph") as out:
            tables = {"x": np.zeros((40, 16), np.float32), "y": np.arange(40) % 4}
            out.add_nodes("node", 40, tables=tables, splits={"train": np.arange(30), "val": np.arange(30, 40)})
            out.note_classes("node", "y", classes)
            out.note_columns("node", "x", [*columns])
            out.add_edges("node__to__node", np.arange(40), np.roll(np.arange(40), 1))
        partition_graph(tmp_path / f"{data}-graph", tmp_path / data, parts=1)
    run = tmp_path / "run"
    common: dict[str, Any] = {"epochs": 1, "num_neighbors": (2, 2), "hidden": 4, "checkpoint": str(run)}
    fit(TrainConfig(data=str(tmp_path / "same"), task="classes", **common))
    ran(
        "predict --data",
        tmp_path / "same",
        "--checkpoint",
        run,
        "--what classes --format csv --out",
        tmp_path / "out",
        "-q",
    )
    assert {line.split(",")[2] for line in (tmp_path / "out").glob("*.csv").__next__().read_text().split()[1:]} <= {
        *names
    }
    monkeypatch.setattr(atta, "local", lambda *_, **__: pytest.fail("daemons are started"))
    for data, words in (
        ("swapped", "features: from number 2 on it has 'c', 'd'; this data has 'd', 'c'"),
        ("other", "other classes"),
    ):
        there = str(tmp_path / data)
        again = TrainConfig(data=there, task="classes", resume=True, **common | {"epochs": 2})
        asked = PredictConfig(data=there, checkpoint=str(run), out="out", what="scores")
        served = DaemonConfig(there, range(1), model=str(run), what="scores")
        for refused in (partial(predictors.predict_as, asked), partial(ModelAnswers, served), partial(fit, again)):
            with pytest.raises(DataError, match=words):
                refused()
    begun = common | {"checkpoint": None, "init_from": str(run)}
    for more, words in (
        ({"task": "link"}, "--init-from: has a model sage of --task classes"),
        ({"model": "rgcn"}, "takes typed graphs"),
        ({"task": "labels"}, "--task labels"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            fit(TrainConfig(data=str(tmp_path / "same"), **begun | more))


Clusters = Callable[[int], atta.LocalCluster]


@pytest.fixture
def clusters(placements: Mapping[str, atta.LocalCluster]) -> Clusters:
    """Daemons of the small graph, by the number of partitions."""
    return lambda parts: placements[f"{parts} parts by random, {2 if parts == 2 else 1} threads"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, torch.nn.Module]]:
    return {model: checkpoint(tmp_path_factory.mktemp("saved"), model) for model in MODELS}


@torch.no_grad()
def whole_graph(graph: SmallGraph, model: torch.nn.Module) -> np.ndarray:
    edges = torch.from_numpy(np.stack([graph.src, graph.dst]))
    return model(torch.from_numpy(graph.x), edges).numpy()


def check_scores(graph: SmallGraph, model: torch.nn.Module, ids: np.ndarray, values: np.ndarray) -> None:
    expected = whole_graph(graph, model)[graph.rows(ids)]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)


def npy_rows(folder: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    found = np.concatenate([np.load(path) for path in sorted(folder.glob("part-*.npy"))])
    return found["id"], found[column]


def edges_read(cluster: atta.Cluster) -> float:
    return sum(stats.get("edges", 0.0) for stats in cluster.stats())


def rows_pushed(cluster: atta.Cluster) -> float:
    return sum(stats.get("table_rows_pushed", 0.0) for stats in cluster.stats())


@pytest.mark.parametrize(("model", "parts"), [*((model, 2) for model in MODELS), ("gcn", 1), ("gat", 4)])
def test_scores_equal_the_whole_graph_and_every_edge_is_read_once_per_layer(
    small_graph: SmallGraph, clusters: Clusters, saved: Any, model: str, parts: int
) -> None:
    cluster, (folder, gnn) = clusters(parts), saved[model]
    edges, rows = edges_read(cluster), rows_pushed(cluster)
    found = atta.predict(cluster, folder, what="scores", batch_size=37)
    assert sorted(found.ids) == sorted(small_graph.ids)
    check_scores(small_graph, gnn, found.ids, found.values)
    counting = model == "gcn"  # reads the edges once more for degrees
    assert edges_read(cluster) - edges == (3 + counting) * len(small_graph.src)
    marks = (2 + counting) * parts
    assert rows_pushed(cluster) - rows == (2 + counting) * len(small_graph.ids) + marks
    assert not [name for name in cluster.tables.specs() if name.startswith("predict.")]


@pytest.mark.parametrize("model", ["sage", "gat", "resgcn+"])
def test_embeddings_classes_splits_and_ids(small_graph: SmallGraph, clusters: Clusters, saved: Any, model: str) -> None:
    cluster, (folder, gnn) = clusters(2), saved[model]
    seen: list[torch.Tensor] = []
    read = gnn.decoder if model == "resgcn+" else gnn.convs[-1]
    hook = read.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    scores = whole_graph(small_graph, gnn)
    hook.remove()
    asked = small_graph.ids[[250, 3, 3, 17]]
    some = atta.predict(cluster, folder, asked)
    assert some.ids.tolist() == sorted(set(asked.tolist())) or set(some.ids) == set(asked)
    assert len(some.ids) == 3
    np.testing.assert_allclose(some.values, seen[0].numpy()[small_graph.rows(some.ids)], rtol=1e-5, atol=1e-5)
    train = atta.predict(cluster, folder, "train", what="classes")
    assert sorted(train.ids) == sorted(small_graph.train_ids)
    assert train.values.dtype == np.int64
    best = np.sort(scores[small_graph.rows(train.ids)], axis=1)
    clear = best[:, -1] - best[:, -2] > 1e-4
    assert clear.sum() > 100
    assert (train.values == scores.argmax(1)[small_graph.rows(train.ids)])[clear].all()


@pytest.mark.parametrize("num_neighbors", [None, [-1]])
@pytest.mark.parametrize("weighted", [False, True])
def test_layers_of_a_users_own_model(
    small_graph: SmallGraph, clusters: Clusters, weighted: bool, num_neighbors: list[int] | None
) -> None:
    """One with two layers of one hop, one that reads two hops, and modules that read rows alone."""
    torch.manual_seed(2)
    first, norm, second, last = SAGEConv(16, 6), torch.nn.LayerNorm(6), SGConv(6, 5), GCNConv(5, 3)
    tables = {"edge_weight": "weight"} if weighted else {}
    layers = [first, norm, torch.nn.ReLU(), second, last]
    found = atta.predict(clusters(2), layers, edge_tables=tables, num_neighbors=num_neighbors)
    edges = torch.from_numpy(np.stack([small_graph.src, small_graph.dst]))
    given = {"edge_weight": torch.from_numpy(small_graph.edge_weight)} if weighted else {}
    with torch.no_grad():
        hidden = second(norm(first(torch.from_numpy(small_graph.x), edges)).relu(), edges, **given)
        expected = last(hidden, edges, **given).numpy()
    np.testing.assert_allclose(found.values, expected[small_graph.rows(found.ids)], rtol=1e-5, atol=1e-5)


def test_new_features_and_edges_give_new_predictions(small_graph: SmallGraph, tmp_path: Path) -> None:
    torch.manual_seed(3)
    layers, graph = [GCNConv(16, 6), torch.nn.ReLU(), SAGEConv(6, 3)], small_graph
    data = shutil.copytree(graph.dataset(2, "random"), tmp_path / "data")
    edges, x = np.stack([graph.src, graph.dst]), graph.x

    def check(ids: np.ndarray, rows: np.ndarray) -> None:
        with torch.no_grad():
            given = torch.from_numpy(edges)
            wanted = layers[2](layers[0](torch.from_numpy(x), given).relu(), given).numpy()
        np.testing.assert_allclose(rows, wanted[graph.rows(ids)], rtol=1e-5, atol=1e-5)

    with atta.local(data, threads=1) as cluster:

        def predicted(own: atta.Cluster = cluster, **options: Any) -> Any:
            return atta.predict(own, layers, edge_tables={}, **options)

        def rank(number: int) -> None:
            with atta.connect(cluster.addresses) as own:
                spelt = [tmp_path / "monday", f"{tmp_path}/./monday/"][number]  # one folder, as each machine calls it
                predicted(own, out=spelt, format="npy", rank=number, world_size=2)

        with ThreadPoolExecutor(2) as pool:
            [*pool.map(rank, range(2))]
        assert not cluster.tables.specs()  # the last rank has deleted the rows between layers
        check(*npy_rows(tmp_path / "monday", "embedding"))

        class BrokenOff(Silent):
            def stage(self, title: str, total: int | None) -> None:
                if title.startswith("layer 2"):
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            predicted(progress=BrokenOff())
        assert not cluster.tables.specs()  # nobody could go on with what is in memory
        with pytest.raises(KeyboardInterrupt):
            predicted(out=tmp_path / "half", progress=BrokenOff(), format="npy")

        def update(kind: str, *words: object) -> None:
            ran(f"update {kind} --cluster {','.join(cluster.addresses)} --data {data}", *words)

        x = 3 * graph.x + 1
        np.save(tmp_path / "x.npy", x[np.argsort(graph.ids)])
        update("features", "--table", "x", "--from", tmp_path / "x.npy")
        for folder in ("monday", "half"):
            with pytest.raises(ConfigError, match="differ in the graph's version"):
                predicted(out=tmp_path / folder, format="npy")
        found = predicted()
        check(found.ids, found.values)
        rng, new = np.random.default_rng(2), tmp_path / "new"
        added = np.stack([rng.integers(0, 300, 200), (rng.pareto(1, 200) % 300).astype(int)])  # most into few vertices
        new.mkdir()
        tables = {
            "weight": np.ones(200, np.float32),
            "time": np.zeros(200, np.int64),
            "note": np.ones((200, 3), np.float32),
        }
        for name, rows in {"src": graph.ids[added[0]], "dst": graph.ids[added[1]], **tables}.items():
            np.save(new / f"{name}.npy", rows)
        gone = rng.permutation(len(graph.src))[:300]
        np.save(tmp_path / "gone.npy", gone)
        update("edges", "--edge-type", "node__to__node", "--from", new, "--remove", tmp_path / "gone.npy")
        edges = np.concatenate([np.delete(edges, gone, axis=1), added], axis=1)
        for num_neighbors in (None, [-1]):
            found = predicted(num_neighbors=num_neighbors)
            check(found.ids, found.values)


def test_the_same_prediction_may_run_several_times_at_once(clusters: Clusters, saved: Any, tmp_path: Path) -> None:
    def run(number: int) -> np.ndarray:
        with atta.connect(clusters(2).addresses) as own:
            if number % 2:
                return atta.predict(own, saved["sage"][0], batch_size=20).values
            atta.predict(own, saved["sage"][0], batch_size=20, out=tmp_path / str(number), format="npy")
            return npy_rows(tmp_path / str(number), "embedding")[1]

    with ThreadPoolExecutor(6) as pool:
        first, *others = pool.map(run, range(6))
    assert all(np.array_equal(first, other) for other in others)
    assert not [name for name in clusters(2).tables.specs() if name.startswith("predict.")]


def test_unknown_ids_leave_nothing(small_graph: SmallGraph, clusters: Clusters, saved: Any, tmp_path: Path) -> None:
    before = clusters(1).tables.specs()
    for place in ({"out": tmp_path / "out"}, {"table": "mine"}):
        with pytest.raises(ConfigError, match="123456789"):
            atta.predict(clusters(1), saved["sage"][0], [small_graph.ids[0], 123456789], **place)
    assert not (tmp_path / "out").exists()
    assert clusters(1).tables.specs() == before


@pytest.mark.parametrize(
    ("processes", "form"),
    [(1, "parquet"), *(pytest.param(*how, marks=pytest.mark.slow) for how in ((1, "npy"), (2, "parquet")))],
)
def test_the_command_writes_files(
    small_graph: SmallGraph, clusters: Clusters, saved: Any, tmp_path: Path, processes: int, form: str
) -> None:
    folder, gnn = saved["gat"]
    addresses, out = ",".join(clusters(2).addresses), tmp_path / "out"
    command = f"predict --cluster {addresses} --checkpoint {folder} --what scores --out {out} --processes {processes}"
    command += f" --format {form} --json {tmp_path}/r.json"
    ran(command)
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["vertices"] == 300
    assert report["files"] == [str(out / f"part-0000{n}-of-00002.{form}") for n in range(2)]
    if form == "npy":
        ids, values = npy_rows(out, "score")
    else:
        dataset = pytest.importorskip("pyarrow.dataset")
        table = dataset.dataset(str(out), format="parquet").to_table()  # the description is passed over
        assert str(table.schema.field("score").type).startswith("fixed_size_list<")
        ids, values = table["id"].to_numpy(), np.stack(table["score"].to_numpy())
    assert sorted(ids) == sorted(small_graph.ids)
    check_scores(small_graph, gnn, ids, values)

    if processes > 1:  # starting them takes seconds; the rest does not depend on their number
        return
    files = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    before = edges_read(clusters(2))
    (out / f"part-00001-of-00002.{form}").unlink()
    ran(command)
    assert edges_read(clusters(2)) > before
    again = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert again.keys() == files.keys()
    assert [p.name for p in files if again[p] != files[p]] == [f"part-00001-of-00002.{form}"]
    before = edges_read(clusters(2))
    ran(command)
    assert edges_read(clusters(2)) == before  # nothing was left to do


@pytest.mark.parametrize("model", MODELS)
def test_sampled_batches_as_in_training(small_graph: SmallGraph, clusters: Clusters, saved: Any, model: str) -> None:
    folder, gnn = saved[model]
    found = atta.predict(clusters(2), folder, "train", what="scores", num_neighbors=[4, 3, 2], batch_size=16, seed=7)
    scores: dict[int, np.ndarray] = {}
    how: dict[str, Any] = {"batch_size": 16, "seed": 7, "world_size": 2, "pad": False, "tables": ["x"]}
    how |= {"edge_norm": "gcn", "unbiased": True} if model == "gcn" else {}
    for rank in range(2):
        for batch in atta.NeighborLoader(clusters(2), [4, 3, 2], "train", rank=rank, **how):
            data = batch.to_pyg()
            with torch.no_grad():
                hops = data.num_sampled_nodes, data.num_sampled_edges
                rows = SampledModel(gnn)(data.x, data.edge_index, *hops, edge_weight=data.get("edge_weight"))
            scores.update(zip(batch.n_id()[: batch.batch_size].tolist(), rows.numpy(), strict=True))
    assert sorted(found.ids) == sorted(small_graph.train_ids) == sorted(scores)
    expected = np.stack([scores[i] for i in found.ids.tolist()])
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-5)
    assert not np.allclose(expected, whole_graph(small_graph, gnn)[small_graph.rows(found.ids)], atol=1e-3)
    exact = atta.predict(clusters(2), folder, "train", what="scores", num_neighbors=[-1])
    check_scores(small_graph, gnn, exact.ids, exact.values)
    with pytest.raises(ConfigError, match="2 fan-outs for 3 layers"):
        atta.predict(clusters(2), folder, "train", what="scores", num_neighbors=[4, 3])


@pytest.mark.parametrize("sampled", [False, True])
def test_pairs_are_scored_by_the_embeddings_of_their_ends(
    small_graph: SmallGraph, clusters: Clusters, saved: Any, tmp_path: Path, sampled: bool
) -> None:
    folder, out = saved["gat"][0], tmp_path / "out"
    pairs = small_graph.ids[np.random.default_rng(4).integers(0, 300, (151, 2))]
    pairs[7] = pairs[3]  # a pair that comes twice, in order
    pairs[9, 1] = pairs[9, 0]
    (tmp_path / "pairs.txt").write_text("\n".join(f"{a},{b}" for a, b in pairs) + "\n\n")
    command = f"predict --cluster {','.join(clusters(2).addresses)} --checkpoint {folder} --format npy --out {out}"
    mode = "--mode sampled --num-neighbors -1" if sampled else ""
    assert ran(command, "--links", tmp_path / "pairs.txt", mode).startswith("151 pairs")
    found = np.concatenate([np.load(path) for path in sorted(out.glob("part-*.npy"))])
    np.testing.assert_array_equal(np.stack([found["source"], found["target"]], axis=1), pairs)
    embedded = atta.predict(clusters(2), folder)
    at = np.argsort(embedded.ids)
    rows = embedded.values[at]
    ends = rows[np.searchsorted(embedded.ids[at], pairs)]
    np.testing.assert_allclose(found["score"], (ends[:, 0] * ends[:, 1]).sum(1), rtol=1e-4, atol=1e-5)
    assert not [name for name in clusters(2).tables.specs() if name.startswith("predict.")]
    in_memory = atta.predict(clusters(1), folder, links=pairs)
    np.testing.assert_array_equal(in_memory.ids, pairs)
    np.testing.assert_allclose(in_memory.values, found["score"], rtol=1e-4, atol=1e-5)


def test_the_best_targets_of_one_type_leave_out_neighbours_and_the_vertex_itself(
    small_graph: SmallGraph, clusters: Clusters, saved: Any
) -> None:
    folder, embedded = saved["sage"][0], atta.predict(clusters(1), saved["sage"][0])
    rows = embedded.values[np.argsort(embedded.ids)]
    scores, ids = rows @ rows.T, np.sort(embedded.ids)
    at = [np.searchsorted(ids, small_graph.ids[ends]) for ends in (small_graph.src, small_graph.dst)]
    scores[at[0], at[1]] = -np.inf
    np.fill_diagonal(scores, -np.inf)
    for parts in (1, 2):
        found = atta.predict(clusters(parts), folder, "train", top=6)
        sources = np.unique(found.ids[:, 0])
        np.testing.assert_array_equal(sources, np.unique(small_graph.train_ids))
        best = -np.sort(-scores[np.searchsorted(ids, sources)], axis=1)[:, :6]
        own = found.values.reshape(len(sources), 6)[np.argsort(found.ids[::6, 0])]
        np.testing.assert_allclose(own, best, rtol=1e-4, atol=1e-5)
        said = scores[tuple(np.searchsorted(ids, found.ids).T)]
        np.testing.assert_allclose(found.values, said, rtol=1e-4, atol=1e-5)


def test_a_table_takes_the_rows(small_graph: SmallGraph, clusters: Clusters, saved: Any) -> None:
    folder, gnn = saved["sage"]
    for _ in range(2):  # again: the same rows
        assert atta.predict(clusters(2), folder, "train", what="scores", table="scores-a") is None
    table = clusters(2).tables.open("scores-a")
    rows = table.pull(table.locate(small_graph.ids)).values
    expected = whole_graph(small_graph, gnn)
    asked = np.isin(small_graph.ids, small_graph.train_ids)
    np.testing.assert_allclose(rows[asked], expected[asked], rtol=1e-5, atol=1e-5)
    assert not rows[~asked].any()
    with pytest.raises(ConfigError, match="scores-a"):
        atta.predict(clusters(2), folder, "train", what="classes", table="scores-a")
    clusters(2).tables.delete("scores-a")


def test_broken_off_anywhere_and_repeated_gives_the_same_rows(
    small_graph: SmallGraph, clusters: Clusters, saved: Any, tmp_path: Path
) -> None:
    """Errors at every block in turn, in one process: what is there afterwards is complete, and the rest follows."""
    from atta.train.launching.predict import PredictJob

    cluster, (folder, gnn), out, stops = clusters(2), saved["gcn"], tmp_path / "out", 0
    while True:
        job = PredictJob(cluster, folder, None, "scores", out=out, format="npy", files=3, batch_size=20)
        inference = job.inference(check=([None] * 7).pop)  # a share has five blocks, so every run completes one
        try:
            inference.run()
            break
        except IndexError:
            stops += 1
            assert not list(out.glob("*.partial"))
            for path in out.glob("part-*.npy"):
                assert len(np.load(path)) == 100
    inference.clean()
    assert stops == 4 * 3 - 1
    ids, values = npy_rows(out, "score")
    assert sorted(ids) == sorted(small_graph.ids)
    check_scores(small_graph, gnn, ids, values)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_ten_random_moments_and_repeated(
    small_graph: SmallGraph, clusters: Clusters, saved: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Nothing partial lies under a final name, and a repeated run ends with the rows of an undisturbed one."""
    folder, gnn = saved["sage"]
    words = f"predict --cluster {','.join(clusters(2).addresses)} --checkpoint {folder} --what scores --format npy --files 6"
    words += " --processes 2 --batch-size 1 --device cpu --quiet --out"
    command = [sys.executable, "-m", "atta.cli.main", *words.split()]
    begun = time.monotonic()
    subprocess.run([*command, str(tmp_path / "whole")], check=True, timeout=120)
    seconds = time.monotonic() - begun
    ids, values = npy_rows(tmp_path / "whole", "score")
    assert sorted(ids) == sorted(small_graph.ids)
    check_scores(small_graph, gnn, ids, values)
    early = 0
    for n, moment in enumerate(seconds * rng.random(10)):
        out = tmp_path / f"killed-{n}"
        killed = subprocess.Popen([*command, str(out)], start_new_session=True, stderr=subprocess.PIPE)
        time.sleep(moment)
        early += killed.poll() is None
        with contextlib.suppress(ProcessLookupError):  # it has ended, and its processes with it
            os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        for path in out.glob("part-*.npy"):
            assert len(np.load(path)) == 50, f"killed after {moment:.2f} of {seconds:.2f} s"
        subprocess.run([*command, str(out)], check=True, timeout=120)
        assert {p.name for p in out.iterdir()} == {DESCRIPTION, *(f"part-{n:05d}-of-00006.npy" for n in range(6))}
        found = npy_rows(out, "score")
        assert np.array_equal(found[0], ids)
        assert np.array_equal(found[1], values)
    assert early >= 5, "most runs were killed before their end"


def test_started_ranks_share_the_work(small_graph: SmallGraph, clusters: Clusters, saved: Any, tmp_path: Path) -> None:
    """As processes do it: each runs ``main``, here in threads."""
    folder, gnn = saved["gcn"]
    config = PredictConfig(
        str(folder), cluster="x", out=str(tmp_path / "out"), what="scores", split="train", format="npy", processes=2,
        device="cpu",
    )  # fmt: skip
    task = {"config": dataclasses.asdict(config), "addresses": clusters(2).addresses}
    (tmp_path / "task.json").write_text(json.dumps(task))
    before = edges_read(clusters(2))
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(lambda rank: predictors.main(str(tmp_path), rank), range(2))] == [0, 0]
    ids, values = npy_rows(tmp_path / "out", "score")
    assert sorted(ids) == sorted(small_graph.train_ids)
    check_scores(small_graph, gnn, ids, values)
    into_train = np.isin(small_graph.dst_ids, small_graph.train_ids).sum()
    assert edges_read(clusters(2)) - before == 3 * len(small_graph.src) + into_train
    for name in [*clusters(2).tables.specs()]:
        if name.startswith("predict."):
            clusters(2).tables.delete(name)


@pytest.mark.parametrize("running", [True, False])
def test_bad_input_is_one_line(
    running: bool,
    small_graph: SmallGraph,
    clusters: Clusters,
    saved: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:
    folder = str(saved["sage"][0])
    (tmp_path / "ids.txt").write_text("3\nx\n")
    (tmp_path / "unknown.txt").write_text("123456789\n")
    (tmp_path / "pairs.txt").write_text("{} {}\n".format(*small_graph.ids[:2]))
    for name in ("other", "cut", "labels"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "mine.txt").write_text("")
    (tmp_path / "cut" / BEST).write_bytes((Path(folder) / BEST).read_bytes()[:-100])
    of_labels = torch.load(Path(folder) / BEST, weights_only=True)
    of_labels["shape"]["task"] = "labels"
    content = io.BytesIO()
    torch.save(of_labels, content)
    (tmp_path / "labels" / BEST).write_bytes(seal(content.getvalue()))
    checkpoint(tmp_path / "wide", "sage", 2, channels=17)
    there, out, run = f"--cluster {clusters(1).addresses[0]}", "--out out", f"--checkpoint {folder}"
    if not running:  # all of it is refused before daemons are started
        there = f"--data {small_graph.dataset(1, 'random')}"
        monkeypatch.setattr(atta, "local", None)
    monkeypatch.chdir(tmp_path)
    for options, words in [
        (f"{there} {out} --checkpoint wide", "expects 17 features per vertex, this data has 16"),
        (f"{there} {out} --checkpoint none", "there is no such file or folder"),
        (f"{there} {out} --checkpoint cut", "checksum"),
        (f"{there} {out} --checkpoint labels --what classes", "--task labels"),
        (f"{there} {out} {run} --split trian", "did you mean 'train'"),
        (f"{there} {out} {run} --split train --ids ids.txt", "not both"),
        (f"{there} {out} {run} --ids ids.txt", "whole numbers"),
        (f"{there} {out} {run} --ids unknown.txt", "123456789"),
        (f"{there} --out other {run}", "other files"),
        (f"{there} {run}", "--out"),
        (f"{out} {run}", "--data"),
        (f"{there} {out} {run} --what score", "score"),
        (f"{there} {out} {run} --links ids.txt", "2 per line"),
        (f"{there} {out} {run} --links missing.npy", "missing.npy"),
        (f"{there} {out} {run} --links pairs.txt --what classes", "no classes"),
        (f"{there} {out} {run} --links x --node-type node", "--node-type"),
        (f"{there} {out} {run} --links x --split train", "--links"),
        (f"{there} {out} {run} --mode sampled", "--num-neighbors"),
        (f"{there} {out} {run} --mode sampled --num-neighbors 2,0", "2,0"),
        (f"{there} {out} {run} --mode sampled --num-neighbors 2,2,2", "3 fan-outs for 2"),
        (f"--data x --table t {run}", "--cluster"),
    ]:
        if running or words != "other files":  # which run wrote them, daemons must say
            assert words in refused("predict", *options.split())


def test_unknown_ids_and_splits_are_told_before_layers_are_tried(clusters: Clusters) -> None:
    class Untried(torch.nn.Module):
        def forward(self, *_: Any) -> torch.Tensor:
            pytest.fail("a layer is tried")

    for nodes, words in (([123456789], "123456789"), ("trian", "did you mean 'train'")):
        with pytest.raises(ConfigError, match=words):
            atta.predict(clusters(1), [Untried()], nodes)
    with pytest.raises(ConfigError, match="123456789"):
        atta.predict(clusters(1), [Untried()], links=[[123456789, 123456789]])


def test_a_folder_of_other_predictions_is_refused(clusters: Clusters, saved: Any, tmp_path: Path) -> None:
    folder = saved["sage"][0]
    atta.predict(clusters(1), folder, "train", out=tmp_path / "out", format="npy")
    for other, words in [({"what": "classes"}, "what"), ({"nodes": "val"}, "split or --ids"), ({"files": 7}, "files")]:
        with pytest.raises(ConfigError, match=rf"other predictions, which differ in --{words}: give"):
            atta.predict(clusters(1), folder, **{"nodes": "train", "out": tmp_path / "out", "format": "npy", **other})
    out: Any = {"out": tmp_path / "out", "format": "npy"}
    with pytest.raises(ConfigError, match=r"other predictions, which differ in the model: give"):
        atta.predict(clusters(1), saved["gat"][0], "train", **out)
    before = sorted((file, file.read_bytes()) for file in (tmp_path / "out").iterdir())
    with pytest.raises(atta.errors.UnknownNameError, match="unknown split 'trian'"):
        atta.predict(clusters(1), folder, "trian", **out, overwrite=True)
    assert sorted((file, file.read_bytes()) for file in (tmp_path / "out").iterdir()) == before
    atta.predict(clusters(1), saved["gat"][0], "train", **out, overwrite=True)
    assert [np.load(file).dtype.names for file in (tmp_path / "out").glob("*.npy")] == [("id", "embedding")]


@pytest.mark.parametrize(
    "models",
    [
        [SAGEConv(4, 2), SAGEConv(4, 2, normalize=True)],
        [GATConv(4, 2), GATConv(4, 2, negative_slope=0.7), GATConv(4, 2, add_self_loops=False)],
        [GraphConv(4, 2), GraphConv(4, 2, aggr="max")],
        [torch.nn.Sequential(torch.nn.Dropout(0.5)), torch.nn.Sequential(torch.nn.AlphaDropout(0.5))],
    ],
)
def test_models_of_the_same_weights_and_other_settings_are_different_ones(models: list[Any]) -> None:
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    assert len({digest_of([model]) for model in models}) == len(models)
    assert digest_of([models[0].eval()]) == digest_of([copy.deepcopy(models[0]).train()])


def test_models_that_do_not_fit_are_refused(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters(1)
    sage = SAGEConv(16, 5)
    for layers, words in [
        (
            [sage, SAGEConv(6, 3)],
            r"layer 2 \(SAGEConv\) does not take rows of 5 numbers: called as layer\(\(x, x\[:n\]\), ",
        ),
        ([sage, "relu"], "not a torch module"),
        ([torch.nn.ReLU()], "at least one layer"),
        ([GCNConv(16, 3, aggr="max")], "takes aggr='add' and flow='source_to_target'"),
        ([GCNConv(16, 3, flow="target_to_source")], "takes aggr='add' and flow='source_to_target'"),
        (
            [sage, torch.nn.Softmax(0)],
            r"layer 2 \(Softmax\) gives a vertex rows that depend on the other rows of the block",
        ),
        ([APPNP(5, 0.1)], "reads more than the in-edges of a vertex within 4 hops"),
        ([sage, SGConv(5, 3, cached=True)], r"layer 2 \(SGConv\): cached=True of SGConv keeps"),
    ]:
        with pytest.raises(ConfigError, match=words):
            atta.predict(cluster, layers, edge_tables={})
    for tables, error in [
        ({"edge_weight": "wieght"}, "did you mean 'weight'"),
        ({"edge_wieght": "weight"}, "edge_tables: no layer takes edge_wieght"),
        (["weight"], "must be such as"),
        (None, r"takes edge_weight, and edges have weight.*edge_tables=\{\} for nothing"),
    ]:
        with pytest.raises(AttaError, match=error):
            atta.predict(cluster, [GCNConv(16, 3)], edge_tables=tables)
    with pytest.raises(ConfigError, match="edge_tables: go with layers of your own"):
        atta.predict(cluster, tmp_path / "any", edge_tables={"edge_weight": "weight"})
    with pytest.raises(ConfigError, match="layers, first to last, as a list"):
        atta.predict(cluster, GraphSAGE(16, 8, 2))
    wrongs: list[dict[str, Any]] = [{"mode": "sampled"}, {"num_neighbors": 3}, {"num_neighbors": [0]}, {"files": 0}]
    for wrong in (*wrongs, {"batch_size": 0}, {"device": "cuda:77"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            atta.predict(cluster, [SAGEConv(16, 3)], **wrong)
    with pytest.raises(ConfigError, match="no embeddings"):
        atta.predict(cluster, checkpoint(tmp_path / "one", "sage", layers=1)[0])
    checkpoint(tmp_path / "wide", "sage", 2, channels=17)
    with pytest.raises(DataError, match="17 features per vertex, this data has 16"):
        atta.predict(cluster, tmp_path / "wide")
    with pytest.raises(ConfigError, match="only a part"):
        atta.predict(cluster, tmp_path / "wide", rank=0, world_size=2)
    with pytest.raises(AttaError, match="empty"):
        atta.predict(cluster, [SAGEConv(16, 5)], [])


def test_weights_lie_beside_the_checkpoint_for_other_programs(saved: Any) -> None:
    folder, gnn = saved["gat"]
    expected = gnn.state_dict()
    with safe_open(folder / BEST_WEIGHTS, "np") as file:
        about = {"model": "gat", "hidden": "8", "heads": "2", "depth": "3", "epoch": "3"}
        assert file.metadata().items() >= about.items()
        assert set(file.keys()) == expected.keys()
        for name, weight in expected.items():
            np.testing.assert_array_equal(file.get_tensor(name), weight.numpy())
