"""The main job as a user types it: generate, partition, inspect, train, serve, status, stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from atta.wire.clusterfile import write_cluster
from tests.addresses import held_addresses
from tests.preloaded.parent import start
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

ATTA = [sys.executable, "-m", "atta.cli.main"]
TRAIN = ["--model", "sage", "--num-neighbors", "5,5", "--batch-size", "128", "--hidden", "16", "--seed", "3"]


def atta(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*ATTA, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    sizes = ["--nodes", 3000, "--edges", 30_000, "--features", 16, "--classes", 4, "--train", 0.4, "--seed", 5]
    atta("generate", "powerlaw", folder / "graph", *sizes)
    atta("partition", folder / "graph", folder / "parts", "--parts", 2, "--method", "metis")
    return folder / "parts"


@pytest.fixture(scope="module")
def daemons(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster file. ``atta serve`` has started its daemons, one per partition."""
    cluster = tmp_path_factory.mktemp("cluster") / "cluster.toml"
    addresses = held_addresses(2)
    write_cluster(cluster, addresses)
    running = [
        subprocess.Popen(
            [*ATTA, "serve", "--data", dataset, "--part", str(part), "--listen", address, "--peers", cluster]
        )
        for part, address in enumerate(addresses)
    ]
    try:
        eventually(lambda: subprocess.run([*ATTA, "status", "--cluster", cluster], capture_output=True).returncode == 0)
        yield cluster
        stopped = atta("stop", "--cluster", cluster).stdout
        assert [f"part {part} at {a}: stopping" for part, a in enumerate(addresses)] == stopped.splitlines()
        assert [daemon.wait(30) for daemon in running] == [0, 0]
    finally:
        for daemon in running:
            daemon.kill()


@pytest.mark.slow
def test_train_learns_and_reports(dataset: Path, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    done = atta("train", "--data", dataset, *TRAIN, "--trainers", 2, "--epochs", 4, "--json", report_file)
    report = json.loads(report_file.read_text())
    assert report["schema"] == 1
    assert [e["epoch"] for e in report["epochs"]] == [0, 1, 2, 3]
    assert report["epochs"][-1]["loss"] < report["epochs"][0]["loss"]
    assert report["best"]["test_accuracy"] > 0.6  # four classes: chance is 0.25
    assert set(report["epochs"][0]["breakdown"]) >= {"sample", "fetch", "copy", "compute", "sync"}
    assert all(e["seeds_per_s"] > 0 for e in report["epochs"])
    assert "test accuracy" in done.stdout


@pytest.mark.slow
def test_running_daemons_train_the_same_model(dataset: Path, daemons: Path) -> None:
    own, theirs = (
        json.loads(atta("train", *where, *TRAIN, "--epochs", 2, "--quiet", "--json", "-").stdout)
        for where in (("--data", dataset), ("--cluster", daemons))
    )
    assert [e["loss"] for e in own["epochs"]] == pytest.approx([e["loss"] for e in theirs["epochs"]], rel=1e-4)


def test_status_shows_every_daemon(daemons: Path) -> None:
    status = json.loads(atta("status", "--cluster", daemons, "--json", "-").stdout)
    assert [d["part"] for d in status["daemons"]] == [0, 1]
    assert all("sessions" in d for d in status["daemons"])


def test_interrupted_training_ends_its_children_and_exits_130(dataset: Path) -> None:
    command = [*ATTA, "train", "--data", str(dataset), *TRAIN, "--trainers", "2", "--epochs", "1000"]
    training = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert any(line.startswith("epoch") for line in training.stderr)
        children = psutil.Process(training.pid).children(recursive=True)
        assert len(children) >= 4  # two daemons, two trainers
        os.kill(training.pid, signal.SIGINT)
        _, said = training.communicate(timeout=60)
        assert training.returncode == 130
        assert said.splitlines()[-1] == "atta: interrupted"
        assert "Traceback" not in said
        eventually(lambda: not any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children))
    finally:
        training.kill()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["train", "--data", "DATASET", "--num-neighbors", "5,-2"], "-2"),
        (["train", "--data", "DATASET", "--model", "sagee"], "sagee"),
        (["train", "--data", "absent"], "absent"),
        (["serve", "--data", "DATASET", "--part", "7"], "7"),
        (["partition", "absent", "out", "--parts", "2"], "absent"),
        (["generate", "sbm", "out", "--nodes", "-5", "--edges", "10"], "-5"),
        (["import", "npz", "absent", "out"], "absent"),
        (["status", "--cluster", "absent.toml"], "absent.toml"),
    ],
)
def test_bad_input_is_one_line_that_names_it(dataset: Path, tmp_path: Path, arguments: list[str], names: str) -> None:
    given = [str(dataset) if a == "DATASET" else str(tmp_path / a) if a in {"absent", "out"} else a for a in arguments]
    done = atta(*given, code=2)
    assert done.stderr.startswith("atta: error: ")
    assert len(done.stderr.splitlines()) == 1
    assert names in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_caller_that_is_killed_before_it_asks_for_a_trainer_starts_nothing() -> None:
    caller, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other_end.close()
    assert start(caller, ()) is None
    assert caller.fileno() == -1
