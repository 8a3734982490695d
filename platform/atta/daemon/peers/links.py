"""The links of one daemon: what it serves over them, how the names of the schema are numbered there, and how it waits
for what batches have asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from atta import _native
from atta.daemon.config import DaemonConfig
from atta.daemon.peers.owners import Item, Outs, Owners, SampledRows, part_of, sums_of
from atta.daemon.peers.peers import SMALL_BYTES, Peers
from atta.daemon.peers.sockets import Attaching, LinkService
from atta.daemon.peers.watching import Hedges
from atta.kvstore.disk import DiskEdges
from atta.kvstore.store import Store
from atta.observe.recording import ServedSpan
from atta.partition.dataset import Dataset
from atta.partition.schema import Schema
from atta.samplers.batch.items import FeatureItem, SampleItem, SumItem
from atta.samplers.kernels import as_bytes, beside
from atta.samplers.methods import Method
from atta.samplers.methods.base import Tables
from atta.samplers.shard import Answer, Shard
from atta.scheduler.config import link_threads
from atta.wire.retries import ASK_AFTER_S

MOST_TABLES = 63
"""Most tables of a node type that links carry. Rows of others travel by messages."""
IN_MEMORY: Mapping[str, DiskEdges] = MappingProxyType({})
"""No in-edges are read from the disk."""
WATCH_S = 0.05
"""How often late steps are looked for, in seconds."""


class DaemonLinks:
    """``listen``, then ``close``. All of it runs on the event loop; native threads serve the links."""

    def __init__(
        self,
        config: DaemonConfig,
        dataset: Dataset,
        shard: Shard,
        store: Store,
        peers: Peers,
        *,
        encrypted: bool = False,
        edges: Mapping[str, DiskEdges] = IN_MEMORY,
    ) -> None:
        """``encrypted``: links to other machines speak TLS. ``edges``: those that are read from the disk."""
        threads = link_threads(config.threads)
        self._native = _native.Links(threads)
        register(self._native, Numbers(dataset.schema), shard, store, edges)
        self._native.keep_served(config.trace_events)
        self._dataset, self._config = dataset, config
        self.service = LinkService(self._native, config.listen, config.link_port, encrypted=encrypted)
        self._steps = LinkSteps(self._native, config.peer_deadline_s, self._end_silent, delay_s=config.peer_delay_s)
        self._peers, others = peers, [owner for owner in range(dataset.num_parts) if owner != shard.part]
        # One connection is served by one thread, so a pair of large daemons has several.
        first, width = config.parts.start, max(1, threads // 2)
        self._attaching = Attaching(self._native, first, peers.__getitem__, others, width=width)

    def owners(self, pool: Executor, at_once: int = SMALL_BYTES) -> Owners:
        """Asks over links, and by messages what links do not answer. ``pool``, ``at_once``: as for ``Owners``."""
        own = self._native, self._steps, self._attaching
        return LinkedOwners(*own, peers=self._peers, dataset=self._dataset, pool=pool, at_once=at_once)

    async def attach(self, part: int) -> None:
        """Attach to the owner of ``part`` unless there is a link. The first batches need not wait for it then."""
        if part in self._attaching.missing:
            await self._attaching.ready([part])

    async def _end_silent(self, parts: list[int]) -> None:
        """End the links to those of ``parts`` that do not answer. What they owe is then asked for by messages."""
        there = await asyncio.gather(*(self._peers[part].connection.watch.answers() for part in parts))
        for part, answers in zip(parts, there, strict=True):
            if not answers or self._attaching.leads_elsewhere(part):
                self._native.detach(part)
                self._attaching.lost(part)

    def listen(self) -> None:
        """Open the sockets. ``service.accept`` must follow. Raises ConfigError: the port is in use."""
        self.service.listen()
        self._steps.open()

    def served(self) -> list[ServedSpan]:
        """The last requests of peers, for traces."""
        return [
            ServedSpan(ended, came, f"{'Pull' if pulls else 'Sample'} by link, asked by {peer}", nbytes)
            for ended, came, peer, pulls, nbytes in self._native.served()
        ]

    def stats(self) -> dict[str, float]:
        hedges = self._steps.hedges
        return {
            **self._native.stats(),
            "links_missing": float(len(self._attaching.missing)),
            "late_steps": float(hedges.sent),
        }

    async def close(self) -> None:
        """End all links. Steps under way must have ended."""
        await self._attaching.close()
        self._steps.close()
        self.service.close()
        self._native.close()


class Numbers:
    """The numbers of a schema's names in frames. Daemons of one dataset have the same schema, so they agree on them."""

    def __init__(self, schema: Schema) -> None:
        self.edge_types = {name: number for number, name in enumerate(sorted(schema.edge_types))}
        self.node_types = {name: number for number, name in enumerate(sorted(schema.node_types))}
        self.tables = {node_type: sorted(tables)[:MOST_TABLES] for node_type, tables in schema.node_tables.items()}

    def bits(self, node_type: str, tables: Sequence[str]) -> int:
        """A bit for each of ``tables``; 0: links do not carry one of them, or one is named twice."""
        known, bits = self.tables[node_type], 0
        for name in tables:
            if name not in known or bits & (bit := 1 << known.index(name)):
                return 0
            bits |= bit
        return bits


