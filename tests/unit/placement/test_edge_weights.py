"""Weights of a batch's edges by degrees of the whole graph: against loops over all edges, and on average over draws."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.engine.tasks import AtHome, run_local
from atta.errors import ConfigError, UnknownNameError
from atta.kvstore.cache import RowCache
from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.batch.layout import BatchArrays, layout_of
from atta.samplers.batch.state import BatchState
from atta.samplers.batch.vertices import CompactorPool
from atta.samplers.dag.edge_norms import EdgeNorm, EdgeWeights
from atta.samplers.dag.instance import DagInstance
from atta.samplers.dag.spec import Hops, Plan, check_spec, neighbor_spec
from atta.samplers.methods import Method
from tests.unit.placement.harness import Placed, Typed
from tests.unit.placement.strategies import assigned, graphs

DRAWS = 4000


def norms(edge_type: str) -> st.SearchStrategy[EdgeNorm]:
    source, _, target = edge_type.split("__")
    return st.sampled_from([n for n in EdgeNorm if n is not EdgeNorm.GCN or source == target])


def whole_weight(norm: EdgeNorm, edges: list[tuple[int, int]], source: int, target: int) -> float:
    """What an edge weighs on the whole graph; ``edges`` are pairs of user ids."""
    into, out = sum(v == target for _, v in edges), sum(u == source for u, _ in edges)
    match norm:
        case EdgeNorm.ROW:
            return 1 / into
        case EdgeNorm.BOTH:
            return (out * into) ** -0.5
        case EdgeNorm.GCN:
            ends = [1 + sum(v == end != u for u, v in edges) for end in (source, target)]
            return float(np.prod(ends)) ** -0.5
    return 1.0


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_each_edge_weighs_what_the_rule_says(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    method = draw(st.sampled_from([Method.UNIFORM, Method.LABOR]))
    replace, unbiased = method.may_replace and draw(st.booleans()), draw(st.booleans())
    hops, frontier = draw(st.integers(1, 3)), draw(st.sampled_from(["new", "all"]))
    fan_outs = {e: [draw(st.sampled_from([-1, 0, 1, 2, 5])) for _ in range(hops)] for e in graph.edges}
    rules = [EdgeWeights(e, draw(norms(e)), unbiased) for e in graph.edges if draw(st.booleans())]
    within = not unbiased and draw(st.booleans())
    # Room for trees of many hops, or of all edges among them, is more than a machine has.
    disjoint = hops < 3 and method is Method.UNIFORM and not within and draw(st.booleans())
    seed_type = draw(st.sampled_from(sorted(graph.ids)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seeds = rng.integers(0, len(graph.ids[seed_type]), draw(st.integers(1, 9)))
    with tempfile.TemporaryDirectory() as folder:
        parts = draw(st.integers(1, 4))
        placed = graph.place(graph.write(Path(folder) / "graph"), assigned(draw, graph, parts), parts)
        schema, notes = placed.dataset.schema, {e: ["note"] for e in graph.edges if draw(st.booleans())}
        how = Hops(fan_outs, replace, method, frontier, disjoint, notes, within, weights=rules)
        plan = check_spec(neighbor_spec(schema, how, seed_type=seed_type), schema)
        internal = placed.dataset.to_internal(seed_type, graph.ids[seed_type][seeds])
        out = placed.run(
            plan, BatchSeeds(internal, np.arange(len(seeds))), StreamPosition(1, 2, 3),
            home=draw(st.integers(0, parts - 1)), order=random.Random(draw(st.integers(0, 2**32))),
        )  # fmt: skip
    for rule in rules:
        source, _, target = rule.edge_type.split("__")
        if {f"row/{rule.edge_type}", f"n_id/{source}", f"n_id/{target}"} <= out.arrays.keys():
            check_weights(graph, plan, rule, out)
    assert {n for n in out.arrays if n.startswith("edge_weight/")} <= {f"edge_weight/{r.edge_type}" for r in rules}


def check_weights(graph: Typed, plan: Plan, rule: EdgeWeights, out: BatchArrays) -> None:
    edge_type = rule.edge_type
    source, _, target = edge_type.split("__")
    edges = list(zip(*(ends.tolist() for ends in graph.edges[edge_type][:2]), strict=True))
    sources, targets = out.filled(f"n_id/{source}").tolist(), out.filled(f"n_id/{target}").tolist()
    found = [out.filled(f"{name}/{edge_type}").tolist() for name in ("row", "col", "e_id", "edge_weight")]
    hops, first, times = [], 0, Counter[int]()
    uses = plan.neighborhoods[-1:] if len(out.filled(f"hops/{edge_type}")) == 1 else plan.neighborhoods
    known = np.cumsum(out.filled(f"hops/{target}")).tolist()  # after the seeds, and after each hop
    for number, (op, count) in enumerate(zip(uses, out.filled(f"hops/{edge_type}").tolist(), strict=True)):
        before = known[-1] if op.use.name == "WITHIN" else known[number]
        fresh = 0 if op.frontier_all or not number else known[number - 1]
        expanded = range(fresh, before) if edge_type in dict(op.fan_outs) else range(0)
        times.update(expanded)
        hops.append((op, expanded, list(zip(*(column[first : first + count] for column in found), strict=True))))
        first += count
    assert first == len(found[0])
    for op, expanded, rows in hops:
        added = [(u, v) for u, v, edge, _ in rows if edge == -1]
        assert added == ([(v, v) for v in expanded] if rule.loops else [])
        for u, v, edge, weight in rows:
            wanted = whole_weight(rule.norm, edges, sources[u], targets[v]) / times[v]
            if edge >= 0:
                assert edges[edge] == (sources[u], targets[v])
                degree, fan_out = sum(to == targets[v] for _, to in edges), dict(op.fan_outs)[edge_type]
                share = degree / fan_out if op.replace else max(1, degree / fan_out)
                wanted *= share if rule.unbiased and fan_out > 0 else 1
                wanted *= 0 if rule.loops and u == v else 1
            assert weight == pytest.approx(wanted, rel=1e-6)


SUM, MEAN, ROWS = "a__sum__a", "a__mean__a", "a__gcn__a"
RULES = {SUM: EdgeNorm.NONE, MEAN: EdgeNorm.ROW, ROWS: EdgeNorm.GCN}


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Placed, np.ndarray, np.ndarray, np.ndarray]:
    """The same edges under three names: of hubs, loops and parallel edges. Some vertices have none. The dataset, the
    edges' ends by position, and their weights."""
    rng, count = np.random.default_rng(5), 24
    far = rng.integers(0, count - 4, 60)
    src = np.concatenate([rng.integers(0, count - 2, 80), far, [0, 0, 0, 5, 5, 7, 7, 7]])
    dst = np.concatenate([rng.integers(3, count - 4, 80), far % 3, [0, 0, 1, 5, 8, 7, 9, 9]])
    weight = (0.2 + rng.random(len(src))).astype(np.float32)
    weight[::17] = 0
    edges = {name: (src, dst, {"weight": weight, "note": weight, "time": np.arange(len(src))}) for name in RULES}
    placed = Typed({"a": np.arange(count)}, edges).place(
        Typed({"a": np.arange(count)}, edges).write(tmp_path_factory.mktemp("hubs") / "graph"),
        {"a": np.zeros(count, np.int32)}, 1,
    )  # fmt: skip
    return placed, src, dst, weight


