"""Weighted sampling against exact probabilities."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.methods import Method, tables_for

WEIGHTS = [
    np.array([1.0, 2.0, 3.0, 4.0]),
    np.array([0.0, 5.0, 0.0, 1.0, 1.0, 0.5]),
    np.array([1e-9, 1.0, 1e-9, 1e-9]),  # nearly all weight is in one edge: draws repeat until running sums take over
    np.ones(7),
]


def pick(
    indptr: np.ndarray,
    weights: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    *,
    build_threads: int = 1,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Counts and positions of edges drawn by weight."""
    sources = np.zeros(len(weights), dtype=np.int32)
    method = tables_for(Method.WEIGHTED, indptr, sources, weight=weights, threads=build_threads)
    counts, _, positions = kernels.sample_neighbors(
        indptr, sources, None, keys, rows, method=method, positions=True, **options
    )
    assert positions is not None
    return counts, positions


def draws(weights: np.ndarray, fan_out: int, count: int, *, replace: bool) -> np.ndarray:
    """Positions that ``count`` rows with these weights draw: [count, picks]."""
    degree = len(weights)
    indptr = np.arange(count + 1) * degree
    rows = np.arange(count)
    counts, positions = pick(
        indptr, np.tile(weights, count), rows, rows, fan_out=fan_out, replace=replace, stream_key=7
    )
    assert (counts == counts[0]).all()
    return (positions - np.repeat(rows * degree, counts)).reshape(count, int(counts[0]))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_draws_with_replacement_follow_the_weights(weights: np.ndarray) -> None:
    seen = np.bincount(draws(weights, 3, 20_000, replace=True).reshape(-1), minlength=len(weights))
    assert (seen[weights == 0] == 0).all()
    likely = weights / weights.sum() > 1e-6
    expected = weights[likely] / weights[likely].sum() * seen[likely].sum()
    assert stats.chisquare(seen[likely], expected).pvalue > 1e-6 if likely.sum() > 1 else seen[likely] == 60_000


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("fan_out", [1, 2, 3])
def test_sequences_without_replacement_are_successive_sampling(weights: np.ndarray, fan_out: int) -> None:
    positive = np.flatnonzero(weights)
    found = draws(weights, fan_out, 30_000, replace=False)
    if fan_out >= len(positive):
        assert (found == positive).all()
        return
    chance = {}
    for order in itertools.permutations(positive.tolist(), fan_out):
        left, p = weights.sum(), 1.0
        for edge in order:
            p *= weights[edge] / left
            left -= weights[edge]
        chance[order] = p
    seen = dict.fromkeys(chance, 0)
    for order in map(tuple, found.tolist()):
        seen[order] += 1
    likely = [o for o in chance if chance[o] * len(found) > 5]
    rest = len(found) - sum(seen[o] for o in likely)
    assert rest <= 10 + 10 * len(found) * (1 - sum(chance[o] for o in likely))
    if len(likely) > 1:
        expected = np.array([chance[o] for o in likely])
        counted = np.array([seen[o] for o in likely])
        assert stats.chisquare(counted, expected / expected.sum() * counted.sum()).pvalue > 1e-6


@given(st.integers(0, 10_000), st.integers(0, 12), st.booleans())
def test_every_answer_is_possible(seed: int, fan_out: int, replace: bool) -> None:
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 80, 20)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    weights = np.where(rng.random(indptr[-1]) < 0.3, 0.0, rng.exponential(size=indptr[-1]) ** 8)
    rows, keys = rng.integers(0, 20, 15), rng.permutation(20)
    answers = [
        pick(indptr, weights, keys, rows, fan_out=f, replace=replace, stream_key=seed, threads=t, build_threads=t)
        for f, t in ((fan_out, 1), (fan_out, 2), (-1, 1))
    ]
    assert np.array_equal(answers[0][0], answers[1][0])
    assert np.array_equal(answers[0][1], answers[1][1])
    at = 0
    for row, count in zip(rows, answers[0][0], strict=True):
        mine = answers[0][1][at : at + count]
        at += count
        candidates = indptr[row] + np.flatnonzero(weights[indptr[row] : indptr[row + 1]])
        assert set(mine) <= set(candidates)
        if replace:
            assert count == (fan_out if len(candidates) else 0)
        else:
            assert count == min(fan_out, len(candidates)) == len(set(mine))
    assert answers[2][1].tolist() == [e for r in rows for e in range(indptr[r], indptr[r + 1]) if weights[e] > 0]


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_weights_that_make_no_sense_are_named(wrong: float) -> None:
    sources = np.zeros(5, dtype=np.int32)
    with pytest.raises(ConfigError, match="edge 3 weighs"):
        tables_for(Method.WEIGHTED, np.array([0, 2, 5]), sources, weight=np.array([1.0, 1, 1, wrong, 1]))
    with pytest.raises(ConfigError, match="does not fit"):
        tables_for(Method.WEIGHTED, np.array([0, 2, 9]), sources, weight=np.ones(5))
