"""New vertices on real daemons: batches and rows are those of the grown graph, and nobody sees room that is not used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.client.tables.versions import publish_edges, publish_vertices
from atta.errors import ConfigError, UnknownNameError
from atta.partition import GraphWriter, partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph.strings import to_rows
from tests.addresses import held_addresses
from tests.system.running import Running
from tests.system.test_inference import checkpoint

OLD, NEW, ROOM, CHANNELS = 300, 5, 7, 8
EDGES, NEW_EDGES = 700, 12


class Growing:
    """Daemons of a graph with room, one of partition 0, one of partitions 1 and 2, and all that it grows to. Rows of
    ``ids``, ``names``, ``x`` and ``y`` are vertices, the old ones first; so are ``ends``."""

    def __init__(self, folder: Path, seed: int, *, strings: bool) -> None:
        rng, count = np.random.default_rng(seed), OLD + ROOM
        self.folder, self.strings = folder, strings
        old = np.arange(OLD) if strings else np.sort(rng.permutation(10 * OLD)[:OLD])
        self.ids = np.concatenate([old, old.max() + 1 + np.arange(ROOM)]).astype(np.int64)
        self.names = np.array([f"p{i}" if i < OLD else f"a new one, {i}" for i in range(count)])
        self.x = rng.standard_normal((count, CHANNELS)).astype(np.float32)
        self.y = rng.integers(0, 4, count)
        came = rng.integers(0, OLD + NEW, (2, NEW_EDGES))
        came[0, ::2], came[1, 1::2] = (OLD + rng.integers(0, NEW, NEW_EDGES // 2) for _ in range(2))
        self.ends = np.concatenate([rng.integers(0, OLD, (2, EDGES)), came], axis=1)
        self.data = folder / "data"
        partition_graph(self.write("old", np.arange(OLD), EDGES), self.data, parts=3, method="random", room=ROOM)
        self.model, self.gnn = checkpoint(folder / "model", "sage", 2, CHANNELS)
        self.addresses, self.running = held_addresses(2), Running()
        peers = {part: self.addresses[part > 0] for part in range(3)}
        self.daemons = [
            self.running.start(self.data, parts, address, peers, model=str(self.model), buffer_bytes=64 << 20)
            for parts, address in zip((range(1), range(1, 3)), self.addresses, strict=True)
        ]
        self.cluster = atta.connect(self.addresses, deadline_s=20)

    def write(self, name: str, rows: np.ndarray, stop: int, first: int = 0) -> Path:
        """A graph folder of some vertices, in this order, and of the edges between ``first`` and ``stop``."""
        place = np.full(len(self.ids), -1)
        place[rows] = np.arange(len(rows))
        names = {"name": to_rows(self.names[rows])} if self.strings else {}
        with GraphWriter(self.folder / name) as out:
            tables = {"x": self.x[rows], "y": self.y[rows], **names}
            splits = {"train": np.arange(0, OLD, 3)} if len(rows) >= OLD else {}
            out.add_nodes("node", len(rows), ids=None if self.strings else self.ids[rows], tables=tables, splits=splits)
            weights = np.arange(first, stop).astype(np.float32)
            out.add_edges("node__to__node", *place[self.ends[:, first:stop]], tables={"weight": weights})
        return self.folder / name

    def write_new(self) -> Path:
        """The new vertices after those old ones that their edges lead from or to."""
        ends = np.unique(self.ends[:, EDGES:])
        return self.write(
            "new", np.concatenate([ends[ends < OLD][::-1], np.arange(OLD, OLD + NEW)]), EDGES + NEW_EDGES, EDGES
        )

    def called(self, rows: np.ndarray) -> np.ndarray:
        return self.names[rows] if self.strings else self.ids[rows]

    def wanted(self, count: int, edges: int) -> np.ndarray:
        """Scores of all vertices by the model on the whole graph at once."""
        with torch.no_grad():
            return np.asarray(self.gnn(torch.from_numpy(self.x[:count]), torch.from_numpy(self.ends[:, :edges])))

    def seen(self) -> list[Any]:
        """All that enumerates vertices, as what they are called."""
        everything = atta.predict(self.cluster, self.model, what="scores")
        batches = [*atta.NeighborLoader(self.cluster, [2], None, batch_size=64, tables=["x"])]
        offered = self.cluster.recommend(self.called(np.arange(1)), OLD + ROOM)
        ids = np.concatenate([batch.n_id()[: batch.batch_size] for batch in batches])
        return [sorted(everything.ids.tolist()), sorted(ids.tolist()), sorted(offered.ids[:, 1].tolist())]


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.slow), True], ids=["numbers", "strings"])
def growing(tmp_path: Path, seed: int, request: pytest.FixtureRequest) -> Iterator[Growing]:
    found = Growing(tmp_path, seed, strings=request.param)
    yield found
    found.cluster.close()
    found.running.kill_all()


def expected(growing: Growing, count: int, edges: int) -> list[Any]:
    all_ = np.arange(count)
    free = np.setdiff1d(all_, [0, *growing.ends[1, :edges][growing.ends[0, :edges] == 0]])
    return [
        sorted(growing.called(all_).tolist()),
        sorted(growing.ids[all_].tolist()),
        sorted(growing.called(free).tolist()),
    ]


def of_batches(cluster: atta.Cluster, growing: Growing, count: int) -> list[Any]:
    found: list[Any] = []
    how: dict[str, Any] = {"batch_size": 32, "seed_policy": "global", "shuffle": True}
    for seeds in (None, growing.ids[:count]):
        for batch in atta.NeighborLoader(cluster, [3, 2], seeds, edge_tables=["weight"], **how):
            edges = batch.edge_index().tolist(), batch.edge_table("weight").tolist()
            found.append((batch.n_id().tolist(), *edges, batch.table("x").tolist(), batch.table("y").tolist()))
    pairs = growing.ids[growing.ends[:, :200]]
    for strategy in ("uniform", "degree", "exact"):
        negatives: Any = {"mode": "triplet" if strategy == "degree" else "binary", "strategy": strategy}
        links: Any = {"edge_label_index": pairs, "neg_sampling": negatives, "tables": []}
        for batch in atta.LinkNeighborLoader(cluster, [2], **links, **how):
            found.append((batch.n_id().tolist(), batch.edge_index().tolist()))
    return found


def rows_of(found: Any, ids: np.ndarray) -> np.ndarray:
    order = np.argsort(found.ids)
    return np.asarray(found.values[order][np.searchsorted(found.ids[order], ids)])


def test_new_vertices_are_as_if_they_had_always_been_there(growing: Growing, tmp_path: Path) -> None:
    cluster, new, last = growing.cluster, np.arange(OLD, OLD + NEW), growing.called(np.arange(OLD + NEW - 1, OLD + NEW))
    follower = atta.InferenceFollower(cluster, growing.model, table="rows", what="scores")
    assert follower.catch_up() is not None
    assert growing.seen() == expected(growing, OLD, EDGES)
    for ids in (last, growing.called(np.arange(OLD + ROOM - 1, OLD + ROOM))):
        with pytest.raises(UnknownNameError):
            cluster.predict(ids)
        with pytest.raises(ConfigError):
            atta.predict(cluster, growing.model, ids)
    if growing.strings:
        with pytest.raises(UnknownNameError):
            cluster.ids.numbers(np.array([""]))

    words = f"update nodes --cluster {','.join(growing.addresses)} --data {growing.data} --from {growing.write_new()} --json -"
    told = CliRunner().invoke(cli, words.split(), catch_exceptions=False)
    report = json.loads(told.output)
    assert (report["version"], report["edges"]) == (1, {"node__to__node": NEW_EDGES})
    assert report["ids"] == {"node": growing.ids[new].tolist()}
    assert growing.seen() == expected(growing, OLD + NEW, EDGES + NEW_EDGES)

    done, wanted = follower.catch_up(), growing.wanted(OLD + NEW, EDGES + NEW_EDGES)
    assert done is not None
    assert done.since == 0
    assert NEW < done.computed < OLD
    found, version = follower.tables.read(growing.ids[: OLD + NEW])
    assert version == 1
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    every = atta.predict(cluster, growing.model, what="scores")
    assert every is not None
    np.testing.assert_allclose(rows_of(every, growing.called(np.arange(OLD + NEW))), wanted, rtol=1e-5, atol=1e-5)
    answer = cluster.predict(growing.called(new), "scores")
    np.testing.assert_allclose(answer.values, wanted[new], rtol=1e-5, atol=1e-5)
    if growing.strings:
        assert cluster.ids.numbers(growing.names[new]).tolist() == growing.ids[new].tolist()
        assert cluster.ids.strings(growing.ids[new]).tolist() == growing.names[new].tolist()

    grown = growing.write("grown", np.arange(OLD + NEW), EDGES + NEW_EDGES)
    partition_graph(grown, tmp_path / "grown-data", parts=2, method="metis")
    with atta.local(tmp_path / "grown-data", threads=1) as anew:
        assert of_batches(cluster, growing, OLD + NEW) == of_batches(anew, growing, OLD + NEW)


def test_room_is_taken_in_order_and_no_further(growing: Growing, tmp_path: Path) -> None:
    where, folder = dict(enumerate(growing.addresses)), growing.write_new()
    loader = atta.NeighborLoader(growing.cluster, [2], None, batch_size=64, tables=["x"])
    earlier = iter(loader)
    assert publish_vertices(growing.data, folder, where).number == 1
    seen = sum(batch.batch_size for batch in earlier)
    assert seen == OLD, "a session has the vertices of its version"
    with pytest.raises(ConfigError, match=r"new: all of its vertices are there; new edges of these: atta update edges"):
        publish_vertices(growing.data, folder, where)

    rest = growing.write("rest", np.arange(OLD + NEW, OLD + ROOM), 0)
    done = publish_vertices(growing.data, rest, where)
    assert (done.number, done.rows, done.edges) == (2, ROOM - NEW, {})
    assert done.ids["node"].tolist() == growing.ids[OLD + NEW :].tolist()
    # edges find the vertices that have come, by their ids or names
    late = np.array([[OLD + ROOM - 1, 3], [0, OLD]])
    growing.ends = np.concatenate([growing.ends, late], axis=1)
    first = EDGES + NEW_EDGES
    edges = growing.write("late", np.arange(OLD + ROOM)[::-1], first + 2, first) / "edges/node__to__node"
    assert publish_edges(growing.data, None, where, added=edges).number == 3
    assert growing.seen() == expected(growing, OLD + ROOM, first + 2)

    growing.ids, growing.names = np.append(growing.ids, growing.ids.max() + 1), np.append(growing.names, "one more")
    growing.x, growing.y = (np.concatenate([rows, rows[:1]]) for rows in (growing.x, growing.y))
    more = growing.write("more", np.arange(OLD + ROOM, OLD + ROOM + 1), 0)
    with pytest.raises(
        ConfigError, match="1 new vertices of 'node', there is room for 0: cut the grown graph anew, atta"
    ):
        publish_vertices(growing.data, more, where)
    assert Dataset.open(growing.data).schema.room == {"node": ROOM}
    # who starts later finds all of it
    growing.running.kill(growing.addresses[0])
    peers = {part: growing.addresses[part > 0] for part in range(3)}
    growing.running.start(growing.data, range(1), growing.addresses[0], peers, model=str(growing.model))
    with atta.connect(growing.addresses, deadline_s=20, wait=True) as cluster:
        assert cluster.schema.in_use("node") == OLD + ROOM
        assert sum(b.batch_size for b in atta.NeighborLoader(cluster, [2], None, batch_size=64)) == OLD + ROOM
