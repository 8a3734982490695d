"""Which external neighbours a vertex admits: the kernel against plain Python and against uniform drawing."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from atta.samplers import kernels
from tests.unit.native.links.frames import GOLDEN, MASK, mixed


def pair_hash(stream_key: int, target_key: int, source_key: int) -> int:
    base = mixed(stream_key ^ mixed(target_key & MASK))
    return mixed((base + (source_key & MASK) * GOLDEN) & MASK)


def admitted_by(
    row: list[int], scores: list[int] | None, target: int, known: set[int], keys: list[int], limit: int, stream_key: int
) -> list[int]:
    order = {}
    for i, source in enumerate(row):
        if source not in known:
            score = pair_hash(stream_key, keys[target], keys[source]) if scores is None else scores[i]
            order[source] = (score, keys[source])
    return sorted(order, key=lambda source: order[source])[:limit]


def admit(
    rows: list[list[int]], targets: list[int], known: set[int], keys: list[int], limit: int, **options: Any
) -> list[list[int]]:
    members = kernels.Compactor()
    members.insert(np.array(sorted(known), dtype=np.int64))
    counts, chosen = kernels.admit(
        members,
        np.array(targets, dtype=np.int64),
        np.array([len(row) for row in rows], dtype=np.int32),
        np.array([source for row in rows for source in row], dtype=np.int64),
        np.array(keys, dtype=np.int64),
        limit=limit,
        **options,
    )
    assert counts.dtype == np.int32
    assert chosen.dtype == np.int64
    ends = np.cumsum(counts).tolist()
    assert len(chosen) == (ends[-1] if ends else 0)
    return [chosen[end - count : end].tolist() for end, count in zip(ends, counts.tolist(), strict=True)]


@given(data=st.data())
@settings(max_examples=150)
def test_equals_plain_python(data: st.DataObject) -> None:
    draw = data.draw
    nodes = draw(st.integers(1, 40))
    vertex = st.integers(0, nodes - 1)
    keys = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=nodes, max_size=nodes, unique=True))
    targets = draw(st.lists(vertex, max_size=8))
    rows = [draw(st.lists(vertex, max_size=60)) for _ in targets]
    known, limit, key = draw(st.sets(vertex)), draw(st.integers(0, 12)), draw(st.integers(0, MASK))
    expected = [admitted_by(row, None, t, known, keys, limit, key) for row, t in zip(rows, targets, strict=True)]
    assert admit(rows, targets, known, keys, limit, stream_key=key) == expected
    # Scores by degree: equal scores are common, and each source has one score.
    degree = draw(st.lists(st.integers(MASK - 3, MASK), min_size=nodes, max_size=nodes))
    by_degree = [
        admitted_by(row, [degree[s] for s in row], t, known, keys, limit, key)
        for row, t in zip(rows, targets, strict=True)
    ]
    scores = np.array([degree[s] for row in rows for s in row], dtype=np.uint64)
    assert admit(rows, targets, known, keys, limit, scores=scores) == by_degree


@pytest.mark.parametrize("limit", [1, 3, 64, 1000, 4999, 10_000, (1 << 63) - 1])
def test_long_rows_in_any_order(limit: int, rng: np.random.Generator) -> None:
    keys = rng.permutation(10**6)[:5000].tolist()
    known = set(range(0, 5000, 7))
    row = np.concatenate([rng.permutation(5000), rng.integers(0, 5000, 3000)]).tolist()  # with parallel edges
    expected = admitted_by(row, None, 7, known, keys, limit, 99)
    assert admit([row, sorted(row)], [7, 7], known, keys, limit, stream_key=99) == [expected, expected]


def test_every_set_is_equally_likely() -> None:
    keys = list(range(100, 109))
    seen: Counter[frozenset[int]] = Counter()
    for key in range(8400):
        (mine,) = admit([list(range(1, 10 - 1))], [0], {0, 8}, keys, 3, stream_key=mixed(key))
        seen[frozenset(mine)] += 1
    sets = [frozenset(some) for some in itertools.combinations(range(1, 8), 3)]
    assert seen.keys() <= set(sets)
    assert stats.chisquare([seen[some] for some in sets]).pvalue > 1e-6
    inclusion = [sum(n for some, n in seen.items() if v in some) for v in range(1, 8)]
    assert np.array(inclusion) / 8400 == pytest.approx(3 / 7, abs=0.03)


def test_targets_choose_independently() -> None:
    keys = [5, 17, *range(1000, 1006)]
    pairs: Counter[tuple[int, int]] = Counter()
    for key in range(7200):
        row = list(range(2, 8))
        (a,), (b,) = admit([row, row], [0, 1], {0, 1}, keys, 1, stream_key=mixed(key))
        pairs[a, b] += 1
    assert stats.chisquare([pairs[a, b] for a in range(2, 8) for b in range(2, 8)]).pvalue > 1e-6


@given(st.sets(st.integers(0, 500)), st.lists(st.integers(0, 600), max_size=100), st.sampled_from([0, 601]))
def test_find_inserts_nothing(known: set[int], asked: list[int], vertices: int) -> None:
    compactor = kernels.Compactor(vertices)
    compactor.insert(np.array([3, 4, 5]))
    compactor.reset()
    ordered = list(known)
    compactor.insert(np.array(ordered, dtype=np.int64))
    for dtype in (np.int32, np.int64):
        found = compactor.find(np.array(asked, dtype=dtype))
        assert found.dtype == np.int32
        assert found.tolist() == [ordered.index(i) if i in known else -1 for i in asked]
    assert compactor.size == len(known)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": [0]}, "counts"),
        ({"targets": [0, 9]}, "targets: vertex 9 of 3"),
        ({"targets": [-1, 0]}, "targets: vertex -1"),
        ({"counts": [2, 2]}, "counts"),
        ({"counts": [-1, 4]}, "counts"),
        ({"sources": [0, 1, 3]}, "sources: vertex 3 of 3"),
        ({"sources": [0, -5, 1]}, "sources: vertex -5"),
        ({"limit": -1}, "limit"),
        ({"scores": [1, 2]}, "scores"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(changes: dict[str, Any], words: str) -> None:
    given_: dict[str, Any] = {"targets": [0, 1], "counts": [1, 2], "sources": [0, 1, 2], "keys": [7, 8, 9]}
    options = {"limit": 2, "scores": None, **{k: v for k, v in changes.items() if k in ("limit", "scores")}}
    arrays = {k: np.array(changes.get(k, v)) for k, v in given_.items()}
    if options["scores"] is not None:
        options["scores"] = np.array(options["scores"], dtype=np.uint64)
    with pytest.raises(ValueError, match=words):
        kernels.admit(kernels.Compactor(), *arrays.values(), **options)
