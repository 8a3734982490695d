"""Joined partitions hold what their partitions hold, read as one; batches do not depend on how partitions are joined."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.partition.dataset import Dataset
from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.dag.spec import Hops, check_spec, neighbor_spec
from atta.samplers.methods import Method
from tests.unit.placement.harness import Placed
from tests.unit.placement.strategies import assigned, graphs

PARTS = 4


def groups(draw: st.DrawFn) -> list[range]:
    """A way to give four partitions to daemons."""
    cuts = [0, *sorted(draw(st.sets(st.integers(1, PARTS - 1)))), PARTS]
    return [range(a, b) for a, b in pairwise(cuts)]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_joined_part_holds_what_its_partitions_hold(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    with tempfile.TemporaryDirectory() as folder:
        placed = graph.place(graph.write(Path(folder) / "graph"), assigned(data.draw, graph, PARTS), PARTS)
        dataset, cut = placed.dataset, groups(data.draw)
        joined = dataset.joined(cut)
        assert joined.num_parts == len(cut)
        assert joined.dataset_id == dataset.dataset_id
        for owner, parts in enumerate(cut):
            found = joined.part(owner)
            for node_type in graph.ids:
                lo, hi = joined.book.range(node_type, owner)
                mine = dataset.ids(node_type)[lo:hi]
                assert found.num_core(node_type) == hi - lo == sum(dataset.part(p).num_core(node_type) for p in parts)
                assert np.array_equal(found.table(node_type, "x")[:, 0], mine), "a row says whose it is"
                near = set()
                for edge_type, (src, dst, _) in graph.edges.items():
                    source, _, target = edge_type.split("__")
                    if source == node_type:
                        into = np.isin(dst, dataset.ids(target)[slice(*joined.book.range(target, owner))])
                        near |= set(dataset.to_internal(source, src[into]).tolist()) - set(range(lo, hi))
                assert found.halo(node_type).tolist() == sorted(near)
            for edge_type, (src, dst, tables) in graph.edges.items():
                source, _, target = edge_type.split("__")
                csc, (lo, hi) = found.csc(edge_type), joined.book.range(target, owner)
                assert len(csc.indptr) == hi - lo + 1
                rows = np.repeat(np.arange(lo, hi), np.diff(csc.indptr))
                ids = np.asarray(csc.edge_ids)
                assert np.array_equal(dataset.ids(target)[rows], dst[ids])
                assert np.array_equal(dataset.ids(source)[csc.indices], src[ids])
                assert sorted(ids) == np.flatnonzero(np.isin(dst, dataset.ids(target)[lo:hi])).tolist()
                assert csc.weight is not None
                assert np.array_equal(csc.weight, tables["weight"][ids])
                assert (csc.time is not None) == ("time" in tables)
                assert csc.time is None or np.array_equal(csc.time, tables["time"][ids])
                assert np.array_equal(found.edge_table(edge_type, "note"), tables["note"][ids])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_batches_do_not_depend_on_how_partitions_are_joined(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    method = draw(st.sampled_from(list(Method)))
    fan_outs = {e: [draw(st.sampled_from([-1, 1, 3])) for _ in range(2)] for e in graph.edges}
    disjoint = method.temporal or draw(st.booleans())
    notes = {e: ["note"] for e in graph.edges if draw(st.booleans())}
    hops = Hops(fan_outs, False, method, draw(st.sampled_from(["new", "all"])), disjoint, notes)
    seed_type = draw(st.sampled_from(sorted(graph.ids)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seeds = rng.integers(0, len(graph.ids[seed_type]), draw(st.integers(1, 9)))
    times = rng.integers(0, 45, len(seeds)) if method.temporal else None
    at = StreamPosition(*(int(rng.integers(0, 50)) for _ in range(3)))

    def batch(placed: Placed) -> dict[str, list[object]]:
        schema = placed.dataset.schema
        plan = check_spec(neighbor_spec(schema, hops, seed_type=seed_type), schema)
        internal = placed.dataset.to_internal(seed_type, graph.ids[seed_type][seeds])
        home, order = draw(st.integers(0, placed.dataset.num_parts - 1)), random.Random(draw(st.integers(0, 2**32)))
        out = placed.run(plan, BatchSeeds(internal, np.arange(len(seeds)), times=times), at, home=home, order=order)
        return {name: out.filled(name).tolist() for name in out.arrays}

    with tempfile.TemporaryDirectory() as folder:
        apart = graph.place(graph.write(Path(folder) / "graph"), assigned(draw, graph, PARTS), PARTS)
        together = Placed(apart.dataset.joined(groups(draw)))
        assert batch(apart) == batch(together)


@pytest.mark.parametrize(
    "wrong", [[range(4)], [range(2), range(3, 4)], [range(1, 3), range(1)], [range(3), range(3)], []]
)
def test_groups_that_are_not_all_partitions_are_refused(dataset: Dataset, wrong: list[range]) -> None:
    with pytest.raises(ConfigError, match="these must be 0 to 2, in order and each once"):
        dataset.joined(wrong)


def test_a_part_outside_the_groups_does_not_exist(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="partition 2 does not exist: there are 2"):
        dataset.joined([range(2), range(2, 3)]).part(2)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    from tests.unit.placement.harness import Typed

    ids = np.arange(9)
    graph = Typed({"v": ids}, {"v__to__v": (ids, ids[::-1].copy(), {})})
    return graph.place(graph.write(tmp_path / "graph"), {"v": (ids % 3).astype(np.int32)}, 3).dataset