def batches(placed: Placed, plan: Plan, numbers: range) -> Iterator[BatchArrays]:
    """All vertices as seeds, sampled in this thread by what daemons run. Batches take each other's place."""
    dataset, ids = placed.dataset, np.arange(placed.dataset.schema.node_counts["a"])
    layout, pool = layout_of(plan, dataset.schema, len(ids), edge_ids=False), CompactorPool(dataset.schema.node_counts)
    buffer, home = np.empty(layout.capacity, np.uint8), AtHome(placed.shards[0], placed.stores[0], None, RowCache())
    for number in numbers:
        out, at = BatchArrays.over(layout, buffer), StreamPosition(number, 0, 0)
        state = BatchState(
            plan, dataset, home=0, at=at, seeds=BatchSeeds(ids, ids), out=out, compactors=pool, degree=lambda *_: 1
        )
        dag = DagInstance(plan, 0, chunk_rows=1 << 20)
        ready = dag.start()
        while ready:
            task = ready.pop()
            result = run_local(state, task, home)
            ready += dag.done(task, result.growth, result.expand)
        yield out


@pytest.mark.parametrize(
    ("method", "replace", "frontier", "fan_outs"),
    [
        (Method.UNIFORM, False, "new", [3]),
        (Method.UNIFORM, True, "new", [3]),
        (Method.UNIFORM, False, "all", [2, 4]),
        (Method.LABOR, False, "new", [3]),
        (Method.LABOR, False, "all", [3, 2]),
        (Method.WEIGHTED, False, "new", [3]),
        pytest.param(Method.WEIGHTED, True, "all", [3, 2], marks=pytest.mark.slow),
    ],
)
def test_sums_means_and_rows_are_those_of_the_graph_on_average(hubs, seed, method, replace, frontier, fan_outs):
    placed, src, dst, weight = hubs
    count, schema = placed.dataset.schema.node_counts["a"], placed.dataset.schema
    there = weight > 0 if method is Method.WEIGHTED else np.ones(len(src), bool)
    rules = [EdgeWeights(e, norm, unbiased=True) for e, norm in RULES.items()]
    how = Hops(fan_outs, replace, method, frontier, weights=rules)
    plan = check_spec(neighbor_spec(schema, how, seed_type="a", tables={}), schema)
    x = np.random.default_rng(1).normal(2, 1, count)
    into = np.bincount(dst, minlength=count)
    roots = (1 + np.bincount(dst[src != dst], minlength=count)) ** -0.5
    per_edge = {SUM: there, MEAN: there / into[dst], ROWS: there * (src != dst) * roots[src] * roots[dst]}
    truth = {e: np.bincount(dst, weights=w * x[src], minlength=count) for e, w in per_edge.items()}
    truth[ROWS] += roots**2 * x
    total, squares = ({e: np.zeros(count) for e in RULES} for _ in range(2))
    first = seed % (1 << 32) * DRAWS
    for out in batches(placed, plan, range(first, first + DRAWS)):
        for edge_type in RULES:
            row, col, found = (out.filled(f"{name}/{edge_type}") for name in ("row", "col", "edge_weight"))
            sums = np.bincount(col, weights=found * x[row], minlength=count)
            total[edge_type] += sums
            squares[edge_type] += sums**2
    for edge_type in RULES:
        mean = total[edge_type] / DRAWS
        error = np.sqrt(np.maximum(squares[edge_type] / DRAWS - mean**2, 0) / DRAWS)
        assert error.max() > 0
        assert (np.abs(mean - truth[edge_type]) <= 5 * error + 1e-6).all(), edge_type


def test_contradictions_are_refused(hubs) -> None:
    schema = hubs[0].dataset.schema
    sums, other = EdgeWeights(SUM, EdgeNorm.NONE, unbiased=True), EdgeWeights("a__x__b", EdgeNorm.ROW, unbiased=False)
    for error, how in {
        "not with times": Hops([2], method=Method.TEMPORAL, weights=[sums]),
        "twice": Hops([2], weights=[sums, sums]),
        "not for induced": Hops([2], within=True, weights=[sums]),
        "sums of 'note'": Hops([2], method=Method.WEIGHTED, by="note", weights=[sums]),
    }.items():
        with pytest.raises(ConfigError, match=error):
            neighbor_spec(schema, how, seed_type="a")
    with pytest.raises(UnknownNameError, match="a__x__b"):
        neighbor_spec(schema, Hops([2], weights=[other]), seed_type="a")
