"""``dorylus`` with real daemons, trainers and workers: pipe is exchange, and workers that die change no bit."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch.nn.utils import parameters_to_vector

import atta
from atta.errors import AttaError
from atta.train import TrainConfig, fit
from atta.train.dorylus.progress import stages_of
from atta.train.dorylus.trainer import IntervalTrainer
from atta.train.dorylus.worker import FAULTS_VARIABLE
from atta.train.reports.epochs import EpochReport
from atta.train.strategies import STRATEGIES
from tests.system.cuts import trainers_of, weights
from tests.waiting import eventually

Parts = Callable[[int], Path]


def config(**changed: object) -> TrainConfig:
    settings: dict[str, object] = {
        "strategy": "dorylus", "model": "gcn", "hidden": 8, "layers": 2, "epochs": 4, "lr": 0.05, "device": "cpu",
        "verbose": False, "threads": 1, "trainers_per_server": 1,
    }  # fmt: skip
    if (settings | changed)["strategy"] == "dorylus":
        settings |= {"intervals": 4, "mode": "pipe", "workers": "1"}
    return TrainConfig(**(settings | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "model", ["gcn", pytest.param("sage", marks=pytest.mark.slow), pytest.param("gat", marks=pytest.mark.slow)]
)
def test_pipe_with_two_is_exchange(preloaded_trainers: None, parts_of: Parts, tmp_path: Path, model: str) -> None:
    """With dropout and Adam, on two partitions; the losses of four epochs follow from all weights before."""
    folder = str(parts_of(2))
    traces = tmp_path / "traces"
    found = fit(config(data=folder, trainers=2, model=model, layers=3, interval_trace=str(traces)))
    wanted = fit(config(data=folder, trainers=2, model=model, layers=3, strategy="exchange"))
    np.testing.assert_allclose([e.loss for e in found.epochs], [e.loss for e in wanted.epochs], rtol=1e-4)
    assert [e.metrics["val_accuracy"] for e in found.epochs] == [e.metrics["val_accuracy"] for e in wanted.epochs]
    assert all(e.crossed_bytes > 0 for e in found.epochs)
    for rank in range(2):
        events = json.loads((traces / f"intervals-{rank}.json").read_text())["traceEvents"]
        stages = [e["tid"] for e in events if e["ph"] == "X"]
        assert all(stages.count(interval) == 4 * len(stages_of(3)) for interval in range(4))
    last = found.epochs[-1].pipeline
    assert (last["oldest_row"], last["lost"], last["workers"]) == (0, 0, 2)
    tasks = 2 * 4 * (2 * 3 - 1)  # of an epoch: the last layer is one task
    assert sum(e.pipeline["tasks"] for e in found.epochs) >= 4 * tasks
    assert all(e.pipeline["worker_s"] > 0 for e in found.epochs)
    assert found.to_json()["epochs"][0]["pipeline"]["started"] == 2


def train_alone(cluster: atta.Cluster, **changed: object) -> tuple[bytes, list[EpochReport]]:
    asked = config(cluster=str(cluster.cluster_file), **changed)
    trainer = STRATEGIES[asked.strategy].trainer(asked.own, cluster, torch.device("cpu"))
    assert isinstance(trainer, IntervalTrainer)
    reports = trainer.fit()
    return parameters_to_vector(trainer.model.parameters()).detach().numpy().tobytes(), reports


def test_a_run_goes_on_from_its_checkpoint(group: None, parts_of: Parts, tmp_path: Path) -> None:
    """Bit for bit, and a run that writes checkpoints is the run that writes none."""
    with atta.local(parts_of(1), threads=1) as cluster:
        folder = str(tmp_path / "run")
        wanted, reports = train_alone(cluster, epochs=5, eval_every=2)
        _, half = train_alone(cluster, epochs=3, eval_every=2, checkpoint=folder, checkpoint_every=2)
        assert [e.epoch for e in half if e.metrics] == [1, 2]
        found, whole = train_alone(
            cluster, epochs=5, eval_every=2, checkpoint=folder, checkpoint_every=2, resume=True
        )  # fmt: skip
        assert found == wanted
        np.testing.assert_allclose([e.loss for e in whole], [e.loss for e in reports], rtol=1e-6)
        assert whole[:3] == half
        assert whole[4].metrics == reports[4].metrics
        again, same = train_alone(cluster, epochs=5, checkpoint=folder, resume=True)
        assert (again, same) == (found, whole), "nothing is left to do"
        assert cluster.stats()[0]["weights"] == 0
    best = torch.load(tmp_path / "run" / "best.pt", weights_only=True)
    most = max(e.metrics["val_accuracy"] for e in whole if e.metrics)
    assert best["epoch"]["metrics"]["val_accuracy"] == most


@pytest.mark.slow
def test_trainers_go_on_after_one_was_killed(parts_of: Parts, tmp_path: Path, own_interpreters: None) -> None:
    """``--max-restarts``: all begin again at the newest checkpoint, and the weights are those of an undisturbed run. The
    first trainer is killed, which alone would have dropped the weights from the daemon."""
    report, folder, other = tmp_path / "report.json", tmp_path / "run", tmp_path / "other"
    settings = {"model": "sage", "epochs": 300, "intervals": 4, "mode": "pipe", "workers": "1", "eval_every": 100}
    wanted = fit(config(data=str(parts_of(2)), trainers=2, checkpoint=str(other), **settings))
    with atta.local(parts_of(2), threads=1) as cluster:
        asked = f"train --cluster {cluster.cluster_file} --strategy dorylus:intervals=4,mode=pipe,workers=1 " \
            "--trainers 2 --trainers-per-server 1 --model sage --layers 2 --hidden 8 --lr 0.05 --epochs 300 " \
            "--device cpu --threads 1 --eval-every 100"  # fmt: skip
        kept = f" --checkpoint {folder} --checkpoint-every 20 --max-restarts 2 --json {report}"
        with ended(asked + kept) as command:
            assert eventually(lambda: (folder / "checkpoint.pt").exists(), 120)
            assert cluster.stats()[0]["weights"] == 1
            trainers_of(command)[0].kill()
            assert command.wait(300) == 0, command.stderr and command.stderr.read()
        assert cluster.stats()[0]["weights"] == 0
        with ended(asked) as command:
            assert eventually(lambda: cluster.stats()[0]["weights"] == 1, 120)
            trainers_of(command)[0].kill()
            assert command.wait(120) == 1
        assert cluster.stats()[0]["weights"] == 0
    found = json.loads(report.read_text())
    assert found["restarts"] >= 1
    np.testing.assert_allclose([e["loss"] for e in found["epochs"]], [e.loss for e in wanted.epochs], rtol=1e-5)
    mine, its = weights(folder), weights(other)
    assert all(torch.equal(mine[name], its[name]) for name in its)


@contextlib.contextmanager
def ended(asked: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "atta.cli.main", *asked.split()]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as command:
        try:
            yield command
        finally:
            command.kill()


@pytest.mark.slow
def test_workers_that_are_killed_or_slow_change_no_bit(
    group: None, parts_of: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with atta.local(parts_of(1), threads=1) as cluster:
        wanted, _ = train_alone(cluster, epochs=5, workers="3")
        monkeypatch.setenv(FAULTS_VARIABLE, "kill=0.1,late=0.1:2,seed=1")
        found, reports = train_alone(cluster, epochs=5, workers="3")
        assert found == wanted
        for count in ("lost", "relaunched"):
            assert sum(report.pipeline[count] for report in reports) >= 1
        assert sum(report.pipeline["started"] for report in reports) > 3, "the lost ones were replaced"
        assert reports[-1].test_accuracy is not None
        assert cluster.stats()[0]["weights"] == 0, "the job has dropped its weights"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_async_learns_and_workers_follow(preloaded_trainers: None, parts_of: Parts, model: str) -> None:
    found = fit(
        config(
            data=str(parts_of(2)), trainers=2, mode="async", epochs=40, dropout=0.0, model=model, heads=2,
            eval_every=10,
        )
    )  # fmt: skip
    last = found.epochs[-1]
    assert last.test_accuracy is not None
    assert last.test_accuracy > 0.6
    assert last.pipeline["oldest_row"] == 1
    assert [e.epoch for e in found.epochs if e.metrics] == [9, 19, 29, 39]


@pytest.mark.slow
def test_a_task_without_a_result_ends_the_run(group: None, parts_of: Parts) -> None:
    with atta.local(parts_of(1), threads=1) as cluster:
        with pytest.raises(AttaError, match="had no result after 0 relaunches"):
            train_alone(cluster, worker_timeout="1e-6", max_relaunch=0, epochs=500)
        assert cluster.stats()[0]["weights"] == 0, "the job has dropped its weights"


@pytest.mark.slow
def test_ctrl_c_leaves_no_worker(parts_of: Parts, own_interpreters: None) -> None:
    with atta.local(parts_of(2), threads=1) as cluster:
        asked = f"train --cluster {cluster.cluster_file} --strategy dorylus:intervals=4,workers=1 " \
            "--trainers 2 --trainers-per-server 1 --model gcn --layers 2 --hidden 8 --epochs 1000000 --device cpu"  # fmt: skip
        with ended(asked) as command:
            parent = psutil.Process(command.pid)

            def workers() -> list[psutil.Process]:
                return [one for one in parent.children(recursive=True) if "worker" in one.cmdline()]

            assert eventually(lambda: len(workers()) == 2, 90)
            assert eventually(lambda: cluster.stats()[0]["weights"] == 1)
            time.sleep(3)
            family = parent.children(recursive=True)
            command.send_signal(signal.SIGINT)
            assert command.wait(60) == 130
            assert eventually(lambda: not any(one.is_running() for one in family), 15)
            assert command.stderr is not None
            assert command.stderr.read().strip().splitlines()[-1] == "atta: interrupted"
        assert eventually(lambda: cluster.stats()[0]["weights"] == 0)
        assert not list(cluster.tables.specs())


@pytest.mark.slow
def test_training_that_diverges_ends_with_the_cause(preloaded_trainers: None, parts_of: Parts) -> None:
    with pytest.raises(AttaError, match="infinity or NaN"):
        fit(config(data=str(parts_of(1)), lr=1e30, epochs=50))
