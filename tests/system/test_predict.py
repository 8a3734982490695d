"""Predictions of `atta inspect` for batches equal the daemons' counts, and it draws the vertices and edges of a batch. A
profile that real daemons measure has exact counts."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import atta
from atta.cli.graphs.tree import MOST_LINES, DrawnTree, SampledVertex, draw_tree, sample_tree
from atta.cli.main import cli
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import Dataset, GraphWriter, partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph.strings import to_rows
from atta.samplers.local.predict import predict
from atta.simulate import measure as measuring
from atta.simulate.cluster import simulate
from atta.simulate.consumers import Consumers
from atta.simulate.measure import measure
from atta.simulate.profile import Profile, load_profile, save_profile
from atta.simulate.scenario import BatchModel, Scenario
from atta.simulate.traced import profile_of_trace
from atta.train.planning.count import Question, count_sizes, open_servers
from tests.system.conftest import SmallGraph


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, n, m = np.random.default_rng(3), 5000, 40_000
    folder = tmp_path_factory.mktemp("predict")
    with GraphWriter(folder / "graph") as out:
        tables = {"x": rng.random((n, 8), dtype=np.float32)}
        out.add_nodes("item", n, tables=tables, splits={"train": rng.permutation(n)[:250]})
        out.add_nodes("tag", 1000, tables={"x": rng.random((1000, 2), dtype=np.float32)})
        src = rng.integers(0, n, m)
        dst = np.where(rng.random(m) < 0.8, src // 500 * 500 + rng.integers(0, 500, m), rng.integers(0, n, m))
        out.add_edges("item__near__item", np.concatenate([src, dst]), np.concatenate([dst, src]))
        out.add_edges("tag__on__item", rng.integers(0, 1000, 9000), rng.integers(0, n, 9000))
    return folder / "graph"


@pytest.mark.parametrize("method", [pytest.param("ldg", marks=pytest.mark.slow), "random"])
def test_prediction_is_within_a_tenth_of_a_real_run(graph: Path, tmp_path: Path, method: str) -> None:
    partition_graph(graph, tmp_path / "d", parts=2, method=method)
    dataset = Dataset.open(tmp_path / "d")
    predicted = predict(dataset, [8, 4], batch_size=40, batches=60)
    with atta.local(tmp_path / "d", threads=1, options=("--cache-share", "0", "--no-share-pulls")) as cluster:
        for prediction in predicted:
            rows, data, frontier, sizes = [], [], [], []
            loader = atta.NeighborLoader(
                cluster, [8, 4], ("item", "train"), batch_size=40, shuffle=True, rank=prediction.part, world_size=2,
                drop_last=True,
            )  # fmt: skip
            for _ in range(20):
                for batch in loader:
                    sizes.append(batch.num_nodes)
                    rows.append(batch.stats["remote_rows"])
                    frontier.append(batch.stats["remote_frontier"])
                    data.append(sum(
                        table["x"][~np.isin(batch.n_id(t), dataset.ids(t)[slice(*dataset.book.range(t, prediction.part))])].nbytes
                        for t, table in batch.tables.items()
                    ))  # fmt: skip
            for counted, (mean, error) in [
                (sizes, prediction.rows),
                (rows, prediction.remote_rows),
                (data, prediction.remote_bytes),
                (frontier, prediction.remote_frontier),
            ]:
                assert abs(mean / np.mean(counted) - 1) < 0.1
                assert 0 <= error < 0.1 * mean


def test_prediction_without_remote_rows_and_wrong_arguments(graph: Path, tmp_path: Path) -> None:
    partition_graph(graph, tmp_path / "d", parts=1, method="random")
    dataset = Dataset.open(tmp_path / "d")
    (only,) = predict(dataset, [5, 5], batch_size=10, batches=2)
    assert only.remote_rows == (0.0, 0.0)
    assert only.halo_per_hop == (0.0, 0.0)
    for wrong in ({"batch_size": 0}, {"batches": 0}):
        with pytest.raises(ConfigError):
            predict(dataset, [5], **wrong)
    with pytest.raises(ConfigError):
        predict(dataset, [-2])


def test_command_line(graph: Path, tmp_path: Path) -> None:
    runner, out, picture = CliRunner(), tmp_path / "c.json", tmp_path / "c.png"
    pytest.importorskip("matplotlib")
    arguments = ["partition", str(graph), str(tmp_path / "d"), "--parts", "3", "--compare", "ldg,block,random"]
    arguments += ["--num-neighbors", "5,5", "--json", str(out), "--plot", str(picture)]
    done = runner.invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = {e["method"]: e for e in json.loads(out.read_text())["methods"]}
    assert found["ldg"]["edge_cut"] < found["random"]["edge_cut"]
    assert found["ldg"]["remote_rows"] < found["random"]["remote_rows"]
    assert picture.stat().st_size > 1000
    assert "HALO" in done.output
    done = runner.invoke(cli, ["inspect", str(tmp_path / "d" / "ldg"), "--num-neighbors", "5,5", "--json", str(out)])
    assert done.exit_code == 0
    assert "Predicted" in done.output
    assert len(json.loads(out.read_text())["prediction"]["parts"]) == 3
    for wrong, words in [
        (["inspect", str(graph), "--num-neighbors", "5"], "partitioned dataset"),
        (["partition", str(graph), str(tmp_path / "e"), "--parts", "2", "--json", "-"], "--compare"),
        (["partition", str(graph), str(tmp_path / "e"), "--parts", "2", "--method", "ldg:x"], "KEY=VALUE"),
    ]:
        done = runner.invoke(cli, wrong)
        assert done.exit_code != 0
        assert words in done.output or words in str(done.exception)


# -- profiles ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, n, m = np.random.default_rng(3), 5000, 40_000
    folder = tmp_path_factory.mktemp("measure")
    with GraphWriter(folder / "graph") as out:
        tables = {"x": rng.random((n, 8), dtype=np.float32)}
        out.add_nodes("node", n, tables=tables, splits={"train": rng.permutation(n)[:400]})
        src = rng.integers(0, n, m)
        dst = np.where(rng.random(m) < 0.8, src // 500 * 500 + rng.integers(0, 500, m), rng.integers(0, n, m))
        out.add_edges("node__to__node", np.concatenate([src, dst]), np.concatenate([dst, src]))
    partition_graph(folder / "graph", folder / "data", parts=2, method="ldg")
    return folder / "data"


def check(profile: Profile, data: Path) -> None:
    dataset = Dataset.open(data)
    predicted = predict(dataset, [8, 4], batch_size=40, batches=60)
    assert profile.parts == 2
    assert profile.epoch_seeds == 400
    assert profile.row_bytes == pytest.approx(32)
    assert profile.mean_degree == pytest.approx(16)
    assert sum(hop.new for hop in profile.hops) == pytest.approx(np.mean([p.rows[0] for p in predicted]), rel=0.1)
    remote = sum(hop.new * (1 - hop.home) for hop in profile.hops)
    assert remote == pytest.approx(np.mean([p.remote_rows[0] for p in predicted]), rel=0.15)
    assert set(profile.remote) == {"neighborhood", "feature"}
    assert profile.remote["feature"].answer_bytes == pytest.approx(1.0)
    assert profile.local["neighborhood"].us_per_unit + profile.local["neighborhood"].fixed_us > 0
    outcome = simulate(Scenario(profile, batches=5, share_pulls=False))
    assert outcome.seeds_per_s > 0
    assert outcome.link_bytes_per_batch > remote * 32


@pytest.mark.slow
def test_a_dataset(data: Path, tmp_path: Path) -> None:
    profile = measure(data, batch_size=40, fan_outs=(8, 4), epochs=2)
    check(profile, data)
    remote = sum(hop.new * (1 - hop.home) for hop in profile.hops)
    wanted = sum(number * rows for number, rows in enumerate(profile.repeats, start=1))
    assert wanted / len(profile.repeats) == pytest.approx(remote, rel=0.1)
    assert profile.degree == pytest.approx(17, rel=0.05)  # of vertices reached in proportion to their degree
    for batch_size, fan_outs in ((20, (4, 2)), (40, (16, 4))):
        other = BatchModel(Scenario(profile, batch_size=batch_size, fan_outs=fan_outs)).hops
        predicted = predict(Dataset.open(data), list(fan_outs), batch_size=batch_size, batches=60)
        expected = np.mean([p.remote_rows[0] for p in predicted])
        assert sum(hop.new * (1 - hop.home) for hop in other) == pytest.approx(expected, rel=0.15)
    save_profile(tmp_path / "p.json", profile)
    assert load_profile(tmp_path / "p.json") == profile


CACHE = ("--cache", "8MiB", "--cache-share", "20")
RECENT = (*CACHE, "--cache-rank", "recent")
WAYS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plain": ({}, ()),
    "sums": ({"aggregate": "mean"}, ()),
    "cached sums": ({"aggregate": "mean"}, CACHE),
    "dependent": ({"method": "labor", "dependency": 16}, (*RECENT, "--window", "0")),
    "dependent, ahead": ({"method": "labor", "dependency": 16}, (*RECENT, "--window", "4")),
}


@pytest.fixture(scope="module")
def powerlaw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("powerlaw")
    generate("powerlaw", folder / "graph", GenerateOptions(nodes=20_000, edges=400_000, features=32, train=0.1))
    partition_graph(folder / "graph", folder / "data", parts=2, method="ldg")
    return folder / "data"


def rows_asked(data: Path, loader: dict[str, Any], daemon: tuple[str, ...]) -> float:
    """Mean of the batches of two slow trainers, after two epochs."""
    asked: list[float] = []

    def train(rank: int) -> None:
        about = {"batch_size": 128, "shuffle": True, "rank": rank, "world_size": 2, "seed": 7}
        edge_ids = "aggregate" not in loader
        batches = atta.NeighborLoader(cluster, [10, 5], "train", epochs=5, edge_ids=edge_ids, **about, **loader)
        for epoch in range(5):
            for batch in batches:
                time.sleep(2e-3)
                if epoch > 1:
                    asked.append(batch.stats["remote_rows"])

    options = daemon or ("--cache-share", "0")
    with atta.local(data, threads=1, options=options) as cluster, ThreadPoolExecutor(2) as pool:
        list(pool.map(train, range(2)))
    return float(np.mean(asked))


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.slow] * (way in ("plain", "cached sums", "dependent"))) for way in WAYS],
)
def test_rows_asked_are_those_of_other_runs(powerlaw: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, daemon = WAYS[way]
    of_runs = measuring._runs
    monkeypatch.setattr(measuring, "_runs", lambda *how: [of_runs(*how)[0], of_runs(*how)[-1]])
    profile = measure(powerlaw, batch_size=128, fan_outs=(10, 5), loader=loader, daemon=daemon)
    assert (profile.window, profile.aggregate) == (4 if "ahead" in way else 0, loader.get("aggregate", ""))
    assert (profile.summed < 0.9) == ("sums" in way)
    assert bool(profile.repeats) == ("dependent" not in way)
    simulated = simulate(Scenario(profile, batches=7, train_s=2e-3, lockstep=False))
    asked = rows_asked(powerlaw, loader, daemon)
    assert simulated.rows_per_batch == pytest.approx(asked, rel=0.25)
    if not daemon:  # `atta plan` counts them without daemons
        question = Question(2, 1, 2, num_neighbors=(10, 5), batch_size=128, co_batches=(), sums=way == "sums")
        batch = count_sizes(open_servers(Dataset.open(powerlaw), 2), question).mini_batch
        assert batch is not None
        assert batch.crossing == pytest.approx(asked, rel=0.25)


def test_what_cannot_be_measured_is_refused(data: Path) -> None:
    with pytest.raises(AttaError):
        measure(data, batch_size=40, fan_outs=(8,), split="absent")


def test_consumers_take_what_they_are_told_and_say_what_went_wrong(data: Path) -> None:
    loader = {"num_neighbors": [8, 4], "input_nodes": "train", "batch_size": 40, "world_size": 2}
    ranks = [{**loader, "rank": rank} for rank in range(2)]
    with atta.local(data, threads=1) as cluster:
        target = str(cluster.cluster_file)
        with Consumers(target, ranks) as consumers:
            begun = [*consumers._processes]
            assert len(begun) == 2
            whole = consumers.take(3)
            assert whole.batches == 3 * 2 * 5
            assert whole.cpu_s > 0
            assert consumers.take(2, 1, alone=True).batches == 2 * 2
        assert all(child.poll() is not None for child in begun)
        absent = [{**ranks[0], "input_nodes": "absent"}, ranks[1]]
        with Consumers(target, absent) as consumers, pytest.raises(AttaError, match=r"a consumer: .*absent"):
            consumers.take(1)
        with Consumers(target, ranks) as consumers:
            consumers.take(1)
            for child in consumers._processes:
                child.kill()
            with pytest.raises(AttaError, match="ended early, with exit code -9"):
                consumers.take(1)


def test_a_trace_tells_the_same_sizes(data: Path, tmp_path: Path) -> None:
    """The recordings of a job's daemons, next to measurement and prediction."""
    target = tmp_path / "trace.json"
    with atta.local(data, threads=1, options=("--cache-share", "0", "--no-share-pulls")) as cluster:
        for rank in range(2):
            for _ in atta.NeighborLoader(
                cluster, [8, 4], "train", batch_size=40, shuffle=True, rank=rank, world_size=2
            ):
                pass
        subprocess.run(
            [sys.executable, "-m", "atta.cli.main", "trace", "--cluster", str(cluster.cluster_file), "--out", str(target)],
            check=True, timeout=60, capture_output=True,
        )  # fmt: skip
    profile = profile_of_trace(target)
    assert profile.batch_size == 40
    assert profile.fan_outs == (8, 4)
    assert profile.cores == os.cpu_count()
    check(dataclasses.replace(profile, epoch_seeds=400), data)


