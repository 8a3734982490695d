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
from atta.kvstore.mutable.owners import TableOwner, span_of
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import Initialiser, MutableSpec, Normal, Uniform
from atta.kvstore.tables import Tables
from atta.partition import GraphWriter, partition_graph
from atta.partition.dataset import Dataset

IDS = np.random.default_rng(3).permutation(900)[:60] * 7 - 900
"""Of authors: scattered, some of them negative."""
CUTS: list[tuple[int, str, list[range] | None]] = [
    (1, "random", None), (2, "random", None), (2, "ldg", None), (4, "metis", None),
    (4, "random", [range(2), range(2, 4)]),
]  # fmt: skip
"""Partitions, method, and which of them the daemons serve."""
Cut = Callable[[int], Dataset]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    rng, folder = np.random.default_rng(5), tmp_path_factory.mktemp("cuts")
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("author", len(IDS), ids=IDS)
        out.add_nodes("paper", 50)
        out.add_edges("author__writes__paper", rng.integers(0, len(IDS), 150), rng.integers(0, 50, 150))

    def dataset(number: int) -> Dataset:
        parts, method, groups = CUTS[number]
        path = folder / str(number)
        if not path.exists():
            partition_graph(folder / "graph", path, parts=parts, method=method, seed=1)
        found = Dataset.open(path)
        return found if groups is None else found.joined(groups)

    return dataset


def spec_of(policy: str, init: Initialiser, dtype: str = "<f4") -> MutableSpec:
    rows = {"nodes:author": len(IDS), "nodes:paper": 50, "range": 60}
    return MutableSpec("t", rows[policy], dtype, (3,), init=init, policy=policy)


def by_id(dataset: Dataset, spec: MutableSpec, of: Callable[[TableOwner], MutableTable]) -> dict[int, bytes]:
    found, name = {}, spec.policy.removeprefix("nodes:")
    for part in range(dataset.num_parts):
        table = of(TableOwner(dataset, part))
        ids = np.sort(dataset.ids(name))
        rows = dataset.to_internal(name, ids)
        mine = (rows >= table.span.start) & (rows < table.span.stop)
        values = table.pull(rows[mine]).values
        found.update({int(i): row.tobytes() for i, row in zip(ids[mine], values, strict=True)})
    assert len(found) == len(set(found.values())) == spec.rows
    return found


@pytest.mark.parametrize(
    ("policy", "init", "dtype"),
    [("nodes:author", Normal(0, 1, seed=4), "<f4"), ("nodes:paper", Uniform(-1, 1, seed=4), "<f2")],
)
def test_first_rows_are_those_of_their_ids_in_any_cut_also_recovered_and_saved(
    cut: Cut, tmp_path: Path, policy: str, init: Initialiser, dtype: str
) -> None:
    spec = spec_of(policy, init, dtype)

    def created(owner: TableOwner) -> Tables:
        span, tables = span_of(spec, owner.dataset, owner.part), Tables(1 << 20, owner=owner)
        tables.create(spec, span.start, len(span))
        return tables

    def recovered(owner: TableOwner) -> MutableTable:
        folder = tmp_path / f"log-{owner.dataset.num_parts}-{owner.part}"
        span, store = span_of(spec, owner.dataset, owner.part), TableStore(folder, {}, forced=False)
        store.open(lambda _: {})
        store.append([TableChange(ChangeKind.CREATED, 7, (span.start, len(span), 1), spec).encode()])
        store.close()
        tables, store = Tables(1 << 20, owner=owner), TableStore(folder, {}, forced=False)
        found = store.open(partial(tables.prepare, resume=True), tables.row_ids)
        store.close()
        return found.tables["t"]

    def saved(owner: TableOwner) -> MutableTable:
        folder, again = tmp_path / f"saved-{owner.dataset.num_parts}-{owner.part}", Tables(1 << 20, owner=owner)
        created(owner).snapshot(folder)
        again.adopt(again.prepare(folder), 0, {})
        return again.get("t")

    first = by_id(cut(0), spec, lambda owner: created(owner).get("t"))
    for number in range(1, len(CUTS)):
        assert by_id(cut(number), spec, lambda owner: created(owner).get("t")) == first
    for of in (recovered, saved):
        assert by_id(cut(2), spec, of) == by_id(cut(3), spec, of) == first
    if policy == "nodes:paper":  # numbered from 0, they begin with the rows of a table without a graph
        assert first == dict(enumerate(row.tobytes() for row in MutableTable(spec).pull(np.arange(50)).values))


def test_snapshots_of_another_cut_are_refused(cut: Cut, tmp_path: Path) -> None:
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
