"""A batch equals the local sampler's batch, bit for bit, for any cut, method, types, trees and order of tasks."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.partition import Graph
from atta.partition.dataset import Dataset
from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.dag.spec import Hops, batch_spec, check_spec
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.sampler import LocalSampler
from atta.samplers.methods import Method
from atta.samplers.operators import OPERATORS, sample_locally
from tests.unit.operators.test_contract import OPTIONS
from tests.unit.partition.oracles import check_halo, check_rows, stored_in_neighbours
from tests.unit.placement.harness import Placed, Typed
from tests.unit.placement.strategies import ONE, assigned, graphs


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


def groups(draw: st.DrawFn, parts: int) -> list[range]:
    """A way to give partitions to daemons."""
    within = st.sets(st.integers(1, parts - 1)) if parts > 1 else st.just(set())
    return [range(a, b) for a, b in pairwise([0, *sorted(draw(within)), parts])]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_placement_changes_nothing(data: st.DataObject) -> None:
    """On any partitions, joined in any way. With copies of all in-edges no other partition expands any vertex."""
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
        if draw(st.booleans()):
            placed = Placed(placed.dataset.joined(groups(draw, parts)))
        hops = Hops(fan_outs, replace, method, frontier, disjoint, notes, dependency=dependency)
        home, order = draw(st.integers(0, len(placed.shards) - 1)), random.Random(draw(st.integers(0, 2**32)))
        copied, at = draw(st.sampled_from(["none", "some", "all"])), StreamPosition(seed, epoch, batch)
        how: dict[str, Any] = {"home": home, "order": order, "copied": copied}
        _, out = placed.hops(graph, hops, seed_type, seeds, at, times=times, **how)
    if copied == "all" and not noted and method in (Method.UNIFORM, Method.LABOR):
        assert placed.expanded_elsewhere == 0

    for node_type in graph.ids:
        if f"n_id/{node_type}" not in out.arrays:
            assert len(expected.n_id[node_type]) == 0
            continue
        ids = out.filled(f"n_id/{node_type}")
        assert ids.tolist() == expected.n_id[node_type].tolist()
        assert np.array_equal(out.filled(f"table/{node_type}/x")[:, 0], ids)
        if disjoint:
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


def test_every_built_in_operator_is_tried() -> None:
    assert {name for name, _ in OPTIONS} == set(OPERATORS)


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_placement_changes_nothing_of_operators(data: st.DataObject) -> None:
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


PARTS = 4


def columns(part: Any, edge_type: str) -> list[Any]:
    csc = part.csc(edge_type)
    return [csc.weight, csc.time, part.edge_table(edge_type, "note")]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_joined_part_holds_what_its_partitions_hold(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    with tempfile.TemporaryDirectory() as folder:
        path = graph.write(Path(folder) / "graph")
        dataset, cut = graph.place(path, assigned(data.draw, graph, PARTS), PARTS).dataset, groups(data.draw, PARTS)
        joined = dataset.joined(cut)
        assert (joined.num_parts, joined.dataset_id) == (len(cut), dataset.dataset_id)
        for node_type in graph.ids:
            check_rows(Graph.open(path), joined, node_type)
        check_halo(joined)
        for edge_type in graph.edges:
            assert stored_in_neighbours(joined, edge_type) == stored_in_neighbours(dataset, edge_type)
            for owner, parts in enumerate(cut):
                pieces = zip(*(columns(dataset.part(p), edge_type) for p in parts), strict=True)
                for have, want in zip(columns(joined.part(owner), edge_type), pieces, strict=True):
                    assert (have is None) == (want[0] is None)
                    assert have is None or np.array_equal(have, np.concatenate(want))


@pytest.mark.parametrize(
    "wrong", [[range(4)], [range(2), range(3, 4)], [range(1, 3), range(1)], [range(3), range(3)], []]
)
def test_groups_that_are_not_all_partitions_are_refused(dataset: Dataset, wrong: list[range]) -> None:
    with pytest.raises(ConfigError, match="these must be 0 to 2, in order and each once"):
        dataset.joined(wrong)
    with pytest.raises(ConfigError, match="partition 2 does not exist: there are 2"):
        dataset.joined([range(2), range(2, 3)]).part(2)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    ids = np.arange(9)
    graph = Typed({"v": ids}, {"v__to__v": (ids, ids[::-1].copy(), {})})
    return graph.place(graph.write(tmp_path / "graph"), {"v": (ids % 3).astype(np.int32)}, 3).dataset
