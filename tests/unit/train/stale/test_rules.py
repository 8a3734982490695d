"""Rules of staleness, against simulations that follow every push, pull and broadcast."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train.stale import rules
from atta.train.stale.rules import NEVER, Ages, Rule, SyncPeriod

EPOCHS = 130
versions = st.lists(st.integers(-1, 20), max_size=20).map(lambda v: torch.tensor(v, dtype=torch.int64))


@given(versions, st.integers(1, 15), st.integers(0, 6), st.integers(-1, 20))
def test_rules_admit_what_their_names_say(stamps: torch.Tensor, epoch: int, age: int, committed: int) -> None:
    def admitted(rule: Rule) -> list[bool]:
        return rule.admits(stamps, committed).tolist()

    each = stamps.tolist()
    assert admitted(rules.exact(epoch)) == [v == epoch for v in each]
    assert admitted(rules.at_most(epoch, age)) == [v >= 0 and 0 <= epoch - v <= age for v in each]
    assert admitted(rules.snapshot(epoch)) == [v == epoch <= committed for v in each]
    assert admitted(rules.window(epoch, 3)) == [0 <= v <= min(epoch, committed) for v in each]
    assert admitted(rules.latest()) == [v != NEVER for v in each]
    assert rules.at_most(epoch, 0) == rules.exact(epoch)


@given(st.integers(1, 25), st.sampled_from(rules.PHASES))
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


@given(st.integers(0, 9), st.integers(0, 60), st.integers(1, 8), st.booleans())
def test_a_bound_on_ages_is_never_passed(bound: int, warmup: int, owners: int, in_turns: bool) -> None:
    held = [NEVER] * owners
    sent: list[list[int]] = [[] for _ in range(owners)]
    for epoch in range(1, EPOCHS):
        for owner in range(owners):
            first = held[owner] == max(1, warmup)
            ahead = rules.lead(owner, bound) if in_turns and first else 0
            if epoch <= warmup or rules.due_by_age(epoch, held[owner], bound - ahead):
                held[owner] = epoch
                sent[owner].append(epoch)
            assert 0 <= epoch - held[owner] <= bound
    for owner in range(owners):
        steady = max(1, warmup)
        assert sent[owner][:steady] == list(range(1, steady + 1))
        ahead = rules.lead(owner, bound) if in_turns else 0
        assert sent[owner][steady:] == list(range(steady + bound + 1 - ahead, EPOCHS, bound + 1))


def test_gaps() -> None:
    assert rules.mean_absolute_difference(torch.tensor([[1.0, -3.0]]), torch.tensor([[0.0, 0.0]])) == 2.0
    assert rules.mean_absolute_difference(torch.empty(0, 3), torch.empty(0, 3)) == 0.0
    assert not rules.due_by_gap(0.0, 0.0)
    assert rules.due_by_gap(1e-9, 0.0)
    assert not rules.due_by_gap(0.03, 0.03)
    assert rules.due_by_gap(math.nan, 0.03)
    assert rules.due_by_gap(math.inf, 0.03)


@given(st.integers(20, 30), versions, versions)
def test_ages_of_several_readers_add_up(epoch: int, one: torch.Tensor, other: torch.Tensor) -> None:
    found = Ages.of(epoch, one) + Ages.of(epoch, other)
    ages = [epoch - v for v in (*one.tolist(), *other.tolist())]
    assert (found.rows, found.total) == (len(ages), sum(ages))
    if ages:
        assert (found.least, found.most) == (min(ages), max(ages))
        assert found.mean == pytest.approx(sum(ages) / len(ages))
    else:
        assert found == Ages()
        assert found.mean == 0.0


@pytest.mark.parametrize(
    ("every", "phase"), [(0, "early"), (-1, "paper"), (True, "early"), (1.5, "early"), (3, "late")]
)
def test_periods_that_make_no_sense(every: int, phase: str) -> None:
    with pytest.raises(ConfigError, match=r"period|phase"):
        SyncPeriod(every, phase)
