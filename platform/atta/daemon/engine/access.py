"""How sampling programs run inside a daemon: their questions about the whole graph go to the owners of the vertices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

import numpy as np

from atta.daemon.peers.owners import sampled
from atta.daemon.peers.peers import Peers, TableName
from atta.errors import AttaError, ConfigError, blaming
from atta.kvstore.cache import EdgeCache
from atta.kvstore.store import Store
from atta.partition.schema import Schema
from atta.protos.v1 import graph_pb2
from atta.samplers import kernels, requests
from atta.samplers.batch.items import EDGES, SampleItem
from atta.samplers.batch.state import NO_SOURCES
from atta.samplers.dag.spec import Plan
from atta.samplers.kernels.sums import shifts_of
from atta.samplers.methods import Method
from atta.samplers.shard import Answer, Shard, places

T = TypeVar("T")
_QUESTION = graph_pb2.ProbeRequest


class ClusterAccess:
    """Answers from this daemon's shard and its peers."""

    def __init__(
        self, shard: Shard, peers: Peers, pool: Executor, sources: Mapping[tuple[str, str], int] = NO_SOURCES
    ) -> None:
        """``pool`` runs long work, so that the event loop stays free. ``sources``: as for ``BatchState``; ``shard`` has
        the edges that they name."""
        self.shard, self.peers, self.pool, self._sources = shard, peers, pool, sources
        self._sums: dict[tuple[str, requests.DegreeSums], asyncio.Future[np.ndarray]] = {}

    def of(self, edge_type: str) -> Conversation:
        """Questions about the edges of one type."""
        return Conversation(self, edge_type, self._sources.get((edge_type, EDGES), 0))

    async def degree_sums(self, edge_type: str, request: requests.DegreeSums) -> np.ndarray:
        """Collected from all owners once per edge type and order."""
        key = edge_type, request
        if key not in self._sums:
            self._sums[key] = asyncio.ensure_future(self._collect(*key))
        try:
            return await asyncio.shield(self._sums[key])
        except AttaError:
            self._sums.pop(key, None)  # the peer may be back for the next batch
            raise

    async def _collect(self, edge_type: str, request: requests.DegreeSums) -> np.ndarray:
        dataset = self.shard.dataset
        _, target = dataset.schema.endpoints(edge_type)
        since = dataset.times(target) if request.by_time else None
        if request.by_time and since is None:
            raise ConfigError(f"degree sums by time: vertices of type {target!r} have no times")
        degrees = await self.of(edge_type).answer(requests.Degrees(np.arange(dataset.schema.node_counts[target])))
        return requests.degree_sums(degrees[dataset.sorted_internal(target) if since is None else since.order])


class Conversation:
    """One program's questions. Counts the rows asked of other daemons, and the bytes of their answers."""

    def __init__(self, access: ClusterAccess, edge_type: str, version: int) -> None:
        self._access, self._edge_type, self._version = access, edge_type, version
        self.remote_rows = self.remote_bytes = 0
        dataset = access.shard.dataset
        _, target = dataset.schema.endpoints(edge_type)
        self._offsets = dataset.book.offsets[target]

    async def run(self, program: requests.Program[T]) -> T:
        """Drive ``program`` to its end."""
        value: Any = None
        while True:
            request, result = await on_pool(self._access.pool, _advance, program, value)
            if request is None:
                done: T = result
                return done
            value = await self.answer(request)

    async def answer(self, request: requests.Request) -> Any:
        """The answer that the request's docstring describes. Raises ConfigError: a vertex that does not exist."""
        match request:
            case requests.Expand():
                found = await self._expand(request)
                return await on_pool(self._access.pool, requests.only_within, found, request.within)
            case requests.Step():
                return await self._probe(_QUESTION.STEP, request.vertices, request.bits)
            case requests.Contains():
                edges = await self._probe(_QUESTION.CONTAINS, request.targets, request.sources)
                return edges.astype(np.bool_)
            case requests.Degrees():
                return await self._probe(_QUESTION.DEGREE, request.vertices, None)
            case requests.DegreeSums():
                return await self._access.degree_sums(self._edge_type, request)
            case _:
                raise ConfigError(f"an operator asks with {type(request).__name__}, which is not a question to a graph")

    # -- dividing questions, joining answers ---------------------------------------------------------------------------

    async def _probe(self, question: Any, vertices: np.ndarray, operands: np.ndarray | None) -> np.ndarray:
        out = np.empty(len(vertices), dtype=np.int64)

        async def ask(part: int, rows: np.ndarray, at: np.ndarray) -> None:
            mine = None if operands is None else np.ascontiguousarray(operands[at])
            if part == self._access.shard.part:
                out[at] = await on_pool(
                    self._access.pool, probed, self._access.shard, question, self._edge_type, rows, mine
                )
                return
            out[at] = await self._access.peers[part].probe(self._edge_type, question, rows, mine, version=self._version)
            self.remote_rows += len(rows)
            self.remote_bytes += 8 * len(rows)

        await self._by_owner(vertices, ask)
        return out

    async def _expand(self, request: requests.Expand) -> requests.Neighbors:
        groups: list[tuple[np.ndarray, Answer]] = []

        async def ask(part: int, rows: np.ndarray, at: np.ndarray) -> None:
            trees = None if request.trees is None else request.trees[at]
            how = request.fan_out, request.replace, Method.UNIFORM, request.stream_key, trees
            item = SampleItem(self._edge_type, rows, at, *how, version=self._version)
            if part == self._access.shard.part:
                groups.append((at, await on_pool(self._access.pool, drawn, self._access.shard, item)))
                return
            for _, first, answer, nbytes in await sampled(self._access.peers[part], item):
                groups.append((at[first : first + len(answer.counts)], answer))
                self.remote_bytes += nbytes
            self.remote_rows += len(rows)

        await self._by_owner(request.vertices, ask)
        joined: requests.Neighbors = await on_pool(self._access.pool, _join, groups, len(request.vertices))
        return joined

    async def _by_owner(
        self, vertices: np.ndarray, ask: Callable[[int, np.ndarray, np.ndarray], Awaitable[None]]
    ) -> None:
        """Call ``ask(part, rows, positions)`` for all owners of ``vertices`` at once."""
        with blaming(ConfigError, f"edge type {self._edge_type}", of=ValueError):
            rows, positions = kernels.split_by_owner(np.asarray(vertices), self._offsets)
        asked = [ask(part, r, p) for part, (r, p) in enumerate(zip(rows, positions, strict=True)) if len(r)]
        await asyncio.gather(*asked)


