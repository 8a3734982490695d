"""Random small graphs and random ways to cut them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.unit.placement.harness import Typed

TWO = ("a__likes__b", "b__in__a", "b__to__b")
ONE = ("b__to__b",)


@st.composite
def graphs(draw: st.DrawFn, kinds: Sequence[tuple[str, ...]] = (ONE, TWO)) -> Typed:
    """Few vertices with scattered ids. Isolated vertices, self-loops and multi-edges occur by chance. Vertices have times,
    or edges, or both."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    edge_types = draw(st.sampled_from(kinds))
    node_types = sorted({t for e in edge_types for t in (e.split("__")[0], e.split("__")[2])})
    ids = {t: rng.permutation(200)[: draw(st.integers(1, 25))].astype(np.int64) for t in node_types}
    kinds_of_times = [np.int64, np.int32, np.uint8]
    timed = draw(st.sets(st.sampled_from(node_types)))
    times = {t: rng.integers(0, 45, len(ids[t])).astype(draw(st.sampled_from(kinds_of_times))) for t in sorted(timed)}
    edges = {}
    for edge_type in edge_types:
        source, _, target = edge_type.split("__")
        count = draw(st.integers(0, 150))
        ends = rng.choice(ids[source], count), rng.choice(ids[target], count)
        tables = {
            "weight": np.where(rng.random(count) < 0.2, 0.0, rng.exponential(size=count)),
            "time": rng.integers(0, 40, count),
            "note": rng.random((count, 2)).astype(np.float32),
        }
        if timed and draw(st.booleans()):
            del tables["time"]
        edges[edge_type] = (*ends, tables)
    return Typed(ids, edges, times)


def assigned(draw: st.DrawFn, graph: Typed, parts: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    used = rng.permutation(parts)[: draw(st.integers(1, parts))]
    return {t: rng.choice(used, len(ids)).astype(np.int32) for t, ids in graph.ids.items()}
