"""``digest-async`` on real daemons: like ``digest`` with one trainer; without barriers it makes the updates asked for."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import atta
from atta.train import TrainConfig, fit
from atta.train.cooperative.trainer import ServerTrainer
from atta.train.strategies import STRATEGIES
from tests.system.digest_async import STOPS_AT
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


def config(**given: object) -> TrainConfig:
    base = {"model": "gcn", "hidden": 8, "layers": 2, "device": "cpu", "verbose": False, "sync_every": 2}
    return TrainConfig(**{**base, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_one_trainer_is_digest(group: None, parts_of: Callable[[int], Path], dropout: float) -> None:
    weights = {}
    with atta.local(parts_of(1), threads=1) as cluster:
        for strategy in ("digest", "digest-async"):
            asked = config(
                cluster=str(cluster.cluster_file), strategy=strategy, epochs=12, dropout=dropout, weight_decay=1e-3
            )
            trainer = STRATEGIES[strategy].trainer(asked.own, cluster, torch.device("cpu"))
            assert isinstance(trainer, ServerTrainer)
            reports = trainer.fit()
            weights[strategy] = torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()])
        assert sum(report.steps for report in reports) == 12
        assert not list(cluster.tables.specs())
        assert cluster.stats()[0]["weights"] == 0, "the job has dropped its weights"
    torch.testing.assert_close(weights["digest-async"], weights["digest"], rtol=1e-6, atol=1e-6)


def test_two_trainers_learn_without_waiting_for_each_other(
    preloaded_trainers: None, parts_of: Callable[[int], Path], tmp_path: Path
) -> None:
    found = fit(
        config(
            data=str(parts_of(2)), strategy="digest-async", trainers=2, trainers_per_server=1, epochs=1, max_updates=160,
            eval_interval=0.2, dropout=0.0, lr=0.05, max_delay=3, logger=(f"csv:save_dir={tmp_path}",),
        )
    )  # fmt: skip
    assert sum(report.steps for report in found.epochs) == 160
    with (tmp_path / "metrics.csv").open(newline="") as file:
        logged = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
    assert logged == [(report.epoch, report.loss) for report in found.epochs]
    assert [report.epoch for report in found.epochs] == list(range(len(found.epochs)))
    last = found.epochs[-1]
    assert last.test_accuracy is not None
    assert last.test_accuracy > 0.6
    assert last.loss < found.epochs[0].loss or len(found.epochs) == 1


@pytest.mark.slow
def test_trainers_of_one_server_do_not_wait_either(preloaded_trainers: None, parts_of: Callable[[int], Path]) -> None:
    found = fit(
        config(
            data=str(parts_of(1)), strategy="digest-async", trainers=2, trainers_per_server=2, stale_across="trainers",
            epochs=60, dropout=0.0, lr=0.05,
        )
    )  # fmt: skip
    assert [report.steps for report in found.epochs] == [120]
    assert found.epochs[-1].test_accuracy is not None
    assert found.epochs[-1].test_accuracy > 0.6


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("delay", ["none", "0"])
def test_a_stopped_trainer_has_a_lease(parts_of: Callable[[int], Path], tmp_path: Path, delay: str) -> None:
    """The second trainer stops itself. The other one does not wait, or with ``max-delay`` until the lease is over."""
    lease, done = 12.0, tmp_path / "0.done"
    with atta.local(parts_of(2), threads=1) as cluster, ExitStack() as stack:
        command = [sys.executable, "-m", "tests.system.digest_async", str(tmp_path)]
        given = [str(cluster.cluster_file), delay, str(lease)]
        found = [subprocess.Popen([*command, str(rank), *given], cwd=ROOT) for rank in range(2)]
        for trainer in found:
            stack.callback(trainer.wait)
            stack.callback(trainer.kill)
        assert eventually(lambda: state_of(found[1].pid) == "T", 90)
        held = time.monotonic() + lease / 2
        while delay == "0" and time.monotonic() < held:
            assert cluster.stats()[0]["weights_gradients"] <= 2 * STOPS_AT + 1, "it is further ahead than it may be"
            time.sleep(0.2)
        assert eventually(done.exists, 60 if delay == "0" else 0.9 * lease), "it makes all updates that are left"
        assert not (tmp_path / "1.done").exists()
        assert state_of(found[1].pid) == "T"
        found[1].send_signal(signal.SIGCONT)
        assert [trainer.wait(60) for trainer in found] == [0, 0], "it ends with the other one"
        assert cluster.stats()[0]["weights"] == 0
        assert not list(cluster.tables.specs())
