"""``full`` and ``cooperative`` with real daemons: the whole graph's losses, repeatable runs, named failures."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCN

import atta
from atta.client.watch import Watch
from atta.errors import ConfigError
from atta.observe.figures import JobFigures, of_all_layers
from atta.partition import Graph, partition_graph
from atta.partition.dataset import Dataset
from atta.train import EpochReport, TrainConfig, TrainReport, fit
from atta.train.cooperative.trainer import ServerTrainer
from atta.train.exchange.budget import LEVELS
from tests.masks import Masks, of_rows
from tests.system.cuts import descend, weights, whole

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

CLASSES, CHANNELS, VERTICES = 4, 12, 600
TRAINING = 240


@pytest.fixture(scope="module")
def graph(learnable: tuple[Path, atta.LocalCluster]) -> Path:
    return learnable[0]


@pytest.fixture(scope="module")
def config(learnable: tuple[Path, atta.LocalCluster]) -> TrainConfig:
    return TrainConfig(
        cluster=str(learnable[1].cluster_file), strategy="full", trainers=4, trainers_per_server=2, model="gcn",
        layers=2, hidden=16, dropout=0.0, seed=1, device="cpu", verbose=False,
    )  # fmt: skip


def trained_as_the_whole_graph(config: TrainConfig, graph: Path) -> TrainReport:
    """PyG's model on the whole graph in this process has the same losses, and test accuracies after each epoch. Its
    dropout has the masks of the oracle."""
    x, y, edges, splits = whole(graph)
    torch.manual_seed(config.seed)
    model = GCN(CHANNELS, config.hidden, config.depth, CLASSES, dropout=config.dropped)
    masks, places = Masks(config.seed, edges.numpy(), VERTICES), of_rows(config.depth) if config.dropped else []
    accuracies = []

    def loss_of(epoch: int) -> torch.Tensor:
        if epoch:
            accuracies.append(accuracy(model, graph))
        with masks.instead_of_torch(epoch, places):
            return F.cross_entropy(model.train()(x, edges)[splits["train"]], y[splits["train"]])

    losses = descend(model, config.lr, config.epochs, loss_of)
    report = fit(config)
    assert [e.loss for e in report.epochs] == pytest.approx(losses, rel=1e-4)
    for epoch, expected in zip(report.epochs, [*accuracies, accuracy(model, graph)], strict=True):
        assert epoch.test_accuracy is None or epoch.test_accuracy == pytest.approx(expected, abs=2.5 / TRAINING)
    return report


def accuracy(model: torch.nn.Module, graph: Path, split: str = "test") -> float:
    x, y, edges, splits = whole(graph)
    return float((model.eval()(x, edges)[splits[split]].argmax(1) == y[splits[split]]).float().mean())


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


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_exchange_is_the_whole_graph_and_computes_no_row_twice(
    config: TrainConfig, graph: Path, dropout: float
) -> None:
    config = replace(config, strategy="exchange", epochs=6, eval_every=3, dropout=dropout)
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


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"strategy": "full"}, {"strategy": "cooperative", "co_batches": 3}])
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
    model = GCN(CHANNELS, config.hidden, config.depth, CLASSES)
    model.load_state_dict(weights(tmp_path))
    assert last.val_accuracy == pytest.approx(accuracy(model, graph, "val"), abs=1.5 / TRAINING)
    assert last.test_accuracy == pytest.approx(accuracy(model, graph), abs=1.5 / TRAINING)
    assert last.test_accuracy != trained.epochs[-1].test_accuracy
    assert [e.eval_bytes for e in exact.epochs[::2]] == [0, 0]
    row = config.hidden * 4
    assert last.eval_bytes > 0
    assert last.eval_bytes % row == 0
    assert exact.epochs[1].eval_bytes - last.eval_bytes > 0  # features of the same server travel once
    exchanged = fit(replace(config, strategy="exchange", epochs=1)).epochs[0]
    assert exact.epochs[1].eval_bytes == exchanged.eval_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "own"),
    [
        ("exchange", {}),
        ("pipegcn", {}),
        ("digest", {"sync_every": 2, "phase": "early"}),
        ("sancus", {"warmup": 0, "bound": "epoch", "eps": 1}),
    ],
)
def test_a_daemon_shows_a_running_job(config: TrainConfig, strategy: str, own: dict[str, Any]) -> None:
    """The figures of both directions are those that the reports of the epochs have of all layers together."""
    config = replace(config, strategy=strategy, epochs=100, eval_every=100, layers=3, **own)
    seen: dict[tuple[int, str], JobFigures] = {}
    with Watch(str(config.cluster)) as watch, ThreadPoolExecutor(1) as pool:
        running = pool.submit(fit, config)
        while not running.done():
            shown = of_all_layers(watch.look()[0].sample.jobs)
            assert all(job.job.startswith(f"{strategy}-") for job in shown)
            seen |= {(job.epoch, job.direction): job for job in shown}
            time.sleep(0.01)
        assert not watch.look()[0].sample.jobs  # the job has ended
    reports = running.result().epochs
    assert len(seen) > 3
    for (epoch, direction), job in seen.items():
        rows = reports[epoch].rows
        assert rows is not None
        layers = [layer for layer in rows.layers if layer.direction == direction]
        for name in ("rows", "crossed_bytes", "broadcasts", "skipped"):
            assert getattr(job, name) == sum(getattr(layer, name) for layer in layers), name
        ages = [(layer.age_min, layer.age_max) for layer in layers if layer.age_min is not None]
        assert job.age_min == min((least for least, _ in ages), default=None)
        assert job.age_max == max((most for _, most in ages), default=None)
        if strategy == "pipegcn" and epoch >= 2:
            assert (job.age_min, job.age_max) == (1, 1)


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


def test_a_budget_saves_bytes_and_tells_what_it_chose_and_saw(
    config: TrainConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    """It begins exact, bit for bit. What it sends and saves is what exact rows take, beside the exact step."""
    config = replace(config, strategy="exchange", layers=3, epochs=30, eval_every=10, dropout=0.3)
    config = replace(config, trainers=2, trainers_per_server=1)
    plain, report = fit(config).epochs, fit(replace(config, budget=50.0, verbose=True))
    found = report.epochs
    assert [e.loss for e in found[:2]] == [e.loss for e in plain[:2]]
    assert found[2].loss != plain[2].loss
    measured = [e.epoch for e in found if e.rows and e.rows.gradient_errors]
    assert measured == [4]
    for epoch, exact in zip(found, plain, strict=True):
        assert epoch.rows is not None
        assert exact.rows is not None
        assert epoch.rows.allowed_error == 0.5
        again = epoch.epoch in measured
        for layer, plainly in zip(epoch.rows.layers, exact.rows.layers, strict=True):
            assert layer.payload_bytes + layer.saved_bytes == plainly.payload_bytes
            level = max(layer.choices, key=[one.name for one in LEVELS].index)
            if epoch.epoch < 4 or epoch.epoch >= 27:
                assert level == ("exact", "exact", "bf16", "int8")[min(3, epoch.epoch)]
            assert (layer.payload_bytes > plainly.payload_bytes / 2) == (level in ("exact", "bf16") or again)
        assert epoch.crossed_bytes == sum(layer.crossed_bytes for layer in epoch.rows.layers)
    rows = found[4].rows
    assert rows is not None
    errors = rows.gradient_errors
    assert list(errors) == ["convs.0", "convs.1", "convs.2"]
    assert all(0.9 < cosine <= 1 and 0 < error < 0.5 for cosine, error in errors.values())
    assert rows.measure_s > 0
    assert "gradient off by" in capfd.readouterr().err
    assert EpochReport.from_dict(json.loads(json.dumps(asdict(found[4])))) == found[4]
    assert report.best.test_accuracy == pytest.approx(max(e.test_accuracy or 0 for e in plain), abs=0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"strategy": "exchange", "trainers_per_server": None},
            "make 1 server, the dataset has 2 partitions, and each server takes one; take --trainers-per-server 2",
        ),
        ({"trainers_per_server": 1}, "make 4 servers, the dataset has 2 partitions; take --trainers 2 "),
    ],
)
def test_servers_must_go_with_partitions(config: TrainConfig, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit(replace(config, **options))


@pytest.mark.parametrize(
    ("given", "other", "said"),
    [
        pytest.param(
            {"strategy": "sancus", "warmup": 50},
            {"strategy": "exchange"},
            "sancus: warmup=50 with 4 epochs: never skips",
            marks=pytest.mark.slow,
        ),
        (
            {"strategy": "sat", "sync_every": 1, "train_every": 10},
            {"strategy": "digest", "sync_every": 1},
            "sat: train-every=10 and sync-every=1 with 4 epochs: never predicts",
        ),
    ],
)
def test_a_strategy_says_first_that_it_does_what_another_does(
    config: TrainConfig, capfd: pytest.CaptureFixture[str], given: dict[str, Any], other: dict[str, Any], said: str
) -> None:
    config = replace(config, epochs=4, eval_every=4)
    found, wanted = fit(replace(config, verbose=True, **given)).epochs, fit(replace(config, **other)).epochs
    lines = capfd.readouterr().err.partition("\nepoch")[0].splitlines()
    (first,) = (line for line in lines if "warning" in line)
    assert first.startswith(f"warning: {said}")
    assert [e.loss for e in found] == [e.loss for e in wanted]
    assert found[-1].metrics == wanted[-1].metrics


def test_a_cut_that_is_too_large_is_told_by_its_share(
    config: TrainConfig, graph: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    partition_graph(graph, tmp_path / "parts", parts=4, method="random", seed=1)
    cut = Dataset.open(tmp_path / "parts").quality["edge_cut"]
    run = {"cluster": None, "data": str(tmp_path / "parts"), "trainers_per_server": 1, "strategy": "digest"}
    fit(replace(config, epochs=1, verbose=True, **run))
    assert f"warning: digest: {cut:.0%} of the edges are cut" in capfd.readouterr().err


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
        **{"strategy": "cooperative", "trainers": 2, "co_batches": 2},  # one server with both partitions
        **{
            "model": "resgcn+",
            "layers": 3,
            "checkpoint_layers": True,
            "dropout": 0.2,
            "epochs": 4,
            "eval_every": 2,
            "lr": 0.02,
        },
    )
    through = fit(config).epochs
    assert [e.steps for e in through] == [2] * 4
    assert all(e.seeds_per_s * e.seconds == pytest.approx(TRAINING) for e in through)
    assert all(e.breakdown["sample"] > 0 for e in through)
    assert all(e.exchanged_bytes > 0 for e in through)
    assert through[-1].loss < 0.9 * through[0].loss
    accuracy = through[-1].test_accuracy
    assert accuracy is not None
    assert accuracy > 1.5 / CLASSES
    assert accuracy * TRAINING == pytest.approx(round(accuracy * TRAINING))  # 240 test vertices, each counted once

    first = replace(config, epochs=2, checkpoint=str(tmp_path), resume=True)
    assert len(fit(first).epochs) == 2
    resumed = fit(replace(first, epochs=4)).epochs
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
