"""Runs with learnable rows that go on after the graph was cut anew, and with other trainers: rows belong to vertices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atta
from atta.errors import DataError
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, fit
from atta.train.reports.epochs import EpochReport

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

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
    """What the files of all trainers have, one after another, by node type."""
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


@pytest.mark.parametrize(("graph", "said"), REFUSED.items(), ids=REFUSED.keys())
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
