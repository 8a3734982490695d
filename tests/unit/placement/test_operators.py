"""Batch operators make the same batch in every placement: the one over a local graph."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.dag.spec import batch_spec, check_spec
from atta.samplers.local.graph import LocalGraph
from atta.samplers.operators import BUILT_IN, sample_locally
from tests.unit.operators.test_contract import OPTIONS
from tests.unit.placement.strategies import ONE, assigned, graphs


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
