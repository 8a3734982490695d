"""When a lost session is opened again. The oracle counts outages and adds up waits by itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from atta.client.sessions.cursor import LONGEST_WAIT_S, OUTAGES, PER_OUTAGE, Reattachment

JITTER = st.floats(0, 1, exclude_max=True)


def waits_of_an_outage(limit_s: float, jitter: float) -> list[float]:
    """The waits before each attempt at a daemon that never answers, if an attempt takes no time."""
    outages, now, found = Reattachment(limit_s), 0.0, list[float]()
    while (wait_s := outages.wait_s(now, 0, jitter)) is not None:
        now += wait_s
        found.append(wait_s)
    return found


@given(st.floats(0.01, 300), JITTER)
def test_one_outage(limit_s: float, jitter: float) -> None:
    first, *waits, last = waits_of_an_outage(limit_s, jitter)
    assert first == 0, "the first attempt comes at once"
    assert first + sum(waits) + last == pytest.approx(limit_s), "the last one comes when the time is up"
    assert max(waits, default=0) <= 1.5 * LONGEST_WAIT_S
    assert waits[:-1] == sorted(waits[:-1]), "waits grow"
    assert len(waits) <= 10 + limit_s / (0.5 * LONGEST_WAIT_S)


def test_no_waiting_at_all() -> None:
    assert Reattachment(0.0).wait_s(5.0, 0, 0.5) is None


def test_a_daemon_that_dies_after_each_batch_uses_up_the_budget() -> None:
    outages, batch = Reattachment(60.0), 0
    while outages.wait_s(float(batch), batch, 0.5) is not None:
        batch += 1
    assert batch == 11  # ten, and one more that eleven batches have earned


def test_ten_batches_between_outages_are_enough_for_ever() -> None:
    outages = Reattachment(60.0)
    assert all(outages.wait_s(float(n), 10 * n, 0.5) == 0 for n in range(1000))


class Outages(RuleBasedStateMachine):
    """Losses, failed attempts and batches in any order, at any times."""

    @initialize(limit_s=st.floats(0, 100), first=st.integers(0, 50))
    def begin(self, limit_s: float, first: int) -> None:
        self.outages, self.limit_s = Reattachment(limit_s, first), limit_s
        self.now, self.first, self.batch, self.seen = 0.0, first, first, first
        self.since: float | None = None
        self.begun, self.given_up = 0, False

    @rule(seconds=st.floats(0, 200))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(count=st.integers(1, 30))
    def receive(self, count: int) -> None:
        if not self.given_up:
            self.batch += count

    @rule(jitter=JITTER)
    def fail(self, jitter: float) -> None:
        fresh = self.since is None or self.batch > self.seen
        if fresh:
            self.since, self.seen = self.now, self.batch
        assert self.since is not None
        wait_s = self.outages.wait_s(self.now, self.batch, jitter)
        if self.given_up:
            assert wait_s is None, "who has given up does not begin again"
        if wait_s is None:
            self.given_up = True
            return
        self.begun += fresh
        assert 0 <= wait_s <= 1.5 * LONGEST_WAIT_S
        assert not fresh or wait_s == 0
        assert self.now + wait_s <= self.since + self.limit_s + 1e-6, "no attempt after the limit"
        assert self.begun <= OUTAGES + (self.batch - self.first) // PER_OUTAGE, "the budget holds"

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "outages"):
            self.outages.validate()
            assert 0 <= self.outages.left_s(self.now) <= self.limit_s


TestOutages = Outages.TestCase
TestOutages.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
