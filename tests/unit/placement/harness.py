"""A cluster without processes: every partition in one place. The daemon's own functions run the tasks in any order."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from atta import _native
from atta.daemon.engine.access import ClusterAccess
from atta.daemon.engine.tasks import RemoteContext, TaskResult, is_program, run_local, run_program, run_remote
from atta.daemon.peers.links import LinkedOwners, LinkSteps, Numbers, register
from atta.daemon.peers.owners import Owners, PullsUnderWay
from atta.daemon.peers.sockets import Attaching
from atta.daemon.versions import VersionView
from atta.kvstore.cache import EdgeCache, RowCache
from atta.kvstore.cache.choice import HotVertices, edge_types_into
from atta.kvstore.store import Store
from atta.partition.cutting.writer import write_dataset
from atta.partition.dataset import Dataset
from atta.partition.graph import Graph, GraphWriter
from atta.protos.v1 import graph_pb2
from atta.samplers.batch.items import BatchSeeds, FeatureItem, SampleItem
from atta.samplers.batch.layout import BatchArrays, layout_of
from atta.samplers.batch.state import NO_SOURCES, BatchState
from atta.samplers.batch.vertices import CompactorPool
from atta.samplers.dag.instance import DagInstance, Kind, Lane, Task
from atta.samplers.dag.spec import check_spec, neighbor_spec
from atta.samplers.shard import Answer, Shard

POOL = ThreadPoolExecutor(1)


@dataclass
class Typed:
    """A graph as its user knows it: user ids by node type, edges in user ids by edge type, and times of vertices."""

    ids: dict[str, np.ndarray]
    edges: dict[str, tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]
    times: dict[str, np.ndarray] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        with GraphWriter(folder) as out:
            for node_type, ids in self.ids.items():
                tables = {"x": np.stack([ids, -ids], axis=1).astype(np.float32)}
                tables |= {"time": self.times[node_type]} if node_type in self.times else {}
                out.add_nodes(node_type, len(ids), ids=ids, tables=tables)
            for edge_type, (src, dst, tables) in self.edges.items():
                source, _, target = edge_type.split("__")
                out.add_edges(edge_type, self.rows(source, src), self.rows(target, dst), tables=tables)
        return folder

    def rows(self, node_type: str, ids: np.ndarray) -> np.ndarray:
        order = np.argsort(self.ids[node_type])
        return order[np.searchsorted(self.ids[node_type][order], ids)]

    def place(self, folder: Path, assignment: dict[str, np.ndarray], parts: int) -> Placed:
        dataset = folder.with_name(f"{folder.name}-{parts}-{random.getrandbits(60)}")
        write_dataset(Graph.open(folder), assignment, dataset, parts)
        return Placed(Dataset.open(dataset))


class Neighbour:
    """Answers a task's requests to a peer from a partition's shard and tables, edges of a few rows at a time."""

    address = "nowhere"
    connected = True

    def __init__(self, shard: Shard, store: Store) -> None:
        self._shard, self._store = shard, store

    async def sample(self, item: SampleItem, *, age_ms: int = 0) -> tuple[Answer, int]:
        await asyncio.sleep(0)
        return ask(self._shard, item, slice(0, 3)), 0

    async def pull(self, item: FeatureItem, codec: str = "", *, age_ms: int = 0) -> memoryview:
        await asyncio.sleep(0)
        tables = [self._store.table(item.node_type, name) for name in item.tables]
        return memoryview(self._store.pack(tables, item.rows, b"", codec))

    async def pair(self, edge_type, rows, *, count, negative, stream_key, version=0):
        return self._shard.pair(edge_type, rows, count=count, negative=negative, stream_key=stream_key)

    async def probe(self, edge_type, question, rows, operands=None, *, version=0):
        if question == graph_pb2.ProbeRequest.DEGREE:
            return self._shard.degrees(edge_type, rows)
        if question == graph_pb2.ProbeRequest.DIGEST:
            return self._shard.digests(edge_type, rows)
        assert operands is not None
        if question == graph_pb2.ProbeRequest.STEP:
            return self._shard.step(edge_type, rows, operands)
        return self._shard.contains(edge_type, rows, operands).astype(np.int64)


class Placed:
    """All partitions of a dataset. The daemons' own functions run the tasks, in any order."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.shards = [Shard(dataset, part, resident=part % 2 == 1) for part in range(dataset.num_parts)]
        self.stores = [Store(dataset, part) for part in range(dataset.num_parts)]
        self.links = [_native.Links(1) for _ in self.shards]
        for links, shard, store in zip(self.links, self.shards, self.stores, strict=True):
            register(links, Numbers(dataset.schema), shard, store)
        self.expanded_elsewhere = 0  # number of tasks in which other partitions expanded vertices

    def __getitem__(self, part: int) -> Neighbour:
        return Neighbour(self.shards[part], self.stores[part])

    def run(self, plan, seeds, at, *, home, order, copied=None):
        """One batch. ``order`` shuffles its ready tasks. A second run with cached rows must give the same batch. ``copied``:
        of which remote vertices the in-edges are at home, "none", "some" or "all"; None: any of these."""
        edges = Copied(self, home, order, copied or order.choice(["none", "some", "all"]))
        limit, rank = order.choice([0, 50, 10_000]), order.choice(["degree", "recent"])
        cache = RowCache.of(self.dataset, home, limit_bytes=limit, rank=rank)
        out = self._batch(plan, seeds, at, home, order, cache, edges)
        if order.random() < 0.3:
            again = self._batch(plan, seeds, at, home, order, cache, edges)
            for name in out.arrays:
                assert np.array_equal(out.filled(name), again.filled(name)), name
        return out

    def hops(self, graph, how, seed_type, seeds, at, *, times=None, **run):
        plan = check_spec(neighbor_spec(self.dataset.schema, how, seed_type=seed_type), self.dataset.schema)
        internal = self.dataset.to_internal(seed_type, graph.ids[seed_type][seeds])
        return plan, self.run(plan, BatchSeeds(internal, np.arange(len(seeds)), times=times), at, **run)

    def view(self, home: int, edges: EdgeCache | None, rows: RowCache) -> VersionView:
        return VersionView(0, self.stores[home], NO_SOURCES, self.dataset, self.shards[home], rows, edges)

    def _batch(self, plan, seeds, at, home, order, cache, edges):
        layout = layout_of(plan, self.dataset.schema, len(seeds.ids), edge_ids=True, wide_ids=order.random() < 0.5)
        out = BatchArrays.over(layout, np.empty(layout.capacity, dtype=np.uint8))
        state = BatchState(
            plan, self.dataset, home=home, at=at, seeds=seeds, out=out,
            compactors=CompactorPool(self.dataset.schema.node_counts), degree=self.shards[home].degree,
            kept=edges.cache, rows=cache,
        )  # fmt: skip
        pulls = order.choice([None, PullsUnderWay(POOL, self.dataset.schema.node_counts)])
        at_once = order.choice([0, 1 << 20])
        peers, view = cast(Any, self), self.view(home, edges.cache, cache)
        linked = Linked(self, home, at_once) if order.random() < 0.5 else None
        owners = linked.owners if linked is not None else Owners(peers, self.dataset, POOL, at_once=at_once)

        async def run(task: Task) -> TaskResult:
            if task.lane is Lane.CPU:
                return run_local(state, task, view)
            if is_program(task, home):
                return await run_program(state, task, ClusterAccess(self.shards[home], peers, POOL), POOL)
            self.expanded_elsewhere += task.kind is Kind.NEIGHBORHOOD
            context = RemoteContext(peers, owners, cache, POOL, pulls, at_once=at_once)
            return await run_remote(state, task, context)

        async def make() -> None:
            dag = DagInstance(plan, home, chunk_rows=5)
            ready = dag.start()
            while ready:
                task = ready.pop(order.randrange(len(ready)))
                edges.more(order.choice([0, 0, 1, 5]))
                if linked is not None and order.random() < 0.05:
                    linked.lose_one(order)
                result = await run(task)
                ready += dag.done(task, result.growth, result.expand)
            assert dag.finished

        async def over_links() -> None:
            with linked.open():
                await make()

        asyncio.run(make() if linked is None else over_links())
        return out


