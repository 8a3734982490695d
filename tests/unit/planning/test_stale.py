"""Forecasts of strategies that read rows of other servers: bytes against brute force, times by hand, sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.train.planning.count import Question, Servers, count_sizes
from atta.train.planning.explain import advise
from atta.train.planning.forecast import Forecast, Forecaster
from atta.train.planning.ranking import forecasts
from atta.train.planning.rates import Machines
from atta.train.stale.decisions.common import Decisions, ExchangeDecisions, Published
from atta.train.stale.decisions.digest import DigestDecisions
from atta.train.stale.decisions.pipegcn import PipeGcnDecisions
from atta.train.stale.decisions.sancus import SancusDecisions
from atta.train.stale.rules import NEVER
from atta.train.stale.table import Direction
from atta.train.strategies.forecasts import (
    digest_forecasts,
    exchange_forecasts,
    pipegcn_forecasts,
    sancus_forecasts,
    sat_forecasts,
)
from tests.unit.operators.oracles import Graph, graphs
from tests.unit.planning.test_forecast import MACHINES, MODEL, RATES, SIZES

Predict = Callable[[Forecaster], Iterator[Forecast]]

DECISIONS: list[tuple[Predict, Decisions]] = [
    (exchange_forecasts, ExchangeDecisions()),
    (sancus_forecasts, SancusDecisions(eps=1.0)),
    (pipegcn_forecasts, PipeGcnDecisions()),
    (digest_forecasts, DigestDecisions(sync_every=10)),
    (sat_forecasts, DigestDecisions(sync_every=10)),
]


def one(predict: Predict, forecaster: Forecaster | None = None) -> Forecast:
    (found,) = predict(forecaster or Forecaster(SIZES, MACHINES, MODEL, RATES))
    return found


def sent_epochs(decisions: Decisions, direction: Direction, first: int, count: int) -> int:
    """In how many epochs rows or gradients travel, by asking the strategy's decisions epoch by epoch."""
    version, sent = NEVER, 0
    for epoch in range(1, first + count):
        if decisions.reads(epoch, direction) is None:
            continue
        if decisions.publishes(epoch, direction, 0, Published(version)):
            version = epoch
            sent += epoch >= first
    return sent


@pytest.mark.parametrize(("predict", "decisions"), DECISIONS, ids=lambda value: getattr(value, "__name__", ""))
@given(graph=graphs(), layers=st.integers(1, 4))
@settings(max_examples=20)
def test_bytes_are_those_of_every_edge_and_epoch(
    graph: Graph, layers: int, predict: Predict, decisions: Decisions
) -> None:
    bounds = np.arange(3) * graph.nodes // 2
    whole = Servers(graph.local, bounds, np.arange(graph.nodes))
    sizes = count_sizes(whole, Question(2, 1, layers))
    model = replace(MODEL, layers=layers)
    found = one(predict, Forecaster(sizes, Machines(2, 1), model, RATES))
    epochs, received = 20, []
    for server in range(2):
        own = set(range(bounds[server], bounds[server + 1]))
        halo = {s for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True) if d in own and s not in own}
        times = sum(sent_epochs(decisions, direction, 101, epochs) for direction in ("forward", "backward"))
        received.append(sum(4 * model.hidden * times for _ in halo for _ in range(1, layers)))
    assert found.row_bytes * epochs == pytest.approx(max(received))


@pytest.mark.parametrize(("predict", "decisions"), DECISIONS[1:], ids=lambda value: getattr(value, "__name__", ""))
def test_ages_are_those_that_the_decisions_allow(predict: Predict, decisions: Decisions) -> None:
    versions, ages = [0], set()
    for epoch in range(1, 141):
        if decisions.publishes(epoch, "forward", 0, Published(versions[-1])):
            versions.append(epoch)
        rule = decisions.reads(epoch, "forward")
        assert rule is not None
        held = max(version for version in versions if rule.oldest <= version <= rule.newest)
        if epoch > 100:
            ages.add(epoch - held)
    assert one(predict).ages == (min(ages), max(ages))


def test_times_by_hand() -> None:
    exchange = one(exchange_forecasts)
    # 150 rows in layers 2 and 3, there and back; gradients of weights are 4 rows. A link takes 50 rows per second.
    assert exchange.external == pytest.approx((150 * 4 + 4) / 50)
    assert exchange.row_bytes == 150 * 2 * 2 * 10 * 4
    sancus, digest = one(sancus_forecasts), one(digest_forecasts)
    assert sancus.external == pytest.approx((150 * 2 * 1.5 + 4) / 50)
    assert digest.external == pytest.approx((150 * 2 / 10 + 4) / 50)
    assert digest.compute == exchange.compute
    sat = one(sat_forecasts)
    # Half of 300 HALO rows each trainer, five versions in every tenth epoch, at 8/3 of a layer's row.
    assert sat.compute - exchange.compute == pytest.approx(150 * 0.5 * (8 / 3) / 100)
    assert sat.external == digest.external


def test_pipegcn_takes_the_larger_of_computing_and_exchange() -> None:
    slow = one(pipegcn_forecasts)
    rest = slow.internal + 4 / 50
    assert slow.compute == pytest.approx(13.5)
    assert slow.seconds == pytest.approx(max(13.5, 600 / 50) + rest)
    slower = one(pipegcn_forecasts, Forecaster(SIZES, MACHINES, MODEL, replace(RATES, external=5)))
    assert slower.seconds == pytest.approx(max(13.5, 600 / 5) + slower.internal + 4 / 5)


def test_copies_take_memory() -> None:
    exchange, digest, sat = one(exchange_forecasts), one(digest_forecasts), one(sat_forecasts)
    assert digest.memory - exchange.memory == 2 * 150 * 10 * 4  # two versions of half of 2 layers of 150 rows
    assert sat.memory - exchange.memory == 7 * 150 * 10 * 4
    little = replace(MACHINES, memory=exchange.memory)
    assert one(exchange_forecasts, Forecaster(SIZES, little, MODEL, RATES)).fits
    assert not one(digest_forecasts, Forecaster(SIZES, little, MODEL, RATES)).fits


def test_one_server_reads_nothing_of_others() -> None:
    alone = Forecaster(SIZES, Machines(1, 2), MODEL, RATES)
    assert not [found for predict, _ in DECISIONS for found in predict(alone)]


def test_a_stale_choice_says_ages_bytes_and_risk() -> None:
    kinds = {f.kind for f in forecasts(SIZES, MACHINES, MODEL, RATES)}
    assert {"exchange", "sancus", "pipegcn"} <= kinds
    said = " ".join(advise([one(digest_forecasts), one(exchange_forecasts)]).sentences)
    assert "It receives 1.17 KiB of rows per epoch and server; rows of other servers are 1 to 10 epochs old." in said
    assert "What may cost accuracy: gradients end at the cut" in said
    assert "The fastest with exact gradients, exchange, takes" in said
    said = " ".join(advise([one(pipegcn_forecasts), one(exchange_forecasts)]).sentences)
    assert "are 1 epoch old." in said
    assert "With a link" not in said  # what it hides depends on the link
    assert "What may cost" not in " ".join(advise([one(exchange_forecasts)]).sentences)