# -- a batch that is drawn ---------------------------------------------------------------------------------------------


def text_of(drawn: DrawnTree) -> list[str]:
    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        console.print(draw_tree(drawn))
    return captured.get().splitlines()


def test_the_command_draws_a_batch(small_graph: SmallGraph, tmp_path: Path) -> None:
    path, vertex = small_graph.dataset(2, "random"), int(small_graph.train_ids[5])
    command = ["inspect", str(path), "--sample", str(vertex), "--num-neighbors", "3,2"]
    done = CliRunner().invoke(cli, [*command, "--json", str(tmp_path / "t.json")], catch_exceptions=False)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].startswith(f"{vertex}  part ")
    found: dict[str, Any] = json.loads((tmp_path / "t.json").read_text())
    with atta.local(path, threads=1) as cluster:
        (batch,) = atta.NeighborLoader(cluster, [3, 2], [vertex])
    ids = batch.n_id()
    assert [v["label"] for v in found["vertices"]] == [str(i) for i in ids]
    assert found["edges"] == batch.edge_index().T.tolist()
    dataset = Dataset.open(path, verify=False)
    owners = dataset.book.owner("node", dataset.to_internal("node", ids))
    assert [v["owner"] for v in found["vertices"]] == owners.tolist()
    hops = np.repeat(np.arange(3), batch.num_sampled_nodes())
    assert [v["hop"] for v in found["vertices"]] == hops.tolist()
    assert len(lines) == 1 + len(found["edges"])
    assert {f"part {owner}" for owner in owners} == {"part " + line.split("part ")[1].split()[0] for line in lines}


