"""The same batch from 1, 2, 3 and 5 partitions, byte for byte, where some partitions own nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from atta.partition.dataset import Dataset
from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.batch.negatives import NegativeLinks
from atta.samplers.dag.spec import Hops, Plan, check_spec, link_spec, neighbor_spec, pair_spec
from atta.samplers.methods import Method
from tests.unit.placement.harness import Placed, Typed

EDGE = "b__to__b"


@pytest.fixture(scope="module")
def graph() -> Typed:
    rng = np.random.default_rng(8)
    ids = rng.permutation(500)[:120].astype(np.int64)
    tables = {
        "weight": rng.exponential(size=900),
        "time": rng.integers(0, 40, 900),
        "note": rng.random((900, 2)).astype(np.float32),
    }
    return Typed({"b": ids}, {EDGE: (rng.choice(ids, 900), rng.choice(ids, 900), tables)})


@pytest.fixture(scope="module")
def cuts(graph: Typed, tmp_path_factory: pytest.TempPathFactory) -> list[Placed]:
    """Into 1, 2, 3 and 5 parts. In the last cut, partitions 0 and 3 of 5 own nothing."""
    folder, rng = graph.write(tmp_path_factory.mktemp("cuts") / "graph"), np.random.default_rng(9)
    owners = [np.arange(parts) for parts in (1, 2, 3, 5)] + [np.array([1, 2, 4])]
    found = []
    for of in owners:
        assignment = rng.choice(of, len(graph.ids["b"])).astype(np.int32)
        found.append(graph.place(folder, {"b": assignment}, int(of[-1]) + 1))
    return found


def question(graph: Typed, dataset: Dataset, seeds_are: str, hops: Hops) -> tuple[Plan, BatchSeeds]:
    """A plan, and the seeds of its batch."""
    schema, (src, dst, _) = dataset.schema, graph.edges[EDGE]
    vertices = dataset.to_internal("b", graph.ids["b"][:20])
    match seeds_are:
        case "vertices":
            return check_spec(neighbor_spec(schema, hops, seed_type="b"), schema), BatchSeeds(vertices, np.arange(20))
        case "pairs":
            return check_spec(pair_spec(schema, hops, edge_type=EDGE), schema), BatchSeeds(vertices, np.arange(20))
        case _:
            spec = link_spec(schema, hops, edge_type=EDGE, negatives=NegativeLinks(amount=1.5))
            ends = dataset.to_internal("b", dst[:12]), dataset.to_internal("b", src[:12])
            return check_spec(spec, schema), BatchSeeds(ends[0], np.arange(12), sources=ends[1])


@pytest.mark.parametrize("frontier", ["new", "all"])
@pytest.mark.parametrize(
    ("seeds_are", "disjoint"),
    [("vertices", False), ("vertices", True), ("pairs", False), ("links", False), ("links", True)],
)
def test_the_number_of_partitions_changes_nothing(
    graph: Typed, cuts: list[Placed], seeds_are: str, disjoint: bool, frontier: str
) -> None:
    hops = Hops({EDGE: [4, 3, 2]}, False, Method.UNIFORM, frontier, disjoint, {EDGE: ["note"]})
    batches = []
    for placed in cuts:
        plan, seeds = question(graph, placed.dataset, seeds_are, hops)
        parts = placed.dataset.num_parts
        for home in sorted({0, parts - 1}):
            out = placed.run(plan, seeds, StreamPosition(1, 2, 3), home=home, order=random.Random(home))
            batches.append({name: out.filled(name).tolist() for name in sorted(out.arrays)})
    assert len(batches[0][f"row/{EDGE}"]) > 50
    for other in batches[1:]:
        assert other == batches[0]
