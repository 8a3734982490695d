"""Policies, against epochs that are played through; options that make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError, NonFiniteError, StaleRowError
from atta.observe.figures import MAX_ENTRIES
from atta.train import TrainConfig
from atta.train.exchange.figures import LayerErrors, job_figures
from atta.train.exchange.messages import HeldRows, check_finite, mean_absolute_difference
from atta.train.exchange.policies import (
    LATEST,
    NEVER,
    Ages,
    Cut,
    DigestPolicy,
    PipeGcnPolicy,
    RowPolicy,
    Rule,
    SancusPolicy,
    SatPolicy,
    SyncPeriod,
    doubt,
    epochs_behind,
    exact,
    policy_of,
)
from atta.train.reports.epochs import LayerRows, RowReport
from atta.train.settings.servers import PHASES

OWNERS, EPOCHS = 4, 90
SPEEDS = st.integers(1, 64).map(lambda n: n / 8)
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
    assert [period.read(epoch) > 0 for epoch in (period.first - 1, period.first)] == [False, True]


@given(st.integers(1, 25))
def test_ages_of_the_two_phases(every: int) -> None:
    early, paper = SyncPeriod(every), SyncPeriod(every, "paper")
    assert {r - early.read(r) for r in range(1, 6 * every + 1)} == set(range(1, every + 1))
    ages = {r - paper.read(r) for r in range(every, 6 * every)}
    assert ages == (set(range(every - 1, 2 * every - 1)) if every > 1 else {1})


def played(policy: RowPolicy, change: Callable[[int], float] = lambda epoch: 1.0) -> tuple[list[Ages], list[list[int]]]:
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
        values, stamps = held.newest(rule, (1, "forward"))
        assert values[:, 1].tolist() == stamps.tolist()
        ages.append(Ages.of(epoch, stamps))
    return ages, sent


@given(st.sampled_from(["epoch", "adaptive"]), st.integers(0, 9), st.integers(0, 60), st.lists(SPEEDS, min_size=1))
@settings(max_examples=25, deadline=None)
def test_sancus_never_passes_its_bound_and_broadcasts_once_per_period(
    bound: str, eps: int, warmup: int, seconds: list[float]
) -> None:
    """With the adaptive bound the period of an owner is shorter by the epochs that it lags."""
    policy, steady = SancusPolicy(bound=bound, eps=eps, warmup=warmup), max(1, warmup)
    for own, of_owner in zip(seconds, policy.of_owners(seconds), strict=True):
        ages, sent = played(of_owner)
        assert max(age.most for age in ages) <= eps
        lag = 0
        while bound == "adaptive" and (lag + 1) * own <= (eps + 1) * (own - min(seconds)):
            lag += 1
        assert 0 <= lag <= eps
        assert sent[0] == [*range(1, steady + 1), *range(steady + eps + 1 - lag, EPOCHS, eps + 1 - lag)]


def test_epochs_behind_the_fastest() -> None:
    """An owner that takes twice as long has done half of the epochs of the fastest; noise makes no whole epoch."""
    assert epochs_behind([1.0, 1.2, 2.0, 4.0], 4) == [0, 0, 2, 3]
    assert epochs_behind([1.0, 1.9, 2.0, 50.0], 2) == [0, 0, 1, 1]
    assert epochs_behind([0.0, 1.0], 2) == [0, 2]  # it is never seen to compute
    assert epochs_behind([], 2) == []


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
    skips = SancusPolicy(eps=2, warmup=3, skip="gradients")
    assert (skips.reads(9, "forward"), skips.reads(9, "backward")) == (exact(9), Rule(7, 9))
    assert (skips.history("forward"), skips.history("backward")) == (None, 0)
    assert [skips.publishes(9, way, 0, 7) for way in ("forward", "backward")] == [True, False]


def test_pipegcn_reads_the_epoch_before_and_gradients_have_a_period_of_their_own() -> None:
    ages, sent = played(PipeGcnPolicy())
    assert [(age.least, age.most) for age in ages] == [(0, 0)] + [(1, 1)] * (EPOCHS - 2)
    assert sent[0] == list(range(1, EPOCHS))
    assert PipeGcnPolicy().reads(9, "backward") == exact(8)
    policy = DigestPolicy(sync_every=10, grad_sync_every=1)
    assert policy.reads(1, "backward") is None
    assert not policy.pulls(1, "backward")
    for epoch in range(2, 30):
        assert policy.reads(epoch, "backward") == exact(epoch - 1)
        assert policy.pulls(epoch, "backward")
        assert policy.publishes(epoch, "backward", 0)


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


def test_sat_reads_as_digest_and_predicts_from_its_past() -> None:
    sat, digest = SatPolicy(sync_every=5, window=3, train_every=4), DigestPolicy(sync_every=5)
    assert played(sat) == played(digest)
    assert [r for r in range(1, 20) if sat.pulls(r, "forward")] == [1, 6, 11, 16]
    assert [r for r in range(1, 20) if sat.trains(r)] == [4, 8, 12, 16]
    assert [r for r in range(1, 20) if sat.shares(r)] == [6, 10, 14, 18]
    assert [r for r in range(1, 6) if SatPolicy(train_every=1).shares(r)] == [2, 3, 4, 5]
    assert [round(5 * sat.ahead(r)) for r in range(1, 13)] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    assert sat.predicts == 12  # pulled in epoch 6, learnt from 8, put together in 10, measured by what comes in 11
    assert (
        SatPolicy(sync_every=4, train_every=1, phase="paper").predicts == 9
    )  # pulled in 4, learnt in 4 and 5, measured in 8
    paper = SatPolicy(sync_every=3, phase="paper")
    assert [round(3 * paper.ahead(r)) for r in range(1, 9)] == [1, 2, 2, 3, 4, 2, 3, 4]


@given(st.integers(1, 130), st.sampled_from(["epoch", "adaptive"]), st.sampled_from([None, 0, 3, 50]))
@settings(max_examples=25, deadline=None)
def test_a_sancus_that_never_skips_is_known_beforehand(epochs: int, bound: str, warmup: int | None) -> None:
    run = TrainConfig(data="x", strategy="sancus", epochs=epochs, bound=bound, warmup=warmup).own
    policy = policy_of(SancusPolicy, run)
    held, sent = [NEVER] * OWNERS, 0
    for epoch in range(1, epochs + 1):
        for owner in range(OWNERS):
            if policy.publishes(epoch, "forward", owner, held[owner]):
                held[owner], sent = epoch, sent + 1
    assert ("never skips" in doubt(run, Cut(0.2))) == (sent == OWNERS * epochs)  # type: ignore[arg-type]
    assert warmup is not None or policy.warmup == min(50, epochs // 2)


SENSELESS: dict[Callable[..., Any], list[dict[str, Any]]] = {
    SancusPolicy: [
        {"bound": "rows"},
        {"eps": math.inf, "bound": "gap"},
        *({"eps": eps} for eps in (-1, math.nan, 1.5)),
        {"warmup": -1},
        {"clip_grad": 0.0},
        {"clip_grad": math.nan},
        {"skip": "weights"},
        {"skip": "gradients", "bound": "gap"},
    ],
    PipeGcnPolicy: [{"smooth": smooth} for smooth in (1.0, -0.1, math.nan)],
    DigestPolicy: [
        {"sync_every": 0},
        {"phase": "late"},
        {"grad_sync_every": 0},
        {"average": "losses"},
        {"loss": "none"},
    ],
    SatPolicy: [
        {"sync_every": 0},
        {"guard": -0.1},
        {"guard": math.nan},
        {"window": 1},
        {"window": 65},
        {"predictor": "gru"},
        {"train_every": 0},
    ],
}


@pytest.mark.parametrize("kind", SENSELESS)
def test_options_that_make_no_sense_are_named_in_one_line(kind: Callable[..., Any]) -> None:
    for options in SENSELESS[kind]:
        with pytest.raises(ConfigError) as error:
            kind(**options)
        message, name = str(error.value), next(name for name in options if name != "bound" or len(options) == 1)
        assert "\n" not in message
        assert name.replace("_", "-") in message or name.replace("_", " ") in message or "codec" in message
    for codec in ("int8", "polyline", "polyline:99", "fp32"):
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


COUNTS = [2, 0, 3, 1]
READ = [owner for owner, count in enumerate(COUNTS) if count]


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(READ), st.integers(0, 3)), max_size=25),
    st.integers(0, 20),
    st.integers(0, 20),
    st.booleans(),
)
def test_a_reader_gets_the_newest_rows(history: int, puts: list[Any], oldest: int, span: int, saved: bool) -> None:
    held, rule = HeldRows(COUNTS, history), Rule(oldest, oldest + span)
    known: dict[int, dict[int, torch.Tensor]] = {owner: {} for owner in READ}
    version = 0
    for number, (owner, later) in enumerate(puts):
        version += later + (version in known[owner])
        known[owner][version] = torch.full((COUNTS[owner], 2), float(number))
        held.put(owner, known[owner][version], version)
    if saved:
        fresh = HeldRows(COUNTS, history)
        fresh.load_state(held.state())
        held = fresh
    kept = {owner: dict(list(rows.items())[-history - 1 :]) for owner, rows in known.items()}
    assert held.nbytes == sum(rows.nbytes for of_owner in kept.values() for rows in of_owner.values())
    wanted = {o: max((v for v in rows if oldest <= v <= oldest + span), default=None) for o, rows in kept.items()}
    if None in wanted.values():
        first = next(owner for owner, found in wanted.items() if found is None)
        with pytest.raises(StaleRowError, match=f"layer 2, backward: rows of trainer {first} have versions"):
            held.newest(rule, (2, "backward"))
        return
    values, versions = held.newest(rule, (2, "backward"))
    assert versions.tolist() == [wanted[owner] for owner in READ for _ in range(COUNTS[owner])]
    assert torch.equal(values, torch.cat([kept[owner][found] for owner, found in wanted.items() if found is not None]))


def test_rows_of_other_trainers_are_not_taken_up() -> None:
    held = HeldRows(COUNTS, 1)
    held.put(2, torch.ones(3, 2), 4)
    held.put(2, torch.ones(3, 2), 5)
    held.put(0, torch.ones(2, 2), 6)
    with pytest.raises(StaleRowError, match="trainer 2 have versions 4, 5; the reader may use 6 to 6"):
        held.newest(Rule(6, 6), (1, "forward"))
    for counts in ([2, 0, 3], [2, 0, 4, 1]):
        with pytest.raises(ConfigError, match="saved rows"):
            HeldRows(counts, 1).load_state(held.state())


@given(
    st.lists(st.floats(width=32) | st.sampled_from([math.inf, -math.inf, math.nan, 3e38, -3e38]), max_size=20),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_numbers_are_finite_if_each_is(numbers: list[float], dtype: torch.dtype) -> None:
    values = torch.tensor([*numbers, 3e38, 3e38], dtype=torch.float32).to(dtype)
    if all(math.isfinite(value) for value in values.tolist()):
        check_finite(values, 2, 1, (1, "forward"))
        return
    with pytest.raises(NonFiniteError, match=r"trainer 2, epoch 1, layer 1: rows have an infinity or NaN") as error:
        check_finite(values, 2, 1, (1, "forward"))
    assert (error.value.trainer, error.value.epoch, error.value.layer) == (2, 1, 1)
    with pytest.raises(NonFiniteError, match="gradients of rows"):
        check_finite(values, 2, 1, (1, "backward"))


def layer(number: int, direction: str = "forward", **more: Any) -> LayerRows:
    return LayerRows(
        number, direction, payload_bytes=100 * number, crossed_bytes=10 * number, pushed_bytes=0, rows=7, age_min=1,
        age_mean=1.5, age_max=2, broadcasts=4, skipped=0, **more,
    )  # fmt: skip


def test_each_layer_and_direction_is_told_with_the_distances_that_were_measured_last() -> None:
    report = RowReport([layer(1), layer(1, "backward"), layer(2, predicted_error=2.0, stale_error=3.0)])
    first, gradients, second = job_figures("sat-1", 5, report, {})
    assert (first.job, first.epoch, first.layer, first.direction, first.sent_bytes) == ("sat-1", 5, 1, "forward", 100)
    assert (gradients.layer, gradients.direction, gradients.stale_error) == (1, "backward", None)
    assert (second.layer, second.crossed_bytes, second.predicted_error, second.stale_error) == (2, 20, 2.0, 3.0)
    errors: LayerErrors = {}
    for measured, expected in ((None, None), (2.0, 2.0), (None, 2.0), (math.nan, 2.0), (1.0, 1.0)):
        more = {} if measured is None else {"predicted_error": measured, "stale_error": 3.0}
        assert job_figures("sat-1", 0, RowReport([layer(1, **more)]), errors)[0].predicted_error == expected
    report = RowReport([layer(number) for number in range(MAX_ENTRIES + 1)])
    assert len(job_figures("sat-1", 0, report, {})) == MAX_ENTRIES
