"""Weights of a batch's edges by degrees of the whole graph: against loops over all edges, and on average over draws."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.engine.tasks import run_local
from atta.errors import ConfigError, UnknownNameError
from atta.kvstore.cache import RowCache
from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.batch.layout import BatchArrays, layout_of
from atta.samplers.batch.state import BatchState
from atta.samplers.batch.vertices import CompactorPool
from atta.samplers.dag.instance import DagInstance
from atta.samplers.dag.plan import EdgeNorm, EdgeWeights
from atta.samplers.dag.spec import Hops, Plan, check_spec, neighbor_spec
from atta.samplers.methods import Method
from tests.unit.placement.harness import Placed, Typed
from tests.unit.placement.strategies import assigned, graphs

DRAWS = 2000


def norms(edge_type: str) -> st.SearchStrategy[EdgeNorm]:
    source, _, target = edge_type.split("__")
    return st.sampled_from([n for n in EdgeNorm if n is not EdgeNorm.GCN or source == target])


def whole_weight(rule: EdgeWeights, edges: list[tuple[int, int]], weights: np.ndarray, edge: int, target: int) -> float:
    """What an edge weighs on the whole graph, or -1 the edge that a GCN adds; ``edges`` are pairs of user ids."""
    weight = weights if rule.summed else np.ones(len(edges))
    source = target if edge < 0 else edges[edge][0]
    match rule.norm:
        case EdgeNorm.ROW:
            into = sum(w for (_, v), w in zip(edges, weight, strict=True) if v == target)
            return float(weight[edge] / into) if into else 0.0
        case EdgeNorm.BOTH:
            return (sum(u == source for u, _ in edges) * sum(v == target for _, v in edges)) ** -0.5
        case EdgeNorm.GCN:
            pairs = list(zip(edges, weight, strict=True))
            own = {end: [1.0, *(w for (u, v), w in pairs if u == v == end)][-1] for end in (source, target)}
            ends = [own[end] + sum(w for (u, v), w in pairs if v == end != u) for end in (source, target)]
            return float((own[target] if edge < 0 else weight[edge]) * np.prod([d and d**-0.5 for d in ends]))
    return float(weight[edge])


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_each_edge_weighs_what_the_rule_says(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    method = draw(st.sampled_from([Method.UNIFORM, Method.LABOR]))
    again, unbiased = method.may_replace and draw(st.booleans()), draw(st.booleans())
    hops, frontier = draw(st.integers(1, 3)), draw(st.sampled_from(["new", "all"]))
    fan_outs = {e: [draw(st.sampled_from([-1, 0, 1, 2, 5])) for _ in range(hops)] for e in graph.edges}
    rules = [EdgeWeights(e, draw(norms(e)), unbiased) for e in graph.edges if draw(st.booleans())]
    summed = draw(st.booleans())
    rules = [replace(r, summed=summed and r.norm is not EdgeNorm.BOTH) for r in rules]
    within = not unbiased and draw(st.booleans())
    # Room for trees of many hops, or of all edges among them, is more than a machine has.
    disjoint = hops < 3 and method is Method.UNIFORM and not within and draw(st.booleans())
    seed_type = draw(st.sampled_from(sorted(graph.ids)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seeds = rng.integers(0, len(graph.ids[seed_type]), draw(st.integers(1, 9)))
    with tempfile.TemporaryDirectory() as folder:
        parts = draw(st.integers(1, 4))
        placed = graph.place(graph.write(Path(folder) / "graph"), assigned(draw, graph, parts), parts)
        notes = {e: ["note"] for e in graph.edges if draw(st.booleans())}
        how = Hops(fan_outs, again, method, frontier, disjoint, notes, within, weights=rules)
        home, order = draw(st.integers(0, parts - 1)), random.Random(draw(st.integers(0, 2**32)))
        plan, out = placed.hops(graph, how, seed_type, seeds, StreamPosition(1, 2, 3), home=home, order=order)
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
            wanted = whole_weight(rule, edges, graph.edges[edge_type][2]["weight"], edge, targets[v]) / times[v]
            if edge >= 0:
                assert edges[edge] == (sources[u], targets[v])
                degree, fan_out = sum(to == targets[v] for _, to in edges), dict(op.fan_outs)[edge_type]
                share = degree / fan_out if op.replace else max(1, degree / fan_out)
                wanted *= share if rule.unbiased and fan_out > 0 else 1
                wanted *= 0 if rule.loops and u == v else 1
            assert weight == pytest.approx(wanted, rel=2e-6, abs=1e-12)


SUM, MEAN, ROWS = "a__sum__a", "a__mean__a", "a__gcn__a"
RULES = {SUM: EdgeNorm.NONE, MEAN: EdgeNorm.ROW, ROWS: EdgeNorm.GCN}


def vertex_times(count: int) -> np.ndarray:
    return np.arange(count) * 5


@pytest.fixture(scope="module")
def hubs(tmp_path_factory):
    return hubs_in(tmp_path_factory.mktemp("hubs"), {})


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    return hubs_in(tmp_path_factory.mktemp("moving"), {"a": vertex_times(24)})


def hubs_in(folder: Path, times: dict[str, np.ndarray]) -> tuple[Placed, np.ndarray, np.ndarray, np.ndarray]:
    """The same edges under three names: of hubs, loops and parallel edges. Some vertices have none. The dataset, the
    edges' ends by position, and their weights."""
    rng, count = np.random.default_rng(5), 24
    far = rng.integers(0, count - 4, 60)
    src = np.concatenate([rng.integers(0, count - 2, 80), far, [0, 0, 0, 5, 5, 7, 7, 7]])
    dst = np.concatenate([rng.integers(3, count - 4, 80), far % 3, [0, 0, 1, 5, 8, 7, 9, 9]])
    weight = (0.2 + rng.random(len(src))).astype(np.float32)
    weight[::17] = 0
    edges = {name: (src, dst, {"weight": weight, "note": weight, "time": np.arange(len(src))}) for name in RULES}
    graph = Typed({"a": np.arange(count)}, edges, times)
    placed = graph.place(graph.write(folder / "graph"), {"a": np.zeros(count, np.int32)}, 1)
    return placed, src, dst, weight


