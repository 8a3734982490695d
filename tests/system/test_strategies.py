"""Whole runs on real daemons, epoch by epoch against dense programs in one process (``tests/oracles``) and each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import atta
from atta.errors import QuotaExceededError
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta.train import fit
from tests.oracles.free import AsyncDigest, Dorylus
from tests.oracles.predicted import Sat
from tests.oracles.rows import Digest, Exact, PipeGcn, Sancus
from tests.system import strategies as harness
from tests.system.cases import marked, results_of, trainers, which
from tests.system.strategies import (
    BASE,
    FROZEN,
    HIDDEN,
    IN_TURN,
    INTERVALS,
    LAGGING,
    PERIODS,
    RESUMED,
    SATS,
    UNCUT,
    VARIANTS,
    WORLD,
    TableCase,
)
from tests.waiting import eventually

Results = list[dict[str, Any]]
VERTICES, EDGES, CHANNELS, CLASSES = 120, 800, 5, 3


def whole(between: bool) -> SimpleNamespace:
    """A random graph. ``between``: whether edges lead from one half of the vertices to the other."""

    def draws() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    edges = torch.randint(0, VERTICES, (2, EDGES), generator=draws())
    return SimpleNamespace(
        edges=edges if between else torch.stack([edges[0] // 2 * 2 + edges[1] % 2, edges[1]]),
        x=torch.randn(VERTICES, CHANNELS, generator=draws()).double(),
        y=torch.randint(0, CLASSES, (VERTICES,), generator=draws()),
        train=torch.rand(VERTICES, generator=draws()) < 0.5,
    )


WHOLE = whole(between=True)


def partitioned(graph: SimpleNamespace, folder: Path, method: str, parts: int = 2) -> Path:
    with GraphWriter(folder / "graph") as out:
        tables, train = {"x": graph.x.float().numpy(), "y": graph.y.numpy()}, np.flatnonzero(graph.train.numpy())
        out.add_nodes("node", VERTICES, tables=tables, splits={"train": train})
        out.add_edges("node__to__node", *graph.edges.numpy())
    partition_graph(folder / "graph", folder / "parts", parts=parts, method=method, seed=0)
    return folder / "parts"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.LocalCluster]:
    data = partitioned(WHOLE, tmp_path_factory.mktemp("cut"), "random")
    with atta.local(data, threads=1, options=("--tables", "100KiB")) as running:
        yield running


@pytest.fixture(scope="module")
def results(
    preloaded_trainers: None,
    cluster: atta.LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Results:
    folder = tmp_path_factory.mktemp("whole-runs")
    data = (
        partitioned(whole(between=False), folder / "uncut", "metis"),
        partitioned(WHOLE, folder / "four", "random", 4),
    )
    with atta.local(data[0], threads=1) as uncut, atta.local(data[1], threads=1) as four:
        clusters = [str(one.cluster_file) for one in (cluster, uncut, four)]
        found = results_of("tests.system.strategies", folder, *clusters, which(request))
    assert not list(cluster.tables.specs())  # every run has dropped its own
    return found


def owners_of(results: Results, case: TableCase) -> torch.Tensor:
    owners = torch.full((VERTICES,), -1)
    for rank, result in enumerate(results):
        owners[result[case.name]["own"]] = rank
    assert owners.min() == 0
    return owners


PROGRAMS = {"exchange": Exact, "sancus": Sancus, "pipegcn": PipeGcn, "digest": Digest, "sat": Sat}


def behind(epoch: int) -> list[int]:
    """By how many epochs trainers lag that take ``PACES``: bounds of 3, and a mean in which an epoch counts a fifth."""
    paces = [torch.tensor(harness.PACES[past // 3 % 2], dtype=torch.float64) for past in range(epoch - 1)]
    mean = paces[0] if paces else torch.ones(WORLD)
    for pace in paces[1:]:
        mean = 0.8 * mean + 0.2 * pace
    return [int(4 - 4 * mean.min() / own) for own in mean]


def program_of(results: Results, case: TableCase) -> Exact:
    given = WHOLE, case.config("nowhere"), owners_of(results, case), case.rate
    return Sancus(*given, behind=behind) if case.seconds else PROGRAMS[case.strategy](*given)


@pytest.mark.parametrize("case", marked([*harness.BARRIERS, LAGGING[1]], harness.QUICK))
def test_a_run_is_the_program_of_its_strategy(results: Results, case: TableCase) -> None:
    """Losses and weights of every epoch."""
    expected = list(program_of(results, case).run())
    for rank in results:
        epochs = rank[case.name]["epochs"]
        assert [e["loss"] for e in epochs] == pytest.approx([e.loss for e in expected], rel=1e-9)
        for found, wanted in zip(epochs, expected, strict=True):
            for mine, its in zip(found["weights"], wanted.weights, strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-10)


def test_a_bound_that_follows_speeds_is_no_fixed_one(results: Results) -> None:
    """The slowest trainer sends in most epochs, then another one; nobody's rows get older than the bound."""
    sent = [[e["broadcasts"].get(1, 0) for e in rank[LAGGING[0].name]["epochs"]] for rank in results]
    assert len({tuple(of_one) for of_one in sent}) > 2
    assert all(e["ages"]["1 forward"][1] <= 3 for rank in results for e in rank[LAGGING[0].name]["epochs"])
    assert {behind(epoch)[3] for epoch in range(1, 15)} > {0, 3}


