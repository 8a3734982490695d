"""Policies, against epochs that are played through; options that make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train import TrainConfig
from atta.train.exchange.messages import HeldRows, mean_absolute_difference
from atta.train.exchange.policies import (
    LATEST,
    NEVER,
    Ages,
    DigestPolicy,
    PipeGcnPolicy,
    RowPolicy,
    SancusPolicy,
    SatPolicy,
    SyncPeriod,
    exact,
)
from atta.train.settings.servers import PHASES

OWNERS, EPOCHS = 4, 90
versions = st.lists(st.integers(-1, 20), max_size=20).map(lambda v: torch.tensor(v, dtype=torch.int64))


@given(st.integers(1, 25), st.sampled_from(PHASES))
def test_a_period_reads_what_a_reader_of_the_paper_would_have_pulled(every: int, phase: str) -> None:
    period = SyncPeriod(every, phase)
    committed, pushed, held = 0, 0, 0
    for epoch in range(1, EPOCHS):
        # What was pushed in earlier epochs is committed; pushes of this epoch are not seen in it.
        committed = pushed
        if (epoch - 1 if phase == "early" else epoch) % every == 0:
            held = committed
            assert period.pulls(epoch)
        else:
            assert period.pulls(epoch) == (epoch == 1)
        assert period.read(epoch) == held
        if (epoch if phase == "early" else epoch - 1) % every == 0:
            pushed = epoch
        assert period.pushes(epoch) == (pushed == epoch)


@given(st.integers(1, 25))
def test_ages_of_the_two_phases(every: int) -> None:
    early, paper = SyncPeriod(every), SyncPeriod(every, "paper")
    assert {r - early.read(r) for r in range(1, 6 * every + 1)} == set(range(1, every + 1))
    ages = {r - paper.read(r) for r in range(every, 6 * every)}
    assert ages == (set(range(every - 1, 2 * every - 1)) if every > 1 else {1})


def played(policy: RowPolicy, change: Callable[[int], float] = lambda epoch: 1.0) -> tuple[list[Ages], list[list[int]]]:
    """Ages that a reader of one row per owner meets, from stamps in the rows, and the epochs of the broadcasts.

    In each epoch the rows grow by ``change``. They hold their epoch in the second column.
    """
    held = HeldRows([1] * OWNERS, 1)
    rows, ages, sent = torch.zeros(OWNERS, 2, dtype=torch.float32), [], [[] for _ in range(OWNERS)]
    last, copies = [NEVER] * OWNERS, rows.clone()
    for owner in range(OWNERS) if isinstance(policy, DigestPolicy) else ():
        held.put(owner, rows[owner : owner + 1], 0)
    for epoch in range(1, EPOCHS):
        rows = torch.stack([rows[:, 0] + change(epoch), torch.full((OWNERS,), float(epoch))], 1)
        for owner in range(OWNERS):
            gap = mean_absolute_difference(rows[owner, :1], copies[owner, :1])
            if policy.publishes(epoch, "forward", owner, last[owner], gap):
                held.put(owner, rows[owner : owner + 1], epoch)
                last[owner], copies[owner] = epoch, rows[owner]
                sent[owner].append(epoch)
        rule = policy.reads(epoch, "forward")
        assert rule is not None
        values, stamps = held.newest(rule, (1, "forward"))
        assert values[:, 1].tolist() == stamps.tolist()
        ages.append(Ages.of(epoch, stamps))
    return ages, sent


def test_exchange_is_exact_and_sancus_without_slack_is_exchange() -> None:
    ages, sent = played(RowPolicy())
    assert all((age.least, age.most) == (0, 0) for age in ages)
    for bound in ("epoch", "adaptive", "gap"):
        assert played(SancusPolicy(bound=bound, eps=0, warmup=0)) == (ages, sent)


@given(st.sampled_from(["epoch", "adaptive"]), st.integers(0, 9), st.integers(0, 60))
@settings(max_examples=25, deadline=None)
def test_sancus_never_passes_its_bound_and_broadcasts_once_per_period(bound: str, eps: int, warmup: int) -> None:
    ages, sent = played(SancusPolicy(bound=bound, eps=eps, warmup=warmup))
    assert max(age.most for age in ages) <= eps
    steady = max(1, warmup)
    for owner, epochs in enumerate(sent):
        ahead = owner % (eps + 1) if bound == "adaptive" else 0
        assert epochs == [*range(1, steady + 1), *range(steady + eps + 1 - ahead, EPOCHS, eps + 1)]


def test_the_gap_of_sancus_follows_the_change() -> None:
    def settling(epoch: int) -> float:
        return 0.5**epoch

    ages, sent = played(SancusPolicy(bound="gap", eps=0.032, warmup=3), settling)
    assert sent[0] == [1, 2, 3, 4, 6]  # 1/32 in epoch 5 is too little; all changes after epoch 6 are 1/64
    assert ages[-1].most == EPOCHS - 1 - 6
    assert SancusPolicy(bound="gap").limit == 0.03
    assert SancusPolicy().limit == 1
    assert SancusPolicy(clip_grad=2.0).clip_norm(16) == 0.5
    assert SancusPolicy().clip_norm(16) is None
    gap = SancusPolicy(bound="gap", warmup=0, eps=0.03)
    assert gap.gaps
    due = [gap.publishes(9, "forward", 0, 8, found) for found in (0.0, 0.03, 0.031, math.inf, math.nan)]
    assert due == [False, False, True, True, True]  # what is not a number is refused, and the run ends with its cause
    assert mean_absolute_difference(torch.tensor([[1.0, -3.0]]), torch.zeros(1, 2)) == 2.0
    assert mean_absolute_difference(torch.empty(0, 3), torch.empty(0, 3)) == 0.0
    assert gap.reads(9, "forward") == LATEST
    assert SancusPolicy(eps=3).reads(9, "forward") == (6, 9)
    assert SancusPolicy(eps=3).reads(2, "forward") == (0, 2)
    assert all(policy.reads(7, "backward") == exact(7) for policy in (SancusPolicy(), RowPolicy()))


def test_pipegcn_reads_the_epoch_before() -> None:
    ages, sent = played(PipeGcnPolicy())
    assert [(age.least, age.most) for age in ages] == [(0, 0)] + [(1, 1)] * (EPOCHS - 2)
    assert sent[0] == list(range(1, EPOCHS))
    assert PipeGcnPolicy().reads(9, "backward") == exact(8)


@given(st.integers(1, 12), st.sampled_from(PHASES))
@settings(max_examples=25, deadline=None)
def test_digest_keeps_the_ages_of_its_phase(every: int, phase: str) -> None:
    policy = DigestPolicy(sync_every=every, phase=phase)
    ages, sent = played(policy)
    after = ages[every - 1 :] if phase == "paper" else ages
    least, most = (1, every) if phase == "early" or every == 1 else (every - 1, 2 * every - 2)
    assert all(least <= age.least == age.most <= most for age in after)
    assert sent[0] == [r for r in range(1, EPOCHS) if (r - (phase == "paper")) % every == 0]
    pulled = [r for r in range(1, EPOCHS) if policy.pulls(r, "forward")]
    assert pulled == [1] + [r for r in range(2, EPOCHS) if (r - (phase == "early")) % every == 0]
    assert not any(policy.reads(r, "backward") or policy.publishes(r, "backward", 0) for r in range(1, 9))


def test_gradients_have_a_period_of_their_own() -> None:
    policy = DigestPolicy(sync_every=10, grad_sync_every=1)
    assert policy.reads(1, "backward") is None
    assert not policy.pulls(1, "backward")
    for epoch in range(2, 30):
        assert policy.reads(epoch, "backward") == exact(epoch - 1)
        assert policy.pulls(epoch, "backward")
        assert policy.publishes(epoch, "backward", 0)


def test_sat_reads_as_digest_and_predicts_from_its_past() -> None:
    sat, digest = SatPolicy(sync_every=5, window=3, train_every=4), DigestPolicy(sync_every=5)
    assert played(sat) == played(digest)
    assert [r for r in range(1, 20) if sat.pulls(r, "forward")] == [1, 6, 11, 16]
    assert [r for r in range(1, 20) if sat.trains(r)] == [4, 8, 12, 16]


def test_sat_predicts_as_far_ahead_as_rows_are_old_and_learns_beside_some_epochs() -> None:
    sat = SatPolicy(sync_every=5, window=3, train_every=4)
    assert [r for r in range(1, 20) if sat.shares(r)] == [6, 10, 14, 18]
    assert [r for r in range(1, 6) if SatPolicy(train_every=1).shares(r)] == [2, 3, 4, 5]
    assert [round(5 * sat.ahead(r)) for r in range(1, 13)] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    paper = SatPolicy(sync_every=3, phase="paper")
    assert [round(3 * paper.ahead(r)) for r in range(1, 9)] == [1, 2, 2, 3, 4, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SancusPolicy, {"bound": "rows"}),
        (SancusPolicy, {"eps": -1}),
        (SancusPolicy, {"eps": math.nan}),
        (SancusPolicy, {"eps": math.inf, "bound": "gap"}),
        (SancusPolicy, {"eps": 1.5}),
        (SancusPolicy, {"warmup": -1}),
        (SancusPolicy, {"clip_grad": 0.0}),
        (SancusPolicy, {"clip_grad": math.nan}),
        (PipeGcnPolicy, {"smooth": 1.0}),
        (PipeGcnPolicy, {"smooth": -0.1}),
        (PipeGcnPolicy, {"smooth": math.nan}),
        (DigestPolicy, {"sync_every": 0}),
        (DigestPolicy, {"phase": "late"}),
        (DigestPolicy, {"grad_sync_every": 0}),
        (DigestPolicy, {"average": "losses"}),
        (DigestPolicy, {"loss": "none"}),
        (SatPolicy, {"sync_every": 0}),
        (SatPolicy, {"window": 1}),
        (SatPolicy, {"window": 65}),
        (SatPolicy, {"predictor": "gru"}),
        (SatPolicy, {"train_every": 0}),
    ],
)
def test_options_that_make_no_sense_are_named_in_one_line(kind: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        kind(**options)
    message = str(error.value)
    assert "\n" not in message
    name = next(name for name in options if name != "bound" or len(options) == 1)
    assert name.replace("_", "-") in message or name.replace("_", " ") in message or "codec" in message


@pytest.mark.parametrize("codec", ["int8", "polyline", "polyline:99", "fp32"])
def test_codecs_of_the_past_that_do_not_exist(codec: str) -> None:
    with pytest.raises(ConfigError, match="codec") as error:
        TrainConfig(data="x", strategy="sat", trainers=2, trainers_per_server=1, history_codec=codec)
    assert "\n" not in str(error.value)


@given(st.integers(20, 30), versions, versions)
def test_ages_of_several_readers_add_up(epoch: int, one: torch.Tensor, other: torch.Tensor) -> None:
    found = Ages.of(epoch, one) + Ages.of(epoch, other)
    ages = [epoch - v for v in (*one.tolist(), *other.tolist())]
    assert (found.rows, found.total) == (len(ages), sum(ages))
    if ages:
        assert (found.least, found.most) == (min(ages), max(ages))
    else:
        assert found == Ages()
