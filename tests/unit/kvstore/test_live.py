"""Versions on the disk: what is written is what is read, and any sequence of changes of edges against sorted lists."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.versions import mapped_room
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.kvstore.live import writing
from atta.kvstore.live.folder import Room, VersionFolder, kept_numbers
from atta.kvstore.live.writing import NewEdges, NewRows, Present, find_edges, find_table, write_version
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph import GraphWriter
from atta.partition.graph.part import GraphDegrees
from atta.partition.graph.strings import to_rows
from tests.unit.partition.conftest import _no_forcing_to_disk  # noqa: F401

A, B = 9, 7
KNOWS, LIKES = "a__knows__a", "a__likes__b"
OF = {KNOWS: ("a", "a"), LIKES: ("a", "b")}
Edge = tuple[int, int, int, float]
"""Source and target, as user ids; edge id; weight."""


Made = Callable[[int, int], tuple[Dataset, VersionFolder, dict[str, list[Edge]]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """By number of parts and seed: a dataset of two edge types, without versions, and its edges."""

    @functools.cache
    def cut(parts: int, seed: int) -> tuple[Dataset, dict[str, list[Edge]]]:
        return made_in(tmp_path_factory.mktemp("edges"), np.random.default_rng(seed), parts)

    def fresh(parts: int, seed: int = 0) -> tuple[Dataset, VersionFolder, dict[str, list[Edge]]]:
        dataset, truth = cut(parts, seed)
        folder = VersionFolder(dataset.path, dataset.dataset_id)
        shutil.rmtree(folder.path, ignore_errors=True)
        folder.path.mkdir()
        return dataset, folder, dict(truth)

    return fresh


def made_in(folder: Path, rng: np.random.Generator, parts: int) -> tuple[Dataset, dict[str, list[Edge]]]:
    ids = {"a": rng.permutation(100)[:A].astype(np.int64), "b": rng.permutation(100)[:B].astype(np.int64)}
    truth = {}
    with GraphWriter(folder / "graph") as writer:
        writer.add_nodes("a", A, ids=ids["a"], tables={"x": np.arange(A)})
        writer.add_nodes("b", B, ids=ids["b"])
        for edge_type, (source, target) in OF.items():
            count = int(rng.integers(0, 20))
            src, dst = rng.integers(0, len(ids[source]), count), rng.integers(0, len(ids[target]), count)
            weight = rng.random(count).astype(np.float32)
            writer.add_edges(edge_type, src, dst, tables={"weight": weight})
            ends = zip(ids[source][src].tolist(), ids[target][dst].tolist(), range(count), weight.tolist(), strict=True)
            truth[edge_type] = list(ends)
    partition_graph(folder / "graph", folder / "data", parts=parts, method="random", seed=1)
    return Dataset.open(folder / "data"), truth


def drawn(rng: np.random.Generator, dataset: Dataset, edge_type: str, count: int) -> NewEdges:
    source, target = (rng.choice(dataset.ids(t), count) for t in OF[edge_type])
    return NewEdges(source, target, {"weight": rng.random(count).astype(np.float32)})


def stored(
    dataset: Dataset, folder: VersionFolder, edge_type: str, source: int, room: Room = np.empty
) -> dict[int, list[Edge]]:
    """The in-edges of each vertex as a version's files have them, in their order."""
    found: dict[int, list[Edge]] = {}
    from_type, to_type = OF[edge_type]
    for owner in range(dataset.num_parts):
        part = folder.edges(dataset, owner, source, room) if source else dataset.part(owner)
        csc, low = part.csc(edge_type), dataset.book.range(to_type, owner)[0]
        assert len(csc.indptr) == part.num_core(to_type) + 1
        assert np.array_equal(csc.weight, part.edge_table(edge_type, "weight"))
        for row, (first, stop) in enumerate(zip(csc.indptr[:-1], csc.indptr[1:], strict=True)):
            target = int(dataset.ids(to_type)[low + row])
            sources = dataset.ids(from_type)[csc.indices[first:stop]].tolist()
            rest = csc.edge_ids[first:stop].tolist(), csc.weight[first:stop].tolist()
            found[target] = [(s, target, e, w) for s, e, w in zip(sources, *rest, strict=True)]
    return found


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    parts=st.integers(1, 3),
    steps=st.lists(st.sampled_from("arbx"), max_size=6),
    most=st.sampled_from([-1, 12, 1000]),
)
def test_any_sequence_of_changes(made: Made, seed: int, parts: int, steps: list[str], most: int) -> None:
    """``most``: changes until all edges are written again. Versions that no later one needs have gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "LEAST_CHANGES", most)
        patch.setattr(writing, "CHANGED_SHARE", -1)
        check_sequence(made, seed, parts, steps)


def check_sequence(made: Made, seed: int, parts: int, steps: list[str]) -> None:
    rng = np.random.default_rng(seed)
    dataset, folder, truth = made(parts, seed % 4)
    next_id = {edge_type: len(edges) for edge_type, edges in truth.items()}
    latest = dict.fromkeys(OF, 0)
    rows = np.concatenate([dataset.part(p).table("a", "x") for p in range(parts)])[dataset.sorted_internal("a")]
    for number, step in enumerate(steps, 1):
        edge_type = [*OF][int(rng.integers(0, 2))]
        if step == "x":  # rows of a table change between
            new_rows = NewRows(rng.integers(0, 9, A), None)
            folder.commit(write_version(folder, dataset, {("a", "x"): new_rows}).number)
            by_id = dict(zip(sorted(dataset.ids("a").tolist()), (new_rows.rows != rows).tolist(), strict=True))
            assert changed(dataset, folder, number) == (
                ("a", "x"),
                sorted(v for v, differs in by_id.items() if differs),
            )
            rows = new_rows.rows
            continue
        new = drawn(rng, dataset, edge_type, int(rng.integers(0, 8)) if step != "r" else 0)
        ids = [edge[2] for edge in truth[edge_type]]
        gone = rng.permutation(ids)[: int(rng.integers(0, len(ids) + 1))] if ids and rng.random() < 0.7 else []
        replaces = step == "b"
        removed = np.asarray([] if replaces else gone, dtype=np.int64)
        change = NewEdges(new.sources, new.targets, new.tables, removed, replaces)
        version = write_version(folder, dataset, {find_edges(dataset, edge_type): change})
        assert version.number == number
        folder.commit(number)
        left = [] if replaces else [e for e in truth[edge_type] if e[2] not in set(removed.tolist())]
        first = 0 if replaces else next_id[edge_type]
        went = [(e[1], e[0], -1) for e in truth[edge_type] if replaces or e not in left]
        came = [(target, source, 1) for source, target in zip(new.sources.tolist(), new.targets.tolist(), strict=True)]
        assert changed(dataset, folder, number) == ((edge_type, "edges"), sorted([*went, *came]))
        columns = new.sources.tolist(), new.targets.tolist(), range(first, first + len(new))
        truth[edge_type] = [*left, *zip(*columns, new.tables["weight"].tolist(), strict=True)]
        next_id[edge_type], latest[edge_type] = first + len(new), number
        assert version.edge_ids == {e: next_id[e] for e, source in latest.items() if source}
        assert replaces <= (edge_type not in version.bases)
        check_edges_from(rng, dataset, folder, edge_type, number, truth[edge_type])
        for unread in folder.committed().keys() - kept_numbers(folder.committed(), [], 1):
            folder.retire(unread)
    for edge_type, edges in truth.items():
        found = stored(dataset, folder, edge_type, latest[edge_type])
        for target, row in found.items():
            wanted = sorted((e for e in edges if e[1] == target), key=lambda e: (e[0], e[2]))
            assert row == wanted
        assert sum(map(len, found.values())) == len(edges)
        degrees = folder.degrees(dataset, edge_type, latest[edge_type]) if latest[edge_type] else None
        check_degrees(dataset, edge_type, degrees or dataset.degrees(edge_type), edges)
        joined = dataset.joined([range(dataset.num_parts)])
        assert stored(joined, folder, edge_type, latest[edge_type], mapped_room) == found
        check_edges_from(rng, dataset, folder, edge_type, latest[edge_type], edges)


def check_edges_from(
    rng: np.random.Generator, dataset: Dataset, folder: VersionFolder, edge_type: str, source: int, edges: list[Edge]
) -> None:
    """The edges from some vertices, of each partition by itself and of all as one, are those among all ``edges``."""
    from_type, to_type = OF[edge_type]
    marks = rng.random(A) < rng.random()
    wanted = sorted((s, target) for s, target, *_ in edges if s in dataset.ids(from_type)[marks])
    for one in (dataset, dataset.joined([range(dataset.num_parts)])):
        pairs = []
        for owner in range(one.num_parts):
            part = folder.edges(one, owner, source) if source else one.part(owner)
            found = part.edges_from(edge_type, marks, len(edges) + 100)
            assert found is not None
            assert (np.diff(found[0]) >= 0).all()
            targets = one.ids(to_type)[found[0] + one.book.range(to_type, owner)[0]].tolist()
            pairs += zip(one.ids(from_type)[found[1]].tolist(), targets, strict=True)
            if len(found[0]):
                assert part.edges_from(edge_type, marks, 0) is None
        assert sorted(pairs) == wanted


def changed(dataset: Dataset, folder: VersionFolder, number: int) -> tuple[tuple[str, str], list[Any]]:
    """What a version says that it changed, by user ids: of all partitions, each for itself and as one."""
    told = [folder.changed(dataset, owner, number) or {} for owner in range(dataset.num_parts)]
    whole = folder.changed(dataset.joined([range(dataset.num_parts)]), 0, number)
    assert whole is not None
    ((of, rows),) = whole.items()
    assert np.concatenate([one[of] for one in told], axis=-1).tolist() == rows.tolist()
    if of[1] != "edges":
        return of, sorted(dataset.ids(of[0])[rows].tolist())
    (targets, sources, signs), (source, target) = rows, OF[of[0]]
    columns = dataset.ids(target)[targets].tolist(), dataset.ids(source)[sources].tolist(), signs.tolist()
    return of, sorted(zip(*columns, strict=True))


def check_degrees(dataset: Dataset, edge_type: str, found: GraphDegrees, edges: list[Edge]) -> None:
    source, target = (dataset.ids(t).tolist() for t in OF[edge_type])
    assert found.into.tolist() == [sum(e[1] == v for e in edges) for v in target]
    assert found.out.tolist() == [sum(e[0] == v for e in edges) for v in source]
    loops = [sum(e[0] == e[1] == v for e in edges) for v in target] if edge_type == KNOWS else [0]
    assert (found.loops is None and not any(loops)) or (found.loops is not None and found.loops.tolist() == loops)
    assert np.allclose(found.weights, [sum(e[3] for e in edges if e[1] == v) for v in target])


def test_damage_is_named(made: Made, tmp_path: Path, rng: np.random.Generator) -> None:
    dataset, folder, _ = made(2, 0)
    folder.commit(write_version(folder, dataset, {(KNOWS, "edges"): drawn(rng, dataset, KNOWS, 9)}).number)
    with pytest.raises(DataError, match=rf"has no part-0001/edges/{LIKES}/indptr\.npy"):
        folder.edges(dataset, 1, 1).csc(LIKES)
    path = folder.place(1) / f"part-0001/edges/{KNOWS}/edge_ids.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"edge_ids\.npy: altered"):
        folder.edges(dataset, 1, 1).csc(KNOWS)
    with pytest.raises(ConfigError, match="edge types a__knows__a, a__likes__b: say which one"):
        find_edges(dataset, None)
    with pytest.raises(DataError, match=r"holds no src\.npy; atta import makes such folders of tables"):
        NewEdges.open(Present.of(folder, dataset), KNOWS, tmp_path / "ratings.csv", None)
    for name in ("src", "dst", "weight", "colour"):
        np.save(tmp_path / f"{name}.npy", np.zeros(0, np.float32 if name == "weight" else np.int64))
    with pytest.raises(DataError, match=rf"colour\.npy: not an edge table of {KNOWS}; there are: weight"):
        NewEdges.open(Present.of(folder, dataset), KNOWS, tmp_path, None)
    (tmp_path / "colour.npy").unlink()
    assert len(NewEdges.open(Present.of(folder, dataset), KNOWS, tmp_path, None)) == 0


@pytest.mark.parametrize("strings", [False, True])
def test_edges_of_a_graph_folder_with_other_rows(tmp_path: Path, rng: np.random.Generator, strings: bool) -> None:
    def graph(name: str, ids: np.ndarray, ends: np.ndarray) -> Path:
        tables = {"name": to_rows(np.array([f"user-{i}" for i in ids]))} if strings else {}
        with GraphWriter(tmp_path / name) as out:
            out.add_nodes("a", len(ids), ids=None if strings else ids, tables=tables)
            out.add_edges("a__to__a", *ends)
        return tmp_path / name

    before = rng.permutation(500)[:60].astype(np.int64)
    partition_graph(graph("before", before, rng.integers(0, 60, (2, 300))), tmp_path / "data", parts=2, method="random")
    dataset, ends = Dataset.open(tmp_path / "data"), rng.integers(0, 20, (2, 40))
    later = rng.permutation(before)[:20]
    folder = VersionFolder(dataset.path, dataset.dataset_id)
    new = NewEdges.open(Present.of(folder, dataset), "a__to__a", graph("later", later, ends) / "edges/a__to__a", None)
    for found, rows in zip((new.sources, new.targets), ends, strict=True):
        assert (before[found] if strings else found).tolist() == later[rows].tolist()
    if strings:
        stranger = graph("stranger", np.array([999, *later]), ends)
        with pytest.raises(ConfigError, match="no vertex of 'a' has the string id 'user-999': see atta update nodes"):
            NewEdges.open(Present.of(folder, dataset), "a__to__a", stranger / "edges/a__to__a", None)


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
    version = write_version(folder, dataset, {("node", "x"): NewRows(rows, ids)})
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
            write_version(folder, dataset, {("node", "x"): NewRows(rows, ids)})
    assert folder.numbers() == []


def test_sources_of_versions_that_stay_stay(dataset: Dataset) -> None:
    folder = versions_of(dataset)
    for table, rows in (("x", X), ("y", np.arange(60)), ("y", np.arange(60)), ("y", np.arange(60))):
        folder.commit(write_version(folder, dataset, {("node", table): NewRows(rows, None)}).number)
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