def test_trainers_that_wait_for_nobody_make_the_updates_of_their_order(results: Results) -> None:
    program = AsyncDigest(WHOLE, IN_TURN.config("nowhere"), owners_of(results, IN_TURN))
    found = {turn: weights for rank in results for turn, weights in rank[IN_TURN.name]["updates"].items()}
    expected = list(program.updates(IN_TURN.turns))
    assert len(expected) == len(found) == len(IN_TURN.turns) // 2
    for turn, its in zip(sorted(found), expected, strict=True):
        torch.testing.assert_close(found[turn], its, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", marked(INTERVALS, harness.QUICK))
def test_intervals_compute_what_they_say_to_have_read(results: Results, case: TableCase) -> None:
    """With weights of one version for forward and backward, which are at most S epochs old, and rows of S + 1."""
    runs = [rank[case.name] for rank in results]
    read, began = ({k: v for run in runs for k, v in run[name].items()} for name in ("read", "began"))
    intervals = {(rank, n): ids for rank, run in enumerate(runs) for n, ids in enumerate(run["intervals"])}
    options = case.config("nowhere")
    program = Dorylus(WHOLE, options, intervals, read, began)
    for epoch, found in enumerate(runs[0]["losses"]):
        loss, its = program.epoch(epoch)
        assert found == pytest.approx(loss, rel=1e-9)
        for mine in (run["weights"][epoch + 1] for run in runs if epoch + 1 in run["weights"]):
            torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-10)
    slack = options.own.staleness
    ages = {epoch - version for (*_, epoch), versions in read.items() for version in versions.values()}
    late = {epoch - version for (_, epoch), version in began.items()}
    assert ages == {0} if options.mode == "pipe" else 1 <= max(ages) <= slack + 1
    assert late <= set(range(slack + 1))


@pytest.mark.parametrize("case", marked([*PERIODS, *VARIANTS], harness.QUICK))
def test_rows_are_of_the_last_synchronisation(results: Results, case: TableCase) -> None:
    expected = program_of(results, case)
    reads = [expected.version for _ in expected.run()]  # type: ignore[attr-defined]
    for rank in range(WORLD):
        epochs = results[rank][case.name]["epochs"]
        for epoch, (found, read) in enumerate(zip(epochs, reads, strict=True), 1):
            age = epoch - read
            assert {key: ages[:2] for key, ages in found["ages"].items()} == {
                "1 forward": (age, age),
                "2 forward": (age, age),
            }
            new = epoch == 1 or read != reads[epoch - 2]
            rows = found["ages"]["1 forward"][2]
            assert found["sent"] == new * rows * 2 * HIDDEN * 8
            assert found["gradients_kept"] == 0
            assert (found["crossed"] == found["sent"]) == (not new or case.options.get("stale_across") is None)
    every, phase = case.options["sync_every"], case.options.get("phase", "early")
    ages = [epoch - read for epoch, read in enumerate(reads, 1)]
    if phase == "early":
        assert set(ages) == set(range(1, every + 1))
    elif every > 1:
        assert set(ages[every - 1 :]) <= set(range(every - 1, 2 * every - 1))


