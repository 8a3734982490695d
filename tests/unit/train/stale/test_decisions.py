"""Decisions of the systems, against epochs that are played through; options that make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train.stale import rules
from atta.train.stale.decisions.common import Decisions, ExchangeDecisions, Published
from atta.train.stale.decisions.digest import DigestDecisions
from atta.train.stale.decisions.pipegcn import PipeGcnDecisions
from atta.train.stale.decisions.sancus import SancusDecisions
from atta.train.stale.decisions.sat import SatDecisions
from atta.train.stale.replicas import ReplicaTable
from atta.train.stale.rules import Ages
from atta.train.stale.table import TableShape

OWNERS, EPOCHS = 4, 60


def played(
    decisions: Decisions, change: Callable[[int], float] = lambda epoch: 1.0
) -> tuple[list[Ages], list[list[int]]]:
    """Ages that a reader of one row per owner meets, from stamps in the rows, and the epochs of the broadcasts.

    In each epoch the rows grow by ``change``. They hold their epoch in the second column.
    """
    table = ReplicaTable(TableShape(OWNERS, {(1, "forward"): 2}), torch.arange(OWNERS))
    rows, ages, sent = torch.zeros(OWNERS, 2, dtype=torch.float32), [], [[] for _ in range(OWNERS)]
    last = [Published()] * OWNERS
    everyone = torch.arange(OWNERS)
    if isinstance(decisions, DigestDecisions):
        table.publish(1, "forward", everyone, rows, 0)
        table.commit(0)
    copies = rows.clone()
    for epoch in range(1, EPOCHS):
        rows = torch.stack([rows[:, 0] + change(epoch), torch.full((OWNERS,), float(epoch))], 1)
        for owner in range(OWNERS):
            known = last[owner]
            if known.version != rules.NEVER:
                gap = rules.mean_absolute_difference(rows[owner, :1], copies[owner, :1])
                known = Published(known.version, gap)
            if decisions.publishes(epoch, "forward", owner, known):
                table.publish(1, "forward", everyone[owner : owner + 1], rows[owner : owner + 1], epoch)
                last[owner], copies[owner] = Published(epoch), rows[owner]
                sent[owner].append(epoch)
        rule = decisions.reads(epoch, "forward")
        assert rule is not None
        found = table.fetch(1, "forward", everyone, rule)
        assert found.values[:, 1].tolist() == found.versions.tolist()
        ages.append(Ages.of(epoch, found.versions))
        table.commit(epoch)
    return ages, sent


def test_exchange_is_exact_and_sancus_without_slack_is_exchange() -> None:
    ages, sent = played(ExchangeDecisions())
    assert all((age.least, age.most) == (0, 0) for age in ages)
    for bound in ("epoch", "adaptive", "gap"):
        assert played(SancusDecisions(bound=bound, eps=0, warmup=0)) == (ages, sent)


@given(st.sampled_from(["epoch", "adaptive"]), st.integers(0, 5), st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_sancus_never_passes_its_bound_and_broadcasts_once_per_period(bound: str, eps: int, warmup: int) -> None:
    ages, sent = played(SancusDecisions(bound=bound, eps=eps, warmup=warmup))
    assert max(age.most for age in ages) <= eps
    steady = max(1, warmup)
    for owner, epochs in enumerate(sent):
        ahead = owner % (eps + 1) if bound == "adaptive" else 0
        assert epochs == [*range(1, steady + 1), *range(steady + eps + 1 - ahead, EPOCHS, eps + 1)]


def test_the_gap_of_sancus_follows_the_change() -> None:
    def settling(epoch: int) -> float:
        return 0.5**epoch

    ages, sent = played(SancusDecisions(bound="gap", eps=0.032, warmup=3), settling)
    assert sent[0] == [1, 2, 3, 4, 6]  # 1/32 in epoch 5 is too little; all changes after epoch 6 are 1/64
    assert ages[-1].most == EPOCHS - 1 - 6
    assert SancusDecisions(bound="gap").limit == 0.03
    assert SancusDecisions().limit == 1
    assert SancusDecisions(clip_grad=2.0).clip_norm(16) == 0.5
    assert SancusDecisions().clip_norm(16) is None
    assert SancusDecisions(bound="gap").gaps
    assert all(
        decisions.reads(7, "backward") == rules.exact(7) for decisions in (SancusDecisions(), ExchangeDecisions())
    )


def test_pipegcn_reads_the_epoch_before() -> None:
    ages, sent = played(PipeGcnDecisions())
    assert [(age.least, age.most) for age in ages] == [(0, 0)] + [(1, 1)] * (EPOCHS - 2)
    assert sent[0] == list(range(1, EPOCHS))
    assert PipeGcnDecisions().reads(9, "backward") == rules.snapshot(8)


def test_smoothing_is_a_moving_mean() -> None:
    decisions, mean, expected = PipeGcnDecisions(smooth=0.75), None, None
    for fresh in torch.randn(5, 3, 2, dtype=torch.float64):
        mean = decisions.smoothed(mean, fresh)
        expected = fresh if expected is None else 0.75 * expected + 0.25 * fresh
        assert torch.allclose(mean, expected)
    assert PipeGcnDecisions().smoothed(torch.zeros(2), mean) is mean


@given(st.integers(1, 12), st.sampled_from(rules.PHASES))
@settings(max_examples=25, deadline=None)
def test_digest_keeps_the_ages_of_its_phase(every: int, phase: str) -> None:
    decisions = DigestDecisions(sync_every=every, phase=phase)
    ages, sent = played(decisions)
    after = ages[every - 1 :] if phase == "paper" else ages
    least, most = (1, every) if phase == "early" or every == 1 else (every - 1, 2 * every - 2)
    assert all(least <= age.least == age.most <= most for age in after)
    assert sent[0] == [r for r in range(1, EPOCHS) if (r - (phase == "paper")) % every == 0]
    pulled = [r for r in range(1, EPOCHS) if decisions.pulls(r, "forward")]
    assert pulled == [1] + [r for r in range(2, EPOCHS) if (r - (phase == "early")) % every == 0]
    assert not any(
        decisions.reads(r, "backward") or decisions.publishes(r, "backward", 0, Published()) for r in range(1, 9)
    )


def test_gradients_have_a_period_of_their_own() -> None:
    decisions = DigestDecisions(sync_every=10, grad_sync_every=1)
    assert decisions.reads(1, "backward") is None
    assert not decisions.pulls(1, "backward")
    for epoch in range(2, 30):
        assert decisions.reads(epoch, "backward") == rules.snapshot(epoch - 1)
        assert decisions.pulls(epoch, "backward")
        assert decisions.publishes(epoch, "backward", 0, Published())


def test_sat_reads_as_digest_and_predicts_from_its_past() -> None:
    sat, digest = SatDecisions(sync_every=5, window=3, train_every=4), DigestDecisions(sync_every=5)
    assert played(sat) == played(digest)
    assert [r for r in range(1, 20) if sat.pulls(r, "forward")] == [1, 6, 11, 16]
    assert [r for r in range(1, 20) if sat.trains(r)] == [4, 8, 12, 16]
    assert sat.history(13) == rules.window(10, 3)


def test_sat_predicts_as_far_ahead_as_rows_are_old_and_learns_beside_some_epochs() -> None:
    sat = SatDecisions(sync_every=5, window=3, train_every=4)
    assert [r for r in range(1, 20) if sat.shares(r)] == [6, 10, 14, 18]
    assert [r for r in range(1, 6) if SatDecisions(train_every=1).shares(r)] == [2, 3, 4, 5]
    assert [round(5 * sat.ahead(r)) for r in range(1, 13)] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    paper = SatDecisions(sync_every=3, phase="paper")
    assert [round(3 * paper.ahead(r)) for r in range(1, 9)] == [1, 2, 2, 3, 4, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SancusDecisions, {"bound": "rows"}),
        (SancusDecisions, {"eps": -1}),
        (SancusDecisions, {"eps": math.nan}),
        (SancusDecisions, {"eps": math.inf, "bound": "gap"}),
        (SancusDecisions, {"eps": 1.5}),
        (SancusDecisions, {"warmup": -1}),
        (SancusDecisions, {"clip_grad": 0.0}),
        (SancusDecisions, {"clip_grad": math.nan}),
        (PipeGcnDecisions, {"smooth": 1.0}),
        (PipeGcnDecisions, {"smooth": -0.1}),
        (PipeGcnDecisions, {"smooth": math.nan}),
        (DigestDecisions, {"sync_every": 0}),
        (DigestDecisions, {"phase": "late"}),
        (DigestDecisions, {"grad_sync_every": 0}),
        (DigestDecisions, {"average": "losses"}),
        (DigestDecisions, {"loss": "none"}),
        (SatDecisions, {"sync_every": 0}),
        (SatDecisions, {"window": 1}),
        (SatDecisions, {"window": 65}),
        (SatDecisions, {"predictor": "gru"}),
        (SatDecisions, {"train_every": 0}),
        (SatDecisions, {"history_codec": "int8"}),
        (SatDecisions, {"history_codec": "polyline"}),
        (SatDecisions, {"history_codec": "polyline:99"}),
    ],
)
def test_options_that_make_no_sense_are_named_in_one_line(kind: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        kind(**options)
    message = str(error.value)
    assert "\n" not in message
    name = next(name for name in options if name != "bound" or len(options) == 1)
    assert name.replace("_", "-") in message or name.replace("_", " ") in message or "codec" in message
