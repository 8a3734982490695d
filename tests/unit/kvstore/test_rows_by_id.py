"""What rows of vertices and edges begin with belongs to their ids: it is the same for any cut of the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from atta.errors import DataError
from atta.kvstore.durable.entries import ChangeKind, TableChange
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable.owners import EdgeIndex, TableOwner, span_of
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import Initialiser, MutableSpec, Normal, Uniform
from atta.kvstore.tables import Tables
from atta.partition import GraphWriter, partition_graph
from atta.partition.dataset import Dataset

IDS = np.random.default_rng(3).permutation(900)[:60] * 7 - 900
"""Of authors: scattered, some of them negative."""
WRITES = 150
CUTS: list[tuple[int, str, list[range] | None]] = [
    (1, "random", None), (2, "random", None), (2, "ldg", None), (4, "metis", None),
    (4, "random", [range(2), range(2, 4)]),
]  # fmt: skip
"""Partitions, method, and which of them the daemons serve."""


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Dataset]:
    rng, folder = np.random.default_rng(5), tmp_path_factory.mktemp("cuts")
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("author", len(IDS), ids=IDS)
        out.add_nodes("paper", 50)
        out.add_edges("author__writes__paper", rng.integers(0, len(IDS), WRITES), rng.integers(0, 50, WRITES))

    def dataset(number: int) -> Dataset:
        parts, method, groups = CUTS[number]
        path = folder / str(number)
        if not path.exists():
            partition_graph(folder / "graph", path, parts=parts, method=method, seed=1)
        found = Dataset.open(path)
        return found if groups is None else found.joined(groups)

    return dataset


def spec_of(policy: str, init: Initialiser, dtype: str = "<f4") -> MutableSpec:
    rows = {"nodes:author": len(IDS), "nodes:paper": 50, "edges:author__writes__paper": WRITES, "range": 60}
    return MutableSpec("t", rows[policy], dtype, (3,), init=init, policy=policy)


def by_id(dataset: Dataset, spec: MutableSpec, of: Callable[[TableOwner], MutableTable]) -> dict[int, bytes]:
    """The rows of all owners, by the users' ids."""
    found = {}
    kind, _, name = spec.policy.partition(":")
    for part in range(dataset.num_parts):
        table = of(TableOwner(dataset, part))
        ids = np.arange(spec.rows) if kind != "nodes" else np.sort(dataset.ids(name))
        if kind == "nodes":
            rows = dataset.to_internal(name, ids)
        else:
            rows = ids if kind == "range" else EdgeIndex(dataset, part, name).rows(ids)
        mine = (rows >= table.span.start) & (rows < table.span.stop)
        values = table.pull(rows[mine]).values
        found.update({int(i): row.tobytes() for i, row in zip(ids[mine], values, strict=True)})
    assert len(found) == spec.rows
    return found


def created(spec: MutableSpec, owner: TableOwner) -> MutableTable:
    span = span_of(spec, owner.dataset, owner.part)
    return Tables(1 << 20, owner=owner).create(spec, span.start, len(span))


@pytest.mark.parametrize(
    ("policy", "init", "dtype"),
    [
        ("nodes:author", Normal(0, 1, seed=4), "<f4"),
        ("nodes:paper", Uniform(-1, 1, seed=4), "<f2"),
        ("edges:author__writes__paper", Uniform(0, 1), "<f8"),
        ("range", Normal(0, 1, seed=4), "<f4"),
    ],
)
def test_first_rows_are_those_of_their_ids_in_any_cut(
    cut: Callable[[int], Dataset], policy: str, init: Initialiser, dtype: str
) -> None:
    spec = spec_of(policy, init, dtype)
    first = by_id(cut(0), spec, partial(created, spec))
    assert len(set(first.values())) == spec.rows
    for number in range(1, len(CUTS)):
        assert by_id(cut(number), spec, partial(created, spec)) == first
    # Vertices and edges that are numbered from 0 begin with the rows of a table without a graph.
    if policy != "nodes:author":
        assert first == dict(enumerate(row.tobytes() for row in MutableTable(spec).pull(np.arange(spec.rows)).values))


def test_recovery_and_snapshots_keep_them(cut: Callable[[int], Dataset], tmp_path: Path) -> None:
    spec = spec_of("nodes:author", Normal(0, 1))

    def recovered(owner: TableOwner) -> MutableTable:
        folder, span = (
            tmp_path / f"log-{owner.dataset.num_parts}-{owner.part}",
            span_of(spec, owner.dataset, owner.part),
        )
        store = TableStore(folder, {}, forced=False)
        store.open(lambda _: {})
        store.append([TableChange(ChangeKind.CREATED, 7, (span.start, len(span), 1), spec).encode()])
        store.close()
        tables, store = Tables(1 << 20, owner=owner), TableStore(folder, {}, forced=False)
        found = store.open(partial(tables.prepare, resume=True), tables.row_ids)
        store.close()
        return found.tables["t"]

    def saved(owner: TableOwner) -> MutableTable:
        span, folder = (
            span_of(spec, owner.dataset, owner.part),
            tmp_path / f"snapshot-{owner.dataset.num_parts}-{owner.part}",
        )
        tables, again = Tables(1 << 20, owner=owner), Tables(1 << 20, owner=owner)
        tables.create(spec, span.start, len(span))
        tables.snapshot(folder)
        again.adopt(again.prepare(folder), 0, {})
        return again.get("t")

    first = by_id(cut(0), spec, partial(created, spec))
    for of in (recovered, saved):
        assert by_id(cut(2), spec, of) == by_id(cut(3), spec, of) == first


def test_snapshots_of_another_cut_are_refused(cut: Callable[[int], Dataset], tmp_path: Path) -> None:
    """Parts may have as many rows, of other vertices."""
    tables = Tables(1 << 20, owner=TableOwner(cut(1), 0))
    tables.create(spec_of("range", Normal(0, 1)), 0, 30)
    tables.snapshot(tmp_path / "numbers")
    tables.delete("t")
    spec = spec_of("nodes:author", Normal(0, 1))
    tables.create(spec, 0, len(span_of(spec, cut(1), 0)))
    tables.snapshot(tmp_path / "vertices")
    other = Tables(1 << 20, owner=TableOwner(cut(2), 0))
    other.adopt(other.prepare(tmp_path / "numbers"), 0, {})
    ids = [cut(number).dataset_id for number in (1, 2)]
    with pytest.raises(DataError, match=f"table t are nodes:author of dataset {ids[0]}, this is {ids[1]}"):
        other.adopt(other.prepare(tmp_path / "vertices"), 0, {})
    assert [table.spec.policy for table in other.list()] == ["range"]