def test_gradients_of_every_epoch_close_the_gap_of_digest(results: Results) -> None:
    """Rows every 3 epochs, gradients each. With frozen weights the loss and the whole gradient become exact."""
    given = Exact(WHOLE, FROZEN.config("nowhere"), owners_of(results, FROZEN), FROZEN.rate)
    loss, exact, _ = next(given.run())
    for result in results:
        epochs = result[FROZEN.name]["epochs"]
        assert epochs[-1]["loss"] == pytest.approx(loss, rel=1e-12)
        for mine, theirs in zip(epochs[-1]["gradients"], exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
        # Before that, gradients end at the cut, in all layers but the last.
        assert not torch.allclose(epochs[0]["gradients"][0], exact[0], rtol=1e-3)


@pytest.mark.slow
def test_all_rows_are_pushed_if_asked_for(results: Results) -> None:
    for rank in range(WORLD):
        case = VARIANTS[0]
        found = results[rank][case.name]
        pushed = [e["pushed"] for e in found["epochs"]]
        assert pushed == [(epoch % 2 == 0) * len(found["own"]) * 2 * HIDDEN * 8 for epoch in range(1, 8)]
    owners = owners_of(results, BASE)
    for rank in range(WORLD):
        read = int((program_of(results, BASE).shared & (owners == rank)).sum())
        pushed = [e["pushed"] for e in results[rank][BASE.name]["epochs"]]
        assert pushed == [(epoch % 3 == 0) * read * 2 * HIDDEN * 8 for epoch in range(1, 8)]


def weights(results: Results, case: TableCase, rank: int = 0) -> list[list[torch.Tensor]]:
    found: list[list[torch.Tensor]] = [epoch["weights"] for epoch in results[rank][case.name]["epochs"]]
    return found


def same(a: list[list[torch.Tensor]], b: list[list[torch.Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("case", marked([c for c in harness.CASES if c.data != "four"], harness.QUICK))
def test_all_trainers_have_the_same_weights_and_they_move(results: Results, case: TableCase) -> None:
    for rank in range(1, WORLD):
        assert same(weights(results, case), weights(results, case, rank))
    assert same(weights(results, case)[:1], weights(results, case)[1:2]) == (case.rate == 0)


@pytest.mark.slow
def test_without_cut_edges_weights_are_those_of_exchange(results: Results) -> None:
    assert [result[UNCUT[0].name]["halo"] for result in results] == [0] * WORLD
    for case in UNCUT[1:]:
        assert same(weights(results, UNCUT[0]), weights(results, case))


@pytest.mark.slow
def test_delays_change_no_bit(results: Results) -> None:
    assert same(weights(results, BASE), weights(results, harness.DELAYED))


@pytest.mark.parametrize(
    "cases",
    [RESUMED, *(pytest.param(cases, marks=pytest.mark.slow) for cases in (LAGGING, harness.SAT_RESUMED))],
    ids=["digest", "sancus", "sat"],
)
def test_a_run_that_goes_on_repeats_every_bit(results: Results, cases: tuple[TableCase, TableCase]) -> None:
    through, resumed = cases
    assert same(weights(results, through), weights(results, resumed))
    for rank in range(WORLD):
        for a, b in zip(results[rank][through.name]["epochs"], results[rank][resumed.name]["epochs"], strict=True):
            assert all(a[key] == b[key] for key in ("loss", "ages", "errors", "uses", "broadcasts"))


@pytest.mark.slow
def test_rows_that_backward_computes_again_are_published_once(results: Results) -> None:
    plain, checkpointed = harness.CHECKPOINTED
    for a, b in zip(weights(results, plain)[0], weights(results, checkpointed)[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    for rank in range(WORLD):
        for a, b in zip(results[rank][plain.name]["epochs"], results[rank][checkpointed.name]["epochs"], strict=True):
            assert all(a[key] == b[key] for key in ("ages", "sent", "pushed", "broadcasts"))


@pytest.mark.parametrize("case", marked(SATS[:2], harness.QUICK))
def test_predictions_are_read_only_where_they_were_better(results: Results, case: TableCase) -> None:
    """For HALO rows that have come: the guard is asked at each synchronisation but the first."""
    epochs = results[0][case.name]["epochs"]
    # What was learnt from epoch 2 counts after epoch 3, and is measured in epoch 4.
    assert same(weights(results, SATS[2])[:4], weights(results, case)[:4])
    used = dict.fromkeys((1, 2), False)
    ever = False
    for epoch, found in enumerate(epochs, 1):
        assert set(found["errors"]) == ({1, 2} if epoch > 1 else set())
        for layer, (predicted, stale) in found["errors"].items():
            used[layer] = predicted < stale
        assert found["uses"] == used
        for layer, predicts in found["predicts"].items():
            assert used[layer] or not predicts
            ever |= predicts
    assert ever
    assert not same(weights(results, SATS[2]), weights(results, case))


def digest_config(cluster: atta.LocalCluster, **options: Any) -> Any:
    return TableCase("digest", {"epochs": 2, **options}).config(str(cluster.cluster_file))


def test_tables_that_do_not_fit_name_the_bytes(preloaded_trainers: None, cluster: atta.LocalCluster) -> None:
    config = digest_config(cluster, hidden=500)
    before = set(cluster.tables.specs())
    needed = 2 * VERTICES * 2 * (500 * 4 + 8)  # two slots, two layers, versions
    with pytest.raises(
        QuotaExceededError, match=rf"stale rows need {needed} bytes .* start the daemons with more --tables"
    ):
        fit(config)
    assert set(cluster.tables.specs()) == before


@pytest.mark.slow
def test_a_killed_run_leaves_no_tables(preloaded_trainers: None, cluster: atta.LocalCluster, tmp_path: Path) -> None:
    before = set(cluster.tables.specs())
    with trainers("tests.system.strategies", tmp_path, str(cluster.cluster_file), "forever") as started:
        assert eventually(lambda: len(set(cluster.tables.specs()) - before) == 4, seconds=60)
        assert all(t.poll() is None for t in started)
    assert eventually(lambda: set(cluster.tables.specs()) == before, seconds=60)
