"""Partitioned datasets against brute force for any graph and parts, and copying what one daemon needs: whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta import _native
from atta.errors import ConfigError, DataError, QuotaExceededError
from atta.observe.progress import Silent
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.cutting.tasks import TaskRun, TaskSizes, Threads, read_bucket
from atta.partition.cutting.writer import DatasetSteps, moved_columns, write_dataset
from atta.partition.deploy import deploy
from atta.partition.describe import describe
from tests.unit.partition.exports import Can, Drawn
from tests.unit.partition.oracles import check_dataset, refuses, stored_in_neighbours, write_graph

ETYPE = "node__to__node"


@st.composite
def cut_graphs(draw):
    """A small multigraph with scattered user ids, and an assignment that may leave parts empty."""
    n = draw(st.integers(0, 12))
    ids = draw(st.none() | st.lists(st.integers(-50, 10**12), min_size=n, max_size=n, unique=True))
    vertex = st.integers(0, max(0, n - 1))
    edges = draw(st.lists(st.tuples(vertex, vertex), max_size=40 if n else 0))
    parts = draw(st.integers(1, 6))
    owners = draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n))
    return n, ids, edges, parts, owners


@settings(max_examples=60, deadline=None)
@given(cut_graphs(), st.integers(1, 50))
def test_any_cut_of_any_graph_holds_the_same_graph(case, bucket):
    n, ids, edges, parts, owners = case
    with tempfile.TemporaryDirectory() as folder:
        src, dst = [u for u, _ in edges], [v for _, v in edges]
        graph = write_graph(Path(folder, "graph"), ids, src, dst, n)
        path = Path(folder, "data")
        write_dataset(graph, {"node": np.array(owners, np.int32)}, path, parts, sizes=TaskSizes(7, 3, 5, bucket))
        dataset = Dataset.open(path)
        assert dataset.num_parts == parts
        check_dataset(graph, dataset)
        for part in range(parts):
            csc = dataset.part(part).csc(ETYPE)
            assert csc.weight.tolist() == csc.edge_ids.tolist()  # weights follow their edges


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_several_node_and_edge_types(data):
    with tempfile.TemporaryDirectory() as folder:
        graph = Drawn(data.draw, Can(edge_tables=("time",))).write(Path(folder, "graph"))
        parts = data.draw(st.integers(1, 4))
        part = st.integers(0, parts - 1)
        drawn = {t: data.draw(st.lists(part, min_size=n, max_size=n)) for t, n in graph.schema.node_counts.items()}
        owners = {t: np.array(of, np.int32) for t, of in drawn.items()}
        write_dataset(graph, owners, Path(folder, "data"), parts)
        check_dataset(graph, Dataset.open(Path(folder, "data")))


def test_neighbour_order_does_not_depend_on_the_partitioning(messy_graph, tmp_path):
    lists = []
    for parts, method in [(1, "random"), (2, "metis"), (4, "random"), (5, "metis")]:
        path = tmp_path / f"{method}-{parts}"
        partition_graph(messy_graph.path, path, parts=parts, method=method, seed=3)
        dataset = Dataset.open(path)
        check_dataset(messy_graph, dataset)
        quality = describe(path)["quality"]
        assert quality == dataset.quality
        assert sum(p["nodes"]["node"] for p in quality["parts"]) == 200
        lists.append(stored_in_neighbours(dataset, ETYPE))
    assert all(other == lists[0] for other in lists)


def test_random_balances_to_one_vertex_and_ignores_row_order(tmp_path):
    ids = np.random.default_rng(0).permutation(5000)[:997]
    owners = []
    for name, order in [("a", ids), ("b", np.sort(ids))]:
        write_graph(tmp_path / name, order.tolist(), [], [], len(ids))
        partition_graph(tmp_path / name, tmp_path / f"{name}-cut", parts=4, method="random", seed=5)
        dataset = Dataset.open(tmp_path / f"{name}-cut")
        sizes = np.diff(dataset.book.offsets["node"])
        assert sizes.max() - sizes.min() <= 1
        owners.append(dataset.book.owner("node", dataset.to_internal("node", np.sort(ids))))
    assert np.array_equal(*owners)


def test_existing_folder_is_kept_unless_overwritten(messy_graph, tmp_path):
    out = tmp_path / "data"
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    for overwrite in (False, True):  # even --overwrite does not remove files that Atta did not write
        with pytest.raises(ConfigError, match="data"):
            partition_graph(messy_graph.path, out, parts=2, method="random", overwrite=overwrite)
    assert (out / "mine.txt").read_text() == "precious"
    (out / "mine.txt").unlink()
    partition_graph(messy_graph.path, out, parts=2, method="random")  # an empty folder may be filled
    refuses(ConfigError, "exists already", partition_graph, messy_graph.path, out, parts=3, method="random")
    partition_graph(messy_graph.path, out, parts=3, method="random", overwrite=True)
    assert Dataset.open(out).num_parts == 3
    assert [p.name for p in tmp_path.iterdir()] == ["data"]  # nothing half-written stays behind


def test_failure_leaves_nothing(messy_graph, tmp_path):
    class Stop(Silent):
        def stage(self, name, total):
            if name == "partitions":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition_graph(messy_graph.path, tmp_path / "data", parts=2, method="random", progress=Stop())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parts", [0, -1, 10**6])
def test_bad_number_of_parts(messy_graph, tmp_path, parts):
    refuses(ConfigError, "--parts", partition_graph, messy_graph.path, tmp_path / "data", parts=parts)


def test_more_parts_than_vertices_are_refused(messy_graph, tmp_path):
    count = sum(messy_graph.schema.node_counts.values())
    words = f"--parts {count + 1}: the graph has only {count} vertices"
    refuses(ConfigError, words, partition_graph, messy_graph.path, tmp_path / "data", parts=count + 1)
    partition_graph(messy_graph.path, tmp_path / "data", parts=count, method="random")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), max_size=60), st.sampled_from([np.int32, np.int64]))
def test_stable_order(pairs, kind):
    keys, values = np.array(pairs, np.int64).reshape(-1, 2).T
    found = _native.stable_order(keys.astype(kind), 10)
    assert found.tolist() == np.argsort(keys, kind="stable").tolist()
    for of in (values.copy(), (values + 3).astype(np.int32)):
        assert _native.stable_order(keys.astype(kind), 10, of).tolist() == np.lexsort((values, keys)).tolist()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 10**5)), st.lists(st.integers(0, 10**5), max_size=20), st.sampled_from([np.int32, np.int64])
)
def test_rows_are_dealt_to_the_buckets_of_their_ids(ids, cuts, kind):
    ids, starts = np.array(ids, kind), np.array([0, *sorted(cuts), 10**5 + 1])
    keys = _native.buckets_of(ids, starts)
    assert keys.tolist() == (np.searchsorted(starts, ids, side="right") - 1).tolist()
    columns = [np.arange(len(ids) * np.prod(shape, dtype=int)).astype(t).reshape(-1, *shape)
               for t, shape in (("u1", ()), ("i2", ()), ("f4", (3,)), ("i8", ()), ("u1", (5,)))]  # fmt: skip
    outs = [np.empty_like(column) for column in columns]
    bounds = _native.dealt(keys, len(starts) - 1, columns, outs)
    order = np.argsort(keys, kind="stable")
    assert bounds.tolist() == np.searchsorted(keys[order], np.arange(len(starts))).tolist()
    assert all(np.array_equal(out, column[order]) for out, column in zip(outs, columns, strict=True))
    assert _native.looked_up(columns[3], order).tolist() == columns[3][order].tolist()


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.floats(allow_nan=False)), max_size=9), max_size=5))
def test_counts_and_sums_of_pieces(pieces):
    """Bit for bit those of numpy, which takes time in proportion to all ids for each piece."""
    counts, (totals, wanted, scratch) = np.zeros(6, np.int64), np.zeros((3, 6))
    for piece in pieces:
        ids, values = np.array([i for i, _ in piece], np.int32), np.array([x for _, x in piece], np.float64)
        _native.count_ids(ids, counts)
        _native.add_sums(ids, values, totals, scratch)
        with np.errstate(all="ignore"):
            wanted += np.bincount(ids, values, minlength=6)
    assert counts.tolist() == np.bincount([i for piece in pieces for i, _ in piece], minlength=6).tolist()
    np.testing.assert_array_equal(totals, wanted)
    assert not scratch.any()


@settings(max_examples=60, deadline=None)
@given(cut_graphs(), st.integers(1, 12), st.builds(TaskSizes, *[st.integers(1, 9)] * 4))
def test_every_edge_moves_once_into_the_bucket_of_its_destination(case, limit, sizes):
    n, ids, edges, parts, owners = case
    with tempfile.TemporaryDirectory() as folder:
        graph = write_graph(Path(folder, "graph"), ids, [u for u, _ in edges], [v for _, v in edges], n)
        run = TaskRun.begun(Threads(), graph, Path(folder), replace(sizes, bucket_edges=limit), None)
        steps = DatasetSteps(run, Path(folder, "data"), parts)
        steps.number({"node": np.array(owners, np.int32)})
        moved = steps.move(steps.degrees())[ETYPE]
        internal, by_rank = steps.numbering["node"].internal_of, steps.numbering["node"].sorted_internal
        for part in range(parts):
            found = []
            for bucket in range(moved.firsts[part], moved.firsts[part + 1]):
                first, last = moved.starts[bucket : bucket + 2]
                edge_ids, heads, tails, weights = read_bucket(moved.folders, moved_columns(graph.schema, ETYPE), bucket)
                assert len(edge_ids) <= limit or last - first == 1
                assert ((first <= heads) & (heads < last)).all()
                assert (np.diff(edge_ids) > 0).all()
                ends = [(internal[u], internal[v]) for u, v in (edges[i] for i in edge_ids)]
                assert ends == list(zip(by_rank[tails], heads, strict=True))
                assert weights.tolist() == graph.edges(ETYPE).tables["weight"][edge_ids].tolist()
                found += edge_ids.tolist()
            assert sorted(found) == [i for i, (_, v) in enumerate(edges) if owners[v] == part]


def test_rows_of_a_dataset_that_took_its_place_are_not_mixed_in(messy_graph: Graph, tmp_path: Path) -> None:
    partition_graph(messy_graph.path, tmp_path / "d", parts=2, method="random", seed=1)
    opened = Dataset.open(tmp_path / "d")
    before = np.array(opened.part(0).csc(opened.schema.edge_types[0]).indices)
    partition_graph(messy_graph.path, tmp_path / "d", parts=2, method="random", seed=2, overwrite=True)
    assert Dataset.open(tmp_path / "d").dataset_id != opened.dataset_id
    assert np.array_equal(opened.part(0).csc(opened.schema.edge_types[0]).indices, before), "mapped before"
    for late in (
        lambda: opened.part(1).csc(opened.schema.edge_types[0]),
        lambda: opened.part(0).halo(opened.schema.node_types[0]),
        lambda: opened.ids(opened.schema.node_types[0]),
    ):
        refuses(DataError, "d: was replaced since it was opened", late)
    assert Dataset.open(tmp_path / "d").part(0).halo(opened.schema.node_types[0]).size


@pytest.fixture(scope="module")
def whole(messy_graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy")
    partition_graph(messy_graph.path, folder / "data", parts=3, method="random")
    return folder / "data"


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("parts", [[0], [2, 1]])
def test_exactly_what_is_needed_is_there(whole: Path, tmp_path: Path, parts: list[int]) -> None:
    seen: dict[str, int] = {}

    class Told:
        def stage(self, name: str, total: int | None) -> None:
            self.name = name
            seen[name] = 0

        def advance(self, amount: int) -> None:
            seen[self.name] += amount

    copied = deploy(whole, tmp_path / "there", parts, progress=Told())
    folders = ("shared", *(f"part-{p:04d}" for p in parts))
    wanted = {"manifest.json", *(name for name in files(whole) if name.startswith(folders))}
    assert files(tmp_path / "there") == wanted
    for name in wanted:
        assert (tmp_path / "there" / name).read_bytes() == (whole / name).read_bytes()
    assert copied == sum((whole / name).stat().st_size for name in wanted - {"manifest.json"})
    assert seen == {"copy": copied, "verify": copied}
    assert Dataset.open(tmp_path / "there", parts=parts).dataset_id == Dataset.open(whole).dataset_id
    refuses(DataError, "there: holds partition ", Dataset.open, tmp_path / "there")
    again = tmp_path / "again"  # from a deployed folder to the next machine
    deploy(tmp_path / "there", again, parts[:1])
    assert (again / "manifest.json").exists()


def test_damage_is_named_and_leaves_nothing(whole: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(whole, tmp_path / "bad")
    path = bad / "part-0001/nodes/node/x.npy"
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    refuses(DataError, r"bad/part-0001/nodes/node/x\.npy: altered", deploy, bad, tmp_path / "there", [1])
    assert {p.name for p in tmp_path.iterdir()} == {"bad"}
    deploy(bad, tmp_path / "there", [0])  # damage to unneeded files does not matter
    refuses(DataError, "altered", deploy, bad, tmp_path / "there", [1], overwrite=True)
    assert (tmp_path / "there/part-0000").exists()


def test_what_exists_is_not_overwritten_unasked(whole: Path, tmp_path: Path) -> None:
    deploy(whole, tmp_path / "there", [0])
    refuses(ConfigError, "--overwrite", deploy, whole, tmp_path / "there", [1])
    deploy(whole, tmp_path / "there", [1], overwrite=True)
    assert (tmp_path / "there/part-0001").exists()
    assert not (tmp_path / "there/part-0000").exists()


def test_nonsense_is_refused(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(ConfigError, "partition 3 does not exist", deploy, whole, tmp_path / "there", [3])
    refuses(ConfigError, "is the dataset itself", deploy, whole, whole / "." / "shared" / "..", [0], overwrite=True)
    usage = namedtuple("usage", "total used free")(10, 7, 3)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    refuses(QuotaExceededError, "3 are free", deploy, whole, tmp_path / "there", [0])
    assert list(tmp_path.iterdir()) == []
