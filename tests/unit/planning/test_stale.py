"""Forecasts of strategies that read rows of other servers: bytes against brute force, times by hand, sentences."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import DataError
from atta.train.cooperative.source import Direction
from atta.train.exchange.policies import NEVER, DigestPolicy, PipeGcnPolicy, RowPolicy, SancusPolicy
from atta.train.planning.count import Question, Servers, count_sizes
from atta.train.planning.explain import advise, forecasts, recorded_losses
from atta.train.planning.forecast import Forecast, Forecaster
from atta.train.planning.sizes import Machines
from atta.train.strategies import STRATEGIES
from atta.train.strategies.exchange import GAP_SENDS
from tests.unit.operators.oracles import Graph, graphs
from tests.unit.planning.test_forecast import MACHINES, MODEL, RATES, SIZES

POLICIES: list[tuple[str, RowPolicy]] = [
    ("exchange", RowPolicy()),
    ("sancus", SancusPolicy(eps=1.0)),
    ("pipegcn", PipeGcnPolicy()),
    ("digest", DigestPolicy(sync_every=10)),
    ("sat", DigestPolicy(sync_every=10)),
]


def one(strategy: str, forecaster: Forecaster | None = None) -> Forecast:
    """The first: with default settings."""
    return next(iter(STRATEGIES[strategy].forecasts(forecaster or Forecaster(SIZES, MACHINES, MODEL, RATES))))


def sent_epochs(policy: RowPolicy, direction: Direction, first: int, count: int) -> int:
    """In how many epochs rows or gradients travel, by asking the strategy's policy epoch by epoch."""
    version, sent = NEVER, 0
    for epoch in range(1, first + count):
        if policy.reads(epoch, direction) is None:
            continue
        if policy.publishes(epoch, direction, 0, version):
            version = epoch
            sent += epoch >= first
    return sent


@pytest.mark.parametrize(("strategy", "policy"), POLICIES)
@given(graph=graphs(), layers=st.integers(1, 4))
@settings(max_examples=20)
def test_bytes_are_those_of_every_edge_and_epoch(graph: Graph, layers: int, strategy: str, policy: RowPolicy) -> None:
    bounds = np.arange(3) * graph.nodes // 2
    whole = Servers(graph.local, bounds, np.arange(graph.nodes))
    sizes = count_sizes(whole, Question(2, 1, layers))
    model = replace(MODEL, layers=layers)
    found = one(strategy, Forecaster(sizes, Machines(2, 1), model, RATES))
    epochs, received = 20, []
    for server in range(2):
        own = set(range(bounds[server], bounds[server + 1]))
        halo = {s for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True) if d in own and s not in own}
        times = sum(sent_epochs(policy, direction, 101, epochs) for direction in ("forward", "backward"))
        received.append(sum(4 * model.hidden * times for _ in halo for _ in range(1, layers)))
    assert found.row_bytes * epochs == pytest.approx(max(received))


@pytest.mark.parametrize(("strategy", "policy"), POLICIES[1:])
def test_ages_are_those_that_the_policy_allows(strategy: str, policy: RowPolicy) -> None:
    versions, ages = [0], set()
    for epoch in range(1, 141):
        if policy.publishes(epoch, "forward", 0, versions[-1]):
            versions.append(epoch)
        rule = policy.reads(epoch, "forward")
        assert rule is not None
        held = max(version for version in versions if rule.oldest <= version <= rule.newest)
        if epoch > 100:
            ages.add(epoch - held)
    assert one(strategy).ages == (min(ages), max(ages))


def test_times_by_hand() -> None:
    exchange = one("exchange")
    # 150 rows in layers 2 and 3, there and back; gradients of weights are 4 rows. A link takes 50 rows per second.
    assert exchange.external == pytest.approx((150 * 4 + 4) / 50)
    assert exchange.row_bytes == 150 * 2 * 2 * 10 * 4
    sancus, digest = one("sancus"), one("digest")
    assert sancus.external == pytest.approx((150 * 2 * 1.5 + 4) / 50)
    assert digest.external == pytest.approx((150 * 2 / 10 + 4) / 50)
    assert digest.compute == exchange.compute
    sat = one("sat")
    # Half of 300 HALO rows each trainer, five versions in every tenth epoch, at 8/3 of a layer's row.
    assert sat.compute - exchange.compute == pytest.approx(150 * 0.5 * (8 / 3) / 100)
    assert sat.external == digest.external


