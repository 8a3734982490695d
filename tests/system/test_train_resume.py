"""Runs whose trainers keep rows of others go on from a checkpoint as if they had never stopped. Learnable rows belong to
vertices: they go on after the graph was cut anew, and with other trainers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atta
from atta.errors import ConfigError, DataError
from atta.partition import GraphWriter, partition_graph
from atta.train import EpochReport, TrainConfig, fit

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

RUNS: dict[str, dict[str, Any]] = {
    "sancus": {"strategy": "sancus", "warmup": 2, "eps": 2.0},
    "gap": {"strategy": "sancus", "bound": "gap", "warmup": 1, "eps": 0.01, "rows": "all"},
    "pipegcn": {"strategy": "pipegcn"},
    "smooth": {"strategy": "pipegcn", "smooth": 0.9, "stale_across": "trainers"},
    "differences": {"strategy": "exchange", "codec": "delta-int8"},
    "budget": {"strategy": "exchange", "budget": 50.0, "epochs": 30, "eval_every": 30},
    "digest": {"strategy": "digest", "sync_every": 3, "grad_sync_every": 2},
    "weights": {"strategy": "digest", "sync_every": 2, "phase": "paper", "average": "weights", "loss": "local"},
    "sat": {"strategy": "sat", "sync_every": 1, "window": 2, "train_every": 2, "predictor": "linear"},
    "historical": {"strategy": "historical", "max_age": 2, "momentum": 0.5, "fan_out": 2, "batch_size": 16},
}


@pytest.fixture(scope="module")
def config(classes: Path) -> Iterator[TrainConfig]:
    with atta.local(classes / "parts", threads=1) as running:
        given: dict[str, Any] = {"trainers": 2, "trainers_per_server": 1, "model": "gcn", "layers": 3, "hidden": 8}
        given |= {"dropout": 0.3, "epochs": 7, "eval_every": 7, "seed": 1, "device": "cpu", "verbose": False}
        yield TrainConfig(cluster=str(running.cluster_file), strategy="exchange", **given)


def timeless(epochs: list[EpochReport]) -> list[EpochReport]:
    """The epochs without what depends on the machine, or on how often features were sent anew."""
    numbers = ("seconds", "seeds_per_s", "edges_per_s", "remote_bytes", "eval_seconds", "eval_bytes")
    fixed: dict[str, Any] = {**dict.fromkeys(numbers, 0.0), "breakdown": {}, "peak_memory_bytes": []}
    # A resumed run fills tables again.
    rows = [epoch.rows and replace(epoch.rows, filled_bytes=0, measure_s=0.0) for epoch in epochs]
    return [replace(epoch, rows=of_epoch, **fixed) for epoch, of_epoch in zip(epochs, rows, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
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


# -- learnable rows ----------------------------------------------------------------------------------------------------


PAPERS, AUTHORS, VENUES, HIDDEN = 90, 50, 12, 6
CUTS = ((1, "random"), (2, "random"), (2, "ldg"), (4, "metis"))


@dataclass
class Cuts:
    """One graph, cut in several ways, each with its daemons; authors have scattered ids, venues are numbered.

    ``folder``: of the graph, with its twins that lack an author and have another one.
    """

    folder: Path
    author_ids: np.ndarray
    clusters: list[atta.LocalCluster]

    def config(self, cut: int, **settings: Any) -> TrainConfig:
        common = {"model": "rgcn", "trainers": 1, "epochs": 4, "hidden": HIDDEN, "num_neighbors": (4, 4), "seed": 3}
        common |= {"batch_size": 16, "dropout": 0.2, "device": "cpu", "verbose": False, "seed_policy": "global"}
        common |= {"embedding_lr": 0.05}
        return TrainConfig(cluster=str(self.clusters[cut].cluster_file), **{**common, **settings})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cuts]:
    rng, folder = np.random.default_rng(8), tmp_path_factory.mktemp("cuts")
    ids = rng.permutation(7 * AUTHORS)[:AUTHORS]
    x, y = rng.standard_normal((PAPERS, 3)).astype(np.float32), rng.integers(0, 3, PAPERS)
    writes = np.stack([rng.integers(0, AUTHORS - 1, 3 * PAPERS), np.repeat(np.arange(PAPERS), 3)])
    shows = np.stack([rng.integers(0, VENUES, PAPERS), np.arange(PAPERS)])
    splits = {"train": np.arange(50), "val": np.arange(50, 70), "test": np.arange(70, 90)}
    for name, own in (("graph", ids), ("fewer", ids[:-1]), ("other", np.where(ids == ids[-1], 9999, ids))):
        with GraphWriter(folder / name) as out:
            out.add_nodes("paper", PAPERS, tables={"x": x, "y": y}, splits=splits)
            out.add_nodes("author", len(own), ids=own)
            out.add_nodes("venue", VENUES)
            out.add_edges("author__writes__paper", *writes)
            out.add_edges("paper__by__author", *writes[::-1])
            out.add_edges("venue__shows__paper", *shows)
    with ExitStack() as stack:
        clusters = []
        for parts, method in CUTS:
            data = folder / f"{method}-{parts}"
            partition_graph(folder / "graph", data, parts=parts, method=method, seed=2)
            clusters.append(stack.enter_context(atta.local(data, threads=1)))
        yield Cuts(folder, ids, clusters)


def figures(epochs: list[EpochReport]) -> list[float]:
    return [value for epoch in epochs for value in (epoch.loss, *(epoch.metrics or {}).values())]


def rows_of(folder: Path, epoch: int, trainers: int) -> dict[str, dict[str, torch.Tensor]]:
    files = [folder / f"rank-{epoch}-{rank}.pt" for rank in range(trainers)]
    states = [torch.load(file, weights_only=True)["state"]["tables"] for file in files]
    names = ("weight", "exp_avg", "exp_avg_sq", "ids")
    return {t: {n: torch.cat([s[t][n] for s in states]) for n in names if n in states[0][t]} for t in states[0]}


def test_runs_are_the_same_however_the_graph_is_cut_and_cut_anew(cuts: Cuts, tmp_path: Path) -> None:
    """One trainer: the first rows, each epoch, and a run that stops after two epochs and goes on with another cut."""
    through = fit(cuts.config(0, checkpoint=str(tmp_path / "through"))).epochs
    folder = tmp_path / "moved"
    moved = cuts.config(1, checkpoint=str(folder), epochs=2)
    fit(moved)
    fit(replace(cuts.config(2), checkpoint=str(folder), epochs=3, resume=True))
    found = fit(replace(cuts.config(3), checkpoint=str(folder), resume=True)).epochs
    assert figures(found) == pytest.approx(figures(through), rel=1e-5)
    ends = [rows_of(place, 4, 1) for place in (tmp_path / "through", folder)]
    assert ends[0]["author"]["ids"].tolist() == sorted(cuts.author_ids.tolist())
    assert "ids" not in ends[0]["venue"]
    for t, state in ends[0].items():
        for name, values in state.items():
            torch.testing.assert_close(ends[1][t][name], values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trainers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_other_trainers_go_on_with_the_rows_of_the_vertices(cuts: Cuts, tmp_path: Path, trainers: int) -> None:
    folder = str(tmp_path)
    fit(cuts.config(1, checkpoint=folder, epochs=2, trainers=2))
    before = rows_of(tmp_path, 2, 2)
    still = {"epochs": 3, "trainers": trainers, "embedding_lr": 1e-30, "resume": True}  # steps change no row
    fit(cuts.config(3, checkpoint=folder, **still))
    after = rows_of(tmp_path, 3, trainers)
    for t in ("author", "venue"):
        assert torch.equal(after[t]["weight"], before[t]["weight"])
        assert not torch.equal(after[t]["exp_avg"], before[t]["exp_avg"])
    assert not [*tmp_path.glob("rank-2-*.pt")]


REFUSED = {"fewer": "there are 49 nodes of type 'author', not 50", "other": "is not a vertex of node type 'author'"}


@pytest.mark.parametrize(
    ("graph", "said"),
    [pytest.param(*one, marks=[pytest.mark.slow] * (one[0] == "fewer"), id=one[0]) for one in REFUSED.items()],
)
def test_a_graph_of_other_vertices_is_refused(cuts: Cuts, tmp_path: Path, graph: str, said: str) -> None:
    kept = cuts.config(1, checkpoint=str(tmp_path / "run"), epochs=1)
    fit(kept)
    partition_graph(cuts.folder / graph, tmp_path / "data", parts=2, method="random")
    with atta.local(tmp_path / "data", threads=1) as cluster:
        there = replace(kept, cluster=str(cluster.cluster_file))
        begun = replace(there, checkpoint=None, init_from=kept.checkpoint)
        uses: tuple[Callable[[], object], ...] = (
            lambda: fit(replace(there, resume=True, epochs=2)),
            lambda: fit(begun),
            lambda: atta.predict(cluster, tmp_path / "run"),
        )
        for use in uses:
            with pytest.raises(DataError, match=f"of another graph: .*{re.escape(said)}"):
                use()
