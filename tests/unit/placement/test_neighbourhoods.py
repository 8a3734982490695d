"""A batch equals the local sampler's batch, bit for bit, for any cut, method, types, trees and order of tasks."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.dag.spec import Hops, check_spec, neighbor_spec
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.sampler import LocalSampler
from atta.samplers.methods import Method
from tests.unit.placement.harness import Placed, Typed
from tests.unit.placement.strategies import assigned, graphs


def local(graph: Typed) -> dict[str, LocalGraph]:
    """The same graph in this process. Internal ids are positions."""
    found = {}
    for edge_type, (src, dst, tables) in graph.edges.items():
        source, _, target = edge_type.split("__")
        found[edge_type] = LocalGraph.from_edges(
            graph.rows(source, src), graph.rows(target, dst), len(graph.ids[target]), keys=graph.ids[target],
            source_keys=None if source == target else graph.ids[source], weight=tables["weight"],
            time=tables.get("time"), node_time=graph.times.get(target),
            source_time=None if source == target else graph.times.get(source),
        )  # fmt: skip
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_placement_changes_nothing(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    method = draw(st.sampled_from(list(Method)))
    replace = method.may_replace and draw(st.booleans())
    depth = draw(st.integers(0, 3))
    fan_outs = {e: [draw(st.sampled_from([-1, 0, 1, 2, 5])) for _ in range(depth)] for e in graph.edges}
    frontier = draw(st.sampled_from(["new", "all"]))
    disjoint = method.temporal or draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seed_type = draw(st.sampled_from(sorted(graph.ids)))
    seeds = rng.integers(0, len(graph.ids[seed_type]), draw(st.integers(1, 9)))
    times = rng.integers(0, 45, len(seeds)) if method.temporal else None
    if times is not None and seed_type in graph.times and draw(st.booleans()):
        times = None  # their own
    seed, epoch, batch = (int(rng.integers(0, 50)) for _ in range(3))
    dependency = draw(st.sampled_from([1, 2, 7, 64]))

    sampler = LocalSampler(local(graph), method=method)
    expected = sampler.sample(
        seeds, fan_outs, seed_type=seed_type, input_time=times, disjoint=disjoint,
        seed=seed, epoch=epoch, batch=batch, replace=replace, frontier=frontier, dependency=dependency,
    )  # fmt: skip

    noted = draw(st.booleans())  # without tables, vertices may be expanded from copies of their in-edges
    notes = {e: ["note"] for e in graph.edges if noted and any(fan_outs[e])}
    with tempfile.TemporaryDirectory() as folder:
        written = graph.write(Path(folder) / "graph")
        parts = draw(st.integers(1, 4))
        placed: Placed = graph.place(written, assigned(draw, graph, parts), parts)
        schema = placed.dataset.schema
        hops = Hops(fan_outs, replace, method, frontier, disjoint, notes, dependency=dependency)
        spec = neighbor_spec(schema, hops, seed_type=seed_type)
        plan = check_spec(spec, schema)
        internal = placed.dataset.to_internal(seed_type, graph.ids[seed_type][seeds])
        out = placed.run(
            plan, BatchSeeds(internal, np.arange(len(seeds)), times=times), StreamPosition(seed, epoch, batch),
            home=draw(st.integers(0, parts - 1)), order=random.Random(draw(st.integers(0, 2**32))),
        )  # fmt: skip

    for node_type in schema.node_types:
        if f"n_id/{node_type}" not in out.arrays:
            assert len(expected.n_id[node_type]) == 0
            continue
        ids = out.filled(f"n_id/{node_type}")
        assert ids.tolist() == expected.n_id[node_type].tolist()
        assert np.array_equal(out.filled(f"table/{node_type}/x")[:, 0], ids)
        if disjoint:
            assert expected.tree is not None
            assert out.filled(f"tree/{node_type}").tolist() == expected.tree[node_type].tolist()
    for edge_type in graph.edges:
        if f"row/{edge_type}" not in out.arrays:
            assert len(expected.row[edge_type]) == 0
            continue
        for name in ("row", "col", "e_id"):
            assert out.filled(f"{name}/{edge_type}").tolist() == getattr(expected, name)[edge_type].tolist()
        assert out.filled(f"hops/{edge_type}").tolist() == expected.num_sampled_edges[edge_type]
        note = graph.edges[edge_type][2]["note"]
        assert not noted or np.array_equal(out.filled(f"edge/{edge_type}/note"), note[out.filled(f"e_id/{edge_type}")])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_copies_of_in_edges_change_nothing(data: st.DataObject) -> None:
    """With copies of all in-edges a batch is the same, and no other partition expands any vertex."""
    draw = data.draw
    graph = draw(graphs())
    method = draw(st.sampled_from([Method.UNIFORM, Method.LABOR]))
    replace = method.may_replace and draw(st.booleans())
    hops = draw(st.integers(1, 3))
    fan_outs = {e: [draw(st.sampled_from([-1, 1, 2, 5])) for _ in range(hops)] for e in graph.edges}
    how = Hops(fan_outs, replace, method, draw(st.sampled_from(["new", "all"])), draw(st.booleans()), {})
    seed_type = draw(st.sampled_from(sorted(graph.ids)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seeds = rng.integers(0, len(graph.ids[seed_type]), draw(st.integers(1, 9)))
    with tempfile.TemporaryDirectory() as folder:
        parts = draw(st.integers(2, 4))
        assignment = {t: rng.integers(0, parts, len(ids)).astype(np.int32) for t, ids in graph.ids.items()}
        placed: Placed = graph.place(graph.write(Path(folder) / "graph"), assignment, parts)
        plan = check_spec(neighbor_spec(placed.dataset.schema, how, seed_type=seed_type), placed.dataset.schema)
        internal = placed.dataset.to_internal(seed_type, graph.ids[seed_type][seeds])
        batches, elsewhere = {}, {}
        for copied in ("none", "some", "all"):
            placed.expanded_elsewhere = 0
            batches[copied] = placed.run(
                plan, BatchSeeds(internal, np.arange(len(seeds))), StreamPosition(1, 2, 3), home=0,
                order=random.Random(draw(st.integers(0, 2**32))), copied=copied,
            )  # fmt: skip
            elsewhere[copied] = placed.expanded_elsewhere
    assert elsewhere["all"] == 0
    for batch in batches.values():
        assert batch.arrays.keys() == batches["none"].arrays.keys()
        for name in batch.arrays:
            assert np.array_equal(batch.filled(name), batches["none"].filled(name)), name
