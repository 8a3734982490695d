"""Damaged arguments: a kernel refuses them with a reason, or returns values within its graph. It never reads elsewhere.

``make sanitize`` runs the tests under AddressSanitizer. Without it, they see only the returned values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import _native

REFUSED = (ValueError, TypeError, OverflowError)
LONG_MAX = (1 << 63) - 1
FAN_OUTS = st.sampled_from([-(1 << 62), -2, -1, 0, 1, 2, 3, 7, 65, 700, 1 << 40, LONG_MAX])
KEYS = st.integers(0, (1 << 64) - 1)


def reasoned(error: Exception) -> None:
    assert str(error)


@dataclass
class Csc:
    """A graph of ``n`` rows, with sources that are rows, too. It may not be a graph at all."""

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray
    keys: np.ndarray
    weights: np.ndarray
    times: np.ndarray
    damaged: bool

    @property
    def rows(self) -> int:
        return max(0, len(self.indptr) - 1)


@st.composite
def graphs(draw: st.DrawFn) -> Csc:
    """A sound graph with up to two damages: a number in a wrong place, or an array of another length."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, dtype = draw(st.integers(0, 20)), draw(st.sampled_from([np.int32, np.int64]))
    degrees = rng.integers(0, 30, n) * (rng.random(n) < 0.8)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    edges = int(indptr[-1])
    graph = Csc(
        indptr,
        rng.integers(0, max(1, n), edges).astype(dtype),
        rng.permutation(edges).astype(dtype),
        rng.permutation(1000)[:n].astype(np.int64),
        np.where(rng.random(edges) < 0.3, 0.0, rng.random(edges)),
        rng.integers(-5, 50, edges),
        damaged=False,
    )
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(["indptr", "indices", "edge_ids", "keys", "weights", "times"]))
        array = getattr(graph, name)
        if draw(st.booleans()):
            array = array[: draw(st.integers(0, len(array)))].copy()
        elif len(array):
            at = draw(st.integers(0, len(array) - 1))
            if name == "weights":
                array[at] = draw(st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 1e308, 5e-324]))
            else:
                info = np.iinfo(array.dtype)
                array[at] = draw(st.sampled_from([info.min, -1, n, n + 1, edges, edges + 1, info.max]))
        setattr(graph, name, np.ascontiguousarray(array))
        graph.damaged = True
    return graph


def rows_of(draw: Callable[[Any], Any], graph: Csc) -> np.ndarray:
    low, high = (-2, graph.rows + 2) if draw(st.booleans()) else (0, max(0, graph.rows - 1))
    return np.array(draw(st.lists(st.integers(low, high), max_size=70)), dtype=np.int64)


def method_of(draw: Callable[[Any], Any], graph: Csc) -> _native.Method | None:
    threads = draw(st.sampled_from([1, 2]))
    kind = draw(st.sampled_from(["uniform", "weighted", "temporal", "last", "labor"]))
    if kind == "weighted":
        return _native.Method.weighted(graph.indptr, graph.weights, threads)
    if kind in ("temporal", "last"):
        return _native.Method.temporal(graph.indptr, graph.indices, graph.times, kind == "last", threads)
    if kind == "labor":
        return _native.Method.labor(graph.indices, draw(st.sampled_from([None, graph.keys])), threads)
    return None


