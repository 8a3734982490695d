"""DAG instances against a brute-force model that lists all tasks and dependencies in advance."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.samplers.dag.check import check_spec
from atta.samplers.dag.instance import OTHERS, DagError, DagInstance, Kind, Lane, OwnedVertices, Task, chunk_range
from atta.samplers.dag.plan import Plan
from atta.samplers.dag.spec import Hops, neighbor_spec, pair_spec
from tests.unit.dag.schemas import CITES, PLAIN, TYPED

HOME = 1
Growth = dict[str, list[OwnedVertices]]


def plan_of(hops: int, *, link: bool = False, typed: bool = False) -> Plan:
    schema = TYPED if typed else PLAIN
    if link:
        spec = pair_spec(schema, edge_type=CITES if typed else "node__to__node", hops=Hops([3] * hops), negatives=2)
    else:
        spec = neighbor_spec(schema, hops=Hops([3] * hops), seed_type="paper" if typed else "node")
    return check_spec(spec, schema)


def key(task: Task) -> tuple[str, str, int, int]:
    return task.kind.name, task.op, task.owner, task.chunk


def model(plan: Plan, growth: Growth, expand: Growth, chunk_rows: int) -> dict[tuple[str, str, int, int], set]:
    tasks: dict[tuple[str, str, int, int], set] = {}
    end: set = set()
    joined: list[str] = []

    def source(op: str) -> tuple[str, str, int, int]:
        return ("SEED" if op == plan.seed.id else "JOIN", op, HOME, 0)

    def chunks(kind: str, op: str, rows: dict[int, int], after: set) -> set:
        alone = rows if kind in ("POSITIVE", "NEGATIVE") else {HOME: rows.get(HOME, 0)}
        made = {(kind, op, owner, c) for owner, n in alone.items() for c in range((n + chunk_rows - 1) // chunk_rows)}
        if any(n for owner, n in rows.items() if owner not in alone):
            made.add((kind, op, OTHERS, 0))
        tasks.update({t: set(after) for t in made})
        return made

    def rows_of(shares: list[OwnedVertices]) -> dict[int, int]:
        rows: dict[int, int] = {}
        for share in shares:
            rows[share.owner] = rows.get(share.owner, 0) + share.rows
        return rows

    for op in plan.ops:
        if op.kind is Kind.FEATURE:
            end |= chunks("FEATURE", op.id, rows_of(growth[op.inputs[0]]), {source(op.inputs[0])})
            continue
        before = {source(name) for name in joined}
        if op.kind is Kind.SEED:
            tasks[source(op.id)] = set()
        else:
            shares = [s for name in op.inputs for s in (expand.get(name) or growth[name])]
            inputs = {source(name) for name in op.inputs}
            work = chunks(op.kind.name, op.id, rows_of(shares), inputs)
            tasks[source(op.id)] = work | inputs | before
        joined.append(op.id)
        end.add(source(op.id))
    tasks["END", "", HOME, 0] = end
    return tasks


def run(plan: Plan, growth: Growth, expand: Growth, chunk_rows: int, pick: Callable[[list[Task]], Task]) -> list[Task]:
    """Run an instance to its end. After every step, its running tasks are exactly those that the model allows."""
    dag = DagInstance(plan, HOME, chunk_rows)
    expected = model(plan, growth, expand, chunk_rows)
    done: set = set()
    history: list[Task] = []
    running = dag.start()
    while running:
        assert {key(t) for t in running} == {t for t, before in expected.items() if before <= done and t not in done}
        assert dag.issued == set(running)
        assert not dag.finished
        task = pick(running)
        running.remove(task)
        reports = task.kind in (Kind.SEED, Kind.JOIN)
        running += dag.done(task, growth[task.op], expand.get(task.op) or None) if reports else dag.done(task)
        done.add(key(task))
        history.append(task)
    assert dag.finished
    assert done == set(expected)
    return history


shares = st.lists(
    st.builds(OwnedVertices, st.integers(0, 3), st.integers(0, 20), st.floats(0, 1e3), st.floats(0, 1e6)), max_size=4
)
COSTS: dict[Kind, Callable[[OwnedVertices], float]] = {
    Kind.FEATURE: lambda share: share.feature_bytes,
    Kind.NEIGHBORHOOD: lambda share: share.degree,
    Kind.POSITIVE: lambda share: share.rows,
    Kind.NEGATIVE: lambda share: 2 * share.rows,
}


@settings(deadline=None, max_examples=300)
@given(data=st.data(), hops=st.integers(0, 3), link=st.booleans(), typed=st.booleans(), chunk_rows=st.integers(1, 25))
def test_tasks_are_those_of_the_model(data: st.DataObject, hops: int, link: bool, typed: bool, chunk_rows: int) -> None:
    plan = plan_of(hops, link=link, typed=typed)
    joins = [op.id for op in plan.ops if op.kind is not Kind.FEATURE]
    growth = {name: data.draw(shares) for name in joins}
    expand = {name: data.draw(shares) for name in joins if data.draw(st.booleans())}
    rng = random.Random(data.draw(st.integers(0, 1000)))
    history = run(plan, growth, expand, chunk_rows, rng.choice)
    assert len({key(t) for t in history}) == len(history)
    for task in history:
        at_home = task.kind in (Kind.SEED, Kind.JOIN, Kind.END) or task.owner == HOME
        assert task.lane is (Lane.CPU if at_home else Lane.NET)
        assert 0 <= task.chunk < task.chunks
    # Costs add up to what the joins reported, for any chunks. A feature is fetched of new vertices alone.
    for op in (op for op in plan.ops if op.kind in COSTS):
        frontier = {} if op.kind is Kind.FEATURE else expand
        due = [COSTS[op.kind](s) for name in op.inputs for s in (frontier.get(name) or growth[name]) if s.rows]
        found = sum(t.cost for t in history if (t.kind, t.op) == (op.kind, op.id))
        assert found == pytest.approx(sum(due), rel=1e-9, abs=1e-6)


@settings(deadline=None)
@given(grown=shares, chunk_rows=st.integers(1, 25))
def test_a_task_of_others_knows_each_owners_part(grown: list[OwnedVertices], chunk_rows: int) -> None:
    dag = DagInstance(plan_of(1), HOME, chunk_rows)
    (seed,) = dag.start()
    assert dag.owners_of(seed) == ()
    tasks = dag.done(seed, grown)
    away = {share.owner for share in grown if share.rows and share.owner != HOME}
    assert {task.kind for task in tasks if task.owner == OTHERS} == (
        {Kind.FEATURE, Kind.NEIGHBORHOOD} if away else set()
    )
    for task in tasks:
        parts = dag.owners_of(task)
        if task.owner == HOME:
            assert parts == ()
            continue
        assert (task.owner, task.chunk, task.chunks, task.lane) == (OTHERS, 0, 1, Lane.NET)
        assert [part.owner for part in parts] == sorted(away)
        for part in parts:
            mine = [share for share in grown if share.owner == part.owner and share.rows]
            assert part.rows == sum(share.rows for share in mine)
            assert part.degree == pytest.approx(sum(share.degree for share in mine))
            assert part.feature_bytes == pytest.approx(sum(share.feature_bytes for share in mine))
        costs = [part.degree if task.kind is Kind.NEIGHBORHOOD else part.feature_bytes for part in parts]
        assert task.cost == pytest.approx(sum(costs))


def test_features_of_a_hop_do_not_wait_for_the_next_hop() -> None:
    plan = plan_of(2)
    dag = DagInstance(plan, 0, 1000)
    (seed,) = dag.start()
    after_seed = dag.done(seed, [OwnedVertices(0, 10, 50.0, 400.0), OwnedVertices(1, 4, 20.0, 160.0)])
    assert [(t.kind, t.op, t.owner, t.lane, t.cost) for t in after_seed] == [
        (Kind.FEATURE, "feature0", 0, Lane.CPU, 400.0),
        (Kind.FEATURE, "feature0", OTHERS, Lane.NET, 160.0),
        (Kind.NEIGHBORHOOD, "nbr1", 0, Lane.CPU, 50.0),
        (Kind.NEIGHBORHOOD, "nbr1", OTHERS, Lane.NET, 20.0),
    ]
    assert dag.done(after_seed[2]) == []
    (join,) = dag.done(after_seed[3])
    assert (join.kind, join.op, join.cost) == (Kind.JOIN, "nbr1", min(50.0, 30.0) + min(20.0, 12.0))
    after_join = dag.done(join, [OwnedVertices(0, 7, 9.0, 70.0)])
    assert [(t.kind, t.op) for t in after_join] == [(Kind.FEATURE, "feature1"), (Kind.NEIGHBORHOOD, "nbr2")]
    assert len(dag.issued) == 4  # both features of the seeds are still running


def test_protocol_faults_are_reported() -> None:
    with pytest.raises(DagError, match="chunk_rows"):
        DagInstance(plan_of(1), 0, 0)
    dag = DagInstance(plan_of(1), 0, 100)
    with pytest.raises(DagError, match="negative"):
        dag.done(*dag.start(), [OwnedVertices(0, -1)])
    dag = DagInstance(plan_of(1), 0, 100)

    def refused(words: str, *done: Any) -> None:
        with pytest.raises(DagError, match=words):
            dag.done(*done)

    refused("not running", Task(Kind.JOIN, "nbr1", 0, 0, 1, Lane.CPU, 0.0))
    (seed,) = dag.start()
    with pytest.raises(DagError, match="started before"):
        dag.start()
    feature, hop = dag.done(seed, [OwnedVertices(0, 1, 1.0, 1.0)])
    refused("not running", seed)
    refused("only SEED and JOIN", hop, [OwnedVertices(0, 1)])
    dag.done(feature)
    refused("not running", feature)


@given(rows=st.integers(1, 1000), chunks=st.integers(1, 50))
def test_chunk_ranges_cut_rows_evenly(rows: int, chunks: int) -> None:
    parts = [chunk_range(rows, c, chunks) for c in range(chunks)]
    assert [i for part in parts for i in part] == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