def test_pipegcn_takes_the_larger_of_computing_and_exchange() -> None:
    slow = one("pipegcn")
    rest = slow.internal + 4 / 50
    assert slow.compute == pytest.approx(13.5)
    assert slow.seconds == pytest.approx(max(13.5, 600 / 50) + rest)
    slower = one("pipegcn", Forecaster(SIZES, MACHINES, MODEL, replace(RATES, external=5)))
    assert slower.seconds == pytest.approx(max(13.5, 600 / 5) + slower.internal + 4 / 5)


def test_copies_take_memory() -> None:
    exchange, digest, sat = one("exchange"), one("digest"), one("sat")
    assert digest.memory - exchange.memory == 2 * 150 * 10 * 4  # two versions of half of 2 layers of 150 rows
    assert sat.memory - exchange.memory == 7 * 150 * 10 * 4
    little = replace(MACHINES, memory=exchange.memory)
    assert one("exchange", Forecaster(SIZES, little, MODEL, RATES)).fits
    assert not one("digest", Forecaster(SIZES, little, MODEL, RATES)).fits


def test_of_equally_fast_strategies_the_exact_one_is_chosen() -> None:
    """A model of one layer reads features alone, so stale rows gain nothing."""
    model = replace(MODEL, layers=1)
    ranked = [f for f in forecasts(SIZES, MACHINES, model, RATES) if f.kind in {"exchange", "digest", "pipegcn"}]
    assert len({f.seconds for f in ranked}) == 1
    advice = advise(ranked)
    assert (advice.chosen.kind, advice.chosen.exact) == ("exchange", True)
    said = " ".join(advice.sentences)
    assert "The next other kind, digest, every 10 epochs, takes about the same time, most of it for computing" in said


def test_one_server_reads_nothing_of_others() -> None:
    alone = Forecaster(SIZES, Machines(1, 2), MODEL, RATES)
    for strategy in (*(name for name, _ in POLICIES), "digest-async", "dorylus"):
        assert not list(STRATEGIES[strategy].forecasts(alone))


def test_a_stale_choice_says_ages_bytes_and_risk() -> None:
    kinds = {f.kind for f in forecasts(SIZES, MACHINES, MODEL, RATES)}
    assert {"exchange", "sancus", "pipegcn"} <= kinds
    said = " ".join(advise([one("digest"), one("exchange")]).sentences)
    assert "It receives 1.17 KiB of rows per epoch and server; rows of other servers are 1 to 10 epochs old." in said
    assert "What may cost accuracy: gradients end at the cut" in said
    assert "The fastest with exact gradients, exchange, takes" in said
    said = " ".join(advise([one("pipegcn"), one("exchange")]).sentences)
    assert "are 1 epoch old." in said
    assert "With a link" not in said  # what it hides depends on the link
    assert "What may cost" not in " ".join(advise([one("exchange")]).sentences)


def test_the_three_bounds_of_sancus() -> None:
    age, turns, gap = STRATEGIES["sancus"].forecasts(Forecaster(SIZES, MACHINES, MODEL, RATES))
    assert (turns.seconds, turns.memory, turns.row_bytes) == (age.seconds, age.memory, age.row_bytes)
    assert turns.options[1] == "sancus:bound=adaptive,eps=1"
    assert age.options[1] == "sancus:eps=1"
    # 300 rows of layers 2 and 3 each way; the second copy is of 300 rows, divided among two trainers.
    assert gap.external == pytest.approx((300 * (1 + GAP_SENDS) + 4) / 50)
    assert gap.memory - age.memory == 150 * 10 * 4
    assert gap.options[1] == "sancus:bound=gap"
    said = " ".join(advise([gap]).sentences)
    assert "rows of other servers are 0 epochs old or older, without a bound. Rows travel when they have" in said
    assert "Owners take turns" in " ".join(advise([turns]).sentences)


