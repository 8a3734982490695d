"""Partitioning by tasks: byte for byte the dataset that one process makes, however the work is divided."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import _native
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Graph, GraphWriter, partition_graph
from atta.partition.cutting.balance import capacities, constraints
from atta.partition.cutting.by_tasks import partition_by_tasks
from atta.partition.cutting.tasks import WORK, TaskSizes
from atta.partition.cutting.union import Union
from tests.unit.partition.oracles import files_of, refuses
from tests.unit.partition.test_methods import graphs

TINY = TaskSizes(slice_edges=37, chunk_edges=11, block_edges=23, bucket_edges=13)
SMALL = TaskSizes(slice_edges=700, chunk_edges=300, block_edges=600, bucket_edges=200)


class InTurn:
    def run(self, function: Any, arguments: Any, advance: Any) -> list[Any]:
        results = []
        for each in arguments:
            results.append(function(*each))
            advance(1)
        return results


class Twice(InTurn):
    """Runs every task twice, as if the first one's machine was lost before it answered."""

    def run(self, function, arguments, advance):
        for each in arguments:
            function(*each)
        return super().run(function, arguments, advance)


def both_ways(graph: Path, folder: Path, *, tasks: InTurn | None = None, sizes: TaskSizes = SMALL, **how: Any) -> None:
    partition_graph(graph, folder / "one", method="ldg", **how)
    partition_by_tasks(tasks or InTurn(), graph, folder / "many", sizes=sizes, **how)
    one, many = files_of(folder / "one"), files_of(folder / "many")
    assert one.keys() == many.keys()
    assert [name for name in one if one[name] != many[name]] == []


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_small_graphs_of_all_kinds(data: st.DataObject) -> None:
    draw = data.draw
    options = {"order": draw(st.sampled_from(["random", "given"])), "passes": draw(st.integers(1, 3))}
    options["slack"] = draw(st.sampled_from([0.0, 0.03, 0.5]))
    balance = draw(st.sampled_from([None, ["nodes"], ["edges", "types"], ["train", "edges"]]))
    with tempfile.TemporaryDirectory() as name:
        graph = draw(graphs(Path(name)))
        most = sum(graph.schema.node_counts.values())
        parts, seed = draw(st.integers(1, min(5, most))), draw(st.integers(0, 9))
        both_ways(graph.path, Path(name), parts=parts, options=options, balance=balance, seed=seed, sizes=TINY)


def test_tables_scattered_ids_and_tasks_that_run_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    n, m = 300, 2000
    with GraphWriter(tmp_path / "graph") as out:
        ids = rng.permutation(10_000)[:n]
        tables = {"x": rng.random((n, 5), np.float32), "y": rng.integers(0, 4, n)}
        out.add_nodes("user", n, ids=ids, tables=tables, splits={"train": rng.random(n) < 0.3})
        out.add_nodes("item", 50, tables={"x": rng.random((50, 2), np.float32)})
        src, dst = rng.integers(0, n, m), (rng.random(m) ** 3 * n).astype(int)
        out.add_edges("user__knows__user", src, dst, tables={"w": rng.random(m)})
        out.add_edges("user__has__item", rng.integers(0, n, 400), rng.integers(0, 50, 400))
    both_ways(tmp_path / "graph", tmp_path, parts=3, tasks=Twice(), seed=4)
    assert not (tmp_path / "many" / WORK).exists()


def test_steps_of_evening_are_those_of_the_whole(messy_graph: Graph) -> None:
    """``even_costs`` and ``even_moves`` over chosen rows do what ``even_owners`` does with all."""
    union = Union.of(messy_graph)
    weights = constraints(messy_graph, ("nodes", "edges"))
    room, flat = capacities(weights, 4, 0.01), weights.reshape(-1)
    whole = np.random.default_rng(1).choice(4, union.num_nodes, p=[0.6, 0.2, 0.1, 0.1]).astype(np.int32)
    steps = whole.copy()
    moved = _native.even_owners(union.indptr, union.indices, whole, 4, flat, room)
    again = 0
    for thing in range(2):
        for strict in (True, False):
            full = np.bincount(steps, weights=weights[:, thing], minlength=4) > room[thing]
            found = np.flatnonzero(full[steps] & (weights[:, thing] > 0))
            how = (4, flat, room, thing, strict)
            costs = _native.even_costs(union.indptr, union.indices, found, steps, *how)
            order = found[np.argsort(costs, kind="stable")]
            again += _native.even_moves(union.indptr, union.indices, order, steps, *how)
    assert moved == again > 20
    assert whole.tolist() == steps.tolist()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"parts": 0}, ConfigError, "must lie between"),
        ({"options": {"order": "bfs"}}, ConfigError, "order=bfs"),
        ({"options": {"gamma": "1"}}, UnknownNameError, "gamma"),
        ({"balance": ["colour"]}, UnknownNameError, "colour"),
        ({"dst": "file:///tmp/there"}, ConfigError, "not object storage"),
    ],
)
def test_what_it_refuses(messy_graph, tmp_path, change, error, words):
    given: dict[str, Any] = {"parts": 2, "dst": tmp_path / "out", **change}
    refuses(error, words, partition_by_tasks, InTurn(), messy_graph.path, given.pop("dst"), **given)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_graph_is_noticed(messy_graph: Graph, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(messy_graph.path, tmp_path / "graph")
    (path,) = (tmp_path / "graph/edges").rglob("dst.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refuses(DataError, "altered", partition_by_tasks, InTurn(), tmp_path / "graph", tmp_path / "out", parts=2)


@pytest.mark.parametrize(
    ("edges", "tasks", "held"),
    [(0, 1, 2 << 20), (1 << 20, 1, 2 << 20), (64 << 20, 16, 8 << 20), (1 << 40, 1 << 13, 32 << 20)],
)
def test_work_is_divided_by_the_number_of_edges(edges: int, tasks: int, held: int) -> None:
    """A small graph is one task, a larger one 16, and a huge one as many as its machines can hold."""
    sizes = TaskSizes.of(edges)
    assert max(1, -(-edges // sizes.slice_edges)) == tasks
    assert sizes.block_edges == held
    assert sizes.chunk_edges <= sizes.slice_edges
    assert 0 < sizes.bucket_edges <= held
