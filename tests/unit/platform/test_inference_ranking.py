"""The best targets beside a sort of all pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atta.client.inference.task import BestTargets, TargetBlock


@given(
    st.integers(1, 6),
    st.integers(0, 12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_blocks_in_any_order_give_the_best_targets_of_all(
    sources: int, targets: int, count: int, block: int, loops: bool, seed: int
) -> None:
    """Few different scores, so that many are equal; ids in no order."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(40)[:sources]
    others = rng.permutation(40)[:targets]
    scores = rng.integers(0, 3, (sources, targets)).astype(np.float32)
    linked = {(int(rng.integers(40)), int(v)) for v in rng.choice(others, rng.integers(0, 9))} if targets else set()
    best = BestTargets(ids, count, loops=loops)
    for places in np.array_split(rng.permutation(targets), block):
        pairs = [(u, place) for place, v in enumerate(others[places]) for u, w in linked if w == v]
        best.take(scores[:, places], TargetBlock(others[places], np.array(pairs, np.int64).reshape(-1, 2).T))
    expected = []
    for row, u in enumerate(ids.tolist()):
        free = [v for v in others.tolist() if (u, v) not in linked and not (loops and u == v)]
        of_target = {v: float(scores[row, others.tolist().index(v)]) for v in free}
        expected += [(u, v, of_target[v]) for v in sorted(free, key=lambda v: (-of_target[v], v))[:count]]
    pairs, values = best.pairs()
    assert [(*pair, score) for pair, score in zip(pairs.tolist(), values.tolist(), strict=True)] == expected


def test_scores_that_are_no_numbers_are_never_the_best() -> None:
    best = BestTargets(np.array([5]), 2, loops=False)
    best.take(
        np.array([[np.nan, 1, -np.inf]], np.float32), TargetBlock(np.array([1, 2, 3]), np.empty((2, 0), np.int64))
    )
    pairs, values = best.pairs()
    assert (pairs.tolist(), values.tolist()) == ([[5, 2]], [1.0])
