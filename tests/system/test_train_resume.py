"""Runs whose trainers keep rows of others go on from a checkpoint as if they had never stopped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import atta
from atta.errors import ConfigError, DataError
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.train import EpochReport, TrainConfig, fit

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

RUNS: dict[str, dict[str, Any]] = {
    "sancus": {"strategy": "sancus", "warmup": 2, "eps": 2.0},
    "adaptive": {"strategy": "sancus", "bound": "adaptive", "warmup": 1, "eps": 3.0},
    "gap": {"strategy": "sancus", "bound": "gap", "warmup": 1, "eps": 0.01, "rows": "all"},
    "pipegcn": {"strategy": "pipegcn"},
    "smooth": {"strategy": "pipegcn", "smooth": 0.9, "stale_across": "trainers"},
    "differences": {"strategy": "exchange", "codec": "delta-int8"},
    "digest": {"strategy": "digest", "sync_every": 3, "grad_sync_every": 2},
    "weights": {"strategy": "digest", "sync_every": 2, "phase": "paper", "average": "weights", "loss": "local"},
    "sat": {"strategy": "sat", "sync_every": 1, "window": 2, "train_every": 2, "predictor": "linear"},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainConfig]:
    """Two servers of one trainer, and the daemons of all runs."""
    folder = tmp_path_factory.mktemp("resume")
    sizes = {"nodes": 300, "edges": 2400, "features": 6, "classes": 3, "seed": 5}
    generate("sbm", folder / "graph", GenerateOptions(**sizes, train=0.4, val=0.3, test=0.3, inter=0.3))  # type: ignore[arg-type]
    partition_graph(folder / "graph", folder / "parts", parts=2, method="metis", seed=0)
    with atta.local(folder / "parts", threads=1) as running:
        yield TrainConfig(
            cluster=str(running.cluster_file),
            trainers=2,
            trainers_per_server=1,
            model="gcn",
            layers=3,
            hidden=8,
            dropout=0.3,
            epochs=7,
            eval_every=7,
            seed=1,
            device="cpu",
            verbose=False,
            strategy="exchange",
        )


def timeless(epochs: list[EpochReport]) -> list[EpochReport]:
    """The epochs without what depends on the machine, or on how often features were sent anew."""
    fixed: dict[str, Any] = {
        "seconds": 0.0,
        "seeds_per_s": 0.0,
        "edges_per_s": 0.0,
        "remote_bytes": 0.0,
        "breakdown": {},
    }
    fixed |= {"eval_seconds": 0.0, "eval_bytes": 0.0, "peak_memory_bytes": []}
    rows = [epoch.rows and replace(epoch.rows, filled_bytes=0) for epoch in epochs]  # a resumed run fills tables again
    return [replace(epoch, rows=of_epoch, **fixed) for epoch, of_epoch in zip(epochs, rows, strict=True)]


LONG = ("sancus", "adaptive", "gap", "pipegcn", "smooth", "differences", "digest", "weights", "sat")
"""Runs that others resemble."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in RUNS])
def test_a_resumed_run_is_the_same_run(config: TrainConfig, tmp_path: Path, name: str) -> None:
    """Losses, accuracies, payload and ages of every epoch, bit for bit. It stops between two checkpoints."""
    config = replace(config, **RUNS[name])
    through = fit(replace(config, checkpoint=str(tmp_path / "through"))).epochs
    folder = tmp_path / "stopped"
    stopped = replace(config, checkpoint=str(folder), resume=True, checkpoint_every=2)
    fit(replace(stopped, epochs=4, eval_every=4))
    files = sorted(path.name for path in folder.iterdir() if path.name.startswith("rank"))
    assert files == ["rank-4-0.pt", "rank-4-1.pt"]
    resumed = fit(stopped).epochs
    again = timeless(resumed)
    again[3] = replace(again[3], val_accuracy=None, test_accuracy=None, metrics={})  # the first run ended there
    assert again == timeless(through)
    ends = [torch.load(place / "checkpoint.pt", weights_only=True)["model"] for place in (tmp_path / "through", folder)]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_exact_exchange_keeps_nothing(config: TrainConfig, tmp_path: Path) -> None:
    fit(replace(config, epochs=2, checkpoint=str(tmp_path)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "best.safetensors", "checkpoint.pt"]


@pytest.mark.slow
def test_files_of_ranks_that_do_not_fit_are_refused(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(config, strategy="pipegcn", checkpoint=str(tmp_path), resume=True)
    fit(replace(config, epochs=2))
    mine, other = tmp_path / "rank-2-0.pt", tmp_path / "rank-2-1.pt"
    whole = other.read_bytes()
    other.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataError, match=r"rank-2-1\.pt: .*altered"):
        fit(config)
    other.unlink()
    with pytest.raises(
        DataError, match=r"rank-2-1\.pt: is missing: the checkpoint of 2 epochs goes with a file of each"
    ):
        fit(config)
    shutil.copy(mine, other)
    with pytest.raises(DataError, match=r"rank-2-1\.pt: is of trainer 0, not 1"):
        fit(config)
    other.write_bytes(whole)
    with pytest.raises(ConfigError, match=r"--resume: the checkpoint was made with smooth=None, not 0\.5"):
        fit(replace(config, smooth=0.5))
    left = tmp_path / "rank-1-2.pt"  # of an earlier run with more trainers
    shutil.copy(mine, left)
    assert len(fit(replace(config, epochs=3)).epochs) == 3
    assert not left.exists()


def test_rows_that_are_not_finite_end_the_run(config: TrainConfig) -> None:
    """Weights of 1e30 after the first step: rows of the second epoch are infinite, and nobody reads them."""
    with pytest.raises(atta.AttaError, match=r"trainer \d, epoch \d, layer \d: .* infinity or NaN"):
        fit(replace(config, strategy="pipegcn", lr=1e30))
