"""A follower of a graph in this process: after any history its rows are those of a full pass, and its totals those of all
edges. ``ATTA_HISTORIES`` says how many are drawn for each kind of layers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn import GATConv, GCNConv, GraphConv, SAGEConv, SGConv

from atta.client.inference.block import LayerBlock
from atta.client.inference.reading import Prepared
from atta.client.inference.stages import Stage, layerwise_stages
from atta.client.inference.task import InferenceTask
from atta.daemon.versions import LiveVersions, UpdateService
from atta.errors import StaleRowError
from atta.kvstore.spec import MutableSpec
from atta.partition.dataset import CSC, Part
from atta.samplers.batch.items import EDGES
from atta.samplers.shard import PartEdges, Shard
from atta.train.launching import follow, totals
from atta.train.launching.totals import block_totals
from atta.train.models.own import own_layers
from atta.train.models.sums import layer_sums

CHANNELS, HISTORIES = 4, int(os.environ.get("ATTA_HISTORIES", "50"))
KINDS = {
    "mean": lambda: [SAGEConv(4, 6), torch.nn.ReLU(), SAGEConv(6, 3, normalize=True)],
    "sum": lambda: [SAGEConv(4, 6, "sum"), torch.nn.ReLU(), GraphConv(6, 3), GraphConv(3, 5)],
    "gcn": lambda: [GCNConv(4, 6), torch.nn.Tanh(), GCNConv(6, 3)],
    "bare": lambda: [GCNConv(4, 6, normalize=False), GCNConv(6, 3, normalize=False)],
    "attention": lambda: [GATConv(4, 3, heads=2), torch.nn.ReLU(), SAGEConv(6, 3)],  # from here on some have no totals
    "max": lambda: [GCNConv(4, 6), torch.nn.ReLU(), SAGEConv(6, 5, "max"), GraphConv(5, 3)],
    "hops": lambda: [SGConv(4, 6, K=2), torch.nn.ReLU(), GCNConv(6, 5), SAGEConv(5, 3)],
}


@cache
def made(kind: str) -> tuple[list[Any], list[Stage], int]:
    """Modules, their stages, and the width of the last rows."""
    torch.manual_seed(0)
    modules = KINDS[kind]()
    layers, widths = own_layers(modules, torch.device("cpu"), CHANNELS, {}, None)
    return modules, layerwise_stages(layers, widths, None), widths[-1]


class Killed(Exception):
    """A follower that is no more."""


class KeptTable:
    """A mutable table."""

    def __init__(self, graph: Graph, spec: MutableSpec) -> None:
        self._graph, self.values = graph, np.zeros((spec.rows, *spec.row_shape), spec.dtype)
        self.versions = np.full(spec.rows, -1)

    def pull(self, at: np.ndarray, *, versions: bool = False) -> SimpleNamespace:
        return SimpleNamespace(values=self.values[at], versions=self.versions[at] if versions else None)

    def push(self, at: np.ndarray, values: np.ndarray, *, version: int = -1) -> SimpleNamespace:
        if not self._graph.writes:
            raise Killed
        self._graph.writes -= 1
        self.values[at], self.versions[at] = values, version
        return SimpleNamespace(wait=lambda: None)


class Served(LiveVersions):
    """The versions of one partition."""

    def __init__(self, graph: Graph, part: int) -> None:
        self._graph, self._owner, self._folder = graph, part, graph
        range_ = range(*graph.firsts[part : part + 2])
        book = SimpleNamespace(range=lambda *_: (range_.start, range_.stop))
        self._dataset = SimpleNamespace(schema=graph.schema, book=book, rows=range_)
        self.own = SimpleNamespace(dataset=self._dataset)

    async def _asked_sources(self, version: int) -> dict[tuple[str, str], int]:
        return {("to", EDGES): version}

    async def graph(self, edge_type: str, version: int, *, read: bool = True) -> Shard:
        (source, target), rows = self._graph.ends[version], self._dataset.rows
        mine = np.flatnonzero((target >= rows.start) & (target < rows.stop))
        mine, shard = mine[np.argsort(target[mine], kind="stable")], object.__new__(Shard)
        indptr = np.searchsorted(target[mine], np.arange(rows.start, rows.stop + 1))
        part = Part(Path(), self._owner, np.load, self._dataset.schema, {"node": len(rows)})
        part._csc["to"] = CSC(indptr, source[mine], mine)
        shard._edges = {"to": PartEdges(part, self._dataset.schema, "to", Path())}
        return shard


class AtOnce(ThreadPoolExecutor):
    """Does what is submitted before it returns."""

    def submit(self, fn: Any, /, *args: Any, **more: Any) -> Future[Any]:
        (done := Future[Any]()).set_result(fn(*args, **more))
        return done


LOOP = asyncio.new_event_loop()
LOOP.set_default_executor(AtOnce())


class Graph:
    """All versions of a graph, which two daemons serve, and the tables that they keep: a cluster, as a follower knows it."""

    num_parts, writes = 2, -1

    def __init__(self, rng: np.random.Generator, vertices: int, edges: int, room: int = 0) -> None:
        """``room``: so many more vertices may come."""
        self.rng, self.count, self.firsts = rng, vertices + room, [0, int(rng.integers(1, vertices)), vertices + room]
        self.x = [np.zeros((self.count, CHANNELS), np.float32)]
        self.x[0][:vertices] = rng.standard_normal((vertices, CHANNELS))
        self.ends, self.used = [rng.integers(0, vertices, (2, edges))], [vertices]
        self._changed: list[dict[tuple[str, str], np.ndarray] | None] = [None]
        self._kept: dict[str, KeptTable] = {}
        self.schema = SimpleNamespace(
            edge_types=["to"], endpoints=lambda _: ("node", "node"), check_edge_type=str, check_node_type=str,
            node_counts={"node": self.count}, table=lambda *_: SimpleNamespace(row_shape=(CHANNELS,)),
        )  # fmt: skip
        self.tables, self._services = self, [UpdateService(Served(self, part)) for part in range(2)]

    @property
    def newest(self) -> int:
        return len(self.ends) - 1

    def features(self, count: int) -> None:
        """Publish a version with other rows of some vertices."""
        at, x = np.unique(self.rng.integers(0, self.used[-1], count)), self.x[-1].copy()
        x[at] = self.rng.standard_normal((len(at), CHANNELS))
        self._publish(x, self.ends[-1], {("node", "x"): at})

    def vertices(self, count: int, edges: int) -> None:
        """Publish a version with new vertices, if there is room, some without features, and with edges from and to them."""
        first, x = self.used[-1], self.x[-1].copy()
        new = np.arange(first, min(first + count, self.count))
        x[new] = self.rng.standard_normal((len(new), CHANNELS)) * self.rng.integers(0, 2, (len(new), 1))
        ends = self.rng.integers(0, first + len(new), (2, edges if len(new) else 0))
        ends[self.rng.integers(0, 2), :] = self.rng.choice(new, ends.shape[1]) if len(new) else 0
        changed = {("node", "ids"): new, ("node", "x"): new}
        if ends.size:
            changed["to", EDGES] = np.concatenate([ends[::-1], np.ones((1, ends.shape[1]), int)])
        self._publish(x, np.concatenate([self.ends[-1], ends], axis=1), changed, new=len(new))

    def edges(self, gone: int, new: int) -> None:
        """Publish a version without some edges, and with new ones."""
        before, came = self.ends[-1], self.rng.integers(0, self.used[-1], (2, new))
        chosen = self.rng.choice(before.shape[1], min(gone, before.shape[1]), replace=False)
        signs = np.repeat([-1, 1], [len(chosen), new])
        changed = np.concatenate([np.concatenate([before[:, chosen], came], axis=1)[::-1], [signs]])
        ends = np.concatenate([np.delete(before, chosen, axis=1), came], axis=1)
        self._publish(self.x[-1], ends, {("to", EDGES): changed})

    def _publish(
        self, x: np.ndarray, ends: np.ndarray, changed: dict[tuple[str, str], np.ndarray], new: int = 0
    ) -> None:
        self.x.append(x)
        self.ends.append(ends)
        self.used.append(self.used[-1] + new)
        self._changed.append(changed)

    def forget(self) -> None:
        """The files of all versions are removed."""
        self._changed = [None] * len(self._changed)

    def changed(self, dataset: Any, _: int, number: int) -> dict[tuple[str, str], np.ndarray] | None:
        """See ``VersionFolder.changed``."""
        if (told := self._changed[number]) is None:
            return None
        at = {of: changed[0] if of[1] == EDGES else changed for of, changed in told.items()}
        mine = {of: (rows >= dataset.rows.start) & (rows < dataset.rows.stop) for of, rows in at.items()}
        return {of: changed[..., mine[of]] for of, changed in told.items()}

    def create(self, spec: MutableSpec) -> KeptTable:
        return self._kept.setdefault(spec.name, KeptTable(self, spec))

    def open(self, name: str) -> KeptTable:
        return self._kept[name]

    def ask_all(self, method: str, request: Any) -> list[Any]:
        if method == "UpdateService.Versions":
            return [SimpleNamespace(newest=self.newest)]
        ask = {"UpdateService.Changes": UpdateService.changes, "UpdateService.EdgesFrom": UpdateService.edges_from}[
            method
        ]
        return [LOOP.run_until_complete(ask(service, request, None)) for service in self._services]

    def block(self, stage: Stage, version: int, targets: Sequence[int], read: Any) -> LayerBlock:
        """Some vertices, and all in-edges of those within the hops of a stage but the last. ``read``: rows of tables."""
        ends, near = self.ends[version], np.isin(np.arange(self.count), targets)
        led = np.zeros(ends.shape[1], bool)
        for _ in stage.fan_outs:
            led = near[ends[1]]
            near[ends[0][led]] = True
        order, place = np.concatenate([targets, np.setdiff1d(np.flatnonzero(near), targets)]), np.empty(self.count, int)
        place[order] = np.arange(len(order))
        place = place[ends[:, led]]
        x = [self.x[version] if rows is None else read(rows) for rows in stage.reads.values()] or [
            self.x[version][:, :0]
        ]
        degrees = {rule: read(rows)[order] for rule, rows in stage.degrees.items()}
        return LayerBlock(x[0][order], place[:, np.argsort(place[1], kind="stable")], len(targets), degrees)


class Follower(follow.InferenceFollower):
    """Reads its blocks from the graph in this process."""

    def _keep(self, *_: Any) -> bool:
        return True

    def _user_ids(self, _: str) -> np.ndarray:
        return np.arange(self._cluster.count)

    def _blocks(self, stage: Stage, version: int, _: int) -> Iterator[Prepared]:
        nodes = np.arange(self._cluster.used[version]) if stage.nodes is None else stage.nodes
        assert nodes.max(initial=-1) < self._cluster.used[version]  # a daemon refuses others
        for first in range(0, len(nodes), 5):
            some = nodes[first : first + 5]
            block = self._cluster.block(stage, version, some, lambda rows: self.tables.rows(rows).values)
            yield Prepared(some, some, block, version)


@dataclass
class Following:
    """A graph and what follows it."""

    graph: Graph
    kind: str

    def __post_init__(self) -> None:
        self.modules, stages, width = made(self.kind)
        self._job = SimpleNamespace(task=InferenceTask(("node",), stages, "", 1), width=width, digest=7)
        self.begin()

    def begin(self) -> None:
        """A follower takes the tables over."""
        with mock.patch.object(follow, "_FollowedJob", return_value=self._job):
            self.follower = Follower(self.graph, self.modules, table="rows")

    def rows(self, version: int | None = None) -> np.ndarray:
        used = self.graph.used[-1 if version is None else version]
        return self.follower.tables.read_at(np.arange(used), version)[0]

    def catch_up(self, writes: int = -1) -> bool:
        """Whether it came to the newest version, and was not killed after so many ``writes``."""
        self.graph.writes = writes
        with contextlib.suppress(Killed):
            self.follower.catch_up()
        self.graph.writes = -1
        return self.follower.version == self.graph.newest

    def check(self) -> None:
        count = self.graph.used[-1]
        x, ends = (torch.from_numpy(array) for array in (self.graph.x[-1][:count], self.graph.ends[-1]))
        with torch.no_grad():
            for module in self.modules:
                x = module(x, ends) if hasattr(module, "message") else module(x)
        wanted, found = x.numpy(), self.rows()
        off, size = np.linalg.norm(found - wanted, axis=1), np.linalg.norm(wanted, axis=1)
        assert (off <= 1e-5 * np.maximum(size, 0.1)).all()  # values near 1 may leave little of each other
        for number, running in self.follower._totals.items():
            stage = self.follower._stages[number - 1]
            read = lambda rows: self.follower.tables.rows(rows).values  # noqa: E731
            block = self.graph.block(stage, self.graph.newest, np.arange(count), read)
            kept = self.follower.tables.rows(running._rows).values[:count]
            np.testing.assert_allclose(kept, block_totals(stage.sums, block), rtol=1e-12, atol=1e-12)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads of torch cost more than sums of a few rows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(180 + HISTORIES)
@settings(max_examples=HISTORIES, deadline=None)
@given(
    st.integers(2, 12), st.integers(0, 40), st.integers(0, 8), st.sampled_from([256, 2048, 1 << 20]),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_rows_are_those_of_a_full_pass_after_any_history(
    kind: str, vertices: int, edges: int, room: int, nbytes: int, random: Random
) -> None:
    """Of features, edges and vertices that come, also where a daemon tells few edges, and few vertices, at a time, where
    files of versions have gone, and where a follower is killed and another one goes on, perhaps to a later version."""
    graph = Graph(np.random.default_rng(random.getrandbits(32)), vertices, edges, room)
    following = Following(graph, kind)
    with mock.patch.object(totals, "_BLOCK_BYTES", nbytes):
        assert following.catch_up()
        following.check()
        for _ in range(4):
            since = following.follower.version
            before = following.rows(since)
            for _ in range(random.choice([1, 1, 2])):
                if random.random() < 0.3:
                    graph.vertices(random.randrange(1, 4), random.randrange(5))
                elif random.random() < 0.3:
                    graph.features(random.randrange(3))
                else:
                    graph.edges(random.randrange(4), random.randrange(4))
            if random.random() < 0.1:
                graph.forget()
            if random.random() < 0.3 and not following.catch_up(random.randrange(12)):
                np.testing.assert_array_equal(following.rows(since), before)
                if random.random() < 0.5:
                    graph.edges(random.randrange(2), random.randrange(2))
                following.begin()
            assert following.catch_up()
            following.check()
            with contextlib.suppress(StaleRowError):  # two versions were followed, one after the other
                np.testing.assert_array_equal(following.rows(since), before)


def test_running_totals_do_not_drift() -> None:
    following = Following(Graph(np.random.default_rng(0), 10, 60), "gcn")
    for _ in range(300):
        following.catch_up()
        following.graph.edges(2, 2)
    following.catch_up()
    following.check()


def test_totals_that_are_no_numbers_are_computed_anew() -> None:
    following = Following(graph := Graph(np.random.default_rng(0), 6, 0), "mean")
    following.catch_up()
    table = graph.open("rows.totals-1")
    table.values[2] = np.inf
    table.values[4], table.versions[4] = 7, -1  # was never written
    came = np.array([[2, 4, 5], [0, 1, 1], [1, 1, 1]])
    graph._publish(graph.x[-1], came[[1, 0]], {("to", EDGES): came})
    assert following.catch_up()
    following.check()


def test_layers_that_do_more_than_to_add_up_have_no_totals() -> None:
    cpu, changed = torch.device("cpu"), SAGEConv(4, 3)
    changed.message = lambda x_j: 2 * x_j
    others = [GATConv(4, 3), SAGEConv(4, 3, "max"), SAGEConv(4, 3, project=True), GCNConv(4, 3, improved=True), changed]
    assert [layer_sums(conv, cpu) for conv in others] == [None] * len(others)
    assert layer_sums(SAGEConv(4, 3), cpu).widths == {"": 4}  # of shorter rows, and a count
    assert layer_sums(GCNConv(4, 6), cpu).widths == {"": 4}