def test_typed_graphs_with_string_ids(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("paper", 3)
        out.add_nodes("author", 2, tables={"name": to_rows(np.array(["bob", "[al]"]))})
        out.add_edges("author__writes__paper", [0, 1], [2, 2])
        out.add_edges("paper__cites__author", [0], [0])
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=2, method="random")
    drawn = sample_tree(tmp_path / "data", "paper:2", [-1, -1])
    assert sorted(v.label for v in drawn.vertices) == ["author:[al]", "author:bob", "paper:0", "paper:2"]
    assert drawn.vertices[0].label == "paper:2"
    lines = text_of(drawn)
    assert len(lines) == 4
    assert any("author:[al]" in line for line in lines)
    assert sample_tree(tmp_path / "data", "author:bob", [-1]).vertices[1].label == "paper:0"
    for vertex, error, words in [
        ("2", ConfigError, "as in author:2; there are author, paper"),
        ("paper:x", ConfigError, "whole numbers"),
        ("author:eve", UnknownNameError, "'eve'"),
        ("paper:9", ConfigError, "9 is not a vertex"),
    ]:
        with pytest.raises(error, match=words):
            sample_tree(tmp_path / "data", vertex, [-1])


def test_a_vertex_that_two_have_drawn_is_expanded_once() -> None:
    vertices = [SampledVertex(name, hop, 0) for name, hop in [("a", 0), ("b", 1), ("c", 1), ("d", 2)]]
    lines = text_of(DrawnTree(vertices, [(1, 0), (2, 0), (2, 1), (3, 2), (0, 2)]))
    assert [line.split("part")[0].strip(" │├└─") for line in lines] == ["a", "b", "c", "c", "d", "a"]
    assert sum("see above" in line for line in lines) == 2


def test_a_large_tree_is_cut() -> None:
    vertices = [SampledVertex(str(i), min(i, 1), i % 3) for i in range(500)]
    lines = text_of(DrawnTree(vertices, [(i, 0) for i in range(1, 500)]))
    assert len(lines) == MOST_LINES + 1
    assert "500 vertices, 499 edges" in lines[-1]
