"""The fewest rows that a daemon can ask others for, against all choices tried one by one."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atta_bench.pieces.remote_rows import Need, asked_by_next_use, summed

ROWS = st.sets(st.integers(0, 5), min_size=1, max_size=4)


def subsets(items: frozenset[int], most: int) -> chain[tuple[int, ...]]:
    return chain.from_iterable(combinations(items, n) for n in range(most + 1))


@given(st.lists(ROWS, min_size=1, max_size=5), st.integers(1, 3))
def test_rows_kept_by_next_use_are_asked_for_least(batches: list[set[int]], room: int) -> None:
    fewest = {frozenset[int](): 0}  # by what is kept
    for rows in batches:
        after: dict[frozenset[int], int] = {}
        for kept, asked in fewest.items():
            for chosen in map(frozenset, subsets(kept | rows, room)):
                after[chosen] = min(after.get(chosen, 1 << 30), asked + len(rows - kept))
        fewest = after
    arrays = [np.array(sorted(rows)) for rows in batches]
    assert sum(asked_by_next_use(arrays, room, len(batches), 6)) == min(fewest.values())


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(2, 6)), max_size=9), st.sets(st.integers(2, 6)))
def test_owners_send_rows_or_sums_in_the_cheapest_way(edges: set[tuple[int, int]], kept: set[int]) -> None:
    targets, sources = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2).T
    need = Need(np.unique(sources), np.array([7, 8]), targets, sources, 9)
    wanted = {(target, source) for target, source in edges if source not in kept}
    fewest = min(
        len(raw) + len({(target, source >= 4) for target, source in wanted if source not in raw})
        for raw in subsets(frozenset(source for _, source in wanted), len(wanted))
    )
    assert summed(need, np.array(sorted({*kept, 8})), np.array([0, 2, 4, 9])) == fewest + 1
