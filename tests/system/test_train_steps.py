"""Checkpoints in mid-epoch, and what goes on from them: a run that was killed, and one whose trainer was lost.

Either way it is the undisturbed run, bit for bit.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import atta
from atta.errors import ConfigError, DataError
from atta.train import EpochReport, TrainConfig, fit
from atta.train.checkpoint.files import RunPlace
from atta.train.checkpoint.run import place_in
from tests.system.cuts import WITHIN_S, assert_same, begun, command, trainers_of

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

EPOCHS, STEPS, EVERY = 8, 24, 7  # 24 steps per epoch with one trainer, 12 with two


@pytest.fixture(scope="module")
def cluster(learnable: tuple[Path, atta.LocalCluster]) -> str:
    return str(learnable[1].cluster_file)


def config_of(cluster: str, trainers: int, **more: Any) -> TrainConfig:
    """Ends of epochs write no checkpoint, so the newest one is in mid-epoch."""
    wanted: dict[str, Any] = {"epochs": EPOCHS, "eval_every": EPOCHS, "checkpoint_every": 1000, "batch_size": 10}
    wanted |= {"num_neighbors": (4, 4), "hidden": 16, "seed": 5, "device": "cpu", "verbose": False, **more}
    return TrainConfig(cluster=cluster, trainers=trainers, **wanted)


@pytest.fixture(scope="module")
def undisturbed(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[EpochReport], Path]:
    folder = tmp_path_factory.mktemp("through")
    return fit(replace(config_of(cluster, 2), checkpoint=str(folder))).epochs, folder


LINKS = {"task": "link", "batch_size": 250, "edge_split": "0.9,0.05,0.05"}
WALKS = {"task": "unsupervised", "walk_length": 3, "batch_size": 25, "evaluate_by": "links"}


@pytest.mark.slow
@pytest.mark.parametrize("trainers", [1, 2])
def test_a_killed_run_goes_on_in_mid_epoch(
    cluster: str, tmp_path: Path, request: pytest.FixtureRequest, trainers: int
) -> None:
    config, whole = config_of(cluster, trainers), tmp_path / "through"
    if trainers == 2:
        through, whole = request.getfixturevalue("undisturbed")
    else:
        through = fit(replace(config, checkpoint=str(whole))).epochs
    folder = tmp_path / "killed"
    cut = replace(config, checkpoint=str(folder), checkpoint_steps=EVERY)
    with subprocess.Popen(command(cut), stderr=subprocess.PIPE, text=True) as job:
        found = begun(cut, job, 1)
        found[trainers - 1].kill()
        _, said = job.communicate(timeout=WITHIN_S)
    assert job.returncode == 1, said
    assert said.splitlines()[-1] == f"atta: error: trainer {trainers - 1} was killed by SIGKILL; out of memory?"
    assert not psutil.wait_procs(found.values(), timeout=WITHIN_S)[1]
    place = place_in(folder)
    assert place.batch, "it was killed in mid-epoch"
    assert (place.epoch * STEPS // trainers + place.step) % EVERY == 0
    files = sorted(path.name for path in folder.glob("rank-*"))
    assert set(files) >= {f"rank-{place.epoch}-{place.batch}-{rank}.pt" for rank in range(trainers)}

    resumed = fit(replace(cut, resume=True)).epochs
    assert_same(resumed, folder, through, whole)
    assert not list(folder.glob("rank-*")), "the last checkpoint is at the end of an epoch"


@pytest.mark.slow
@pytest.mark.parametrize("task", [LINKS, WALKS], ids=["links", "walks"])
def test_batches_of_pairs_go_on_in_mid_epoch(cluster: str, tmp_path: Path, task: dict[str, Any]) -> None:
    config = config_of(cluster, 2, **task, epochs=4)
    through = fit(replace(config, checkpoint=str(tmp_path / "through"))).epochs
    cut = replace(config, checkpoint=str(tmp_path / "killed"), checkpoint_steps=5)
    with subprocess.Popen(command(cut), stderr=subprocess.PIPE, text=True) as job:
        begun(cut, job, 1)[0].kill()
        job.communicate(timeout=WITHIN_S)
    assert place_in(tmp_path / "killed").batch
    assert_same(fit(replace(cut, resume=True)).epochs, tmp_path / "killed", through, tmp_path / "through")


def test_a_step_of_several_batches_is_not_cut(cluster: str, tmp_path: Path) -> None:
    """A run that ends between the two epochs, on a step that is due, and goes on from it; 5 steps per epoch."""
    config = config_of(cluster, 1, accumulate=5, epochs=3, eval_every=1)
    through = fit(replace(config, checkpoint=str(tmp_path / "through"))).epochs
    cut = replace(config, checkpoint=str(tmp_path / "cut"), checkpoint_steps=5, resume=True)
    fit(replace(cut, epochs=2))
    assert place_in(tmp_path / "cut") == RunPlace(2)
    assert_same(fit(cut).epochs, tmp_path / "cut", through, tmp_path / "through")


@pytest.mark.slow
def test_what_does_not_fit_the_place_is_refused(cluster: str, tmp_path: Path) -> None:
    config = config_of(cluster, 1, checkpoint=str(tmp_path), checkpoint_steps=EVERY)
    with subprocess.Popen(command(config), stderr=subprocess.PIPE, text=True) as job:
        begun(config, job, 0)[0].kill()
        job.communicate(timeout=WITHIN_S)
    config = replace(config, resume=True)
    with pytest.raises(ConfigError, match=r"cannot go on in mid-epoch: .* other batches"):
        fit(replace(config, batch_size=11))
    with pytest.raises(ConfigError, match="--accumulate 1000: batch"):
        fit(replace(config, accumulate=1000))
    with pytest.raises(DataError, match=r"was made with --trainers 1, not 2|rank-0-\d+-1\.pt: is missing"):
        fit(replace(config, trainers=2))


@pytest.mark.parametrize(
    ("number", "timeout_s", "cause"),
    [
        pytest.param(signal.SIGKILL, 30.0, "trainer 1 was killed by SIGKILL", id="killed"),
        pytest.param(signal.SIGSTOP, 4.0, "trainer 1 gave no sign of life for ", id="stopped", marks=pytest.mark.slow),
    ],
)
def test_all_trainers_start_again_when_one_is_lost(
    cluster: str,
    tmp_path: Path,
    undisturbed: tuple[list[EpochReport], Path],
    number: signal.Signals,
    timeout_s: float,
    cause: str,
) -> None:
    config, folder = config_of(cluster, 2), tmp_path / "lost"
    through, whole = undisturbed
    cut = replace(config, checkpoint=str(folder), checkpoint_steps=EVERY, max_restarts=2, rank_timeout=timeout_s)
    words = [*command(cut), "--quiet", "--json", str(tmp_path / "report.json")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as job:
        trainers = begun(cut, job, 1)
        trainers[1].send_signal(number)
        _, said = job.communicate(timeout=WITHIN_S)
    assert job.returncode == 0, said
    (line,) = said.splitlines()
    assert re.match(rf"atta: all trainers start again from epoch \d, step \d+ \(restart 1 of 2\): {cause}", line), line
    assert not psutil.wait_procs(trainers.values(), timeout=WITHIN_S)[1]
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["restarts"] == 1
    assert_same([EpochReport.from_dict(e) for e in report["epochs"]], folder, through, whole)


@pytest.mark.slow
def test_a_run_that_cannot_go_on_ends_with_the_cause(cluster: str, tmp_path: Path) -> None:
    """Its trainer is killed before there is a checkpoint, and so is the next one."""
    config = config_of(cluster, 1, checkpoint=str(tmp_path), max_restarts=1, rank_timeout=30.0, epochs=100_000)
    with subprocess.Popen(command(config), stderr=subprocess.PIPE, text=True) as job:
        for restarts in range(2):
            until = time.monotonic() + WITHIN_S
            while not (found := trainers_of(job)) and time.monotonic() < until:
                time.sleep(0.05)
            found[0].kill()
            psutil.wait_procs(found.values(), timeout=WITHIN_S)
            assert restarts or job.poll() is None
        _, said = job.communicate(timeout=WITHIN_S)
    assert job.returncode == 1
    _, first, last = (line for line in said.splitlines() if line.startswith("atta: "))  # it starts
    assert first.startswith("atta: all trainers start again from the beginning (restart 1 of 1): trainer 0 was killed")
    assert last.startswith("atta: error: trainer 0 was killed by SIGKILL")
