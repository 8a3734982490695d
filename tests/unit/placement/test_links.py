"""Link batches with negatives are the same on any number of partitions as on one, in any order of tasks."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.batch.layout import BatchArrays
from atta.samplers.batch.negatives import NegativeLinks, NegativeStrategy
from atta.samplers.dag.spec import Hops, check_spec, link_spec
from atta.samplers.methods import Method
from tests.unit.placement.harness import Placed
from tests.unit.placement.strategies import assigned, graphs


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_placement_changes_nothing(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    edge_type = draw(st.sampled_from(sorted(graph.edges)))
    source, _, target = edge_type.split("__")
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 9))
    ends = rng.choice(graph.ids[source], count), rng.choice(graph.ids[target], count)
    if len(graph.edges[edge_type][0]) and draw(
        st.booleans()
    ):  # existing edges, so that there is something to leave out
        picks = rng.integers(0, len(graph.edges[edge_type][0]), count)
        ends = graph.edges[edge_type][0][picks], graph.edges[edge_type][1][picks]
    method = draw(st.sampled_from([Method.UNIFORM, Method.WEIGHTED, Method.TEMPORAL]))
    times = rng.integers(0, 45, count) if method.temporal else None
    negatives = None
    if strategy := draw(st.sampled_from([None, *NegativeStrategy])):
        negatives = NegativeLinks(
            triplet=draw(st.booleans()), amount=draw(st.sampled_from([1.0, 2.0])), strategy=strategy
        )
    exclude = ((edge_type, False),) + (((edge_type, True),) if source == target and draw(st.booleans()) else ())
    hops = Hops([draw(st.sampled_from([-1, 1, 3])) for _ in range(draw(st.integers(0, 2)))], method=method)
    at = StreamPosition(*(int(rng.integers(0, 50)) for _ in range(3)))

    def run(placed: Placed, home: int, order: random.Random) -> BatchArrays | str:
        dataset = placed.dataset
        plan = check_spec(link_spec(dataset.schema, hops, edge_type=edge_type, negatives=negatives), dataset.schema)
        seeds = BatchSeeds(
            dataset.to_internal(target, ends[1]), np.arange(count),
            sources=dataset.to_internal(source, ends[0]), times=times, exclude=exclude,
        )  # fmt: skip
        try:
            return placed.run(plan, seeds, at, home=home, order=order)
        except ConfigError as error:  # there may be no negatives to draw
            return str(error)

    with tempfile.TemporaryDirectory() as folder:
        written = graph.write(Path(folder) / "graph")
        parts = draw(st.integers(2, 4))
        whole = graph.place(written, {t: np.zeros(len(ids), np.int32) for t, ids in graph.ids.items()}, 1)
        cut = graph.place(written, assigned(draw, graph, parts), parts)
        one = run(whole, 0, random.Random(0))
        many = run(cut, draw(st.integers(0, parts - 1)), random.Random(draw(st.integers(0, 2**32))))
    if isinstance(one, str) or isinstance(many, str):
        assert one == many
        assert "negative samples" in one
        return
    assert one.arrays.keys() == many.arrays.keys()
    for name in one.arrays:
        assert np.array_equal(one.filled(name), many.filled(name)), name
    if negatives is not None:
        assert sum(one.used[name] for name in one.arrays if "link/neg_" in name) > 0
