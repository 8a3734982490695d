"""Predictions by hand and by brute force; the effect of a faster link and of more memory; printed sentences."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.cli.train import train
from atta.errors import ConfigError, DataError
from atta.train import TrainConfig
from atta.train.cooperative.source import Direction
from atta.train.exchange.policies import NEVER, DigestPolicy, PipeGcnPolicy, RowPolicy, SancusPolicy
from atta.train.planning.count import Question, Servers, count_sizes
from atta.train.planning.explain import advise, forecasts, recorded_losses
from atta.train.planning.forecast import Forecast, Forecaster
from atta.train.planning.sizes import Expansion, Machines, MeanBatch, PlannedModel, Rates, ServerWork, Sizes
from atta.train.strategies import STRATEGIES
from atta.train.strategies.exchange import GAP_SENDS
from tests.unit.operators.oracles import Graph, graphs

MODEL = PlannedModel("sage", layers=3, hidden=10, inputs=20)
MACHINES = Machines(2, 2)
RATES = Rates(vertices=100, edges=1000, internal=200, external=50, drawing=400, extracting=800, parameters=40)
SIZES = Sizes(
    vertices=1000,
    edges=8000,
    targets=400,
    exchanged=ServerWork(500, 4000, 500, 60, 150),
    closure=ServerWork(900, 7600, 850, 120, preloaded=400),
    closure_by_hop=(500, 700, 800, 850),
    sampled={Expansion(1, 15): ServerWork(600, 4800, 600, 80, preloaded=100)},
    co_batches={4: ServerWork(200, 1600, 200, 30, preloaded=20)},
    mini_batch=MeanBatch((50, 100, 200, 400), (110, 220, 440), remote=300),
    batch_size=50,
    num_neighbors=(5, 4, 3),
)


def by_kind(
    sizes: Sizes = SIZES, machines: Machines = MACHINES, model: PlannedModel = MODEL, rates: Rates = RATES
) -> dict:
    return {f.kind: f for f in forecasts(sizes, machines, model, rates)}


def test_times_of_exact_strategies_by_hand() -> None:
    found = by_kind()["exchange"]
    # A row travels there and back before layers 2 and 3. Features, twice as wide, travel only before the first epoch.
    assert MODEL.exchanges == 4
    assert found.compute == pytest.approx(3 * (250 / 100 + 2000 / 1000))
    gradients = 40 / 10  # rows; between two servers, half of a sum goes each way
    assert found.internal == pytest.approx((60 * 4 + gradients) / 200)
    assert found.external == pytest.approx((150 * 4 + gradients) / 50)
    assert found.preload == pytest.approx(150 * 2 / 50)
    assert found.sampling == 0
    assert (found.steps, found.redundancy, found.exact) == (1, 1.0, True)

    found = by_kind()["preloading"]  # sends gradients only
    assert found.compute == pytest.approx(3 * (450 / 100 + 3800 / 1000))
    assert found.internal == pytest.approx((120 * 4 + 4) / 200)
    assert found.external == pytest.approx(4 / 50)
    assert found.preload == pytest.approx(400 * 2 / 50)
    assert found.redundancy == pytest.approx(1.7)

    found = by_kind()["cooperative"]
    assert found.steps == 4
    assert found.compute == pytest.approx(4 * 3 * (100 / 100 + 800 / 1000))
    assert found.internal == pytest.approx(4 * (30 * 6 + 4) / 200)
    assert found.external == pytest.approx(4 * 4 / 50)
    assert found.sampling == pytest.approx(4 * 1600 / 800)
    assert found.redundancy == pytest.approx(2 * 4 * 200 / 1000)

    found = by_kind()["mini-batch"]
    rows, edges = (350 + 150 + 50), (770 + 330 + 110)  # the last hop is read, not computed
    assert found.steps == 2  # 400 targets, 4 trainers of 50
    assert found.compute == pytest.approx(2 * (rows / 100 + edges / 1000))
    assert found.external == pytest.approx((2 * 300 * 2 * 2 + 2 * 4) / 50)  # both trainers of a server use its link
    assert found.sampling == pytest.approx(2 * 770 / 400)
    assert found.disk == 0
    slow = by_kind(rates=replace(RATES, disk=10.0))["mini-batch"]
    assert slow.disk == pytest.approx(slow.seconds - found.seconds) == pytest.approx(2 * 2 * (750 - 300) / 10)
    assert found.redundancy == pytest.approx(4 * 2 * rows / 3000)


def test_memory_is_that_of_the_formula_of_training() -> None:
    found = by_kind()
    # A trainer has 250 rows, 2000 edges and 40 weights. It receives 60 rows of its server and half of 150 others.
    numbers = 250 * 20 + 3 * (250 * 5 + 135) * 10 + (250 + 135) * 10
    assert found["exchange"].memory == int(1.3 * (4 * numbers + 64 * 2000 + 16 * 40))
    # A mini-batch's layers compute 350, 150 and 50 rows. The first one reads all 750.
    numbers = 750 * 20 + (350 + 150 + 50) * 5 * 10 + 750 * 10
    assert found["mini-batch"].memory == pytest.approx(1.3 * (4 * numbers + 64 * 770 + 16 * 40), abs=1)
    on_gpu = by_kind(machines=replace(MACHINES, device="cuda"))["exchange"].memory
    assert on_gpu == pytest.approx(found["exchange"].memory + 1.3 * 4 * 2 * 2000 * 20, abs=1)


def test_deep_models_encode_first_and_compute_what_they_read() -> None:
    deep = replace(MODEL, model="resgcn+")
    assert deep.exchanges == 6
    rows, edges = (750 + 350 + 150), (770 + 330 + 110)
    assert by_kind(model=deep)["mini-batch"].compute == pytest.approx(2 * (rows / 100 + edges / 1000))

    # No mini-batches of more hops than daemons take; one server has nobody to exchange with.
    for layers in (128, 129):
        assert ("mini-batch" in by_kind(model=replace(deep, layers=layers))) == (layers == 128)
    found = by_kind(machines=Machines(1, 2))
    assert "exchange" not in found
    assert found["preloading"].external == 0


SPEED = st.floats(1, 1e6)
SHARES = st.builds(ServerWork, *[st.floats(0, 1e6)] * 4, st.floats(0, 1e5), st.floats(0, 1e5))
ANY_SIZES = st.builds(
    lambda a, b, c, d: replace(SIZES, exchanged=a, closure=b, sampled={Expansion(1, 15): c}, co_batches={4: d}),
    *[SHARES] * 4,
)
ANY_RATES = st.builds(Rates, *[SPEED] * 6, st.floats(0, 1e6))


@given(sizes=ANY_SIZES, rates=ANY_RATES, faster=st.floats(1, 1e3))
def test_more_link_never_hurts(sizes: Sizes, rates: Rates, faster: float) -> None:
    quicker = replace(rates, external=rates.external * faster)
    before, after = by_kind(sizes, rates=rates), by_kind(sizes, rates=quicker)
    assert all(after[k].seconds <= before[k].seconds * (1 + 1e-12) for k in before)
    best = [forecasts(sizes, MACHINES, MODEL, r)[0].to_accuracy for r in (rates, quicker)]
    assert best[1] <= best[0] * (1 + 1e-12)


@given(sizes=ANY_SIZES, rates=ANY_RATES, memory=st.floats(1, 1e12), more=st.floats(1, 1e3))
def test_more_memory_never_removes_a_strategy(sizes: Sizes, rates: Rates, memory: float, more: float) -> None:
    few, many = (
        {f.name for f in forecasts(sizes, Machines(2, 2, m), MODEL, rates) if f.fits} for m in (memory, memory * more)
    )
    assert few <= many


@given(sizes=ANY_SIZES, rates=ANY_RATES, memory=st.floats(1e3, 1e12))
def test_the_choice_fits_and_is_the_fastest_that_does(sizes: Sizes, rates: Rates, memory: float) -> None:
    ranked = forecasts(sizes, Machines(2, 2, memory), MODEL, rates)
    fitting = [f for f in ranked if f.fits]
    if not fitting:
        with pytest.raises(ConfigError, match="nothing fits"):
            advise(ranked)
        return
    advice = advise(ranked)
    assert advice.chosen.fits
    assert not advice.chosen.doubt
    assert advice.chosen.to_accuracy == min(f.to_accuracy for f in fitting if not f.doubt)
    assert all(said.endswith(".") for said in advice.sentences)


def plain(kind: str, compute: float, external: float, memory: float = 1.0, fits: bool = True) -> Forecast:
    return Forecast(kind, kind, (), kind != "expansion-aware", 1, compute, 0, external, 0, 0, memory, fits, 1)


def test_the_link_at_which_another_wins() -> None:
    ranked = [plain("expansion-aware", 2, 0), plain("exchange", 1, 4)]  # 1 + 4x = 2 at x = 1/4
    said = " ".join(advise(ranked).sentences)
    assert "With a link 4 times as fast, exchange would overtake it" in said
    assert "100% of it for computing" in said
    assert "takes 2.5 times the time, most of it for the link" in said
    ranked = [plain("exchange", 1, 1), plain("expansion-aware", 4, 0)]  # 1 + x = 4 at x = 3
    assert "With a link 3 times slower, expansion-aware" in " ".join(advise(ranked).sentences)
    ranked = [plain("expansion-aware", 1, 0), plain("exchange", 2, 0)]
    assert "No other kind" in " ".join(advise(ranked).sentences)

    slow = replace(plain("digest", 1, 0.5), epochs=2.0)  # 1 + 4x = 2 + x at x = 1/3
    ranked = [slow, plain("exchange", 1, 4)]
    assert [f.to_accuracy for f in ranked] == [3, 5]
    said = " ".join(advise(ranked).sentences)
    assert "2 epochs come about as far as one of exact training" in said
    assert "exchange, takes 1.7 times the time" in said
    assert "With a link 3 times as fast, exchange" in said

    ranked = [plain("exchange", 1, 4), plain("preloading", 2, 0, memory=3 * 2**30, fits=False)]
    assert "preloading would be faster, but needs 3 GiB per trainer." in advise(ranked).sentences


def test_options_are_those_of_training() -> None:
    """The options (such as ``--strategy cooperative:co-batches=4``) are those of a run."""
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    for kind in ("mini-batch", "exchange", "sancus", "pipegcn", "preloading", "expansion-aware", "cooperative"):
        words = ["--data", "d", "--trainers", "4", "--layers", "3", *by_kind()[kind].options]
        given = train.make_context("atta train", words).params
        strategy = given.pop("strategy")
        assert TrainConfig(**{k: v for k, v in given.items() if k in known}, **strategy).depth == 3


def test_bad_figures_are_refused() -> None:
    for made, words in (
        (lambda: replace(RATES, internal=0), "positive"),
        (lambda: replace(RATES, external=math.nan), "positive"),
        (lambda: ServerWork(-1, 1, 1, 1), "negative"),
        (lambda: MeanBatch((1, 2), (1, 2), 0), "one more"),
        (lambda: replace(MODEL, model="mlp"), "model"),
        (lambda: Machines(0, 1), "servers"),
    ):
        with pytest.raises(ConfigError, match=words):
            made()


POLICIES: list[tuple[str, RowPolicy]] = [
    ("exchange", RowPolicy()),
    ("sancus", SancusPolicy(eps=1.0)),
    ("pipegcn", PipeGcnPolicy()),
    ("digest", DigestPolicy(sync_every=10)),
    ("sat", DigestPolicy(sync_every=10)),
]


def one(strategy: str, forecaster: Forecaster | None = None) -> Forecast:
    return next(iter(STRATEGIES[strategy].forecasts(forecaster or Forecaster(SIZES, MACHINES, MODEL, RATES))))


def sent_epochs(policy: RowPolicy, direction: Direction, first: int, count: int) -> int:
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
        held = max(version for version in versions if rule.oldest <= version <= rule.newest)
        if epoch > 100:
            ages.add(epoch - held)
    assert one(strategy).ages == (min(ages), max(ages))


def test_times_and_memory_of_stale_strategies_by_hand() -> None:
    exchange = one("exchange")
    # 150 rows in layers 2 and 3, there and back; gradients of weights are 4 rows. A link takes 50 rows per second.
    assert exchange.row_bytes == 150 * 2 * 2 * 10 * 4
    sancus, digest = one("sancus"), one("digest")
    assert sancus.external == pytest.approx((150 * 2 * 1.5 + 4) / 50)
    assert digest.external == pytest.approx((150 * 2 / 10 + 4) / 50)
    assert digest.compute == exchange.compute
    sat = one("sat")
    # Half of 300 HALO rows each trainer, five versions in every tenth epoch, at 8/3 of a layer's row.
    assert sat.compute - exchange.compute == pytest.approx(150 * 0.5 * (8 / 3) / 100)
    assert sat.external == digest.external
    slow = one("pipegcn")  # takes the larger of computing and exchange
    rest = slow.internal + 4 / 50
    assert slow.compute == pytest.approx(13.5)
    assert slow.seconds == pytest.approx(max(13.5, 600 / 50) + rest)
    slower = one("pipegcn", Forecaster(SIZES, MACHINES, MODEL, replace(RATES, external=5)))
    assert slower.seconds == pytest.approx(max(13.5, 600 / 5) + slower.internal + 4 / 5)
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
    assert "The next other kind, digest, every 10 epochs, takes 1.8 times the time, most of it for computing" in said


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
    assert "Owners that compute slowly send sooner" in " ".join(advise([turns]).sentences)


ALONE = Machines(4, 1)


def test_without_barriers_one_link_carries_all_gradients_and_dorylus_pays_for_workers() -> None:
    forecaster = Forecaster(SIZES, ALONE, MODEL, RATES)
    alone, digest = one("digest-async", forecaster), one("digest", forecaster)
    weights = 40 / 10  # rows
    assert alone.external - digest.external == pytest.approx((3 * weights - 2 * 3 / 4 * weights) / 50)
    assert (alone.row_bytes, alone.memory, alone.compute) == (digest.row_bytes, digest.memory, digest.compute)
    assert (alone.ages, alone.exact) == ((1, None), False)
    several = Forecaster(SIZES, MACHINES, MODEL, RATES)  # trainers of a server would wait for each other
    assert not list(STRATEGIES["digest-async"].forecasts(several))
    found, exchange = one("dorylus", forecaster), one("exchange", forecaster)
    own = SIZES.exchanged.vertices
    # A third of each layer's rows is computed again; sums and rows go to workers and back, once more in backward.
    assert found.compute - exchange.compute == pytest.approx(3 * own / 3 / 100)
    assert found.internal - exchange.internal == pytest.approx(3 * own * 5 / 200)
    assert found.row_bytes == exchange.row_bytes
    assert (found.exact, found.hidden) == (True, 0)
    (free,) = (f for f in forecasts(SIZES, ALONE, MODEL, RATES) if f.name.startswith("dorylus, async"))
    assert (free.options[1], free.doubt[:36]) == ("dorylus:mode=async", "dorylus: mode=async with 3 layers: r")
    assert free.hidden == pytest.approx(min(free.compute, 600 / 50))
    deep = replace(MODEL, model="deepergcn")
    for place, model in ((replace(ALONE, trainers=2), MODEL), (replace(ALONE, device="cuda"), MODEL), (ALONE, deep)):
        assert not list(STRATEGIES["dorylus"].forecasts(Forecaster(SIZES, place, model, RATES)))


def test_batches_with_stale_rows_send_as_much_for_any_number_of_steps() -> None:
    few, exchange = (
        one("historical", Forecaster(SIZES, ALONE, MODEL, RATES)),
        one("exchange", Forecaster(SIZES, ALONE, MODEL, RATES)),
    )
    many = one("historical", Forecaster(replace(SIZES, batch_size=1), ALONE, MODEL, RATES))
    assert (few.steps, many.steps) == (-(-SIZES.targets // (4 * SIZES.batch_size)), -(-SIZES.targets // 4))
    assert few.row_bytes == many.row_bytes == exchange.row_bytes / 4  # one of two layers, one of two directions
    more = many.steps - few.steps
    assert many.compute - few.compute == pytest.approx(more * exchange.compute)
    assert many.external - few.external == pytest.approx(more * 2 * 3 / 4 * (40 / 10) / 50)
    assert not list(STRATEGIES["historical"].forecasts(Forecaster(SIZES, ALONE, replace(MODEL, model="gat"), RATES)))


def test_every_strategy_that_reads_rows_of_others_is_ranked_where_there_are_others() -> None:
    reading = {*dict(POLICIES), "digest-async", "dorylus", "historical"}
    assert {f.kind for f in forecasts(SIZES, ALONE, MODEL, RATES)} >= reading
    alone = Forecaster(SIZES, Machines(1, 2), MODEL, RATES)
    assert not [found for strategy in reading for found in STRATEGIES[strategy].forecasts(alone)]


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
