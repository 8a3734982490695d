"""Training with real daemons and trainers: it learns from the graph, resumes exactly, and says why it failed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import atta
import atta.cli.pictures
from atta.cli.main import cli
from atta.errors import AttaError
from atta.partition import GraphWriter, partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.train import EpochReport, TrainConfig, TrainReport, fit
from atta.train.checkpoint.files import BEST, LAST, load_model
from atta.train.cooperative import DeepGNN
from atta.train.reports.comparison import read_report
from tests.system.cuts import descend, whole

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

CLASSES = 5


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    shares = {"train": 0.2, "val": 0.2, "test": 0.4}
    sizes = {"nodes": 1500, "edges": 24_000, "features": 20, "classes": CLASSES, "seed": 3}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, **shares, inter=0.3, signal=0.5))  # type: ignore[arg-type]
    return folder / "graph"


@pytest.fixture(scope="module")
def dataset(graph: Path) -> Path:
    partition_graph(graph, graph.parent / "parts", parts=2, method="metis", seed=0)
    return graph.parent / "parts"


@pytest.fixture(scope="module")
def config(dataset: Path) -> TrainConfig:
    return TrainConfig(
        data=str(dataset), trainers=2, epochs=10, num_neighbors=(10, 5), batch_size=25, hidden=16, seed=1, device="cpu",
        threads=1, verbose=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def report(config: TrainConfig, dataset: Path) -> TrainReport:
    """Daemons without a cache have to ask each other. The other runs have one, which changes nothing but that."""
    with atta.local(dataset, threads=1, options=("--cache", "0")) as cluster:
        return fit(replace(config, data=None, cluster=str(cluster.cluster_file)))


def test_learns_more_than_the_features_tell(report: TrainReport) -> None:
    best = report.best.test_accuracy
    assert best is not None
    assert best > 2.5 / CLASSES  # a network of two layers that sees no edges comes to 0.28
    assert report.epochs[-1].loss < report.epochs[0].loss


def test_figures_of_an_epoch(report: TrainReport) -> None:
    for number, epoch in enumerate(report.epochs):
        assert epoch.epoch == number
        assert epoch.seconds > 0
        assert epoch.seeds_per_s * epoch.seconds == pytest.approx(300)  # 20 % of 1500, 6 batches for each of 2 trainers
        assert epoch.remote_bytes > 0
        assert epoch.eval_seconds > 0
        spent = epoch.breakdown
        assert all(seconds >= 0 for seconds in spent.values())
        # The sequential phases of one trainer fit into the time of the slowest one.
        assert sum(spent[p] for p in ("wait", "copy", "compute", "sync")) <= epoch.seconds * 1.01
        # Accuracies are counts of 300 and 600 vertices. One of the trainers counts each vertex, once.
        assert epoch.val_accuracy is not None
        assert epoch.test_accuracy is not None
        assert epoch.val_accuracy * 300 == pytest.approx(round(epoch.val_accuracy * 300))
        assert epoch.test_accuracy * 600 == pytest.approx(round(epoch.test_accuracy * 600))


def test_a_resumed_run_repeats_the_curve(
    config: TrainConfig,
    report: TrainReport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    first = replace(config, epochs=2, checkpoint=str(tmp_path), resume=True)
    assert len(fit(first).epochs) == 2
    resumed = fit(replace(first, epochs=4))
    assert [e.loss for e in resumed.epochs] == [e.loss for e in report.epochs[:4]]
    assert [e.test_accuracy for e in resumed.epochs] == [e.test_accuracy for e in report.epochs[:4]]
    with pytest.raises(atta.DataError, match="hidden 16, not 8"):  # a trainer's error keeps its type
        fit(replace(first, hidden=8))
    monkeypatch.setattr(atta, "local", lambda *_, **__: pytest.fail("daemons are started"))
    capfd.readouterr()
    for epochs in (4, 3):
        again = fit(replace(first, epochs=epochs, verbose=True))
        assert again.epochs == resumed.epochs
        assert capfd.readouterr().err == "atta: nothing is left to train: 4 epochs done\n"


def test_a_run_that_begins_anew_leaves_no_best_model_of_another(config: TrainConfig, tmp_path: Path) -> None:
    """The second run has no validation, so no epoch of it is the best: ``atta predict`` takes its last one."""
    here = replace(config, epochs=1, checkpoint=str(tmp_path / "run"), resume=True)
    fit(here)
    fit(here)  # goes on from the end, and keeps its best model
    assert load_model(tmp_path / "run").path.name == BEST
    options = GenerateOptions(nodes=200, edges=1000, features=20, classes=CLASSES, train=0.5, val=0.0, test=0.5)
    generate("sbm", tmp_path / "graph", options)
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=2, method="random", seed=0)
    anew = replace(here, data=str(tmp_path / "parts"), hidden=8, resume=False)
    with pytest.raises(atta.ConfigError, match=f"{tmp_path / 'run'}: holds a run; --resume goes .*, --overwrite"):
        fit(anew)
    assert load_model(tmp_path / "run").path.name == BEST
    fit(replace(anew, overwrite=True))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LAST]
    assert load_model(tmp_path / "run").shape["hidden"] == 8


def test_losses_that_are_not_finite_end_the_run(config: TrainConfig) -> None:
    with pytest.raises(atta.NonFiniteError, match=r"^epoch [01]: losses have an infinity or NaN"):
        fit(replace(config, lr=1e30, epochs=5))


@pytest.mark.slow
def test_evaluation_can_be_rare(config: TrainConfig) -> None:
    epochs = fit(replace(config, epochs=5, eval_every=3, model="gcn", eval_num_neighbors=(-1,))).epochs
    assert [e.val_accuracy is not None for e in epochs] == [False, False, True, False, True]


@pytest.mark.slow
def test_a_deep_model_on_batches_of_everything_is_the_whole_graph(config: TrainConfig, graph: Path) -> None:
    deep = replace(config, model="resgcn+", layers=20, num_neighbors=(-1,), batch_size=150, dropout=0.0, epochs=3)
    deep = replace(deep, lr=0.001, eval_every=3, checkpoint_layers=True)
    x, y, edges, splits = whole(graph)
    torch.manual_seed(config.seed)
    model, train = DeepGNN(x.shape[1], config.hidden, CLASSES, num_layers=20, dropout=0.0), splits["train"]
    losses = descend(model, deep.lr, deep.epochs, lambda _: F.cross_entropy(model(x, edges)[train], y[train]))
    assert [e.loss for e in fit(deep).epochs] == pytest.approx(losses, rel=1e-3)


def test_bad_input_reaches_the_caller_as_its_own_error(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(atta.DataError, match="absent"):
        fit(replace(config, data=str(tmp_path / "absent")))
    with pytest.raises(atta.UnavailableError, match=r"127\.0\.0\.1:1"):
        fit(replace(config, data=None, cluster="127.0.0.1:1"))


def test_the_documented_script_runs_as_it_stands(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = (Path(__file__).parents[2] / "docs/guide/training.md").read_text()
    script = document.split("## Your own script")[1].split("```python\n")[1].split("```")[0]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "demo-2p").symlink_to(dataset)
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "training.md", "exec"), {"__name__": "__main__"})
    accuracy = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(accuracy) == 3
    assert accuracy[-1] > accuracy[0]


@pytest.mark.slow
def test_a_compiled_model_learns_the_same(config: TrainConfig, report: TrainReport) -> None:
    compiled = fit(replace(config, compile=True, epochs=3))
    assert [e.loss for e in compiled.epochs] == pytest.approx([e.loss for e in report.epochs[:3]], rel=1e-4)


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_sessions(dataset: Path) -> None:
    with atta.local(dataset, threads=1) as cluster:
        words = f"train --cluster {cluster.cluster_file} --hidden 4 --num-neighbors 2,2 --device cpu --trainers 2"
        command = [sys.executable, "-m", "atta.cli.main", *words.split(), "--epochs", "1000000"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            assert any(line.startswith("epoch   3") for line in running.stderr)
            running.send_signal(signal.SIGINT)
            assert running.stderr.read().splitlines()[-1] == "atta: interrupted"
        assert running.returncode == 130
        assert [daemon["sessions"] for daemon in cluster.stats()] == [0, 0]


@pytest.mark.slow
def test_a_run_ends_when_nobody_reads_it_any_more(dataset: Path) -> None:
    words = f"train --data {dataset} --hidden 4 --num-neighbors 2,2 --device cpu --epochs 1000000"
    command = f"set -o pipefail; {sys.executable} -m atta.cli.main {words} 2>&1 | head -n 3"
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    said = done.stdout.splitlines()
    assert said[:2] == [f"atta: starting 1 trainer and daemons for {dataset}", "training begins"]
    assert (said[2][:9], done.returncode) == ("epoch   0", 141)


def test_an_interrupted_run_and_its_resumption_are_drawn(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    words = f"train --data {dataset} --hidden 4 --layers 1 --num-neighbors 2 --eval-every 2 --device cpu".split()
    words += ["--checkpoint", str(tmp_path / "saved"), "--plot", str(tmp_path / "p.svg")]
    command = [sys.executable, "-m", "atta.cli.main", *words, "--epochs", "1000000", "--json", str(tmp_path / "i.json")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if re.match(r"epoch +3 ", line):
                running.send_signal(signal.SIGINT)
                break
        said = running.stderr.read()
    assert (running.returncode, said.splitlines()[-1]) == (130, "atta: interrupted")
    assert f"{tmp_path / 'saved'} holds the run; --resume goes on with it" in said
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    left = json.loads((tmp_path / "i.json").read_text())
    assert (left["interrupted"], left["error"], left["config"]["task"]) == (True, None, "classes")
    assert [epoch["epoch"] for epoch in left["epochs"]][:4] == [0, 1, 2, 3]
    assert read_report(tmp_path / "i.json").best.epoch == left["best"]["epoch"]
    drawn: list[EpochReport] = []
    monkeypatch.setattr(atta.cli.pictures, "draw_run", lambda path, epochs, watched: drawn.extend(epochs))
    done = max(int(number) for number in re.findall(r"^epoch +(\d+) ", said, re.MULTILINE) or ["3"])
    more: list[Any] = ["--epochs", str(done + 4), "--resume", "--quiet", "--json", str(tmp_path / "r.json")]
    cli.main([*words, *more], standalone_mode=False)
    assert [epoch.epoch for epoch in drawn] == [*range(done + 4)]
    told = json.loads((tmp_path / "r.json").read_text())["epochs"]
    assert [epoch.loss for epoch in drawn] == [epoch["loss"] for epoch in told]
    assert drawn[0].metrics == {}
    assert "val_accuracy" in drawn[1].metrics


def learnable(folder: Path, kept: slice) -> Path:
    """A partitioned graph of one type: in steps of two, edges weigh 1 and 0; ``kept``: those that it has."""
    rng, n = np.random.default_rng(5), 120
    y = rng.integers(0, 3, n)
    x = (np.eye(3)[y] + rng.standard_normal((n, 3))).astype(np.float32)
    ends, weight = rng.integers(0, n, (2, 1600)), np.tile(np.array([1, 0], np.float32), 800)
    with GraphWriter(folder / "graph") as out:
        splits = {"train": np.arange(60), "val": np.arange(60, 90), "test": np.arange(90, n)}
        out.add_nodes("node", n, tables={"x": x, "y": y}, splits=splits)
        out.add_edges("node__to__node", *ends[:, kept], tables={"weight": weight[kept]})
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    return folder / "parts"


def test_edges_without_weight_are_as_if_they_were_not_there(tmp_path: Path, config: TrainConfig) -> None:
    one = replace(config, trainers=1, epochs=2, num_neighbors=(-1, -1))
    weighted = replace(one, data=str(learnable(tmp_path / "all", slice(None))), method="weighted", dependency=3)
    kept = replace(one, data=str(learnable(tmp_path / "kept", slice(0, None, 2))))
    assert [e.loss for e in fit(weighted).epochs] == [e.loss for e in fit(kept).epochs]


@pytest.mark.parametrize("task", ["link", "unsupervised"])
def test_the_method_reaches_the_loaders_of_every_task(config: TrainConfig, task: str) -> None:
    with pytest.raises(AttaError, match=r"unknown attribute .* 'weight'"):  # of a graph without weights
        fit(replace(config, trainers=1, task=task, method="weighted"))
