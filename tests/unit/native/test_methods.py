"""Temporal and LABOR sampling against brute force and exact probabilities; trees; rules of all methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atta.errors import ConfigError
from atta.samplers import kernels
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.sampler import LocalSampler
from atta.samplers.methods import Method, tables_for
from atta.samplers.methods.base import InEdges

TEMPORAL = (Method.TEMPORAL, Method.LAST)


def some_rows(seed: int, rows: int = 25, longest: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, longest, rows) * (rng.random(rows) < 0.8))])
    return indptr, rng.integers(0, 1000, indptr[-1]).astype(np.int32)


def drawn(
    indptr: np.ndarray, sources: np.ndarray, rows: np.ndarray, method: Any = None, **options: Any
) -> list[np.ndarray]:
    given = {"replace": False, "stream_key": 3, **options}
    keys = np.arange(len(indptr) - 1)
    counts, _, positions = kernels.sample_neighbors(
        indptr, sources, None, keys, rows, method=method, positions=True, **given
    )
    return np.split(positions, np.cumsum(counts)[:-1])


@given(
    st.integers(0, 10_000),
    st.integers(-1, 12),
    st.sampled_from(TEMPORAL),
    st.booleans(),
    st.sampled_from([1, 2**20, 2**40]),
)
def test_no_edge_comes_from_the_future(seed: int, fan_out: int, method: Method, replace: bool, scale: int) -> None:
    indptr, sources = some_rows(seed)
    rng = np.random.default_rng(seed)
    times = (rng.integers(-20, 20, len(sources)) * scale).astype(np.int64)
    rows, until = rng.integers(0, 25, 40), rng.integers(-25, 25, 40) * scale
    until[:2] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    replace = replace and method is Method.TEMPORAL
    tables = tables_for(method, InEdges(indptr, sources, time=times, threads=2))
    answers = [
        drawn(indptr, sources, rows, tables, fan_out=fan_out, times=until, replace=replace, threads=t) for t in (1, 2)
    ]
    for row, limit, found, again in zip(rows, until, *answers, strict=True):
        assert np.array_equal(found, again)
        earlier = [e for e in range(indptr[row], indptr[row + 1]) if times[e] <= limit]
        assert set(found) <= set(earlier)
        if replace and fan_out >= 0:
            assert len(found) == (fan_out if earlier else 0)
            continue
        assert len(set(found)) == len(found) == (len(earlier) if fan_out < 0 else min(fan_out, len(earlier)))
        if method is Method.LAST and fan_out > 0:
            # The latest edges. Of equally late ones, those that come last.
            assert found.tolist() == sorted(earlier, key=lambda e: (times[e], e))[-fan_out:]


def test_temporal_draws_are_uniform_among_earlier_edges() -> None:
    degree, known, fan_out, count = 40, 23, 5, 4000
    indptr, sources = np.arange(count + 1) * degree, np.zeros(count * degree, dtype=np.int32)
    order = np.random.default_rng(1).permutation(degree)
    tables = tables_for(Method.TEMPORAL, InEdges(indptr, sources, time=np.tile(order, count)))
    found = np.concatenate(
        drawn(indptr, sources, np.arange(count), tables, fan_out=fan_out, times=np.full(count, known - 1))
    )
    seen = np.bincount(found % degree, minlength=degree)
    assert (seen[order >= known] == 0).all()
    # Without replacement, each edge is in with probability k / d.
    # The spread is smaller than a chi-square statistic assumes.
    assert stats.chisquare(seen[order < known]).pvalue > 1e-6


def test_labor_takes_each_source_with_probability_k_over_d() -> None:
    rng = np.random.default_rng(2)
    degree, fan_out, batches = 60, 7, 3000
    sources = rng.permutation(10_000)[:degree].astype(np.int32)
    indptr, one = np.array([0, degree]), np.array([0])
    tables = tables_for(Method.LABOR, InEdges(indptr, sources))
    seen, sizes = np.zeros(degree), []
    for key in range(batches):
        (found,) = drawn(indptr, sources, one, tables, fan_out=fan_out, stream_key=key * 7919)
        seen[found] += 1
        sizes.append(len(found))
    chance = fan_out / degree
    spread = np.sqrt(chance * (1 - chance))
    assert np.abs(seen / batches - chance).max() < 5 * spread / np.sqrt(batches)
    # Inclusions are independent of each other, so the number of edges is binomial.
    assert abs(np.var(sizes) - degree * chance * (1 - chance)) < 0.15 * degree * chance
    pairs = [np.corrcoef(rng.permutation(sizes), sizes)[0, 1] for _ in range(3)]
    assert max(map(abs, pairs)) < 0.1


def test_labor_rows_share_their_sources() -> None:
    """Rows of a hop use one number per source.

    Of the sources that two rows share, the longer row chooses only some that the shorter row chooses, too.
    """
    sources = np.concatenate([np.arange(50), np.arange(50), np.arange(20)]).astype(np.int32)
    indptr, fan_out = np.array([0, 50, 100, 120]), 10
    tables = tables_for(Method.LABOR, InEdges(indptr, sources))
    for key in range(200):
        a, b, c = drawn(indptr, sources, np.arange(3), tables, fan_out=fan_out, stream_key=key)
        assert np.array_equal(sources[a], sources[b])
        assert set(sources[a][sources[a] < 20]) <= set(sources[c])
    short = drawn(indptr, sources, np.arange(3), tables, fan_out=50, stream_key=1)
    assert [len(found) for found in short] == [50, 50, 20]  # no more than there are: all edges


@given(st.integers(0, 10_000), st.integers(0, 30))
def test_labor_is_brute_force_in_any_lane(seed: int, fan_out: int) -> None:
    """The vector code and plain arithmetic agree. A row alone, or in pieces, gives the same as the whole."""
    indptr, sources = some_rows(seed)
    tables = tables_for(Method.LABOR, InEdges(indptr, sources, source_keys=np.arange(1000) * 3))
    rows = np.arange(25)
    found = drawn(indptr, sources, rows, tables, fan_out=fan_out, stream_key=seed)

    def number(source: int) -> int:
        mark = kernels_mix(3 * source) >> 32
        first, second = kernels_mix(seed) & 0xFFFFFFFF, kernels_mix(seed) >> 32
        x = mark ^ first
        x ^= x >> 16
        x = x * 0x85EBCA6B & 0xFFFFFFFF
        x = ((x ^ (x >> 13)) + second) & 0xFFFFFFFF
        x = x * 0xC2B2AE35 & 0xFFFFFFFF
        return x ^ (x >> 16)

    for row, mine in zip(rows, found, strict=True):
        edges = range(indptr[row], indptr[row + 1])
        below = (fan_out << 32) // max(1, len(edges))
        assert mine.tolist() == [e for e in edges if number(int(sources[e])) < below]


def kernels_mix(value: int) -> int:
    from atta import _native

    return _native.mix64(value)


@pytest.mark.parametrize("method", list(Method))
def test_trees_draw_independently_and_repeatably(method: Method) -> None:
    rng = np.random.default_rng(4)
    src, dst = rng.integers(0, 40, 900), rng.integers(0, 40, 900)
    graph = LocalGraph.from_edges(src, dst, 40, weight=rng.random(900), time=rng.integers(0, 50, 900))
    sampler = LocalSampler(graph, method=method)
    seeds = np.array([3, 3, 5, 3])
    times = np.array([40, 40, 40, 10]) if method.temporal else None
    batch = sampler.sample(seeds, [4, 3], disjoint=True, input_time=times)
    assert batch.n_id[:4].tolist() == seeds.tolist()
    assert batch.tree[:4].tolist() == [0, 1, 2, 3]
    assert (batch.tree[batch.row] == batch.tree[batch.col]).all()
    pairs = list(zip(batch.tree.tolist(), batch.n_id.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert (src[batch.e_id] == batch.n_id[batch.row]).all()
    assert (dst[batch.e_id] == batch.n_id[batch.col]).all()
    first = [batch.e_id[batch.tree[batch.col] == tree].tolist() for tree in range(4)]
    if method in (Method.UNIFORM, Method.WEIGHTED, Method.TEMPORAL):
        assert first[0] != first[1]  # the same seed, but its own draws
    if times is not None:
        of_edge = np.empty(900, dtype=np.int64)
        of_edge[graph.edge_ids] = graph.time
        assert (of_edge[batch.e_id] <= times[batch.tree[batch.col]]).all()
        assert any(of_edge[batch.e_id] > 10)


def test_methods_refuse_what_they_cannot_do() -> None:
    graph = LocalGraph.from_edges([0, 1], [1, 0], 2)
    with pytest.raises(ConfigError, match="no weights"):
        LocalSampler(graph, method="weighted")
    with pytest.raises(ConfigError, match="have times"):
        LocalSampler(graph, method="temporal")
    with pytest.raises(ConfigError, match="method"):
        LocalSampler(graph, method="labour")
    with pytest.raises(ConfigError, match="no edge twice"):
        LocalSampler(graph, method="labor").sample([0], [1], replace=True)
    with pytest.raises(ConfigError, match="input_time"):
        LocalSampler(graph).sample([0], [1], input_time=[3])
    timed = LocalGraph.from_edges([0, 1], [1, 0], 2, time=[1, 2])
    with pytest.raises(ConfigError, match="input_time"):
        LocalSampler(timed, method="last").sample([0], [1])
    with pytest.raises(ConfigError, match="integers"):
        LocalSampler(LocalGraph.from_edges([0], [1], 2, time=[0.5]), method="last")
    indptr, sources = np.array([0, 2]), np.zeros(2, dtype=np.int32)
    other = tables_for(Method.LABOR, InEdges(np.array([0, 3]), np.zeros(3, dtype=np.int32)))
    with pytest.raises(ValueError, match="other edges"):
        drawn(indptr, sources, np.array([0]), other, fan_out=1)
    with pytest.raises(ValueError, match="trees"):
        drawn(indptr, sources, np.array([0]), fan_out=1, trees=np.array([0, 1]))
    with pytest.raises(ValueError, match="times"):
        drawn(indptr, sources, np.array([0]), fan_out=1, times=np.array([0, 1]))


def test_single_questions() -> None:
    bits = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
    assert kernels.scaled(bits, np.array([10, 10, 10])).tolist() == [0, 5, 9]
    big = 2**62 - 1
    assert kernels.scaled(bits, np.array([big] * 3)).tolist() == [int(b) * big >> 64 for b in bits.tolist()]
    graph = LocalGraph.from_edges([2, 0, 2, 1], [0, 0, 0, 2], 3, keys=[7, 3, 5])
    rows, sources = (a.reshape(-1) for a in np.meshgrid(np.arange(3), np.arange(3)))
    found = kernels.has_edges(graph.indptr, graph.indices, graph.keys, rows, sources)
    assert {(int(s), int(r)) for r, s in zip(rows[found], sources[found], strict=True)} == {(2, 0), (0, 0), (1, 2)}
    for bad_rows, bad_sources in (([3], [0]), ([0], [3]), ([-1], [0])):
        with pytest.raises(ValueError, match=r"outside|of 3"):
            kernels.has_edges(graph.indptr, graph.indices, graph.keys, np.array(bad_rows), np.array(bad_sources))
