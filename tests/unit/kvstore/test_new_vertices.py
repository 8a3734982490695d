"""New vertices on the disk: a version has their rows and edges, says which are in use, and refuses what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import ConfigError, UnknownNameError
from atta.kvstore.live.folder import VersionFolder
from atta.kvstore.live.vertices import AddedVertices
from atta.kvstore.live.writing import NewEdges, NewRows, Present, write_version
from atta.partition import GraphWriter, partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph import Graph
from atta.partition.graph.strings import to_rows, to_strings

RATES = "user__rates__film"
USERS, FILMS = 12, 6
IDS = np.random.default_rng(1).permutation(90)[:USERS].astype(np.int64)
NEXT = int(IDS.max()) + 1
TITLES = [f"film-{i}" for i in range(FILMS)]


def graph(
    path: Path, ids: Any, titles: list[str], ends: Any, *, first: float = 0.0, weights: bool = True, **tables: Any
) -> Graph:
    """Users by numbers and films by titles; ``ends``: rows of the folder. ``tables``: of users, None: without one."""
    count, edges = len(ids), np.asarray(ends, np.int64).reshape(2, -1)
    of_users: dict[str, Any] = {
        "x": np.tile(np.float32([1, 2]), (count, 1)) + first,
        "y": np.arange(count) % 3,
        **tables,
    }
    with GraphWriter(path) as out:
        out.add_nodes(
            "user", count, ids=np.array(ids, np.int64), tables={k: v for k, v in of_users.items() if v is not None}
        )
        out.add_nodes("film", len(titles), tables={"name": to_rows(np.array(titles, np.str_))})
        out.add_edges(RATES, *edges, tables={"weight": np.ones(edges.shape[1], np.float32)} if weights else {})
    return Graph.open(path)


@pytest.fixture
def data(tmp_path: Path) -> tuple[Dataset, VersionFolder]:
    rng = np.random.default_rng(2)
    graph(tmp_path / "graph", IDS, TITLES, [rng.integers(0, USERS, 30), rng.integers(0, FILMS, 30)])
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=2, method="random", room="user=4,film=2")
    dataset = Dataset.open(tmp_path / "data")
    folder = VersionFolder(dataset.path, dataset.dataset_id)
    folder.path.mkdir()
    return dataset, folder


def published(data: tuple[Dataset, VersionFolder], new: Graph) -> int:
    dataset, folder = data
    version = write_version(folder, dataset, AddedVertices(new).changes(Present.of(folder, dataset)))
    folder.commit(version.number)
    return version.number


def test_a_version_has_rows_edges_and_what_is_in_use(data: tuple[Dataset, VersionFolder], tmp_path: Path) -> None:
    dataset, folder = data
    before = Present.of(folder, dataset)
    # rows in any order; a film that is there, one that is new; user 1 of the folder is new
    new = graph(
        tmp_path / "new", [IDS[3], NEXT + 1, NEXT], ["film-2", "a much longer title"], [[0, 1, 2], [1, 0, 1]], first=5
    )
    assert published(data, new) == 1
    now = Present.of(folder, dataset)
    assert (now.used, now.dataset.schema.room) == ({"user": 2, "film": 1}, {"user": 2, "film": 1})
    assert now.edge_ids == {RATES: 33}

    def rows(present: Present, node_type: str, name: str) -> np.ndarray:
        return np.concatenate([present.rows((node_type, name), part) for part in range(2)])

    at = dataset.to_internal("user", [NEXT, NEXT + 1])
    assert rows(now, "user", "x")[at].tolist() == [[6, 7], [6, 7]]
    assert rows(now, "user", "y")[at].tolist() == [2, 1]
    kept = np.setdiff1d(np.arange(USERS + 4), at)
    assert np.array_equal(rows(now, "user", "x")[kept], rows(before, "user", "x")[kept])
    names = to_strings(rows(now, "film", "name"))[dataset.sorted_internal("film")]
    assert names.tolist() == [*TITLES, "a much longer title", ""]
    found = set()
    for part in range(2):
        csc, low = now.edges(RATES, part).csc(RATES), dataset.book.range("film", part)[0]
        for row, (start, stop) in enumerate(zip(csc.indptr[:-1], csc.indptr[1:], strict=True)):
            ids = dataset.ids("user")[csc.indices[start:stop]].tolist()
            film = int(dataset.ids("film")[low + row])
            found |= {(s, film, e) for s, e in zip(ids, csc.edge_ids[start:stop].tolist(), strict=True) if e >= 30}
    assert found == {(int(IDS[3]), FILMS, 30), (NEXT + 1, 2, 31), (NEXT, FILMS, 32)}
    told = [folder.changed(dataset, part, 1) or {} for part in range(2)]
    assert {of for one in told for of in one} == {
        ("user", "ids"), ("user", "x"), ("user", "y"), ("film", "ids"), ("film", "name"), (RATES, "edges")
    }  # fmt: skip
    for name in ("ids", "x", "y"):  # also where a row is what it was
        assert sorted(np.concatenate([one["user", name] for one in told]).tolist()) == sorted(at.tolist())

    # the next ones; those that have come are there
    assert published(data, graph(tmp_path / "more", [NEXT + 2], ["a much longer title", "last"], [[0], [0]])) == 2
    assert Present.of(folder, dataset).used == {"user": 3, "film": 2}
    late = graph(tmp_path / "late", [NEXT + 2], ["last"], [[0], [0]])
    edges = NewEdges.open(Present.of(folder, dataset), RATES, late.path / f"edges/{RATES}", None)
    assert (edges.sources.tolist(), edges.targets.tolist()) == ([NEXT + 2], [FILMS + 1])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing new": (
        {"ids": IDS[:2], "titles": TITLES[:1]},
        "all of its vertices are there; new edges of these: atta update",
    ),
    "too many": (
        {"ids": range(NEXT, NEXT + 5)},
        "5 new vertices of 'user', there is room for 4: cut the grown graph anew",
    ),
    "a gap": ({"ids": [NEXT, NEXT + 2]}, f"{NEXT + 2} is no vertex of 'user', and new ones get the ids from {NEXT} on"),
    "twice": ({"titles": ["new", "new"]}, "vertices of 'film' need string ids of their own, not 'new'"),
    "no name": ({"titles": ["", "new"]}, "vertices of 'film' need string ids of their own, not ''"),
    "long": ({"titles": ["n" * 33]}, "string ids of 'film' have at most 32 bytes"),
    "no table": ({"ids": [NEXT], "y": None}, r"table user/y: has nothing, must have <i8\[\]"),
    "a table": ({"ids": [NEXT], "z": np.ones(1)}, r"table user/z: has <f8\[\], must have nothing"),
    "dtype": ({"ids": [NEXT], "x": np.ones((1, 2))}, r"table user/x: has <f8\[2\], must have <f4\[2\]"),
    "shape": ({"ids": [NEXT], "x": np.ones((1, 3), np.float32)}, r"table user/x: has <f4\[3\], must have <f4\[2\]"),
    "no weights": (
        {"ids": [NEXT], "titles": TITLES[:1], "ends": [[0], [0]], "weights": False},
        "table user__rates__film/weight",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_does_not_fit_is_refused(data: tuple[Dataset, VersionFolder], tmp_path: Path, why: str) -> None:
    given, told = REFUSED[why]
    new = graph(tmp_path / "new", **{"ids": [], "titles": [], "ends": [[], []], **given})
    with pytest.raises(ConfigError, match=told):
        published(data, new)
    assert data[1].numbers() == []


def test_other_types_and_unused_vertices_are_refused(data: tuple[Dataset, VersionFolder], tmp_path: Path) -> None:
    dataset, folder = data
    with GraphWriter(tmp_path / "other") as out:
        out.add_nodes("person", 1)
    with pytest.raises(UnknownNameError, match="unknown node type 'person'"):
        published(data, Graph.open(tmp_path / "other"))
    with GraphWriter(tmp_path / "numbers") as out:
        out.add_nodes("film", 1)
    with pytest.raises(ConfigError, match="node type 'film' has no string ids, other than the dataset's"):
        published(data, Graph.open(tmp_path / "numbers"))

    def write(of: tuple[str, str], new: NewRows | NewEdges) -> Callable[[], Any]:
        return lambda: write_version(folder, dataset, {of: new})

    rows, ends = np.ones((1, 2), np.float32), {"weight": np.ones(1, np.float32)}
    tries = {
        f"{NEXT} is not a vertex of node type 'user' yet": write(("user", "x"), NewRows(rows, np.array([NEXT]))),
        f"1 rows for {USERS} vertices of user": write(("user", "x"), NewRows(rows, None)),
        f"{FILMS} is not a vertex of node type 'film' yet": write(
            (RATES, "edges"), NewEdges(IDS[:1], np.array([FILMS]), ends)
        ),
    }
    for told, attempt in tries.items():
        with pytest.raises(ConfigError, match=told):
            attempt()
    edges = graph(tmp_path / "edges", IDS[:1], ["unheard of"], [[0], [0]]).path / f"edges/{RATES}"
    with pytest.raises(ConfigError, match="no vertex of 'film' has the string id 'unheard of': see atta update nodes"):
        NewEdges.open(Present.of(folder, dataset), RATES, edges, None)