def batches(placed: Placed, plan: Plan, numbers: range, times: np.ndarray | None = None) -> Iterator[BatchArrays]:
    """All vertices as seeds, sampled in this thread by what daemons run. Batches take each other's place."""
    dataset, ids = placed.dataset, np.arange(placed.dataset.schema.node_counts["a"])
    layout, pool = layout_of(plan, dataset.schema, len(ids), edge_ids=False), CompactorPool(dataset.schema.node_counts)
    buffer, home = np.empty(layout.capacity, np.uint8), placed.view(0, None, RowCache())
    for number in numbers:
        out, at = BatchArrays.over(layout, buffer), StreamPosition(number, 0, 0)
        of, seeds = {"compactors": pool, "degree": lambda *_: 1}, BatchSeeds(ids, ids, times=times)
        state = BatchState(plan, dataset, home=0, at=at, seeds=seeds, out=out, **of)
        dag = DagInstance(plan, 0, chunk_rows=1 << 20)
        ready = dag.start()
        while ready:
            task = ready.pop()
            result = run_local(state, task, home)
            ready += dag.done(task, result.growth, result.expand)
        yield out


@pytest.mark.parametrize(
    ("method", "again", "frontier", "fan_outs", "summed"),
    [
        pytest.param(Method.UNIFORM, False, "new", [3], False, marks=pytest.mark.slow),
        (Method.UNIFORM, True, "new", [3], True),
        pytest.param(Method.UNIFORM, False, "all", [2, 4], False, marks=pytest.mark.slow),
        pytest.param(Method.LABOR, False, "new", [3], True, marks=pytest.mark.slow),
        (Method.LABOR, False, "all", [3, 2], False),
        pytest.param(Method.WEIGHTED, False, "new", [3], False, marks=pytest.mark.slow),
        (Method.WEIGHTED, False, "new", [3], True),
        pytest.param(Method.WEIGHTED, True, "all", [3, 2], False, marks=pytest.mark.slow),
    ],
)
def test_sums_means_and_rows_are_those_of_the_graph_on_average(hubs, seed, method, again, frontier, fan_outs, summed):
    placed, src, dst, weight = hubs
    count, schema = placed.dataset.schema.node_counts["a"], placed.dataset.schema
    there = weight > 0 if method is Method.WEIGHTED else np.ones(len(src), bool)
    rules = [EdgeWeights(e, norm, unbiased=True, summed=summed) for e, norm in RULES.items()]
    how = Hops(fan_outs, again, method, frontier, weights=rules)
    plan = check_spec(neighbor_spec(schema, how, seed_type="a", tables={}), schema)
    x = np.random.default_rng(1).normal(2, 1, count)
    own = weight.astype(float) if summed else np.ones(len(src))
    into, loops = np.bincount(dst, own, count), np.ones(count)
    loops[dst[src == dst]] = own[src == dst]
    roots = (loops + np.bincount(dst, own * (src != dst), count)) ** -0.5
    per_edge = {SUM: own, MEAN: own / into[dst], ROWS: own * (src != dst) * roots[src] * roots[dst]}
    truth = {e: np.bincount(dst, weights=there * w * x[src], minlength=count) for e, w in per_edge.items()}
    truth[ROWS] += loops * roots**2 * x
    _check_means(placed, plan, x, truth, seed)


