"""Sums of rows are exact: the same bits whoever adds which rows, and those of float64 but for the last rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.samplers.dag.plan import Reduce
from atta.samplers.kernels.sums import (
    NARROW,
    WIDE,
    Sums,
    largest,
    pack_sums,
    plan_sums,
    reduce_rows,
    shifts_for,
    shifts_of,
    width_of,
)

ROWS, COLUMNS, KNOWN, NEW, PARTS = 300, 7, 40, 90, 4


def table(rng: np.random.Generator, spread: int) -> np.ndarray:
    return (rng.standard_normal((ROWS, COLUMNS)) * 10.0 ** rng.integers(-spread, 1, (ROWS, COLUMNS))).astype(np.float32)


@given(
    seed=st.integers(0, 1 << 30), reduce=st.sampled_from([*Reduce][1:]), weighted=st.booleans(), wide=st.booleans(),
    scale=st.sampled_from([0, -38, 30]), heavy=st.sampled_from([0, 20, 60]), ids=st.sampled_from([np.int32, np.int64]),
)  # fmt: skip
def test_sums_do_not_depend_on_who_adds(
    seed: int, reduce: Reduce, weighted: bool, wide: bool, scale: int, heavy: int, ids: type
) -> None:
    rng = np.random.default_rng(seed)
    x = np.ldexp(table(rng, 3), scale + rng.integers(-60, 1, COLUMNS)).astype(np.float32)
    edges = int(rng.integers(0, 500))
    row, col = rng.integers(0, KNOWN + NEW, edges).astype(ids), np.sort(rng.integers(0, KNOWN, edges)).astype(ids)
    weights = np.ldexp(rng.random(edges), heavy).astype(np.float32) if weighted else None
    vertices, owners = rng.permutation(ROWS)[: KNOWN + NEW], rng.integers(-1, PARTS, NEW).astype(np.int32)
    shifts, known, new = shifts_for(shifts_of(largest(x), "x"), col, weights), x[vertices[:KNOWN]], vertices[KNOWN:]
    plan = plan_sums(row, col, first=KNOWN, targets=KNOWN, owners=owners, parts=PARTS)
    of_edges = None if weights is None else weights[plan.edges]
    width = WIDE if wide else width_of(plan.counts, of_edges)
    sent = pack_sums(b"head", [x], vertices[row[plan.edges]], plan.counts, of_edges, shifts=shifts, width=width)
    came = Sums(np.frombuffer(sent[4:], np.uint8).reshape(len(plan.counts), width * COLUMNS), plan.targets, width)
    here = np.flatnonzero((owners < 0) | plan.raw)
    found, alone = np.empty((2, KNOWN, COLUMNS), np.float32)
    for out, some, sums in ((found, here, [came] if len(plan.counts) else []), (alone, np.arange(NEW), [])):
        reduce_rows(
            row, col, weights, known=known, vertices=NEW, parts=[(x, new[some], some + KNOWN)], sums=sums, shifts=shifts,
            reduce=reduce, out=out, threads=1 + seed % 3,
        )  # fmt: skip
    np.testing.assert_array_equal(found, alone)
    atol = np.ldexp(2e-7 * np.abs(x).max(0), heavy * weighted)
    wanted = expected(x[vertices], row, col, weights, reduce)
    assert np.all(np.abs(found - wanted) <= 3e-6 * np.abs(wanted) + atol)


def expected(x: np.ndarray, row: np.ndarray, col: np.ndarray, weights: np.ndarray | None, reduce: Reduce) -> np.ndarray:
    """In float64, edge by edge."""
    factor = np.ones(len(row)) if weights is None else weights.astype(np.float64)
    rows = x.astype(np.float64)
    if reduce is Reduce.GCN and weights is None:
        loops = np.arange(KNOWN)
        row, col = np.append(row[row != col], loops), np.append(col[row != col], loops)
        degree = np.maximum(1, np.bincount(col, minlength=len(x)))
        factor = 1 / np.sqrt(degree[row] * degree[col])
    out = np.zeros((KNOWN, x.shape[1]))
    np.add.at(out, col, rows[row] * factor[:, None])
    counts = np.maximum(1, np.bincount(col, minlength=KNOWN))[:, None]
    return out / counts if reduce is Reduce.MEAN else out


@given(seed=st.integers(0, 1 << 30), groups=st.integers(1, 30))
def test_a_plan_has_every_edge_once_and_costs_no_more_than_rows_or_sums(seed: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    edges, vertices = int(rng.integers(1, 300)), int(rng.integers(1, 60))
    row, col = rng.integers(0, vertices, edges) + groups, np.sort(rng.integers(0, groups, edges))
    owners = rng.integers(-1, PARTS, vertices).astype(np.int32)
    plan = plan_sums(row, col, first=groups, targets=groups, owners=owners, parts=PARTS)
    remote = np.flatnonzero(owners[row - groups] >= 0)
    alone = remote[plan.raw[row[remote] - groups]]
    assert np.array_equal(np.sort(np.append(alone, plan.edges)), remote)
    assert not plan.raw[owners < 0].any()
    of_sums = np.repeat(np.arange(len(plan.counts)), plan.counts)
    assert np.array_equal(col[plan.edges], plan.targets[of_sums])
    owner_of_sum = np.searchsorted(plan.starts, np.arange(len(plan.counts)), side="right") - 1
    assert np.array_equal(owners[row[plan.edges] - groups], owner_of_sum[of_sums])
    pairs = {(v, o) for v, o in zip(col[remote].tolist(), owners[row[remote] - groups].tolist(), strict=True)}
    cost = plan.raw.sum() + 1.25 * len(plan.counts)
    assert cost <= min(len(np.unique(row[remote])), 1.25 * len(pairs)) + 1e-9


def test_a_row_that_many_want_comes_as_it_is() -> None:
    """Ten vertices want the same two rows: as rows they are two, as sums ten."""
    row, col = np.tile([10, 11], 10), np.repeat(np.arange(10), 2)
    plan = plan_sums(row, col, first=10, targets=10, owners=np.zeros(2, np.int32), parts=1)
    assert plan.raw.all()
    assert not len(plan.counts)
    apart = plan_sums(np.arange(10, 30), col, first=10, targets=10, owners=np.zeros(20, np.int32), parts=1)
    assert not apart.raw.any()
    assert apart.counts.tolist() == [2] * 10


def test_numbers_that_cannot_be_counted_are_refused() -> None:
    x = np.ones((3, 2), np.float32)
    for wrong in (np.nan, np.inf, -np.inf):
        bad = np.where(np.arange(6).reshape(3, 2) == 3, np.float32(wrong), x)
        assert not np.isfinite(largest(bad)).all()
        with pytest.raises(ConfigError, match="'x' has numbers that are not finite"):
            shifts_of(largest(bad), "x")
        with pytest.raises(ValueError, match="not finite, or far larger"):
            pack_sums(
                b"", [bad], np.arange(3), np.array([3], np.int32), None, shifts=np.full(2, 10, np.int16), width=WIDE
            )
    with pytest.raises(ValueError, match="too large for its 5 bytes"):
        pack_sums(b"", [x], np.arange(3), np.array([3], np.int32), None, shifts=np.full(2, 38, np.int16), width=NARROW)
    with pytest.raises(ValueError, match="row 3 is outside"):
        pack_sums(
            b"", [x], np.array([0, 3]), np.array([2], np.int32), None, shifts=np.full(2, 10, np.int16), width=NARROW
        )
    with pytest.raises(ValueError, match="counts: must add up"):
        pack_sums(b"", [x], np.arange(3), np.array([2], np.int32), None, shifts=np.full(2, 10, np.int16), width=NARROW)
    assert shifts_of(np.zeros(1, np.float32), "x") == 34
    assert width_of(np.array([33], np.int32), None) == WIDE
