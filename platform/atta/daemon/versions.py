"""The versions of the dataset that a daemon holds: it loads what sessions and peers read, and lets go of the rest
(``atta.kvstore.live.book`` decides). All of it runs on the event loop; threads read files."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from atta.daemon.services.handling import Context
from atta.errors import AttaError, ConfigError, DataError, QuotaExceededError
from atta.kvstore.cache import EdgeCache, RowCache
from atta.kvstore.cache.rows import bytes_of
from atta.kvstore.live.book import (
    USED,
    HeldEdges,
    LiveEdges,
    Rows,
    Sources,
    TableName,
    VersionBook,
    edges_only,
    graph_rows,
    source_of,
)
from atta.kvstore.live.folder import VersionFolder
from atta.kvstore.store import Store, Table
from atta.observe.machine.memory import available_bytes
from atta.partition.dataset import Dataset, VertexTimes
from atta.protos.v1 import update_pb2
from atta.samplers import kernels
from atta.samplers.batch.items import EDGES, TIME
from atta.samplers.batch.state import NO_SOURCES
from atta.samplers.shard import PartEdges, Shard
from atta.wire.bulk import ARRAYS_BYTES, marks_of, rows_to_wire

log = structlog.get_logger("atta.daemon")
LOOK_S = 5.0
"""How often the disk is looked at: for a commit whose message was lost, and for rows that nobody reads any more."""
PREPARED_S = 600.0
"""How long a version stays prepared without a commit."""


@dataclass(frozen=True)
class VersionView:
    """What a session reads from its first batch to its last.

    Attributes:
        number: of the version; 0: the dataset itself.
        store: the rows of this daemon's vertices.
        sources: where the version's rows are in it, and its edges.
        dataset: the dataset, with the version's numbers of edges.
        shard: the partition, with the version's edges.
        rows: the cache of its remote rows.
        edges: copies of in-edges of other partitions; None: they are not kept of these edges.
    """

    number: int
    store: Store = field(repr=False)
    sources: Sources = field(repr=False)
    dataset: Dataset = field(repr=False)
    shard: Shard = field(repr=False)
    rows: RowCache = field(repr=False)
    edges: EdgeCache | None = field(repr=False)


@dataclass(frozen=True)
class HeldTimes:
    """The table ``time`` of a version: the rows of this daemon's vertices, and the times of all."""

    rows: np.ndarray
    times: VertexTimes


Held = np.ndarray | HeldEdges | HeldTimes | int


