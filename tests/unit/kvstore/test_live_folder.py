"""Versions on the disk: what is written is what is read, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError, DataError, UnknownNameError
from atta.kvstore.live.folder import VersionFolder, kept_numbers
from atta.kvstore.live.writing import NewRows, find_table, write_version
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph import GraphWriter

IDS = np.random.default_rng(5).permutation(900)[:60].astype(np.int64)
X = np.random.default_rng(6).standard_normal((60, 3)).astype(np.float32)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    with GraphWriter(tmp_path / "graph") as writer:
        writer.add_nodes("node", 60, ids=IDS, tables={"x": X, "y": np.arange(60)}, splits={"train": np.arange(9)})
        writer.add_edges("node__to__node", np.arange(60), np.arange(60)[::-1].copy())
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=3, method="random", seed=1)
    return Dataset.open(tmp_path / "data")


def versions_of(dataset: Dataset) -> VersionFolder:
    folder = VersionFolder(dataset.path, dataset.dataset_id)
    folder.path.mkdir(exist_ok=True)
    return folder


def loaded(folder: VersionFolder, dataset: Dataset, source: int) -> np.ndarray:
    parts = [folder.load(dataset, part, ("node", "x"), source) for part in range(dataset.num_parts)]
    return np.concatenate(parts)[dataset.to_internal("node", IDS)]


def published(folder: VersionFolder, dataset: Dataset, rows: np.ndarray, ids: np.ndarray | None = None) -> int:
    version = write_version(folder, dataset, ("node", "x"), NewRows(rows, ids))
    folder.commit(version.number)
    return version.number


def test_rows_of_all_and_of_some_vertices(dataset: Dataset, rng: np.random.Generator) -> None:
    folder, all_new = versions_of(dataset), rng.random((60, 3)).astype(np.float32)
    assert folder.committed() == {}
    assert published(folder, dataset, all_new) == 1
    truth = all_new[np.argsort(np.argsort(IDS))]  # they came by ascending id
    assert np.array_equal(loaded(folder, dataset, 1), truth)
    some, rows = rng.permutation(60)[:11], rng.random((11, 3)).astype(np.float32)
    assert published(folder, dataset, rows, IDS[some]) == 2
    truth[some] = rows
    assert np.array_equal(loaded(folder, dataset, 2), truth)
    assert np.array_equal(loaded(folder, dataset.joined([range(2), range(2, 3)]), 2), truth)
    assert dict(folder.committed()[2].sources) == {("node", "x"): 2}
    assert np.array_equal(np.asarray(dataset.part(0).table("node", "x")), X[dataset_rows(dataset, 0)])


def dataset_rows(dataset: Dataset, part: int) -> np.ndarray:
    low, high = dataset.book.range("node", part)
    order = np.argsort(IDS)
    return order[np.searchsorted(IDS[order], dataset.ids("node")[low:high])]


def test_damage_is_named_and_other_datasets_are_left_out(dataset: Dataset) -> None:
    folder = versions_of(dataset)
    number = published(folder, dataset, X)
    assert VersionFolder(dataset.path, "0" * 16).committed() == {}
    path = folder.place(number) / "part-0001/nodes/node/x.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"part-0001/nodes/node/x\.npy: altered"):
        folder.load(dataset, 1, ("node", "x"), number)
    with pytest.raises(DataError, match=r"has no part-0000/nodes/node/y\.npy"):
        folder.load(dataset, 0, ("node", "y"), number)
    where = folder.place(number) / "version.json"
    where.write_text(where.read_text().replace('"number": 1', '"number": 2'))
    with pytest.raises(DataError, match=r"version\.json: altered"):
        VersionFolder(dataset.path, dataset.dataset_id).committed()


def test_rows_that_do_not_fit_are_refused(dataset: Dataset) -> None:
    folder = versions_of(dataset)
    for rows, ids, cause in (
        (X.astype(np.float64), None, r"rows are <f8\[3\], table node/x has <f4\[3\]"),
        (X[:, :2], None, r"rows are <f4\[2\]"),
        (X[:59], None, "59 rows for 60 vertices"),
        (X[:2], IDS[:1], "one integer for each row"),
        (X[:2], IDS[[3, 3]], "names a vertex of node twice"),
        (X[:1], np.array([10**6]), "1000000 is not a vertex"),
    ):
        with pytest.raises(ConfigError, match=cause):
            write_version(folder, dataset, ("node", "x"), NewRows(rows, ids))
    assert folder.numbers() == []


def test_sources_of_versions_that_stay_stay(dataset: Dataset) -> None:
    folder = versions_of(dataset)
    for table, rows in (("x", X), ("y", np.arange(60)), ("y", np.arange(60)), ("y", np.arange(60))):
        folder.commit(write_version(folder, dataset, ("node", table), NewRows(rows, None)).number)
    versions = folder.committed()
    assert kept_numbers(versions, [], 1) == {1, 4}
    assert kept_numbers(versions, [2, 7], 1) == {1, 2, 4}
    assert kept_numbers(versions, [], 2) == {1, 3, 4}
    folder.remove(2)
    assert sorted(folder.committed()) == [1, 3, 4]


def test_names_of_tables_and_one_update_at_a_time(dataset: Dataset) -> None:
    assert find_table(dataset, "x") == find_table(dataset, "node/x") == ("node", "x")
    for name in ("z", "paper/x", "node/z"):
        with pytest.raises(UnknownNameError):
            find_table(dataset, name)
    folder = versions_of(dataset)
    with folder.updating(), pytest.raises(ConfigError, match="another update is under way"), folder.updating():
        pass
    with folder.updating():
        assert folder.numbers() == []