def register(
    links: _native.Links, numbers: Numbers, shard: Shard, store: Store, edges: Mapping[str, DiskEdges] = IN_MEMORY
) -> None:
    """Hand the partition to the links. Methods that need tables follow when they are first prepared."""
    for edge_type in numbers.edge_types:  # in the order of their numbers
        csc, target = shard.drawn(edge_type), shard.dataset.schema.endpoints(edge_type)[1]
        indices, edge_ids = beside(csc.indices, csc.edge_ids)
        assert edge_ids is not None
        number = links.add_edges(csc.indptr, indices, edge_ids, shard.keys(target))
        links.prepare(number, Method.UNIFORM.number, None)
        if (disk := edges.get(edge_type)) is not None:
            links.edges_on_disk(number, disk.natives[0], disk.starts[0], disk.natives[1], disk.starts[1])
    for node_type, number in numbers.node_types.items():
        for name in numbers.tables[node_type]:
            table = store.table(node_type, name)
            links.add_table(number, as_bytes(table.data), None if table.disk is None else table.disk.native)

    def prepared(edge_type: str, method: Method, tables: Tables | None) -> None:
        if method.linked and (tables is None or isinstance(tables, _native.Method)):
            links.prepare(numbers.edge_types[edge_type], method.number, tables)

    shard.on_prepared = prepared


@dataclass(eq=False, slots=True)
class _Awaited:
    """A step under way, and until when its links may take."""

    step: _native.Step = field(repr=False)
    done: asyncio.Future[None]
    kind: str
    began: float
    deadline: float
    late: bool = False


