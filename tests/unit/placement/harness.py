"""A cluster without processes: every partition's shard in one place, tasks in any order, the same steps as in a daemon."""

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
from atta.partition.cutting.writer import write_dataset
from atta.partition.dataset import Dataset
from atta.partition.graph import Graph, GraphWriter
from atta.protos.v1 import graph_pb2
from atta.samplers.batch.layout import BatchArrays, layout_of
from atta.samplers.batch.state import BatchSeeds, BatchState, SampleItem, StreamPosition
from atta.samplers.batch.vertices import CompactorPool
from atta.samplers.dag.instance import DagInstance, Kind, Task
from atta.samplers.dag.spec import Plan
from atta.samplers.shard import Answer, Shard

POOL = ThreadPoolExecutor(1)


@dataclass
class Typed:
    """A graph as its user knows it: user ids by node type, edges by edge type, in user ids."""

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


class Placed:
    """All shards of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.shards = [Shard(dataset, part) for part in range(dataset.num_parts)]

    def __getitem__(self, part: int) -> Placed._Peer:
        return self._Peer(self.shards[part])

    class _Peer:
        """What ``atta.daemon.peers.peers.Peer`` offers, without a wire."""

        address = "nowhere"

        def __init__(self, shard: Shard) -> None:
            self._shard = shard

        async def sample(self, items: Sequence[SampleItem]) -> AsyncIterator[tuple[SampleItem, int, Answer, int]]:
            for item in items:
                for at in range(0, len(item.rows), 3):  # in chunks, as over a wire
                    yield item, at, ask(self._shard, item, slice(at, at + 3)), 0

        async def probe(
            self, edge_type: str, question: Any, rows: np.ndarray, operands: np.ndarray | None = None
        ) -> np.ndarray:
            if question == graph_pb2.ProbeRequest.DEGREE:
                return self._shard.degrees(edge_type, rows)
            assert operands is not None
            if question == graph_pb2.ProbeRequest.STEP:
                return self._shard.step(edge_type, rows, operands)
            return self._shard.contains(edge_type, rows, operands).astype(np.int64)

    def run(self, plan: Plan, seeds: BatchSeeds, at: StreamPosition, *, home: int, order: random.Random) -> BatchArrays:
        """One batch, its ready tasks run in the order that ``order`` shuffles them into."""
        layout = layout_of(plan, self.dataset.schema, len(seeds.ids), edge_ids=True, wide_ids=order.random() < 0.5)
        out = BatchArrays.over(layout, np.empty(layout.capacity, dtype=np.uint8))
        shard = self.shards[home]
        state = BatchState(
            plan, self.dataset, home=home, at=at, seeds=seeds, out=out,
            compactors=CompactorPool(self.dataset.schema.node_counts), degree=shard.degree,
        )  # fmt: skip
        dag = DagInstance(plan, home, chunk_rows=5)
        ready = dag.start()
        while ready:
            task = ready.pop(order.randrange(len(ready)))
            ready += self._do(dag, state, task, home)
        assert dag.finished
        return out

    def _do(self, dag: DagInstance, state: BatchState, task: Task, home: int) -> list[Task]:
        shard = self.shards[task.owner]
        match task.kind:
            case Kind.SEED:
                return dag.done(task, state.seed())
            case Kind.JOIN:
                growth, expand = state.join(task.op)
                return dag.done(task, growth, expand)
            case Kind.NEIGHBORHOOD:
                for item in state.sample_items(task):
                    state.accept(task, item, 0, ask(shard, item, slice(None)))
            case Kind.BATCH | Kind.NEGATIVE:
                access = ClusterAccess(self.shards[home], self, POOL)  # type: ignore[arg-type]
                asked = access.of(state.plan.op(task.op).edge_type)
                if task.kind is Kind.BATCH:
                    state.accept_sampled(task.op, asyncio.run(asked.run(state.sampler(task.op))))
                else:
                    state.accept_negatives(task.op, asyncio.run(asked.run(state.negatives(task.op))))
            case Kind.FEATURE:
                for pull in state.feature_items(task):
                    for name in pull.tables:
                        rows = self.dataset.part(task.owner).table(pull.node_type, name)[pull.rows]
                        state.table_rows(pull.node_type, name)[pull.positions] = rows
            case Kind.END:
                state.finish()
            case _:
                raise AssertionError(task)
        return dag.done(task)


def ask(shard: Shard, item: SampleItem, part: slice) -> Answer:
    """What a shard answers to a part of a request."""
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
