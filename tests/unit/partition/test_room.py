"""Room: vertices that nobody uses yet, which every method leaves where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError, UnknownNameError
from atta.partition import GraphWriter, partition_graph
from atta.partition.cutting.run import room_of
from atta.partition.dataset import Dataset
from atta.partition.describe import describe
from atta.partition.graph import Graph
from atta.partition.graph.strings import to_rows, to_strings
from atta.partition.schema import Schema

USERS, FILMS = 40, 11
IDS = np.random.default_rng(3).permutation(500)[:USERS].astype(np.int64)
TIMES = np.arange(USERS, dtype=np.int32)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("room") / "graph", np.random.default_rng(0)
    with GraphWriter(path) as out:
        tables = {"x": np.ones((USERS, 3), np.float32), "y": np.arange(USERS), "time": TIMES, "score": np.ones(USERS)}
        out.add_nodes("user", USERS, ids=IDS, tables=tables, splits={"train": np.arange(9)})
        names = to_rows(np.array([f"film {i}" for i in range(FILMS)]))
        out.add_nodes("film", FILMS, tables={"name": names, "y": np.ones((FILMS, 2), np.float32)})
        out.add_edges("user__rates__film", rng.integers(0, USERS, 90), rng.integers(0, FILMS, 90))
    return path


@pytest.mark.parametrize("method", ["metis", "ldg", "fennel", "block", "random"])
def test_every_method_leaves_room_in_every_partition(graph: Path, tmp_path: Path, method: str) -> None:
    partition_graph(graph, tmp_path / "plain", parts=3, method=method)
    partition_graph(graph, tmp_path / "data", parts=3, method=method, room="user=7,film=25%")
    plain, dataset = Dataset.open(tmp_path / "plain"), Dataset.open(tmp_path / "data")
    assert describe(tmp_path / "data")["room"] == {"user": 7, "film": 3}
    assert plain.schema.room == {}
    new = {"user": IDS.max() + 1 + np.arange(7), "film": FILMS + np.arange(3)}
    for node_type, ids in new.items():
        assert dataset.schema.in_use(node_type) == plain.schema.node_counts[node_type]
        used = np.sort(plain.ids(node_type))
        assert dataset.sorted_ids(node_type).tolist() == [*used.tolist(), *ids.tolist()]
        assert dataset.ids(node_type)[dataset.used(node_type)].tolist() == used.tolist()
        owners = dataset.book.owner(node_type, dataset.to_internal(node_type, ids))
        assert owners.tolist() == [i % 3 for i in range(len(ids))]
        before = plain.book.owner(node_type, plain.to_internal(node_type, used))
        assert dataset.book.owner(node_type, dataset.to_internal(node_type, used)).tolist() == before.tolist()
        with pytest.raises(ConfigError, match=f"{ids[0]} is not a vertex of node type '{node_type}' yet"):
            dataset.to_used(node_type, ids[:1])
        later = dataset.with_used({node_type: 2})
        assert later.to_used(node_type, ids[:2]).tolist() == dataset.to_internal(node_type, ids[:2]).tolist()
        with pytest.raises(ConfigError, match=f"{ids[2]} is not a vertex of node type '{node_type}' yet"):
            later.to_used(node_type, ids[1:3])
    known = {("user", "x"): 0, ("user", "y"): -1, ("user", "time"): np.iinfo(np.int32).max, ("user", "score"): 0}
    for (node_type, name), value in {**known, ("film", "y"): np.nan, ("film", "name"): 0}.items():
        rows = np.concatenate([dataset.part(p).table(node_type, name) for p in range(3)])
        at = dataset.to_internal(node_type, new[node_type])
        np.testing.assert_array_equal(rows[at], np.full_like(rows[at], value))
        old = np.concatenate([plain.part(p).table(node_type, name) for p in range(3)])[plain.used(node_type)]
        found = rows[dataset.used(node_type)]
        if name == "name":
            assert found.shape == (FILMS, 32), "names of those that come may be longer"
            assert to_strings(found).tolist() == to_strings(old).tolist()
        else:
            np.testing.assert_array_equal(found, old)
    degrees = dataset.degrees("user__rates__film")
    assert not degrees.out[dataset.to_internal("user", new["user"])].any()
    assert not degrees.into[dataset.to_internal("film", new["film"])].any()
    times = dataset.times("user")
    assert times is not None
    assert times.existing(np.array([10**9])).tolist() == [USERS], "those of the room never exist"
    # a dataset that extends it does not hold new vertices where room was
    partition_graph(graph, tmp_path / "later", parts=3, method="extend", options={"data": str(tmp_path / "data")})
    later = Dataset.open(tmp_path / "later")
    for node_type in new:
        assert np.array_equal(later.sorted_internal(node_type), plain.sorted_internal(node_type))


def test_what_room_says() -> None:
    schema = Schema(("a", "b"), (), {"a": 1000, "b": 3}, {})
    assert room_of(schema, 0) == room_of(schema, "0") == {}
    assert room_of(schema, 7) == {"a": 7, "b": 7}
    assert room_of(schema, "5%") == {"a": 50, "b": 1}
    assert room_of(schema, "a=5, b=0") == {"a": 5}
    for wrong in ("", "a", "-3", "1.5%", "a=", "9999999999999999999"):
        with pytest.raises(ConfigError, match="--room"):
            room_of(schema, wrong)
    with pytest.raises(UnknownNameError, match="unknown node type 'c'"):
        room_of(schema, "c=4")
    with pytest.raises(ConfigError, match="node type 'b': 4 is no number of vertices that nobody uses"):
        Schema(("a", "b"), (), {"a": 1000, "b": 3}, {}, room={"b": 4})
    saved = Schema(("a", "b"), (), {"a": 1000, "b": 3}, {}, room={"b": 2})
    assert Schema.from_json(saved.to_json()) == saved


def test_ids_end_somewhere(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 2, ids=np.array([1, 2**63 - 3]))
        out.add_edges("node__to__node", np.zeros(0, np.int64), np.zeros(0, np.int64))
    graph = Graph.open(tmp_path / "graph")
    assert graph.with_room({}) is graph
    ids = graph.with_room({"node": 2}).user_ids("node")
    assert ids is not None
    assert ids.tolist() == [1, 2**63 - 3, 2**63 - 2, 2**63 - 1]
    with pytest.raises(ConfigError, match="--room 3: ids of 'node' end at 2"):
        graph.with_room({"node": 3})