class LinkSteps:
    """The steps of a daemon that are under way. All of it runs on the event loop. A link that is late loses what it has
    not answered: the caller asks for this by messages. As many requests are repeated as among messages (``Hedges``)."""

    def __init__(
        self,
        links: _native.Links,
        deadline_s: float,
        end_silent: Callable[[list[int]], Awaitable[None]],
        *,
        delay_s: float = 0.0,
    ) -> None:
        """``end_silent``: asks owners whether they are there, and ends the links of those that do not answer. It is told which
        ones owe answers and have sent nothing for ``ASK_AFTER_S``. ``delay_s``: how long every step waits before it asks.
        """
        self._links, self._deadline_s, self._end_silent, self._delay_s = links, deadline_s, end_silent, delay_s
        self._asking: asyncio.Task[None] | None = None
        self._awaited: dict[int, _Awaited] = {}
        self._flushing = False
        self._watching: asyncio.TimerHandle | None = None
        self.hedges = Hedges()

    def open(self) -> None:
        """Listen to the links."""
        asyncio.get_running_loop().add_reader(self._links.fd, self._finished)

    async def run(self, step: _native.Step, kind: str, age_ms: int) -> None:
        """Ask, and wait until each request has been answered, refused or lost. Requests of one turn of the event loop
        go out together. ``kind``: of step, for what counts as late."""
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        loop, now = asyncio.get_running_loop(), time.monotonic()
        awaited = _Awaited(step, loop.create_future(), kind, now, now + self._deadline_s)
        self._awaited[step.number] = awaited
        self._links.begin(step, age_ms)
        if not self._flushing:
            self._flushing = True
            loop.call_soon(self._flush)
        if self._watching is None:
            self._watching = loop.call_later(WATCH_S, self._watch)
        try:
            await awaited.done
        except asyncio.CancelledError:
            self._awaited.pop(step.number, None)
            step.give_up("nobody waits for it")
            raise

    def _flush(self) -> None:
        self._flushing = False
        self._links.flush()

    def _finished(self) -> None:
        now = time.monotonic()
        for number in self._links.finished():
            if (awaited := self._awaited.pop(number, None)) is not None:
                if not awaited.late:
                    self.hedges.answered(awaited.kind, now - awaited.began)
                if not awaited.done.done():
                    awaited.done.set_result(None)

    def _watch(self) -> None:
        now = time.monotonic()
        for awaited in [*self._awaited.values()]:
            patience = self.hedges.patience(awaited.kind)
            overdue = now >= awaited.deadline
            late = patience is not None and now - awaited.began > patience and not awaited.late and self.hedges.take()
            if overdue or late:
                awaited.late = True
                awaited.step.give_up("no answer within the deadline" if overdue else "late")
        oldest = min((awaited.began for awaited in self._awaited.values()), default=now)
        may_ask = now - oldest >= ASK_AFTER_S and (self._asking is None or self._asking.done())
        if may_ask and (silent := self._links.silent(ASK_AFTER_S)):
            self._asking = asyncio.ensure_future(self._asked(silent))
        self._watching = asyncio.get_running_loop().call_later(WATCH_S, self._watch) if self._awaited else None

    async def _asked(self, silent: list[int]) -> None:
        await self._end_silent(silent)
        await asyncio.sleep(ASK_AFTER_S)  # before the next question

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        asyncio.get_running_loop().remove_reader(self._links.fd)
        if self._watching is not None:
            self._watching.cancel()


