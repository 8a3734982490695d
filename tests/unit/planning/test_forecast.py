"""Predictions against sums worked out by hand; the effect of a faster link and of more memory; printed sentences."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.train import train
from atta.errors import ConfigError
from atta.train import TrainConfig
from atta.train.planning.explain import advise, forecasts
from atta.train.planning.forecast import Forecast
from atta.train.planning.sizes import Expansion, Machines, MeanBatch, PlannedModel, Rates, ServerWork, Sizes

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


def test_exchange_by_hand() -> None:
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


def test_preloading_sends_gradients_only() -> None:
    found = by_kind()["preloading"]
    assert found.compute == pytest.approx(3 * (450 / 100 + 3800 / 1000))
    assert found.internal == pytest.approx((120 * 4 + 4) / 200)
    assert found.external == pytest.approx(4 / 50)
    assert found.preload == pytest.approx(400 * 2 / 50)
    assert found.redundancy == pytest.approx(1.7)


def test_co_batches_by_hand() -> None:
    found = by_kind()["cooperative"]
    assert found.steps == 4
    assert found.compute == pytest.approx(4 * 3 * (100 / 100 + 800 / 1000))
    assert found.internal == pytest.approx(4 * (30 * 6 + 4) / 200)
    assert found.external == pytest.approx(4 * 4 / 50)
    assert found.sampling == pytest.approx(4 * 1600 / 800)
    assert found.redundancy == pytest.approx(2 * 4 * 200 / 1000)


def test_mini_batches_by_hand() -> None:
    found = by_kind()["mini-batch"]
    rows, edges = (350 + 150 + 50), (770 + 330 + 110)  # the last hop is read, not computed
    assert found.steps == 2  # 400 targets, 4 trainers of 50
    assert found.compute == pytest.approx(2 * (rows / 100 + edges / 1000))
    assert found.external == pytest.approx((2 * 300 * 2 * 2 + 2 * 4) / 50)  # both trainers of a server use its link
    assert found.sampling == pytest.approx(2 * 770 / 400)
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


def test_no_mini_batches_of_more_hops_than_daemons_take() -> None:
    assert "mini-batch" in by_kind(model=replace(MODEL, model="resgcn+", layers=128))
    assert "mini-batch" not in by_kind(model=replace(MODEL, model="resgcn+", layers=129))


def test_one_server_has_nobody_to_exchange_with() -> None:
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
    before, after = by_kind(sizes, rates=rates), by_kind(sizes, rates=replace(rates, external=rates.external * faster))
    assert all(after[k].seconds <= before[k].seconds * (1 + 1e-12) for k in before)
    best = [
        forecasts(sizes, MACHINES, MODEL, r)[0].seconds
        for r in (rates, replace(rates, external=rates.external * faster))
    ]
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
    assert advice.chosen.seconds == min(f.seconds for f in fitting)
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


def test_what_memory_keeps_out() -> None:
    ranked = [plain("exchange", 1, 4), plain("preloading", 2, 0, memory=3 * 2**30, fits=False)]
    assert "preloading would be faster, but needs 3 GiB per trainer." in advise(ranked).sentences


KINDS = ["mini-batch", "exchange", "sancus", "pipegcn", "preloading", "expansion-aware", "cooperative"]


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_those_of_training(kind: str) -> None:
    """The options (such as ``--strategy cooperative:co-batches=4``) are those of a run."""
    words = ["--data", "d", "--trainers", "4", "--layers", "3", *by_kind()[kind].options]
    given = train.make_context("atta train", words).params
    strategy = given.pop("strategy")
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    assert TrainConfig(**{k: v for k, v in given.items() if k in known}, **strategy).depth == 3


def test_bad_figures_are_refused() -> None:
    with pytest.raises(ConfigError, match="positive"):
        replace(RATES, internal=0)
    with pytest.raises(ConfigError, match="positive"):
        replace(RATES, external=math.nan)
    with pytest.raises(ConfigError, match="negative"):
        ServerWork(-1, 1, 1, 1)
    with pytest.raises(ConfigError, match="one more"):
        MeanBatch((1, 2), (1, 2), 0)
    with pytest.raises(ConfigError, match="model"):
        replace(MODEL, model="mlp")
    with pytest.raises(ConfigError, match="servers"):
        Machines(0, 1)