ALONE = Machines(4, 1)


def test_without_barriers_one_link_carries_all_gradients() -> None:
    forecaster = Forecaster(SIZES, ALONE, MODEL, RATES)
    alone, digest = one("digest-async", forecaster), one("digest", forecaster)
    weights = 40 / 10  # rows
    assert alone.external - digest.external == pytest.approx((3 * weights - 2 * 3 / 4 * weights) / 50)
    assert (alone.row_bytes, alone.memory, alone.compute) == (digest.row_bytes, digest.memory, digest.compute)
    assert (alone.ages, alone.exact) == ((1, None), False)
    assert not list(
        STRATEGIES["digest-async"].forecasts(Forecaster(SIZES, MACHINES, MODEL, RATES))
        # Trainers of a server would wait for each other.
    )


def test_dorylus_hides_rows_and_pays_for_workers() -> None:
    forecaster = Forecaster(SIZES, ALONE, MODEL, RATES)
    found, exchange = one("dorylus", forecaster), one("exchange", forecaster)
    own = SIZES.exchanged.vertices
    # A third of each layer's rows is computed again; sums and rows go to workers and back, once more in backward.
    assert found.compute - exchange.compute == pytest.approx(3 * own / 3 / 100)
    assert found.internal - exchange.internal == pytest.approx(3 * own * 5 / 200)
    assert found.row_bytes == exchange.row_bytes
    assert found.hidden == pytest.approx(min(found.compute, 600 / 50))
    for other in (replace(ALONE, trainers=2), replace(ALONE, device="cuda")):
        assert not list(STRATEGIES["dorylus"].forecasts(Forecaster(SIZES, other, MODEL, RATES)))
    deep = replace(MODEL, model="deepergcn")
    assert not list(STRATEGIES["dorylus"].forecasts(Forecaster(SIZES, ALONE, deep, RATES)))


def test_every_strategy_that_reads_rows_of_others_is_ranked() -> None:
    kinds = {f.kind for f in forecasts(SIZES, ALONE, MODEL, RATES)}
    assert kinds >= {"exchange", "sancus", "pipegcn", "digest", "sat", "digest-async", "dorylus"}


def record(*runs: tuple[str, str, int, int, float]) -> str:
    names = ("variant", "graph", "layers", "seed", "test")
    return json.dumps({"results": [dict(zip(names, run, strict=True)) for run in runs]})


def test_losses_are_those_of_the_record_in_the_worst_case(tmp_path: Path) -> None:
    file = tmp_path / "stale-accuracy.json"
    assert recorded_losses(file) == {}
    runs = [("exchange", graph, 2, seed, 80.0 + seed) for graph in ("a", "b") for seed in range(3)]
    runs += [("digest-10", "a", 2, seed, 80.0 + seed - lost) for seed, lost in enumerate((5.0, 1.0, 0.5))]
    runs += [("digest-10", "b", 2, seed, 80.0 + seed - lost) for seed, lost in enumerate((2.0, 2.1, -9.0))]
    runs += [("pipegcn", "a", 2, 0, 80.5), ("pipegcn", "a", 3, 0, 10.0)]
    file.write_text(record(*runs))
    losses = recorded_losses(file)
    assert set(losses) == {"digest-10", "pipegcn"}
    assert "at most 2.0 points beside exact training, on b with 2 layers" in losses["digest-10"]
    assert "lost nothing" in losses["pipegcn"]
    ranked = forecasts(SIZES, MACHINES, MODEL, RATES, losses)
    (digest,) = (f for f in ranked if f.kind == "digest")
    assert digest.risk.endswith(losses["digest-10"])
    assert "What may cost accuracy: gradients end at the cut" in " ".join(advise([digest]).sentences)
    for damaged in ("", "[]", '{"results": [{}]}', '{"results": 3}'):
        file.write_text(damaged)
        with pytest.raises(DataError, match="no record of accuracies"):
            recorded_losses(file)