class LargestNumbers:
    """The largest absolute values of the columns of the cluster's tables of float32, which sums are counted by
    (``kernels.sums``). Every owner is asked once, when they are first needed, and again for later versions."""

    def __init__(self, peers: Peers, store: Store, parts: int) -> None:
        """``parts``: how many partitions there are; ``store`` has one of them."""
        self._peers, self._store = peers, store
        self._others = [part for part in range(parts) if part != store.part]
        self._asked: asyncio.Task[list[dict[TableName, np.ndarray]]] | None = None

    async def shifts(self, plan: Plan, schema: Schema, sources: Mapping[TableName, int]) -> dict[TableName, np.ndarray]:
        """The shifts of the tables that a plan sums, of these versions. Raises ConfigError: a number is not finite."""
        if plan.summed is None:
            return {}
        if self._asked is None or (self._asked.done() and (self._asked.cancelled() or self._asked.exception())):
            self._asked = asyncio.ensure_future(self._ask())
        first = await asyncio.shield(self._asked)
        loop, found = asyncio.get_running_loop(), {}
        for key in dict.fromkeys((schema.endpoints(edge_type)[0], name) for edge_type, name in plan.sums(schema)):
            source = sources.get(key, 0)
            others = await self._ask(key, source) if source else first
            own = await loop.run_in_executor(None, self._store.largest, self._store.table(*key, source), source)
            found[key] = shifts_of(np.max([own, *(of[key] for of in others)], axis=0), key[1])
        return found

    async def _ask(self, table: TableName | None = None, version: int = 0) -> list[dict[TableName, np.ndarray]]:
        return await asyncio.gather(*(self._peers[part].largest(table, version) for part in self._others))


async def on_pool(pool: Executor, function: Callable[..., Any], *args: Any) -> Any:
    """What ``function`` returns on a thread of the pool."""
    return await asyncio.get_running_loop().run_in_executor(pool, function, *args)


def drawn(shard: Shard, item: SampleItem, copies: EdgeCache | None = None) -> Answer:
    """The edges of an item at home: of ``copies`` of what others own where it says so."""
    how: dict[str, Any] = {
        "fan_out": item.fan_out,
        "replace": item.replace,
        "stream_key": item.stream_key,
        "renewed": item.renewed,
        "method": item.method,
        "trees": item.trees,
    }
    if item.kept:
        assert copies is not None
        return copies.sample(item.edge_type, item.rows, **how)
    return shard.sample(item.edge_type, item.rows, **how, times=item.times, tables=item.tables, by=item.by)


def probed(shard: Shard, question: Any, edge_type: str, rows: np.ndarray, operands: np.ndarray | None) -> np.ndarray:
    """A shard's answer to a question about some of its vertices (``ProbeRequest.Question``); raises ConfigError."""
    match question:
        case _QUESTION.DEGREE:
            return shard.degrees(edge_type, rows)
        case _QUESTION.DIGEST:
            return shard.digests(edge_type, rows)
        case _QUESTION.STEP if operands is not None:
            return shard.step(edge_type, rows, operands.view(np.uint64))
        case _QUESTION.CONTAINS if operands is not None:
            return shard.contains(edge_type, rows, operands)
    raise ConfigError(f"unknown question {question}")


def _advance(program: requests.Program[Any], value: Any) -> tuple[requests.Request | None, Any]:
    """The program's next request, or None and its result: a StopIteration cannot cross a future."""
    try:
        return program.send(value), None
    except StopIteration as done:
        return None, done.value


def _join(groups: list[tuple[np.ndarray, Answer]], vertices: int) -> requests.Neighbors:
    counts = np.zeros(vertices, dtype=np.int32)
    for at, answer in groups:
        counts[at] = answer.counts
    sources, edge_ids = (np.empty(int(counts.sum()), dtype=np.int64) for _ in range(2))
    for at, answer in places(groups, 0, vertices):
        sources[at], edge_ids[at] = answer.neighbors, answer.edge_ids
    return requests.Neighbors(counts, sources, edge_ids)