def some(draw: Callable[[Any], Any], count: int, dtype: Any, values: Any) -> np.ndarray | None:
    if draw(st.booleans()):
        return None
    length = count if draw(st.integers(0, 4)) else draw(st.integers(0, 80))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.choice(np.array(values, dtype=dtype), length)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_sample_neighbors(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    rows = rows_of(draw, graph)
    try:
        method = method_of(draw, graph)
        counts, neighbors, edges = _native.sample_neighbors(
            graph.indptr, graph.indices, draw(st.sampled_from([None, graph.edge_ids])), graph.keys, rows,
            draw(FAN_OUTS), draw(st.booleans()), draw(KEYS), draw(st.sampled_from([0, 1, 2, 1000000])), method,
            some(draw, len(rows), np.int32, [-1, 0, 1, 5, 2**31 - 1]),
            some(draw, len(rows), np.int64, [-LONG_MAX - 1, -1, 0, 20, 49, LONG_MAX]), draw(st.booleans()),
        )  # fmt: skip
    except REFUSED as error:
        reasoned(error)
        return
    assert len(counts) == len(rows)
    assert len(neighbors) == counts.sum()
    assert edges is None or len(edges) == len(neighbors)
    if len(neighbors):
        assert neighbors.min() >= 0


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_sample_hop(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    trees = draw(st.booleans())
    sources = graph.rows if draw(st.integers(0, 3)) else draw(st.sampled_from([-1, 0, 1, 1 << 40, LONG_MAX]))
    known = _native.Compactor(0 if trees else draw(st.sampled_from([0, graph.rows])))
    room = draw(st.sampled_from([0, 5, 100, 3000]))
    out = [np.full(room + 8, -7, dtype=t) for t in (np.int32, np.int32, graph.edge_ids.dtype)]
    row, col, edge_ids = (array[:room] for array in out)
    try:
        method = method_of(draw, graph)
        seeds = rows_of(draw, graph)
        known.insert(np.arange(len(seeds)) * max(0, sources) + seeds if trees and sources < 1 << 40 else seeds)
        first = draw(st.sampled_from([0, 0, 0, 1, 5]))
        last = known.size if draw(st.integers(0, 3)) else draw(st.integers(0, 100))
        count, stopped = known.sample_hop(
            known, graph.indptr, graph.indices, draw(st.sampled_from([None, graph.edge_ids])),
            draw(st.sampled_from([None, graph.keys])), first=first, last=last, fan_out=draw(FAN_OUTS),
            replace=draw(st.booleans()), stream_key=draw(KEYS), out_row=row, out_col=col,
            out_edge_ids=draw(st.sampled_from([None, edge_ids])), method=method, sources=sources, trees=trees,
            tree_times=some(draw, len(seeds), np.int64, [-1, 0, 20, LONG_MAX]),
        )  # fmt: skip
    except REFUSED as error:
        reasoned(error)
    else:
        assert 0 <= count <= room
        assert first <= stopped <= last
        assert (row[:count] >= 0).all()
        assert (row[:count] < known.size).all()
        assert (col[:count] < known.size).all()
    assert all((array[room:] == -7).all() for array in out)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_questions_about_rows(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    rows = rows_of(draw, graph)
    other = rows_of(draw, graph)
    calls: list[Callable[[], Any]] = [
        lambda: _native.has_edges(graph.indptr, graph.indices, graph.keys, rows, other),
        lambda: _native.degree_sum(graph.indptr, rows),
        lambda: _native.validate_csc(graph.indptr, graph.indices, draw(st.sampled_from([-1, 0, graph.rows]))),
        lambda: _native.bounds_by_target(rows, draw(st.sampled_from([0, 1, graph.rows]))),
        lambda: _native.by_source(graph.indptr, rows, draw(st.sampled_from([0, 1, graph.rows]))),
        lambda: _native.places_by_source(graph.indices, draw(st.sampled_from([0, 1, graph.rows]))),
        lambda: _native.edges_from(
            graph.indptr, graph.indices, rows_of(draw, graph), rows.astype(np.uint32),
            np.ones(draw(st.integers(0, 9)), bool), other, draw(st.sampled_from([0, 3, 99])),
        ),
        lambda: _native.edges_into(
            graph.indptr, graph.indices, np.ones(draw(st.sampled_from([0, 1, graph.rows])), bool),
            *(draw(st.sampled_from([0, 1, 2**40])) for _ in range(3)),
        ),
        lambda: _native.sample_pairs(
            graph.indptr, graph.indices, graph.keys, rows, draw(st.sampled_from([-1, 0, 1, 3])), draw(KEYS),
            draw(st.booleans()), graph.keys, np.argsort(graph.keys),
        ),
        lambda: _native.random_walks(
            graph.indptr, graph.indices, graph.keys, rows, draw(st.sampled_from([-1, 0, 1, 6])),
            draw(st.sampled_from([1.0, 0.25, 0.0, np.nan])), draw(st.sampled_from([1.0, 4.0, -1.0])),
            draw(st.sampled_from([0.0, 0.5, 1.5])), draw(KEYS), 1,
        ),
        lambda: _native.pagerank(
            graph.indptr, graph.indices, graph.keys, rows, 0.2, draw(st.sampled_from([1e-3, 0.0, np.nan])),
            draw(st.sampled_from([-1, 0, 5])), 1,
        ),
    ]  # fmt: skip
    try:
        draw(st.sampled_from(calls))()
    except REFUSED as error:
        reasoned(error)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_stitch(data: st.DataObject) -> None:
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    frontier, room = draw(st.integers(0, 10)), draw(st.integers(0, 60))
    in_trees, sources = draw(st.booleans()), draw(st.sampled_from([0, 1, 50]))
    known = _native.Compactor(draw(st.sampled_from([0, 50])) if not in_trees else 0)
    groups = []
    for _ in range(draw(st.integers(0, 3))):
        asked = draw(st.integers(0, 5))
        counts = rng.integers(draw(st.sampled_from([-1, 0, 0])), 6, asked).astype(np.int32)
        total = max(0, int(counts.sum()) + draw(st.sampled_from([0, 0, 0, 1, -1])))
        neighbors = rng.integers(draw(st.sampled_from([-1, 0, 0])), draw(st.sampled_from([50, 60])), total)
        edge_ids = draw(st.sampled_from([None, np.arange(total), np.arange(max(0, total - 1))]))
        groups.append((rng.integers(-1, max(1, frontier), asked), counts, neighbors, edge_ids))
    out = [np.full(room + 8, -7, dtype=draw(st.sampled_from([np.int32, np.int64]))) for _ in range(3)]
    trees = rng.integers(0, 5, frontier).astype(np.int32) if in_trees else None
    try:
        known.stitch(
            groups, np.arange(frontier, dtype=np.int32), out[0][:room], out[1][:room],
            draw(st.sampled_from([None, out[2][:room]])), trees, sources,
        )  # fmt: skip
    except REFUSED as error:
        reasoned(error)
    assert all((array[room:] == -7).all() for array in out)