class Linked:
    """The links of one partition's daemon to all others. What a lost link does not answer is asked by messages."""

    missing: frozenset[int] = frozenset()

    def __init__(self, placed: Placed, home: int, at_once: int) -> None:
        self._links, self._others = _native.Links(1), [owner for owner in range(len(placed.shards)) if owner != home]
        for owner in self._others:
            near, far = socket.socketpair()
            for end in (near, far):
                end.setblocking(False)
            placed.links[owner].serve(far.detach())
            self._links.attach(owner, near.detach())
        self._steps = LinkSteps(self._links, 60.0, self._nobody_is_silent)
        attaching = cast(Attaching, self)  # all are attached, and what is lost stays lost
        own, peers = (self._links, self._steps, attaching), cast(Any, placed)
        self.owners = LinkedOwners(*own, peers=peers, dataset=placed.dataset, pool=POOL, at_once=at_once)

    async def _nobody_is_silent(self, owners: list[int]) -> None:
        pass

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        self._steps.open()
        try:
            yield
        finally:
            self._steps.close()
            self._links.close()

    def lose_one(self, order: random.Random) -> None:
        if self._others:
            self._links.detach(order.choice(self._others))

    def lost(self, owner: int) -> None:
        assert not self._links.attached(owner), "a link that works has not answered all it was asked"


