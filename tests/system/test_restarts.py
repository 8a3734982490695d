"""A trainer of ``digest-async`` is killed in mid run: it starts again alone, and the run makes all its updates."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

import atta
from atta.train.reports.display import TRAINING_BEGINS
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

VERTICES, WITHIN_S = 400, 120
STRATEGY = "digest-async:sync-every=2,lease=60"
ASYNC = ["--trainers", "2", "--trainers-per-server", "1", "--model", "gcn", "--layers", "2", "--hidden", "8"]
ASYNC += ["--device", "cpu"]


@pytest.fixture(scope="module")
def cluster(classes: Path) -> Iterator[atta.LocalCluster]:
    with atta.local(classes / "parts", threads=1) as running:
        yield running


@dataclass
class Job:
    process: subprocess.Popen[str]
    cluster: atta.LocalCluster
    versions: np.ndarray = field(default_factory=lambda: np.full(VERTICES, -1))
    """int64 [VERTICES], of the rows of the layer that travels, as they were seen last; -1: never pushed."""

    @property
    def gradients(self) -> int:
        return int(self.cluster.stats()[0]["weights_gradients"])

    def trainer(self, rank: int) -> psutil.Process | None:
        try:
            children = psutil.Process(self.process.pid).children()
            found = [c for c in children if "atta.train.launching.worker" in c.cmdline()]
            return next((c for c in found if c.environ().get("RANK") == str(rank)), None)
        except psutil.NoSuchProcess:
            return None

    def kill(self, rank: int) -> None:
        trainer = self.trainer(rank)
        assert trainer is not None
        trainer.kill()

    def watch_rows(self) -> None:
        """Look at the rows on the daemons. Raises AssertionError if one has an older version than before."""
        for name in self.cluster.tables.specs():
            try:
                found = self.cluster.tables.open(name).pull(np.arange(VERTICES), versions=True).versions
            except atta.AttaError:  # the run has ended meanwhile
                return
            assert found is not None
            assert (found >= self.versions).all(), "a row has got an older version"
            self.versions = found

    def end(self) -> tuple[int, list[str]]:
        """The exit code, and what it said besides epochs and beginnings."""
        _, said = self.process.communicate(timeout=WITHIN_S)
        usual = ("epoch", TRAINING_BEGINS, "atta: starting ")
        return self.process.returncode, [line for line in said.splitlines() if not line.startswith(usual)]


@pytest.fixture
def start(cluster: atta.LocalCluster) -> Iterator[Callable[..., Job]]:
    jobs = []

    def started(settings: str, *options: str) -> Job:
        command = [sys.executable, "-m", "atta.cli.main", "train", "--cluster", str(cluster.cluster_file), *ASYNC]
        command += ["--strategy", f"{STRATEGY},{settings}"]
        jobs.append(Job(subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True), cluster))
        return jobs[-1]

    yield started
    for job in jobs:
        job.process.kill()
        job.process.wait()


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_trainer_goes_on_at_the_present_version(start: Callable[..., Job], tmp_path: Path, rank: int) -> None:
    job = start("max-delay=2,max-updates=120", "--json", str(tmp_path / "report.json"))
    before = job.gradients
    assert eventually(lambda: job.gradients > before + 20, WITHIN_S)
    job.watch_rows()
    job.kill(rank)
    killed_at, gradients = job.versions.max(), job.gradients
    until = time.monotonic() + WITHIN_S
    while job.process.poll() is None and time.monotonic() < until:
        job.watch_rows()
        time.sleep(0.02)
    code, said = job.end()
    assert code == 0, said
    assert said[0] == f"atta: trainer {rank} was killed by SIGKILL; out of memory?; it starts again (1 of 3)"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["restarts_by_rank"] == [int(rank == 0), int(rank == 1)]
    assert sum(epoch["steps"] for epoch in report["epochs"]) == 120
    assert job.gradients == before + 120 > gradients, "each update was applied once"
    pushed = job.versions[job.versions >= 0]
    assert len(pushed), "rows of both trainers travel"
    assert pushed.min() > killed_at, "the new life has pushed all its rows anew"
    assert not list(job.cluster.tables.specs())
    assert job.cluster.stats()[0]["weights"] == 0


def test_a_trainer_that_dies_too_often_ends_the_job(start: Callable[..., Job]) -> None:
    job = start("max-updates=1000000,restarts=1")
    before = job.gradients
    assert eventually(lambda: job.gradients > before + 10, WITHIN_S)
    first = job.trainer(1)
    assert first is not None
    children = psutil.Process(job.process.pid).children(recursive=True)
    first.kill()
    assert eventually(lambda: job.trainer(1) not in (None, first), WITHIN_S)
    children += psutil.Process(job.process.pid).children(recursive=True)
    job.kill(1)
    code, said = job.end()
    assert code == 1
    assert said[1:] == [
        "atta: error: trainer 1 was killed by SIGKILL; out of memory?; it was started again once before"
    ]
    _, left = psutil.wait_procs(children, timeout=30)
    assert not left
    assert not list(job.cluster.tables.specs())
    assert job.cluster.stats()[0]["weights"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_saved_weights_are_evaluated_although_a_trainer_dies_meanwhile(
    start: Callable[..., Job], tmp_path: Path, rank: int
) -> None:
    options = ("max-updates=300,eval-interval=0.002", "--json", str(tmp_path / "report.json"))
    job = start(*options)
    assert job.process.stderr is not None
    assert job.process.stderr.readline() == "atta: starting 2 trainers\n"
    assert job.process.stderr.readline() == f"{TRAINING_BEGINS}\n"
    assert job.process.stderr.readline().startswith("epoch   0"), "the first copy is evaluated"
    job.kill(rank)
    code, said = job.end()
    assert code == 0, said
    assert len(said) == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["restarts_by_rank"] == [int(rank == 0), int(rank == 1)], "it died while there was work left"
    assert [epoch["epoch"] for epoch in report["epochs"]] == list(range(len(report["epochs"])))
    assert sum(epoch["steps"] for epoch in report["epochs"]) == 300
    assert all(epoch["seconds"] > 0 for epoch in report["epochs"])
    assert not list(job.cluster.tables.specs())


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_no_table_and_no_weights(start: Callable[..., Job], own_interpreters: None) -> None:
    job = start("max-updates=1000000")
    before = job.gradients
    assert eventually(lambda: job.gradients > before + 10, WITHIN_S)
    assert job.cluster.stats()[0]["weights"] == 1
    assert list(job.cluster.tables.specs())
    family = psutil.Process(job.process.pid).children(recursive=True)
    assert {job.trainer(rank) for rank in range(2)} <= set(family)
    job.process.send_signal(signal.SIGINT)
    code, said = job.end()
    assert code == 130
    assert said[-1] == "atta: interrupted"
    _, left = psutil.wait_procs(family, timeout=30)
    assert not left
    assert eventually(lambda: job.cluster.stats()[0]["weights"] == 0)
    assert eventually(lambda: not list(job.cluster.tables.specs()))
