"""Partitioned datasets against brute force: core vertices, edges, orders, ids, HALO lists, for any graph and parts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError, DataError
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.cutting.writer import stable_order, write_dataset
from atta.partition.describe import describe
from tests.unit.partition.oracles import check_dataset, stored_in_neighbours, write_graph

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
        write_dataset(graph, {"node": np.array(owners, np.int32)}, path, parts, bucket_edges=bucket)
        dataset = Dataset.open(path)
        assert dataset.num_parts == parts
        check_dataset(graph, dataset)
        for part in range(parts):
            csc = dataset.part(part).csc(ETYPE)
            assert csc.weight.tolist() == csc.edge_ids.tolist()  # weights follow their edges


@st.composite
def typed_graphs(draw):
    counts = {t: draw(st.integers(1, 6)) for t in ("author", "paper", "venue")}
    types = ["author__writes__paper", "paper__cites__paper", "paper__in__venue", "venue__of__paper"]
    edges = {}
    for e in types:
        s, _, d = e.split("__")
        pair = st.tuples(st.integers(0, counts[s] - 1), st.integers(0, counts[d] - 1))
        edges[e] = draw(st.lists(pair, max_size=15))
    parts = draw(st.integers(1, 4))
    owners = {t: draw(st.lists(st.integers(0, parts - 1), min_size=c, max_size=c)) for t, c in counts.items()}
    return counts, edges, parts, owners


@settings(max_examples=30, deadline=None)
@given(typed_graphs())
def test_several_node_and_edge_types(case):
    counts, edges, parts, owners = case
    with tempfile.TemporaryDirectory() as folder:
        with GraphWriter(Path(folder, "graph")) as out:
            for t, count in counts.items():
                ids = None if t == "venue" else 7 * np.arange(count)[::-1]
                out.add_nodes(t, count, ids=ids, tables={"x": np.arange(count, dtype=np.float32)})
            for e, pairs in edges.items():
                array = np.array(pairs, np.int64).reshape(-1, 2)
                out.add_edges(e, array[:, 0], array[:, 1])
        graph = Graph.open(Path(folder, "graph"))
        write_dataset(graph, {t: np.array(o, np.int32) for t, o in owners.items()}, Path(folder, "data"), parts)
        check_dataset(graph, Dataset.open(Path(folder, "data")))


def test_neighbour_order_does_not_depend_on_the_partitioning(messy_graph, tmp_path):
    lists = []
    for parts, method in [(1, "random"), (2, "metis"), (4, "random"), (5, "metis")]:
        path = tmp_path / f"{method}-{parts}"
        partition_graph(messy_graph.path, path, parts=parts, method=method, seed=3)
        dataset = Dataset.open(path)
        check_dataset(messy_graph, dataset)
        lists.append(stored_in_neighbours(dataset, ETYPE))
    assert all(other == lists[0] for other in lists)


def test_same_arguments_same_dataset(messy_graph, tmp_path):
    ids = set()
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        partition_graph(messy_graph.path, tmp_path / name, parts=3, method="random", seed=seed)
        ids.add(Dataset.open(tmp_path / name).dataset_id)
    assert len(ids) == 2


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
    with pytest.raises(ConfigError, match="exists already"):
        partition_graph(messy_graph.path, out, parts=3, method="random")
    partition_graph(messy_graph.path, out, parts=3, method="random", overwrite=True)
    assert Dataset.open(out).num_parts == 3
    assert [p.name for p in tmp_path.iterdir()] == ["data"]  # nothing half-written stays behind


def test_failure_leaves_nothing(messy_graph, tmp_path):
    class Interrupted(Exception):
        pass

    class Stop:
        def stage(self, name, total):
            if name == "edges":
                raise Interrupted

        def advance(self, amount):
            pass

    with pytest.raises(Interrupted):
        partition_graph(messy_graph.path, tmp_path / "data", parts=2, method="random", progress=Stop())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parts", [0, -1, 10**6])
def test_bad_number_of_parts(messy_graph, tmp_path, parts):
    with pytest.raises(ConfigError, match="--parts"):
        partition_graph(messy_graph.path, tmp_path / "data", parts=parts)


def test_inspect_measures_what_the_manifest_records(messy_graph, tmp_path):
    partition_graph(messy_graph.path, tmp_path / "data", parts=3, method="metis")
    report = describe(tmp_path / "data")
    assert report["quality"] == Dataset.open(tmp_path / "data").quality
    assert sum(p["nodes"]["node"] for p in report["quality"]["parts"]) == 200


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60))
def test_stable_order(keys):
    array = np.array(keys, np.int64)
    assert stable_order(array, 10).tolist() == np.argsort(array, kind="stable").tolist()


def test_rows_of_a_dataset_that_took_its_place_are_not_mixed_in(messy_graph: Graph, tmp_path: Path) -> None:
    partition_graph(messy_graph.path, tmp_path / "d", parts=2, method="random", seed=1)
    opened = Dataset.open(tmp_path / "d")
    before = np.array(opened.part(0).csc(opened.schema.edge_types[0]).indices)
    partition_graph(messy_graph.path, tmp_path / "d", parts=2, method="random", seed=2, overwrite=True)
    assert np.array_equal(opened.part(0).csc(opened.schema.edge_types[0]).indices, before), "mapped before"
    for late in (
        lambda: opened.part(1).csc(opened.schema.edge_types[0]),
        lambda: opened.part(0).halo(opened.schema.node_types[0]),
        lambda: opened.ids(opened.schema.node_types[0]),
    ):
        with pytest.raises(DataError, match="d: was replaced since it was opened"):
            late()
    assert Dataset.open(tmp_path / "d").part(0).halo(opened.schema.node_types[0]).size