class LiveVersions:
    """``own`` is the dataset itself. ``open`` and ``close`` are for sessions, ``tables`` and ``graph`` for peers, the rest for
    whoever publishes."""

    def __init__(
        self, data: str | Path, store: Store, shard: Shard, rows: RowCache, edges: EdgeCache, *, resident: bool
    ) -> None:
        """Load the newest version on the disk. ``rows`` and ``edges``: what is kept of the dataset's own. Raises
        DataError: a file of it is missing or damaged. QuotaExceededError: it does not fit into memory."""
        dataset = shard.dataset
        self._folder, self._dataset, self._owner = VersionFolder(data, dataset.dataset_id), dataset, shard.part
        self._store, self._edges, self._resident = store, LiveEdges(dataset, shard), resident
        self.book = VersionBook()
        self._caches, self.own = {0: rows}, VersionView(0, store, NO_SOURCES, dataset, shard, rows, edges)
        self._loading: dict[tuple[Rows, str], asyncio.Future[Held]] = {}
        self._prepared_at = 0.0
        self.book.refresh(self._on_disk())
        for one in self.book.needed(time.monotonic()):
            self._add(one, self._load(one))
        self.now = self._newest()
        """The dataset as the newest version has it, for any thread."""
        if self.book.newest:
            log.info("version of the dataset", newest=self.book.newest, mbytes=self.nbytes // 1_000_000)
            self._trim()

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and edges of later versions."""
        return self._store.live_bytes + self._edges.nbytes

    def stats(self) -> dict[str, float]:
        return {
            "tables_version": float(self.book.newest),
            "tables_versions_read": float(len(self.book.in_use())),
            "tables_version_bytes": float(self.nbytes),
            "cache_bytes": float(bytes_of(self._caches.values())),
        }

    # -- sessions and peers --------------------------------------------------------------------------------------------

    async def open(self, number: int | None, edge_types: Iterable[str] = ()) -> VersionView:
        """The version for a session, which draws edges of some types; None: the newest. ``close`` must follow. Raises
        UnknownNameError: it does not exist any more; names those that do. DataError: a file of it is missing or damaged.
        QuotaExceededError: it does not fit into memory."""
        if number is not None and number not in self.book.known:
            await self._look()
        number = self.book.open(number)
        try:
            sources = self.book.sources(number)
            await self._hold((t, name, source) for (t, name), source in sources.items())
            dataset, shard = self._edges.of(sources)
            await _read(shard, edge_types)
        except BaseException:
            self._closed(number)
            raise
        kept = None if edges_only(sources) else self.own.edges
        return VersionView(number, self._store, sources, dataset, shard, self._cache(number), kept)

    def close(self, view: VersionView) -> None:
        """A session has ended. What it alone has read goes."""
        self._closed(view.number)

    def _closed(self, number: int) -> None:
        self.book.close(number)
        self._trim()

    async def tables(self, node_type: str, names: Sequence[str], version: int) -> list[Table]:
        """The tables that a peer's pull names. Raises UnknownNameError: there is no such table or version; names those
        that exist. Also what ``open`` raises."""
        if not version:
            return [self._store.table(node_type, name) for name in names]
        sources = await self._asked_sources(version)
        wanted = [(node_type, name, sources.get((node_type, name), 0)) for name in names]
        self.book.asked(wanted, time.monotonic())
        await self._hold(one for one in wanted if one[2])
        return [self._store.table(*one) for one in wanted]

    async def graph(self, edge_type: str, version: int, *, read: bool = True) -> Shard:
        """This daemon's partition, for a peer that asks about edges of one type, and times of their sources, as a
        version has them. ``read``: the edges are in memory. Raises UnknownNameError: there is no such version; names those
        that exist. Also what ``open`` raises."""
        if not version:
            return self._edges.shard
        known, schema = await self._asked_sources(version), self._dataset.schema
        of = (edge_type, EDGES), (schema.endpoints(schema.check_edge_type(edge_type))[0], TIME)
        sources = {name: known[name] for name in of if name in known}
        wanted = graph_rows(schema, sources)
        self.book.asked(wanted, time.monotonic())
        await self._hold(wanted)
        return await _read(self._edges.of(sources)[1], [edge_type] if read else [])

    async def changes(self, since: int, until: int) -> dict[TableName, np.ndarray] | None:
        """By table and edges what differs between two versions of what this daemon has, as ``VersionFolder.changed`` tells it.
        None: the files of a version between them have gone. Raises UnknownNameError: there is no version ``until``;
        DataError: a file is damaged."""
        await self._asked_sources(until)
        return await asyncio.to_thread(self._changes, since, until)

    def _changes(self, since: int, until: int) -> dict[TableName, np.ndarray] | None:
        found: dict[TableName, np.ndarray] = {}
        for number in range(since + 1, until + 1):
            try:
                told = self._folder.changed(self._dataset, self._owner, number)
            except DataError:
                if number in self._folder.committed():
                    raise
                return None
            if told is None:
                return None
            for of, changed in told.items():
                found[of] = np.concatenate([found[of], changed], axis=-1) if of in found else changed
        return found

    async def edges_from(
        self, edge_type: str, sources: np.ndarray, version: int, targets: range, most: int
    ) -> tuple[np.ndarray, np.ndarray, bool]:
        """Edges of a version into ``targets``, internal ids, as far as this daemon has them, as ``Shard.edges_from``; and whether
        some targets are left. Errors as ``graph``."""
        source = (await self._asked_sources(version)).get((edge_type, EDGES), 0)
        shard = await self.graph(edge_type, source, read=False)
        low, high = self._dataset.book.range(self._dataset.schema.endpoints(edge_type)[1], self._owner)
        rows = range(max(targets.start - low, 0), max(min(targets.stop, high) - low, 0))
        counts, found = await asyncio.to_thread(shard.edges_from, edge_type, sources, rows, most)
        return counts, found, len(counts) < len(rows)

    async def _asked_sources(self, version: int) -> Sources:
        """Where a version is that a peer names, which may have learnt of it first."""
        if version not in self.book.known and (self.book.prepared is None or self.book.prepared[0] != version):
            await self._look()
        return self.book.sources(version)

    def _newest(self) -> Dataset:
        return self._edges.of(self.book.sources(self.book.newest))[0]

    def _cache(self, number: int) -> RowCache:
        if number not in self._caches:
            mine = self.book.sources(number)
            right: dict[str, RowCache] = {}
            for other, cache in self._caches.items():
                theirs = self.book.known.get(other, {})
                for node_type, tables in self._dataset.schema.node_tables.items():
                    if source_of(mine, node_type, tables) == source_of(theirs, node_type, tables):
                        right[node_type] = cache
            self._caches[number] = self._caches[0].beside(right)
        return self._caches[number]

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def prepare(self, number: int, version_id: str) -> None:
        """Read and check a version that is about to be committed. Sessions do not see it yet. Raises DataError: it is
        not on this machine's disk, or damaged, or another one. UnknownNameError, QuotaExceededError: see
        ``VersionBook.prepare``; it does not fit into memory."""
        if number in self.book.known:
            return  # the request is repeated
        found = await asyncio.to_thread(self._folder.read, number)
        if not found.id or found.id != version_id:
            raise DataError(found.path, "is not the version that is being published; does this daemon see that folder?")
        self.book.prepare(number, found.sources)
        self._prepared_at = time.monotonic()
        for one in [one for one in self._live if one[2] == number]:
            self._drop(one)  # of another version that had this number and was never committed
        try:
            await self._hold(((t, name, source) for (t, name), source in found.sources.items()), version_id)
        except BaseException:
            self.abort(number)
            raise

    async def commit(self, number: int) -> None:
        """The version is committed on the disk: sessions that open from now on read it. Raises DataError: it is not
        committed on this machine's disk."""
        await self._look()
        if number not in self.book.known:
            raise DataError(self._folder.place(number), "is not committed")

    def abort(self, number: int) -> None:
        """Forget what was prepared."""
        self.book.abort(number)
        self._trim()

    async def watch(self) -> None:
        """Look at the disk again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.book.prepared is not None and time.monotonic() - self._prepared_at > PREPARED_S:
                self.abort(self.book.prepared[0])
            try:
                await self._look()
            except (AttaError, OSError, MemoryError) as error:  # it may be better the next time
                log.warning("versions of the dataset cannot be read", error=str(error))

    async def _look(self) -> None:
        before = self.book.newest
        self.book.refresh(await asyncio.to_thread(self._on_disk))
        try:
            sources = self.book.sources(self.book.newest)
            await self._hold((t, name, source) for (t, name), source in sources.items())
            if sources is self.book.sources(self.book.newest):
                self.now = self._newest()
        finally:
            self._trim()
        if self.book.newest != before:
            log.info("version of the dataset", newest=self.book.newest, mbytes=self.nbytes // 1_000_000)

    # -- memory --------------------------------------------------------------------------------------------------------

    async def _hold(self, wanted: Iterable[Rows], prepared: str = "") -> None:
        """Have these rows and edges in memory. ``prepared``: the id of the version that is being prepared, as another one may
        have had its number."""
        for one in wanted:
            if one in self._live:
                continue
            key = one, prepared
            if key not in self._loading:
                loading = asyncio.get_running_loop().run_in_executor(None, self._load, one)
                loading.add_done_callback(partial(self._loaded, key))
                self._loading[key] = loading
            data = await asyncio.shield(self._loading[key])
            if one not in self._live:
                self._add(one, data)

    @property
    def _live(self) -> frozenset[Rows]:
        return self._store.live | self._edges.live

    def _add(self, one: Rows, data: Held) -> None:
        if isinstance(data, np.ndarray):
            self._store.add(one, data)
            return
        if isinstance(data, HeldTimes):
            self._store.add(one, data.rows)
        self._edges.add(one, data.times if isinstance(data, HeldTimes) else data)

    def _drop(self, one: Rows) -> None:
        self._store.drop(one)
        self._edges.drop(one)

    def _loaded(self, key: tuple[Rows, str], loading: asyncio.Future[Held]) -> None:
        self._loading.pop(key, None)
        if not loading.cancelled():
            loading.exception()  # perhaps nobody waits any more: it counts as seen

    def _load(self, one: Rows) -> Held:
        """The rows or edges of this daemon's partitions, and the times of all vertices; on a thread."""
        name, kind, source = one
        if kind == USED:
            return self._folder.used(name, source)
        joined = len(self._dataset.groups[self._owner]) > 1
        copied = joined or (kind == EDGES and self._resident and self._folder.has_base(name, source))
        nbytes, free = self._bytes_of(one), available_bytes()
        if copied and nbytes > free:
            raise QuotaExceededError(
                f"version {source} of {name}/{kind} takes {nbytes >> 20} MiB of memory, {free >> 20} MiB are available"
            )
        resident = self._resident and not joined and 4 * nbytes <= free
        if kind == EDGES:
            room = np.empty if self._resident else mapped_room
            part, schema = self._folder.edges(self._dataset, self._owner, source, room), self._dataset.schema
            edges = PartEdges(part, schema, name, self._folder.place(source), resident)
            if not self._folder.has_base(name, source):
                _ = edges.drawn  # its files are mapped now
            degrees = cache(partial(self._folder.degrees, self._dataset, name, source))
            return HeldEdges(edges, self._folder.edge_ids(name, source), degrees)
        data = self._folder.load(self._dataset, self._owner, (name, kind), source)
        rows = kernels.resident(data) if resident else data
        if not graph_rows(self._dataset.schema, {(name, kind): source}):
            return rows
        return HeldTimes(rows, self._folder.times(self._dataset, name, source))

    def _bytes_of(self, one: Rows) -> int:
        name, kind, source = one
        if kind == EDGES:
            return self._folder.edge_bytes(self._dataset, self._owner, name, source)
        low, high = self._dataset.book.range(name, self._owner)
        return (high - low) * self._dataset.schema.table(name, kind).row_bytes

    def _trim(self) -> None:
        """Let go of what nobody reads."""
        needed = self.book.needed(time.monotonic())
        for one in self._live - needed:
            self._drop(one)
        used = {*self.book.in_use(), self.book.newest}
        for number in [number for number in self._caches if number and number not in used]:
            del self._caches[number]
        if 0 not in used:
            self._cache(self.book.newest)  # first: it goes on with rows of tables that did not change
            self._caches[0].forget()

    def _on_disk(self) -> dict[int, Sources]:
        return {number: files.sources for number, files in self._folder.committed().items()}


async def _read(shard: Shard, edge_types: Iterable[str]) -> Shard:
    """Have edges of some types in memory, not only what differs from their base: on a thread, before they are drawn."""
    for edge_type in [edge_type for edge_type in edge_types if not shard.has(edge_type)]:
        await asyncio.to_thread(shard.drawn, edge_type)
    return shard


def mapped_room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array that the system may write to the disk: to a file without a name, where temporary files are."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


MOST_EDGES = 1 << 20
"""About as many are told at a time: a vertex' edges stay together."""
MOST_NUMBER = 10**9
"""Numbers of versions are below this: their folders have names of at most nine digits."""


class UpdateService:
    """The versions that one daemon serves."""

    def __init__(self, versions: LiveVersions) -> None:
        self._versions = versions

    async def publish(self, request: update_pb2.PublishRequest, context: Context) -> update_pb2.PublishReply:
        if not 0 < request.number < MOST_NUMBER:
            raise ConfigError(f"version {request.number}: must be 1 to {MOST_NUMBER - 1}")
        match request.phase:
            case update_pb2.PublishRequest.PREPARE:
                await self._versions.prepare(request.number, request.id)
            case update_pb2.PublishRequest.COMMIT:
                await self._versions.commit(request.number)
            case update_pb2.PublishRequest.ABORT:
                self._versions.abort(request.number)
            case _:
                raise ConfigError(f"phase {request.phase}: there is none of this number")
        return update_pb2.PublishReply(newest=self._versions.book.newest, bytes=self._versions.nbytes)

    async def versions(self, request: update_pb2.VersionsRequest, context: Context) -> update_pb2.VersionsReply:
        book = self._versions.book
        return update_pb2.VersionsReply(newest=book.newest, versions=sorted(book.known), in_use=book.in_use())

    async def changes(self, request: update_pb2.ChangesRequest, context: Context) -> update_pb2.ChangesReply:
        if not request.since <= request.until < MOST_NUMBER:
            raise ConfigError(f"changes since version {request.since} until {request.until}: there are none")
        found = await self._versions.changes(request.since, request.until)
        changes = [
            update_pb2.Change(type=of, name=name, changed=told.tobytes()) for (of, name), told in (found or {}).items()
        ]
        reply = update_pb2.ChangesReply(known=found is not None, changes=changes)
        return reply if reply.ByteSize() <= ARRAYS_BYTES else update_pb2.ChangesReply()

    async def edges_from(self, request: update_pb2.EdgesFromRequest, context: Context) -> update_pb2.EdgesFromReply:
        schema = self._versions.own.dataset.schema
        source, _ = schema.endpoints(schema.check_edge_type(request.edge_type))
        marks = marks_of(request.sources, schema.node_counts[source])
        targets, most = range(request.first, request.stop), min(max(1, request.edges), MOST_EDGES)
        counts, found, more = await self._versions.edges_from(request.edge_type, marks, request.version, targets, most)
        ends, wide = rows_to_wire(found)
        return update_pb2.EdgesFromReply(counts=counts.astype(np.int32).tobytes(), ends=ends, wide=wide, more=more)
