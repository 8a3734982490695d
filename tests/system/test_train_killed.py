"""A trainer is killed in mid-epoch: the job ends and names it.

A new job goes on from the checkpoint as if nothing happened.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import atta
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.train import TrainConfig, fit
from atta.train.checkpoint.files import LAST
from atta.train.config import option_words

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

WITHIN_S = 30  # How long a job may take to end after one of its trainers was killed.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("killed")
    shares = {"train": 0.4, "val": 0.2, "test": 0.4}
    sizes = {"nodes": 600, "edges": 6000, "features": 12, "classes": 4, "seed": 3}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, **shares, inter=0.3, signal=0.5))  # type: ignore[arg-type]
    partition_graph(folder / "graph", folder / "parts", parts=2, method="metis", seed=0)
    with atta.local(folder / "parts", threads=1) as running:
        yield str(running.cluster_file)


@dataclass(frozen=True)
class Killed:
    """How a job ended: its exit code, its lines other than those of epochs, and the processes that outlived it."""

    exit_code: int
    said: list[str]
    left: list[psutil.Process]


def killed(settings: dict[str, Any], rank: int) -> Killed:
    """Run ``atta train``, kill one trainer once the second epoch is reported, and wait for the end."""
    job = subprocess.Popen(
        [sys.executable, "-m", "atta.cli.main", "train", *option_words(settings)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert job.stderr is not None
        reported = [job.stderr.readline() for _ in range(2)]
        assert reported[1].startswith("epoch   1"), reported
        children = psutil.Process(job.pid).children(recursive=True)
        trainers = {int(c.environ()["RANK"]): c for c in children if "atta.train.launching.worker" in c.cmdline()}
        assert len(trainers) == settings["trainers"]
        trainers[rank].kill()
        _, rest = job.communicate(timeout=WITHIN_S)
    finally:
        job.kill()
        job.wait()
    _, left = psutil.wait_procs(children, timeout=WITHIN_S)
    return Killed(job.returncode, [line for line in rest.splitlines() if not line.startswith("epoch")], left)


MINI_BATCHES = {"trainers": 2, "num_neighbors": (5, 5), "batch_size": 20}
CO_BATCHES = {"strategy": "cooperative", "co_batches": 3, "trainers": 4, "trainers_per_server": 2, "layers": 2}
READING = {"trainers": 2, "trainers_per_server": 1, "layers": 2}
SANCUS = {**READING, "strategy": "sancus", "bound": "gap", "eps": 0.001, "warmup": 1}
SAT = {**READING, "strategy": "sat", "sync_every": 2, "window": 3, "train_every": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "rank"),
    [
        pytest.param(MINI_BATCHES, 1, id="mini-batches"),
        pytest.param(SANCUS, 1, id="sancus"),
        pytest.param(SAT, 0, id="sat"),
        pytest.param(CO_BATCHES, 2, id="co-batches"),  # rank 2 extracts for the second server
    ],
)
def test_the_job_names_it_and_goes_on_from_its_checkpoint(
    cluster: str, tmp_path: Path, mode: dict[str, Any], rank: int
) -> None:
    common = {"cluster": cluster, "hidden": 16, "seed": 5, "device": "cpu", **mode}
    end = killed({**common, "epochs": 100_000, "eval_every": 3, "checkpoint": tmp_path}, rank)
    assert end.exit_code == 1
    assert end.said == [f"atta: error: trainer {rank} was killed by SIGKILL; out of memory?"]
    assert not end.left

    done = len(torch.load(tmp_path / LAST, weights_only=True)["epochs"])
    assert done >= 1
    config = TrainConfig(**common, epochs=done + 2, eval_every=3, verbose=False)
    resumed = fit(TrainConfig(**{**config.to_dict(), "checkpoint": str(tmp_path), "resume": True})).epochs
    through = fit(config).epochs
    assert [e.epoch for e in resumed] == list(range(done + 2))
    assert [e.loss for e in resumed] == [e.loss for e in through]
    assert resumed[-1].test_accuracy == through[-1].test_accuracy
