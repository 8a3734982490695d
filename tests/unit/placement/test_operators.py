"""Batch operators make the same batch in every placement: the one over a local graph."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.dag.spec import batch_spec, check_spec
from atta.samplers.local.graph import LocalGraph
from atta.samplers.operators import BUILT_IN, sample_locally
from tests.unit.placement.strategies import ONE, assigned, graphs

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("shadow", {"depth": 2, "num_neighbors": 2}),
    ("shadow", {"depth": 1, "num_neighbors": -1}),
    ("saint-nodes", {"budget": 5}),
    ("saint-edges", {"budget": 4}),
    ("saint-walks", {"length": 3}),
    ("induced", {}),
    ("ladies", {"layers": [4, 3]}),
    ("fastgcn", {"layers": [5, 4]}),
    ("walks", {"length": 4}),
    ("walks", {"length": 4, "p": 0.25, "q": 3.0, "restart": 0.2}),
    ("pinsage", {"count": 3}),
    ("pagerank", {"count": 4, "epsilon": 1e-6}),
    ("closure", {"hops": 2}),
    ("closure", {"hops": 1, "rim": False}),
    ("expansion-aware", {"fanout": 2}),
    ("expansion-aware", {"max_hop": 2, "fanout": 1, "select": "degree"}),
]


def test_every_built_in_operator_is_tried() -> None:
    assert {name for name, _ in OPTIONS} == set(BUILT_IN)


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_placement_changes_nothing(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs([ONE]))
    name, options = draw(st.sampled_from(OPTIONS))
    ids, (src, dst, _) = graph.ids["b"], graph.edges["b__to__b"]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seeds = rng.permutation(len(ids))[: draw(st.integers(1, 9))]
    at = StreamPosition(*(int(rng.integers(0, 50)) for _ in range(3)))

    with tempfile.TemporaryDirectory() as folder:
        parts = draw(st.integers(1, 4))
        placed = graph.place(graph.write(Path(folder) / "graph"), assigned(draw, graph, parts), parts)
        schema = placed.dataset.schema
        plan = check_spec(batch_spec(schema, name, options), schema)
        batch = BatchSeeds(placed.dataset.to_internal("b", ids[seeds]), np.arange(len(seeds)))
        home, order = draw(st.integers(0, parts - 1)), random.Random(draw(st.integers(0, 2**32)))
        out = placed.run(plan, batch, at, home=home, order=order)

    local = LocalGraph.from_edges(graph.rows("b", src), graph.rows("b", dst), len(ids), keys=ids)
    operator = plan.op("sample").operator
    assert operator is not None
    expected = sample_locally(local, operator, seeds, seed=at.seed, epoch=at.epoch, number=at.batch)
    found = {
        "n_id/b": expected.n_id,
        "row/b__to__b": expected.row,
        "col/b__to__b": expected.col,
        "e_id/b__to__b": expected.e_id,
        **{f"extra/{key}": value for key, value in expected.extra.items()},
    }
    if expected.tree is not None:
        found["tree/b"] = expected.tree
    for key, value in found.items():
        assert np.array_equal(out.filled(key), value), key
    assert np.array_equal(out.filled("table/b/x")[:, 0], expected.n_id)