def _check_means(placed, plan, x, truth, seed, times=None):
    """Sums over drawn edges are ``truth`` by edge type and vertex, within five standard errors at every vertex."""
    count = len(x)
    total, squares = ({e: np.zeros(count) for e in truth} for _ in range(2))
    first = seed % (1 << 32) * DRAWS
    for out in batches(placed, plan, range(first, first + DRAWS), times):
        for edge_type in truth:
            row, col, found = (out.filled(f"{name}/{edge_type}") for name in ("row", "col", "edge_weight"))
            users = out.filled("n_id/a")
            sums = np.bincount(col, weights=found * x[users[row]], minlength=count)[:count]
            total[edge_type] += sums
            squares[edge_type] += sums**2
    for edge_type, wanted in truth.items():
        mean = total[edge_type] / DRAWS
        error = np.sqrt(np.maximum(squares[edge_type] / DRAWS - mean**2, 0) / DRAWS)
        assert error.max() > 0
        assert (np.abs(mean - wanted) <= 5 * error + 1e-6).all(), edge_type


@pytest.mark.parametrize(("again", "summed", "of_vertices"), [(False, False, True), (True, True, False)])
def test_sums_over_the_edges_that_a_seed_may_see(hubs, moving, seed, again, summed, of_vertices):
    """Every vertex is a seed with a time of its own. Its sum is over the edges that are not later, nor from later vertices."""
    placed, src, dst, weight = moving if of_vertices else hubs
    count, schema = placed.dataset.schema.node_counts["a"], placed.dataset.schema
    times = np.random.default_rng(2).integers(0, len(src), count)
    rules = [EdgeWeights(SUM, EdgeNorm.NONE, unbiased=True, summed=summed)]
    fan_outs = {e: [3 if e == SUM else 0] for e in RULES}
    how = Hops(fan_outs, again, Method.TEMPORAL, weights=rules)
    plan = check_spec(neighbor_spec(schema, how, seed_type="a", tables={}), schema)
    x = np.random.default_rng(1).normal(2, 1, count)
    since = np.maximum(np.arange(len(src)), vertex_times(count)[src] if of_vertices else 0)
    there = since <= times[dst]
    values = there * x[src] * (weight if summed else 1)
    _check_means(placed, plan, x, {SUM: np.bincount(dst, values, count)}, seed, times)


def test_contradictions_are_refused(hubs) -> None:
    schema = hubs[0].dataset.schema
    sums, other = EdgeWeights(SUM, EdgeNorm.NONE, unbiased=True), EdgeWeights("a__x__b", EdgeNorm.ROW, unbiased=False)
    mean, both = EdgeWeights(MEAN, EdgeNorm.ROW, unbiased=False), EdgeWeights(MEAN, EdgeNorm.BOTH, False, summed=True)
    for error, how in {
        "not with times": Hops([2], method=Method.TEMPORAL, weights=[mean]),
        "'last' takes the same edges": Hops([2], method=Method.LAST, weights=[sums]),
        "of in-edges": Hops([2], weights=[both]),
        "twice": Hops([2], weights=[sums, sums]),
        "not for induced": Hops([2], within=True, weights=[sums]),
        "sums of 'note'": Hops([2], method=Method.WEIGHTED, by="note", weights=[sums]),
    }.items():
        with pytest.raises(ConfigError, match=error):
            neighbor_spec(schema, how, seed_type="a")
    with pytest.raises(UnknownNameError, match="a__x__b"):
        neighbor_spec(schema, Hops([2], weights=[other]), seed_type="a")