class Copied:
    """A cache of in-edges of other partitions' vertices: of "none", or of "all". Or of "some": of these, some are there
    at once, and others come while a batch is made."""

    def __init__(self, placed: Placed, home: int, order: random.Random, which: str) -> None:
        schema, book = placed.dataset.schema, placed.dataset.book
        self._placed, self.cache = placed, EdgeCache(placed.dataset, home, limit_bytes=1 << 20)
        hot = []
        for node_type in schema.node_types:
            low, high = book.range(node_type, home)
            others = [v for v in range(schema.node_counts[node_type]) if not low <= v < high]
            count = {"none": 0, "some": order.randint(0, len(others)), "all": len(others)}[which]
            ids = np.array(order.sample(others, count), dtype=np.int64)
            degrees = [[self._ask("degrees", e, node_type, v)[0] for e in self._into(node_type)] for v in ids]
            if count:
                hot.append(HotVertices(node_type, ids, np.array(degrees, dtype=np.int64).reshape(count, -1)))
        self.cache.reserve(hot)
        self._left = [(of_type, row) for of_type in hot for row in range(len(of_type.ids))]
        order.shuffle(self._left)
        self.more(len(self._left) if which == "all" else order.randint(0, len(self._left)))
        if which == "all" or order.random() < 0.5:
            self._left.clear()  # as in daemons: nothing comes after that
            self.cache.completed()

    def more(self, count: int) -> None:
        for _ in range(min(count, len(self._left))):
            hot, row = self._left.pop()
            vertex, types = int(hot.ids[row]), self._into(hot.node_type)
            every: dict[str, Any] = {"fan_out": -1, "replace": False, "stream_key": 0}
            answers = [self._ask("sample", e, hot.node_type, vertex, **every) for e in types]
            digests = [self._ask("digests", e, hot.node_type, vertex) for e in types]
            assert self.cache.keep(hot.node_type, row, answers, digests)

    def _into(self, node_type: str) -> tuple[str, ...]:
        return edge_types_into(self._placed.dataset.schema, node_type)

    def _ask(self, what: str, edge_type: str, node_type: str, vertex: int, **how: Any) -> Any:
        offsets = self._placed.dataset.book.offsets[node_type]
        owner = int(np.searchsorted(offsets, vertex, side="right")) - 1
        return getattr(self._placed.shards[owner], what)(edge_type, np.array([vertex - offsets[owner]]), **how)


def ask(shard: Shard, item: SampleItem, part: slice) -> Answer:
    trees, times = (None if of is None else of[part] for of in (item.trees, item.times))
    how = {name: getattr(item, name) for name in ("fan_out", "replace", "stream_key", "renewed", "method", "tables")}
    return shard.sample(item.edge_type, item.rows[part], trees=trees, times=times, **how)
