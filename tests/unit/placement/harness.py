"""A cluster without processes: every partition in one place. The daemon's own functions run the tasks in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.daemon.engine.access import ClusterAccess
from atta.daemon.engine.pulls import RemoteContext
from atta.daemon.engine.tasks import TaskResult, is_program, run_local, run_program, run_remote
from atta.daemon.peers.answers import PulledRows, SampledRows
from atta.daemon.peers.owners import Owners
from atta.daemon.peers.underway import PullsUnderWay
from atta.kvstore.cache import RowCache
from atta.kvstore.store import Store
from atta.partition.cutting.writer import write_dataset
from atta.partition.dataset import Dataset
from atta.partition.graph import Graph, GraphWriter
from atta.protos.v1 import graph_pb2
from atta.samplers.batch.items import BatchSeeds, FeatureItem, SampleItem, StreamPosition
from atta.samplers.batch.layout import BatchArrays, layout_of
from atta.samplers.batch.state import BatchState
from atta.samplers.batch.vertices import CompactorPool
from atta.samplers.dag.instance import DagInstance, Lane, Task
from atta.samplers.dag.spec import Plan
from atta.samplers.shard import Answer, Shard

POOL = ThreadPoolExecutor(1)


@dataclass
class Typed:
    """A graph as its user knows it: user ids by node type, and edges in user ids by edge type."""

    ids: dict[str, np.ndarray]
    edges: dict[str, tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]

    def write(self, folder: Path) -> Path:
        with GraphWriter(folder) as out:
            for node_type, ids in self.ids.items():
                out.add_nodes(
                    node_type, len(ids), ids=ids, tables={"x": np.stack([ids, -ids], axis=1).astype(np.float32)}
                )
            for edge_type, (src, dst, tables) in self.edges.items():
                source, _, target = edge_type.split("__")
                out.add_edges(edge_type, self.rows(source, src), self.rows(target, dst), **tables)
        return folder

    def rows(self, node_type: str, ids: np.ndarray) -> np.ndarray:
        """Positions of user ids."""
        order = np.argsort(self.ids[node_type])
        return order[np.searchsorted(self.ids[node_type][order], ids)]

    def place(self, folder: Path, assignment: dict[str, np.ndarray], parts: int) -> Placed:
        dataset = folder.with_name(f"{folder.name}-{parts}-{random.getrandbits(60)}")
        write_dataset(Graph.open(folder), assignment, dataset, parts)
        return Placed(Dataset.open(dataset))


class Neighbour:
    """Answers a task's requests to a peer (``AskedPeer``) from a partition's shard and tables, in small pieces."""

    address = "nowhere"

    def __init__(self, shard: Shard, store: Store) -> None:
        self._shard, self._store = shard, store

    async def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> AsyncIterator[SampledRows]:
        for item in items:
            for at in range(0, len(item.rows), 3):
                yield SampledRows(item, at, ask(self._shard, item, slice(at, at + 3)), 0)
                await asyncio.sleep(0)

    async def pull(
        self, items: Sequence[FeatureItem], codec: str = "", *, age_ms: int = 0
    ) -> AsyncIterator[PulledRows]:
        for number, item in enumerate(items):
            tables = [self._store.table(item.node_type, name) for name in item.tables]
            for at in range(0, len(item.rows), 4):
                rows = item.rows[at : at + 4]
                yield PulledRows(number, at, len(rows), memoryview(self._store.pack(tables, rows, b"", codec)))
                await asyncio.sleep(0)

    async def pair(
        self, edge_type: str, rows: np.ndarray, *, count: int, negative: bool, stream_key: int
    ) -> np.ndarray:
        return self._shard.pair(edge_type, rows, count=count, negative=negative, stream_key=stream_key)

    async def probe(
        self, edge_type: str, question: Any, rows: np.ndarray, operands: np.ndarray | None = None
    ) -> np.ndarray:
        if question == graph_pb2.ProbeRequest.DEGREE:
            return self._shard.degrees(edge_type, rows)
        assert operands is not None
        if question == graph_pb2.ProbeRequest.STEP:
            return self._shard.step(edge_type, rows, operands)
        return self._shard.contains(edge_type, rows, operands).astype(np.int64)


class Placed:
    """All partitions of a dataset. The daemons' own functions run the tasks, in any order."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.shards = [Shard(dataset, part) for part in range(dataset.num_parts)]
        self.stores = [Store(dataset, part) for part in range(dataset.num_parts)]

    def __getitem__(self, part: int) -> Neighbour:
        return Neighbour(self.shards[part], self.stores[part])

    def run(self, plan: Plan, seeds: BatchSeeds, at: StreamPosition, *, home: int, order: random.Random) -> BatchArrays:
        """One batch. ``order`` shuffles its ready tasks. A second run with cached rows must give the same batch."""
        cache = RowCache(
            self.dataset, home, limit_bytes=order.choice([0, 50, 10_000]), rank=order.choice(["degree", "recent"])
        )
        out = self._batch(plan, seeds, at, home, order, cache)
        if order.random() < 0.3:
            again = self._batch(plan, seeds, at, home, order, cache)
            for name in out.arrays:
                assert np.array_equal(out.filled(name), again.filled(name)), name
        return out

    def _batch(
        self, plan: Plan, seeds: BatchSeeds, at: StreamPosition, home: int, order: random.Random, cache: RowCache
    ) -> BatchArrays:
        layout = layout_of(plan, self.dataset.schema, len(seeds.ids), edge_ids=True, wide_ids=order.random() < 0.5)
        out = BatchArrays.over(layout, np.empty(layout.capacity, dtype=np.uint8))
        state = BatchState(
            plan, self.dataset, home=home, at=at, seeds=seeds, out=out,
            compactors=CompactorPool(self.dataset.schema.node_counts), degree=self.shards[home].degree,
        )  # fmt: skip
        pulls = order.choice([None, PullsUnderWay(POOL)])
        at_once = order.choice([0, 1 << 20])

        async def run(task: Task) -> TaskResult:
            if task.lane is Lane.CPU:
                return run_local(state, task, self.shards[home], self.stores[home])
            if is_program(task, home):
                return await run_program(state, task, ClusterAccess(self.shards[home], self, POOL), POOL)
            owners = Owners(self, self.dataset, POOL, at_once=at_once)
            context = RemoteContext(self, owners, cache, POOL, pulls, at_once=at_once)
            return await run_remote(state, task, context)

        async def make() -> None:
            dag = DagInstance(plan, home, chunk_rows=5)
            ready = dag.start()
            while ready:
                task = ready.pop(order.randrange(len(ready)))
                result = await run(task)
                ready += dag.done(task, result.growth, result.expand)
            assert dag.finished

        asyncio.run(make())
        return out


def ask(shard: Shard, item: SampleItem, part: slice) -> Answer:
    """A shard's answer to a part of a request."""
    return shard.sample(
        item.edge_type,
        item.rows[part],
        fan_out=item.fan_out,
        replace=item.replace,
        stream_key=item.stream_key,
        method=item.method,
        trees=None if item.trees is None else item.trees[part],
        times=None if item.times is None else item.times[part],
        tables=item.tables,
    )