class LinkedOwners(Owners):
    """Asks over links. What they do not carry (edge tables, codecs, methods in numpy, later versions), or do not answer, is
    asked for by messages."""

    def __init__(
        self,
        links: _native.Links,
        steps: LinkSteps,
        attaching: Attaching,
        *,
        peers: Peers,
        dataset: Dataset,
        pool: Executor,
        at_once: int = SMALL_BYTES,
    ) -> None:
        super().__init__(peers, dataset, pool, at_once=at_once)
        self._links, self._steps, self._attaching, self._numbers = links, steps, attaching, Numbers(dataset.schema)
        self._owners = np.arange(dataset.num_parts, dtype=np.int64)
        self._firsts = {t: np.ascontiguousarray(offsets[:-1]) for t, offsets in dataset.book.offsets.items()}

    async def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> list[SampledRows]:
        if any(item.tables or item.version or item.by or not item.method.linked for item in items):
            return await super().sample(items, age_ms=age_ms)
        await self._attached(items)
        step = self._links.step()
        for item in items:
            self._add_sample(step, item)
        await self._steps.run(step, "sample", age_ms)
        found = [
            SampledRows(
                item, first, Answer(counts, neighbors, edge_ids), counts.nbytes + neighbors.nbytes + edge_ids.nbytes
            )
            for number, item in enumerate(items)
            for first, counts, neighbors, edge_ids in step.answers(number)
        ]
        if left := self._left(step):
            rest = [_part_of_one(items[index], owner, first, rows) for index, owner, first, rows, _, _ in left]
            more = await super().sample(rest, age_ms=age_ms)
            places = {id(part): (items[index], first) for part, (index, _, first, *_) in zip(rest, left, strict=True)}
            for part, at, answer, nbytes in more:
                item, first = places[id(part)]
                found.append(SampledRows(item, first + at, answer, nbytes))
        return found

    def _add_sample(self, step: _native.Step, item: SampleItem) -> None:
        assert item.starts is not None
        step.sample(
            self._numbers.edge_types[item.edge_type], item.rows, self._owners, item.starts,
            self._firsts[self._schema.endpoints(item.edge_type)[1]], item.fan_out, item.replace, item.stream_key,
            item.renewed, item.method.number, item.trees, item.times,
            item.fan_out if item.fan_out >= 0 and item.method.bounded else self._schema.edge_counts[item.edge_type],
        )  # fmt: skip

    async def pull(
        self, items: Sequence[FeatureItem], outs: Sequence[Outs], codec: str = "", *, age_ms: int = 0
    ) -> int:
        bits = [self._numbers.bits(item.node_type, item.tables) for item in items]
        if codec or not all(bits) or any(item.version for item in items):
            return await super().pull(items, outs, codec, age_ms=age_ms)
        await self._attached(items)
        step = self._links.step()
        for item, out, tables in zip(items, outs, bits, strict=True):
            assert item.starts is not None
            in_order = sorted(zip(item.tables, map(as_bytes, out), strict=True))
            step.pull(
                self._numbers.node_types[item.node_type], tables, item.rows, item.positions, self._owners, item.starts,
                self._firsts[item.node_type], [table for _, table in in_order],
            )  # fmt: skip
        await self._steps.run(step, "pull", age_ms)
        received = step.nbytes()
        if left := self._left(step):
            rest = [_part_of_one(items[index], owner, first, rows) for index, owner, first, rows, _, _ in left]
            received += await super().pull(rest, [outs[index] for index, *_ in left], age_ms=age_ms)
        return received

    async def sum(self, items: Sequence[SumItem], outs: Outs, *, age_ms: int = 0) -> int:
        bits = [self._numbers.bits(item.node_type, [item.table]) for item in items]
        if not items or not all(bits) or any(item.version for item in items):
            return await super().sum(items, outs, age_ms=age_ms)
        await self._attached(items)
        step = self._links.step()
        for item, out, table in zip(items, outs, bits, strict=True):
            step.sum(
                self._numbers.node_types[item.node_type], table, item.rows, item.counts, item.weights, self._owners,
                item.starts, self._firsts[item.node_type], item.shifts, item.width, out,
            )  # fmt: skip
        await self._steps.run(step, "sum", age_ms)
        received = step.nbytes()
        if left := self._left(step):
            rest = [_sums_of_one(items[index], owner, first, sums) for index, owner, first, sums, _, _ in left]
            places = [outs[index][first : first + sums] for index, _, first, sums, _, _ in left]
            received += await super().sum(rest, places, age_ms=age_ms)
        return received

    def _left(self, step: _native.Step) -> list[tuple[int, int, int, int, bool, str]]:
        """What has no answer: item, owner, first row, rows, whether it was refused, why."""
        left = step.left()
        for _, owner, *_, refused, _ in left:
            if not refused:
                self._attaching.lost(owner)
        return left

    async def _attached(self, items: Sequence[SampleItem | FeatureItem | SumItem]) -> None:
        """Attach to the owners that the items ask and that have no link yet."""
        missing = self._attaching.missing
        if not missing:
            return
        asked = {
            owner
            for item in items
            if item.starts is not None
            for owner in np.flatnonzero(np.diff(item.starts)).tolist()
        }
        await self._attaching.ready(sorted(asked & missing))


def _part_of_one(item: Item, owner: int, first: int, rows: int) -> Item:
    """Rows ``first`` to ``first + rows`` of an item, which all belong to ``owner``."""
    assert item.starts is not None
    starts = np.where(np.arange(len(item.starts)) <= owner, 0, rows)
    return replace(part_of(item, slice(first, first + rows)), starts=starts)


def _sums_of_one(item: SumItem, owner: int, first: int, sums: int) -> SumItem:
    """Sums ``first`` to ``first + sums`` of an item, which all are ``owner``'s."""
    ends = np.concatenate([[0], np.cumsum(item.counts)]).tolist()
    starts = np.where(np.arange(len(item.starts)) <= owner, 0, sums)
    return replace(sums_of(item, slice(first, first + sums), slice(ends[first], ends[first + sums]), 0), starts=starts)
