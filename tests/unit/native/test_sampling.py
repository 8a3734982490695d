"""Sampling kernels against brute force and statistics."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from atta import _native
from atta.samplers import kernels
from atta.samplers.hashing import permutation, stream_key
from atta.samplers.kernels import beside
from atta.samplers.methods import Method, tables_for
from atta.samplers.methods.base import InEdges

Csc = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def random_csc(seed: int, n: int = 50, wide: bool = False) -> Csc:
    """indptr, indices, edge ids and vertex keys of a graph with empty rows and one hub."""
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 12, n)
    degrees[rng.integers(0, n)] = 400
    degrees[rng.integers(0, n, 5)] = 0
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    dtype = np.int64 if wide else np.int32
    indices = rng.integers(0, 1000, indptr[-1]).astype(dtype)
    return indptr, indices, rng.permutation(int(indptr[-1])).astype(dtype), rng.permutation(10 * n)[:n].astype(np.int64)


def sample(csc: Csc, rows: np.ndarray, fan_out: int, **options: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    settings_: dict[str, object] = {"replace": False, "stream_key": 7, "threads": 1, **options}
    counts, neighbors, edge_ids = kernels.sample_neighbors(*csc, rows, fan_out=fan_out, **settings_)  # type: ignore[arg-type]
    return counts, neighbors, edge_ids


@given(st.integers(0, 10_000), st.sampled_from([-1, 0, 1, 3, 10, 63, 64, 65, 200, 399, 400, 1000]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_draws_are_edges_of_the_row(seed: int, fan_out: int, replace: bool) -> None:
    csc = random_csc(seed)
    indptr, indices, edge_ids, _ = csc
    rows = np.random.default_rng(seed).integers(0, 50, 30)
    counts, neighbors, chosen = sample(csc, rows, fan_out, replace=replace, stream_key=seed)
    source_of = dict(zip(edge_ids.tolist(), indices.tolist(), strict=True))
    at = 0
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        degree = int(indptr[row + 1] - indptr[row])
        expected = degree if fan_out < 0 else (fan_out if degree else 0) if replace else min(degree, fan_out)
        assert count == expected
        mine = chosen[at : at + count].tolist()
        assert set(mine) <= set(edge_ids[indptr[row] : indptr[row + 1]].tolist())
        assert [source_of[e] for e in mine] == neighbors[at : at + count].tolist()
        if not replace or fan_out < 0:
            assert len(set(mine)) == count
        if fan_out < 0:
            assert mine == edge_ids[indptr[row] : indptr[row + 1]].tolist()
        at += count
    assert at == len(neighbors)


@given(st.integers(0, 10_000), st.integers(1, 80), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_row_gets_the_same_whatever_else_is_asked(seed: int, fan_out: int, replace: bool) -> None:
    csc, wide = random_csc(seed), random_csc(seed, wide=True)
    rows = np.random.default_rng(seed).integers(0, 50, 40)
    options = {"replace": replace, "stream_key": seed}
    counts, neighbors, chosen = sample(csc, rows, fan_out, **options)
    for threads in (2, 3, 7):
        for got, want in zip(
            sample(csc, rows, fan_out, threads=threads, **options), (counts, neighbors, chosen), strict=True
        ):
            assert np.array_equal(got, want)
    assert np.array_equal(sample(wide, rows.astype(np.int32), fan_out, **options)[1], neighbors)
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = np.split(sample(csc, rows[order], fan_out, **options)[2], np.cumsum(counts[order])[:-1])
    original = np.split(chosen, np.cumsum(counts)[:-1])
    assert all(np.array_equal(shuffled[i], original[j]) for i, j in enumerate(order))


@given(
    st.integers(0, 10_000), st.integers(-1, 20), st.booleans(), st.sampled_from(["none", *Method]), st.integers(1, 3)
)
@settings(max_examples=80, deadline=None)
def test_sources_and_edge_ids_may_lie_side_by_side(
    seed: int, fan_out: int, wide: bool, method: str, threads: int
) -> None:
    indptr, indices, edge_ids, keys = random_csc(seed, wide=wide)
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 50, 70)
    options: dict[str, Any] = {"fan_out": fan_out, "replace": False, "stream_key": seed, "threads": threads}
    if method != "none":
        weight, time = rng.random(len(indices)), np.sort(rng.integers(0, 9, len(indices)))
        options["method"] = tables_for(Method(method), InEdges(indptr, indices, weight=weight, time=time))
        options["times"] = np.full(len(rows), 5)
    paired = kernels.resident_beside(indices, edge_ids)
    assert beside(*paired)[0] is paired[0]  # it is not copied
    if len(indices) > 1:
        assert paired[1].ctypes.data - paired[0].ctypes.data == indices.itemsize
    wanted = kernels.sample_neighbors(indptr, indices, edge_ids, keys, rows, **options)
    found = kernels.sample_neighbors(indptr, *paired, keys, rows, **options)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)


def test_edge_ids_lie_beside_their_sources() -> None:
    indptr, keys = np.array([0, 3, 6]), np.arange(2)
    values = np.arange(24, dtype=np.int32)
    for name, indices, edge_ids in (
        ("indices", values[::3][:6], values[1::3][:6]),
        ("indices", values[::-1][:6], values[::-1][:6]),
        ("edge_ids", values[::2][:6], values[:6]),
        ("edge_ids", values[::2][:6], values[1::2][:7]),
    ):
        with pytest.raises(ValueError, match=name):
            _native.sample_neighbors(
                indptr, indices, edge_ids, keys, keys, 2, False, 0, 0, 1, None, None, None, False, False
            )
        found = kernels.sample_neighbors(
            indptr, indices, edge_ids[:6], keys, keys, fan_out=-1, replace=False, stream_key=0
        )
        assert np.array_equal(found[1], indices)
        assert found[2] is not None
        assert np.array_equal(found[2], edge_ids[:6])
    mixed = kernels.resident_beside(np.arange(5, dtype=np.int32), np.arange(5, 10))
    assert [array.tolist() for array in mixed] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize(("degree", "fan_out"), [(10, 3), (100, 99), (300, 70), (17, 1)])
def test_every_neighbour_is_equally_likely(degree: int, fan_out: int) -> None:
    """Chi-square on inclusion. Draws of one sample exclude each other, hence the factors (1 - k/d) and (d-1)/d."""
    n = 4000
    indptr = np.arange(n + 1, dtype=np.int64) * degree
    indices = np.tile(np.arange(degree, dtype=np.int32), n)
    _, neighbors, _ = sample((indptr, indices, indices, np.arange(n)), np.arange(n), fan_out, stream_key=99)
    seen = np.bincount(neighbors, minlength=degree)
    expected = n * fan_out / degree
    statistic = ((seen - expected) ** 2).sum() / (expected * (1 - fan_out / degree)) * (degree - 1) / degree
    assert 1e-4 < stats.chi2.sf(statistic, degree - 1) < 1 - 1e-4


def test_draws_of_neighbouring_vertices_streams_and_indices_are_independent() -> None:
    """The joint distribution of pairs of draws is flat: with replacement, degree 8, so 64 cells."""
    n, degree = 20_000, 8
    indptr = np.arange(n + 1, dtype=np.int64) * degree
    indices = np.tile(np.arange(degree, dtype=np.int32), n)
    csc = (indptr, indices, indices, np.arange(n))
    keys = [stream_key(1, 0, batch, hop, 5) for batch, hop in ((0, 1), (0, 2), (1, 1))]
    draws = [sample(csc, np.arange(n), 2, replace=True, stream_key=k)[1].reshape(n, 2) for k in keys]
    pairs = [
        (draws[0][:, 0], draws[0][:, 1]),  # two draws of one vertex
        (draws[0][:-1, 0], draws[0][1:, 0]),  # neighbouring vertices
        (draws[0][:, 0], draws[1][:, 0]),  # hops
        (draws[0][:, 0], draws[2][:, 0]),  # batches
    ]
    for a, b in pairs:
        cells = np.bincount(a.astype(np.int64) * degree + b, minlength=degree * degree)
        assert stats.chisquare(cells).pvalue > 1e-4


def test_pairs() -> None:
    rng = np.random.default_rng(3)
    n = 60
    ids = rng.permutation(1000)[:n].astype(np.int64)
    rows_of = [np.unique(rng.integers(0, n, rng.integers(0, 40))) for _ in range(n)]
    rows_of[7] = np.arange(n)  # a neighbour of every vertex
    rows_of = [r[np.argsort(ids[r])] for r in rows_of]
    indptr = np.concatenate([[0], np.cumsum([len(r) for r in rows_of])]).astype(np.int64)
    indices = np.concatenate(rows_of).astype(np.int32)
    common = {"stream_key": 4, "ids": ids, "sorted_internal": np.argsort(ids)}
    rows = np.arange(n)
    positive = kernels.sample_pairs(indptr, indices, ids, rows, count=3, negative=False, **common).reshape(n, 3)  # type: ignore[arg-type]
    negative = kernels.sample_pairs(indptr, indices, ids, rows, count=500, negative=True, **common).reshape(n, 500)  # type: ignore[arg-type]
    for row in range(n):
        neighbours = set(rows_of[row].tolist())
        assert set(positive[row].tolist()) <= (neighbours or {-1})
        strangers = set(range(n)) - neighbours - {row}
        assert set(negative[row].tolist()) <= (strangers or {-1})
    strangers_of_0 = sorted(set(range(n)) - set(rows_of[0].tolist()) - {0})
    many = kernels.sample_pairs(indptr, indices, ids, np.zeros(400, int), count=500, negative=True, **common)  # type: ignore[arg-type]
    assert np.array_equal(many[:500], many[500:1000])  # the same row gets the same draws
    seen = np.bincount(negative[0], minlength=n)[strangers_of_0]
    assert stats.chisquare(seen).pvalue > 1e-4


def test_bad_input_is_refused_with_a_reason() -> None:
    indptr, indices, edge_ids, keys = random_csc(1)
    ok = {"fan_out": 3, "replace": False, "stream_key": 1}

    def call(**changes: object) -> object:
        arguments: dict[str, object] = {
            "indptr": indptr, "indices": indices, "edge_ids": edge_ids, "vertex_keys": keys, "rows": np.arange(5), **ok, **changes
        }  # fmt: skip
        return kernels.sample_neighbors(**arguments)  # type: ignore[arg-type]

    broken = indptr.copy()
    broken[3] = 10**9
    for changes, words in [
        ({"rows": np.array([50])}, "row 50"),
        ({"rows": np.array([-1])}, "row -1"),
        ({"rows": np.array([1.5])}, "integers"),
        ({"fan_out": -2}, "fan_out"),
        ({"indices": indices[:-1]}, "edge_ids"),
        ({"indices": indices[:-1], "edge_ids": None, "rows": np.arange(50)}, "spans"),
        ({"indptr": broken}, "spans"),
        ({"vertex_keys": keys[:-1]}, "vertex_keys"),
        ({"threads": 0}, "threads"),
    ]:
        with pytest.raises(ValueError, match=words):
            call(**changes)
    for pointer, sources, words in [
        (np.array([0, 2, 1], dtype=np.int64), 5, "decreases at row 1"),
        (np.array([1, 2, 3], dtype=np.int64), 5, "begin"),
        (np.array([0, 1, 2], dtype=np.int64), 5, "ends at 2"),
        (np.array([0, 1, 3], dtype=np.int64), 2, "of 2"),
    ]:
        with pytest.raises(ValueError, match=words):
            kernels.validate_csc(pointer, np.array([0, 1, 4], dtype=np.int32), sources)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 8), max_size=40), st.booleans(), st.sampled_from([1, 100, 1023]))
def test_bounds_by_target(drawn: list[int], ascending: bool, edges_each: int) -> None:
    targets = np.repeat(np.array(sorted(drawn) if ascending else drawn, np.int64), edges_each)
    found = kernels.bounds_by_target(targets, 9)
    if (np.diff(targets) < 0).any():
        assert found is None
    else:
        assert found.tolist() == np.searchsorted(targets, np.arange(10)).tolist()


@pytest.mark.parametrize("targets", [[0, 3], [-1, 0], [0, 2**62], [0] * 1024 + [2**40] * 1024 + [1]])
def test_bounds_of_targets_that_do_not_exist(targets: list[int]) -> None:
    with pytest.raises(ValueError, match="targets"):
        kernels.bounds_by_target(np.array(targets, np.int64), 3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=12))
def test_edges_by_source(by_target: list[list[int]]) -> None:
    indptr = np.cumsum([0, *map(len, by_target)])
    sources = np.array([source for of_one in by_target for source in of_one], np.int64)
    bounds, targets, at = kernels.by_source(indptr, sources, 7)
    order = np.argsort(sources, kind="stable")
    assert at.tolist() == order.tolist()
    assert targets.tolist() == np.repeat(np.arange(len(by_target)), np.diff(indptr))[order].tolist()
    assert bounds.tolist() == np.searchsorted(sources[order], np.arange(8)).tolist()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=12), st.sets(st.integers(0, 6)), st.integers(0, 40),
    st.integers(0, 13), st.randoms(use_true_random=False),
)  # fmt: skip
def test_edges_from_some_sources(
    by_target: list[list[int]], some: set[int], most: int, stop: int, random: Random
) -> None:
    ends = [(row, source, source in some) for row, of_row in enumerate(by_target) for source in of_row]
    marks, sources = np.isin(np.arange(7), [*some]), np.array([source for _, source, _ in ends], np.int32)
    indptr, gone = np.cumsum([0, *map(len, by_target)]), np.flatnonzero([random.random() < 0.3 for _ in ends])
    bounds, places = _native.places_by_source(sources, 7)
    found = _native.edges_from(indptr, sources, bounds, places, marks, gone, most)
    count = sum(led for *_, led in ends)
    assert (found is None) == (count > most)
    if 0 < count <= most:
        with pytest.raises(ValueError, match="places: have one that does not exist"):
            _native.edges_from(indptr, sources, bounds, places + np.uint32(len(places)), marks, gone, most)
    if found is not None:
        wanted = [(row, source) for at, (row, source, led) in enumerate(ends) if led and at not in gone]
        assert [*zip(*(array.tolist() for array in found), strict=True)] == wanted
    first = random.randrange(14)
    counts, found = _native.edges_into(indptr, sources, marks, first, stop, most)
    rows = range(first, min(stop, len(by_target)))[: len(counts)]
    wanted = [[source for source in by_target[row] if source in some] for row in rows]
    assert counts.tolist() == [len(of_row) for of_row in wanted]
    assert found.tolist() == [source for of_row in wanted for source in of_row]
    if len(counts) < min(stop, len(by_target)) - first:
        assert counts.sum() >= most > counts[:-1].sum() or most == 0


@pytest.mark.parametrize(
    ("indptr", "sources", "words"),
    [
        ([], [], "indptr: is empty"),
        ([1, 2], [0, 0], "begin with 0"),
        ([0, 2, 1], [0, 0], "decreases at row 1"),
        ([0, 1], [0, 0], "ends at 1, there are 2"),
        ([0, 2], [0, 3], "edge 1 comes from vertex 3 of 3"),
        ([0, 2], [-1, 2], "edge 0 comes from vertex -1 of 3"),
    ],
)
def test_edges_by_source_that_make_no_sense(indptr: list[int], sources: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kernels.by_source(np.array(indptr, np.int64), np.array(sources, np.int64), 3)


def test_permutation_depends_on_the_set_of_ids_and_the_key_only() -> None:
    ids = np.random.default_rng(0).permutation(5000)[:1000].astype(np.int64)
    shuffled = np.random.default_rng(1).permutation(ids)
    assert np.array_equal(ids[permutation(ids, 5)], shuffled[permutation(shuffled, 5)])
    assert not np.array_equal(permutation(ids, 5), permutation(ids, 6))
    first = np.array([permutation(np.arange(20), key)[0] for key in range(4000)])
    assert stats.chisquare(np.bincount(first, minlength=20)).pvalue > 1e-4
