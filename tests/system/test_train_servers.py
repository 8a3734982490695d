"""``full`` and ``cooperative`` with real daemons: the whole graph's losses, repeatable runs, named failures."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCN

import atta
from atta.client.watch import Watch
from atta.errors import ConfigError
from atta.observe.figures import JobFigures, of_all_layers
from atta.partition import Graph, partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.train import EpochReport, TrainConfig, TrainReport, fit
from atta.train.cooperative import subgraphs as servers
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.shares import divide
from atta.train.cooperative.trainer import ServerTrainer
from atta.train.launching import worker
from atta.train.launching.failure import first_cause
from tests.addresses import held_port
from tests.masks import Masks, of_rows

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

CLASSES, CHANNELS, VERTICES = 4, 12, 600
TRAINING = 240


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("servers") / "graph"
    shares = {"train": 0.4, "val": 0.2, "test": 0.4}
    sizes = {"nodes": VERTICES, "edges": 6000, "features": CHANNELS, "classes": CLASSES, "seed": 3}
    generate("sbm", folder, GenerateOptions(**sizes, **shares, inter=0.3, signal=0.5))  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def cluster(graph: Path) -> Iterator[str]:
    """Two daemons for all runs. ``test_train`` has a run that starts its own."""
    partition_graph(graph, graph.parent / "parts", parts=2, method="metis", seed=0)
    with atta.local(graph.parent / "parts", threads=1) as running:
        yield str(running.cluster_file)


@pytest.fixture(scope="module")
def config(cluster: str) -> TrainConfig:
    """Two servers of two trainers."""
    return TrainConfig(
        cluster=cluster, strategy="full", trainers=4, trainers_per_server=2, model="gcn", layers=2, hidden=16,
        dropout=0.0, seed=1, device="cpu", verbose=False,
    )  # fmt: skip


def whole_graph(graph: Path, config: TrainConfig) -> tuple[list[float], list[float]]:
    """Losses of each epoch, and test accuracies after it, of PyG's model on the whole graph in this process.

    Its dropout has the masks of the oracle.
    """
    opened = Graph.open(graph)
    x = torch.from_numpy(np.array(opened.table("node", "x"))).float()
    y = torch.from_numpy(np.array(opened.table("node", "y"))).long().reshape(-1)
    train, test = (torch.from_numpy(np.array(opened.split("node", s))).long() for s in ("train", "test"))
    found = opened.edges(opened.schema.edge_types[0])
    edges = torch.from_numpy(np.stack([np.array(found.src), np.array(found.dst)]).astype(np.int64))
    torch.manual_seed(config.seed)
    model = GCN(CHANNELS, config.hidden, config.depth, CLASSES, dropout=config.dropout)
    masks, places = Masks(config.seed, edges.numpy(), VERTICES), of_rows(config.depth) if config.dropout else []
    optimizer = torch.optim.Adam(model.parameters(), config.lr)
    losses, accuracies = [], []
    for epoch in range(config.epochs):
        optimizer.zero_grad()
        with masks.instead_of_torch(epoch, places):
            loss = torch.nn.functional.cross_entropy(model.train()(x, edges)[train], y[train])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        accuracies.append((model.eval()(x, edges)[test].argmax(1) == y[test]).float().mean().item())
    return losses, accuracies


def trained_as_the_whole_graph(config: TrainConfig, graph: Path) -> TrainReport:
    report = fit(config)
    losses, accuracies = whole_graph(graph, config)
    assert [e.loss for e in report.epochs] == pytest.approx(losses, rel=1e-4)
    for epoch, expected in zip(report.epochs, accuracies, strict=True):
        assert epoch.test_accuracy is None or epoch.test_accuracy == pytest.approx(expected, abs=2.5 / TRAINING)
    return report


def test_full_is_the_whole_graph_in_one_process(config: TrainConfig, graph: Path) -> None:
    report = trained_as_the_whole_graph(replace(config, epochs=6, eval_every=3), graph)
    assert [e.test_accuracy is None for e in report.epochs] == [True, True, False] * 2
    assert report.to_json()["evaluation"] == "exact closure of 2 hops"
    for epoch in report.epochs:
        spent = epoch.breakdown
        assert list(spent) == ["sample", "fetch", "copy", "compute", "exchange", "sync", "external"]
        assert all(seconds >= 0 for seconds in spent.values())
        assert sum(spent.values()) <= epoch.seconds * 1.01
        assert spent["compute"] > 0
        assert spent["external"] > 0
        assert (spent["sample"] > 0) == (epoch.epoch == 0)  # extracted once, then resident
        assert (epoch.remote_bytes > 0) == (epoch.epoch == 0)
        assert epoch.steps == 1
        assert epoch.seeds_per_s * epoch.seconds == pytest.approx(TRAINING)
        assert epoch.exchanged_bytes > 0
        assert epoch.crossed_bytes == 0  # a server is a machine
        assert len(epoch.peak_memory_bytes) == 4
        assert min(epoch.peak_memory_bytes) > 1 << 20


def test_exchange_is_the_whole_graph_and_computes_no_row_twice(config: TrainConfig, graph: Path) -> None:
    config = replace(config, strategy="exchange", epochs=6, eval_every=3)
    report = trained_as_the_whole_graph(config, graph)
    assert report.to_json()["evaluation"] == "whole graph"
    edges = Graph.open(graph).edges(Graph.open(graph).schema.edge_types[0])
    row = 2 * config.hidden * 4  # of the hidden layer, there and back
    for epoch in report.epochs:
        assert epoch.edges_per_s * epoch.seconds == pytest.approx(len(np.array(edges.src)))  # each edge once
        assert 0 < epoch.crossed_bytes < epoch.exchanged_bytes
        assert epoch.crossed_bytes % row == 0
        assert epoch.crossed_bytes <= 2 * VERTICES * row  # both trainers of the other server may read a vertex
        assert (epoch.remote_bytes > 0) == (epoch.epoch == 0)  # HALO features come once


@pytest.mark.parametrize("trainers", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_dropout_between_servers_is_that_of_one_process(config: TrainConfig, graph: Path, trainers: int) -> None:
    config = replace(config, strategy="exchange", trainers=trainers, trainers_per_server=trainers // 2)
    trained_as_the_whole_graph(replace(config, dropout=0.5, epochs=6, eval_every=3), graph)


def accuracy_in_one_process(graph: Path, config: TrainConfig, split: str) -> float:
    """Of the checkpointed model, on the whole graph."""
    assert config.checkpoint is not None
    opened = Graph.open(graph)
    x, y = (torch.from_numpy(np.array(opened.table("node", name))) for name in ("x", "y"))
    members = torch.from_numpy(np.array(opened.split("node", split))).long()
    found = opened.edges(opened.schema.edge_types[0])
    edges = torch.from_numpy(np.stack([np.array(found.src), np.array(found.dst)]).astype(np.int64))
    model = GCN(CHANNELS, config.hidden, config.depth, CLASSES)
    model.load_state_dict(torch.load(Path(config.checkpoint) / "checkpoint.pt", weights_only=True)["model"])
    scores = model.eval()(x.float(), edges)[members]
    return float((scores.argmax(1) == y.reshape(-1)[members]).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"strategy": "full"}, {"strategy": "cooperative", "co_batches": 3}],
)
def test_exact_evaluation_of_a_model_trained_on_samples(
    config: TrainConfig, graph: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    sampled = replace(config, epochs=4, eval_every=2, eas=(0, 1), dropout=0.3, checkpoint=str(tmp_path), **options)
    trained, exact = fit(sampled), fit(replace(sampled, eval="exact"))
    assert [e.loss for e in exact.epochs] == [e.loss for e in trained.epochs]  # training is the same
    assert [e.exchanged_bytes for e in exact.epochs] == [e.exchanged_bytes for e in trained.epochs]
    assert [e.remote_bytes for e in exact.epochs] == [e.remote_bytes for e in trained.epochs]
    assert exact.to_json()["evaluation"] == "whole graph"
    last = exact.epochs[-1]
    assert last.val_accuracy == pytest.approx(accuracy_in_one_process(graph, sampled, "val"), abs=1.5 / TRAINING)
    assert last.test_accuracy == pytest.approx(accuracy_in_one_process(graph, sampled, "test"), abs=1.5 / TRAINING)
    assert last.test_accuracy != trained.epochs[-1].test_accuracy
    assert [e.eval_bytes for e in exact.epochs[::2]] == [0, 0]
    row = config.hidden * 4
    assert last.eval_bytes > 0
    assert last.eval_bytes % row == 0
    assert exact.epochs[1].eval_bytes - last.eval_bytes > 0  # features of the same server travel once
    exchanged = fit(replace(config, strategy="exchange", epochs=1)).epochs[0]
    assert exact.epochs[1].eval_bytes == exchanged.eval_bytes


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["exchange", "pipegcn", "digest", "sancus"])
def test_a_daemon_shows_a_running_job(config: TrainConfig, strategy: str) -> None:
    own: dict[str, dict[str, Any]] = {
        "sancus": {"warmup": 0, "bound": "epoch", "eps": 1},
        "digest": {"sync_every": 2, "phase": "early"},
    }
    config = replace(config, strategy=strategy, epochs=100, eval_every=100, layers=3, **own.get(strategy, {}))
    seen: dict[tuple[str, int, str], JobFigures] = {}
    with Watch(str(config.cluster)) as watch, ThreadPoolExecutor(1) as pool:
        running = pool.submit(fit, config)
        while not running.done():
            seen |= {(job.job, job.epoch, job.direction): job for job in of_all_layers(watch.look()[0].sample.jobs)}
            time.sleep(0.01)
        assert not watch.look()[0].sample.jobs  # the job has ended
    reports = running.result().epochs
    (name,) = {job for job, _, _ in seen}
    assert name.startswith(f"{strategy}-")
    both = {epoch: (seen[name, epoch, "forward"], seen[name, epoch, "backward"]) for _, epoch, _ in seen}
    assert len(both) > 1
    for epoch, (rows, gradients) in both.items():
        if strategy == "digest":  # every second epoch pulls all that it reads
            assert rows.crossed_bytes == (0 if epoch % 2 else rows.rows * 4 * config.hidden)
        else:
            assert rows.crossed_bytes + gradients.crossed_bytes == reports[epoch].crossed_bytes
        assert rows.sent_bytes == rows.crossed_bytes  # rows within a server are counted elsewhere
        assert rows.rows > 0
    late = [pair for epoch, pair in both.items() if epoch >= 2]
    width = 4 * config.hidden
    if strategy == "digest":  # two epochs read what was pushed in the one before them
        assert {(r.age_min, r.age_max) for r, _ in late} == {(1, 1), (2, 2)}
        assert {g.rows for _, g in late} == {0}  # gradients stay where they are
    if strategy == "exchange":
        assert {(r.age_min, r.age_max, r.skipped, r.rows * width == r.sent_bytes) for r, _ in late} == {(0, 0, 0, True)}
    if strategy == "pipegcn":
        assert {(r.age_min, r.age_mean, r.age_max, g.age_min, g.age_max) for r, g in late} == {(1, 1, 1, 1, 1)}
    if strategy == "sancus":
        assert {r.age_max for r, _ in late} == {0, 1}
        assert all((r.broadcasts == 0) != (r.skipped == 0) for r, _ in late)  # all trainers in every second epoch
        assert all((r.age_max == 0) == (r.skipped == 0) for r, _ in late)


@pytest.mark.slow
def test_an_epoch_tells_what_was_read_of_others(config: TrainConfig, tmp_path: Path) -> None:
    """A sum over layers is what the epoch counts in all, and every other epoch after the warm-up sends no rows."""
    config = replace(config, strategy="sancus", layers=3, warmup=2, epochs=6, eval_every=6, checkpoint=str(tmp_path))
    report = fit(config)
    row = 4 * config.hidden
    for epoch in report.epochs:
        assert epoch.rows is not None
        keys = [(layer.layer, layer.direction) for layer in epoch.rows.layers]
        assert keys == [(1, "forward"), (1, "backward"), (2, "forward"), (2, "backward")]
        sends = epoch.epoch in (0, 1, 3, 5)
        for layer in epoch.rows.layers:
            forward = layer.direction == "forward"
            assert layer.age_min == layer.age_mean == layer.age_max == (0 if sends or not forward else 1)
            assert (layer.broadcasts, layer.skipped) == ((4, 0) if sends or not forward else (0, 4))
            assert layer.payload_bytes == (layer.rows * row if sends or not forward else 0)
            assert layer.crossed_bytes == layer.payload_bytes
            assert (layer.pushed_bytes, layer.predicted_error) == (0, None)
        assert sum(layer.crossed_bytes for layer in epoch.rows.layers) == epoch.crossed_bytes
        assert epoch.rows.kept_bytes == sum(
            layer.rows * row for layer in epoch.rows.layers if layer.direction == "forward"
        )
        assert epoch.rows.copied_bytes == 0
    # JSON and checkpoints give back the same figures.
    assert EpochReport.from_dict(json.loads(json.dumps(asdict(report.epochs[-1])))) == report.epochs[-1]
    assert fit(replace(config, resume=True)).epochs == report.epochs


def test_a_server_per_partition(config: TrainConfig) -> None:
    with pytest.raises(ConfigError, match="make 1 server, the dataset has 2 partitions, and each server takes one"):
        fit(replace(config, strategy="exchange", trainers_per_server=None))


def test_stale_rows_of_another_cut_are_refused(config: TrainConfig, graph: Path, tmp_path: Path) -> None:
    """They are of places in a partition, which may have as many vertices."""
    kept = replace(
        config, strategy="pipegcn", trainers=2, trainers_per_server=1, epochs=1, checkpoint=str(tmp_path / "run")
    )
    fit(kept)
    partition_graph(graph, tmp_path / "parts", parts=2, method="random", seed=1)
    with pytest.raises(ConfigError, match=r"rows that were kept are those of dataset \w+, this is \w+: cut in another"):
        fit(replace(kept, cluster=None, data=str(tmp_path / "parts"), resume=True, epochs=2))


def test_cooperative_learns_repeats_and_resumes(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(
        config,
        strategy="cooperative",
        trainers=2,  # one server with both partitions
        co_batches=2,
        model="resgcn+",
        layers=3,
        checkpoint_layers=True,
        dropout=0.2,
        epochs=6,
        eval_every=3,
    )
    through = fit(config).epochs
    assert [e.steps for e in through] == [2] * 6
    assert all(e.seeds_per_s * e.seconds == pytest.approx(TRAINING) for e in through)
    assert all(e.breakdown["sample"] > 0 for e in through)
    assert all(e.exchanged_bytes > 0 for e in through)
    assert through[-1].loss < 0.9 * through[0].loss
    accuracy = through[-1].test_accuracy
    assert accuracy is not None
    assert accuracy > 1.5 / CLASSES
    assert accuracy * TRAINING == pytest.approx(round(accuracy * TRAINING))  # 240 test vertices, each counted once

    first = replace(config, epochs=3, checkpoint=str(tmp_path), resume=True)
    assert len(fit(first).epochs) == 3
    resumed = fit(replace(first, epochs=6)).epochs
    assert [e.loss for e in resumed] == [e.loss for e in through]
    assert [e.test_accuracy for e in resumed] == [e.test_accuracy for e in through]


@pytest.mark.slow
def test_expansion_aware_samples_in_co_batches(config: TrainConfig) -> None:
    config = replace(config, strategy="cooperative", co_batches=2, trainers=2, trainers_per_server=1)
    config = replace(config, model="sage", lr=0.02, eas=(1, 3), resample_every=6, epochs=12, eval_every=12)
    report = fit(config)
    accuracy = report.epochs[-1].test_accuracy
    assert accuracy is not None
    assert accuracy > 1.8 / CLASSES
    assert accuracy * TRAINING == pytest.approx(
        round(accuracy * TRAINING)
    )  # 240 test vertices, each counted by one server
    assert report.to_json()["evaluation"] == "expansion-aware sample, as trained: max_hop 1, fanout 3"
    assert [e.epoch for e in report.epochs if e.remote_bytes > 0] == [0, 6]  # drawn again
    assert [e.steps for e in report.epochs] == [2] * 12


@pytest.mark.slow
@pytest.mark.usefixtures("group")
def test_one_server_with_all_partitions_and_little_memory(config: TrainConfig) -> None:
    def fitted(memory: int) -> list[EpochReport]:
        settings = replace(
            config, strategy="cooperative", trainers=1, trainers_per_server=None, epochs=2, memory=memory
        )
        with atta.connect(str(settings.cluster)) as cluster:
            return ServerTrainer(settings, cluster, torch.device("cpu")).fit()

    epochs = fitted(1 << 20)
    assert epochs[0].steps == 1
    epochs = fitted(400_000)
    assert 1 < epochs[0].steps < TRAINING
    assert epochs[0].steps == epochs[1].steps
    assert epochs[0].breakdown["external"] < 0.1 * epochs[0].seconds  # there is no other server
    assert epochs[-1].loss < math.log(CLASSES)
    assert epochs[-1].test_accuracy is not None
    assert epochs[-1].test_accuracy * TRAINING == pytest.approx(round(epochs[-1].test_accuracy * TRAINING))
    with pytest.raises(atta.ConfigError, match=r"memory=1 KiB: with 240 co-batches, .* needs [0-9]+ KiB"):
        fitted(1000)


@pytest.mark.usefixtures("group")
def test_more_steps_than_training_vertices(config: TrainConfig) -> None:
    settings = replace(config, strategy="cooperative", trainers=1, trainers_per_server=None, co_batches=241)
    with atta.connect(str(settings.cluster)) as cluster:
        trainer = ServerTrainer(settings, cluster, torch.device("cpu"))
        with pytest.raises(atta.ConfigError, match="co-batches=241: a server has only 240 training vertices"):
            trainer.fit()


@pytest.mark.usefixtures("group")
@pytest.mark.slow
def test_co_batches_handed_out_ahead_are_those_of_a_single_trainer(config: TrainConfig) -> None:
    settings = replace(config, strategy="cooperative", co_batches=3, trainers_per_server=None, epochs=3, eval_every=2)
    with atta.connect(str(settings.cluster)) as cluster:
        expected = ServerTrainer(replace(settings, trainers=1), cluster, torch.device("cpu")).fit()
    found = fit(replace(settings, trainers=3)).epochs
    assert [e.loss for e in found] == pytest.approx([e.loss for e in expected], rel=1e-4)
    for mine, single in zip(found, expected, strict=True):
        assert (mine.test_accuracy is None) == (single.test_accuracy is None)
        assert mine.test_accuracy == pytest.approx(single.test_accuracy, abs=2.5 / TRAINING)
        assert sum(mine.breakdown.values()) <= mine.seconds * 1.01


def train_until_a_share_is_wrong(rank: int, folder: str, port: int) -> None:
    """A trainer process that fails when it divides a co-batch for the third time."""
    calls = itertools.count()

    def failing(*arguments: Any, **named: Any) -> Iterator[WorkerView]:
        if next(calls) == 2:
            raise atta.ConfigError("the third co-batch cannot be divided")
        return divide(*arguments, **named)

    servers.divide = failing  # type: ignore[attr-defined]
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os._exit(worker.main(folder))


@pytest.mark.slow
def test_a_failure_ahead_is_reported_with_its_cause(config: TrainConfig, tmp_path: Path) -> None:
    settings = replace(config, strategy="cooperative", co_batches=4, trainers=2)
    with atta.connect(str(settings.cluster)) as cluster:
        task = {"config": settings.to_dict(), "addresses": cluster.addresses}
    (tmp_path / "task.json").write_text(json.dumps(task))
    port = held_port()
    started = torch.multiprocessing.get_context("spawn")
    trainers = [
        started.Process(target=train_until_a_share_is_wrong, args=(rank, str(tmp_path), port)) for rank in range(2)
    ]
    for trainer in trainers:
        trainer.start()
    try:
        for trainer in trainers:
            trainer.join(60)
        assert [trainer.exitcode for trainer in trainers] == [1, 1]
    finally:
        for trainer in trainers:
            trainer.kill()
    cause = first_cause(tmp_path, {0: 1, 1: 1})
    assert type(cause) is atta.ConfigError
    assert str(cause) == "the third co-batch cannot be divided"
    assert "train_epoch" in json.loads((tmp_path / "failure-0.json").read_text())["traceback"]


def test_servers_must_go_with_partitions(config: TrainConfig) -> None:
    with pytest.raises(atta.ConfigError, match="make 4 servers, the dataset has 2 partitions; take --trainers 2 "):
        fit(replace(config, trainers_per_server=1))
