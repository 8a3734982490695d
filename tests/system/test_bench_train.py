"""``atta bench train`` with daemons and trainers: every system learns, phases add up, no process is left behind."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta_bench.lab.workload import BenchWorkload
from atta_bench.train.benchmark import PHASES, TrainBench, run

CLASSES, SEEDS = 4, 180
WORKLOAD = BenchWorkload((4, 3), 30, warm_up=1, epochs=5, seconds=0, timeout_s=120)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch_geometric")
    folder = tmp_path_factory.mktemp("bench-train")
    sizes: Any = {"nodes": 600, "edges": 9000, "features": 12, "classes": CLASSES, "seed": 3}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, train=SEEDS / 600, val=0.1, test=0.1, inter=0.1))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="metis", seed=0)
    return folder / "parts"


def check(figures: dict[str, dict[str, float]]) -> None:
    """Check what holds for every system on any machine."""
    phases = [figures[f"trainer/{phase}_s"]["median"] for phase in (*PHASES, "other")]
    assert all(seconds >= 0 for seconds in phases[:-1])
    assert sum(phases) == pytest.approx(figures["epoch_s"]["median"])
    assert figures["trainer/compute_s"]["median"] > 0
    assert figures["steps"]["median"] == SEEDS // 2 // 30
    assert 1 / CLASSES + 0.1 < figures["accuracy"]["median"] <= 1
    for name in ("loading/sample_s", "loading/fetch_s", "seeds_per_s", "cpu_us_per_seed", "vertices_per_seed", "loss"):
        assert figures[name]["median"] > 0, name


@pytest.mark.slow
def test_trainers_on_loopback(dataset: Path, tmp_path: Path) -> None:
    """Two rounds learn the same. The test asks for DistDGL, but there are no namespaces here."""
    pytest.importorskip("dgl")
    target = tmp_path / "train.json"
    options = {
        "num-neighbors": "4,3",
        "batch-size": 30,
        "lr": 0.02,
        "epochs": 5,
        "runs": 2,
        "netns": "off",
        "vs": "dgl",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "atta.cli.main", "bench", "train", "--data", str(dataset), "--work", str(tmp_path)]
    done = subprocess.run(
        [*command, *words, "--json", str(target)], capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(target.read_text())
    assert document["bench"] == "train"
    assert "namespaces" in document["results"]["dgl"]["error"]
    expected = {
        "deliver": "dgl",
        "frontier": "all",
        "channels": 12,
        "classes": CLASSES,
        "layers": 2,
        "hidden": 32,
        "lr": 0.02,
    }
    assert {name: document["config"][name] for name in expected} == expected
    for system in ("atta", "atta-pyg"):
        figures = document["results"][system]
        check(figures)
        assert figures["loss"]["min"] == pytest.approx(figures["loss"]["max"], rel=1e-4)
    for phase in (*PHASES, "other", "sample", "fetch"):
        assert f"{phase}_s" in done.stdout


@pytest.mark.netns
@pytest.mark.peer
@pytest.mark.slow
def test_distdgl_learns_the_same(dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("dgl")
    bench = TrainBench(
        **vars(WORKLOAD), data=str(dataset), vs=("dgl",), runs=1, netns="on", work=str(tmp_path), lr=0.02
    )
    document = run(bench).to_json()
    assert "error" not in document["results"]["dgl"], document["results"]["dgl"]
    for system in ("atta", "atta-pyg", "dgl"):
        check(document["results"][system])
    ratios = document["ratios"]
    for figure, tolerance in (("steps", 0), ("edges_per_seed", 0.1), ("vertices_per_seed", 0.1)):
        assert ratios[figure]["dgl"] == pytest.approx(1, abs=tolerance), figure
    # DGL shuffles differently in every run, and the training set is a few batches only. The loss falls from ln 4 to
    # about 0.2 in both.
    losses = [document["results"][system]["loss"]["median"] for system in ("atta", "dgl")]
    assert abs(losses[0] - losses[1]) < 0.2, losses
    assert ratios["epoch_s"]["dgl"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_nothing_is_left_behind(dataset: Path, how: str) -> None:
    words = ["--num-neighbors", "4,3", "--batch-size", "30", "--epochs", "1000000", "--runs", "1", "--netns", "off"]
    command = [sys.executable, "-m", "atta.cli.main", "bench", "train", "--data", str(dataset), *words]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        trainers = wait_for_trainers(job)
        children = psutil.Process(job.pid).children(recursive=True)
        if how == "kill":
            trainers[1].kill()
        else:
            job.send_signal(signal.SIGINT)
        _, said = job.communicate(timeout=90)
    finally:
        job.kill()
    if how == "kill":
        assert job.returncode == 1
        assert "rank1 was killed by SIGKILL" in said.splitlines()[-1]
    else:
        assert job.returncode == 130
        assert "Traceback" not in said
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(c.pid) and c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children):
        assert time.monotonic() < deadline, "children outlive the job"
        time.sleep(0.1)


def wait_for_trainers(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of both trainers, in order of rank, once they talk to each other."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        time.sleep(0.2)
        assert job.poll() is None
        found = psutil.Process(job.pid).children()
        with contextlib.suppress(psutil.Error):  # a process that probed the machine has just ended
            trainers = [c for c in found if "atta_bench.train.worker" in c.cmdline()]
            if len(trainers) == 2 and all(len(c.net_connections()) >= 2 for c in trainers):
                return sorted(trainers, key=lambda c: c.create_time())
    raise AssertionError("no trainers")
