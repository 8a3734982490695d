"""Rows that batches have in common: against all choices of other batches, and their effect in a cluster."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.simulate import simulate
from atta.simulate.reach import Overlap
from tests.unit.simulate.scenarios import REPEATS, scenario


def histogram(batches: list[set[int]]) -> list[int]:
    counts = [sum(row in batch for batch in batches) for row in set().union(*batches)]
    return [counts.count(number) for number in range(1, len(batches) + 1)]


def in_common(batches: list[set[int]], others: int) -> float:
    """Share of a batch's rows in the union of ``others`` different batches, over every batch and every choice."""
    found = total = 0
    for mine in batches:
        rest = [batch for batch in batches if batch is not mine]
        for chosen in combinations(rest, others):
            found += len(mine & set().union(*chosen))
            total += len(mine)
    return found / total


@given(st.lists(st.sets(st.integers(0, 30), min_size=1), min_size=2, max_size=6))
@settings(max_examples=80, deadline=None)
def test_share_is_the_mean_over_all_choices(batches: list[set[int]]) -> None:
    overlap = Overlap(histogram(batches))
    shares = [overlap.share(others) for others in range(len(batches))]
    assert shares == pytest.approx([in_common(batches, others) for others in range(len(batches))])
    between = [overlap.share(others / 8) for others in range(8 * len(batches))]
    assert np.diff(between).min() > -1e-12
    assert between[-1] == shares[-1]


def test_rows_of_a_cache_are_not_pulled() -> None:
    rng = np.random.default_rng(0)
    batches = [set(np.flatnonzero(rng.random(400) < np.linspace(0.02, 1, 400)).tolist()) for _ in range(7)]
    counts = {row: sum(row in batch for batch in batches) for row in set().union(*batches)}
    wanted = sum(counts.values())
    hot = [row for row in counts if counts[row] >= 6]
    left = [{row for row in batch if row not in hot} for batch in batches]
    overlap = Overlap(histogram(batches), hit=sum(counts[row] for row in hot) / wanted)
    assert overlap.share(2) == pytest.approx(in_common(left, 2))
    assert 0 < overlap.share(2) < Overlap(histogram(batches)).share(2)
    assert Overlap(histogram(batches), hit=1.0).share(3) == 0
    assert Overlap(()).share(3) == 0


def test_batches_in_flight_ask_once() -> None:
    """If the link is the bottleneck, more batches in flight send fewer bytes."""

    def sent(*, share: bool, prefetch: int) -> float:
        run = scenario(
            REPEATS,
            policy="prefetch",
            prefetch=prefetch,
            link=2e7,
            machines=2,
            batches=40,
            train_s=0.0,
            share_pulls=share,
        )
        return simulate(run).link_bytes_per_batch

    alone = sent(share=False, prefetch=8)
    assert sent(share=False, prefetch=1) == pytest.approx(alone, rel=0.02)
    assert alone > 1.05 * sent(share=True, prefetch=2) > 1.05 * 1.05 * sent(share=True, prefetch=8)


def test_a_batch_shares_nothing_with_itself() -> None:
    """A batch alone asks for all of its rows, although the pulls of its hops run together."""
    outcomes = [
        simulate(scenario(REPEATS, policy="sequential", machines=2, link=2e7, share_pulls=share))
        for share in (True, False)
    ]
    assert outcomes[0] == outcomes[1]


def test_nothing_is_shared_that_is_cached() -> None:
    options = {"machines": 2, "link": 2e7, "cache_hit": 1.0, "train_s": 0.0}
    assert simulate(scenario(REPEATS, **options)) == simulate(scenario(REPEATS, share_pulls=False, **options))
