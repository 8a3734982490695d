"""The versions of the tables that a daemon holds: it loads what sessions and peers read, and lets go of the rest.

``atta.kvstore.live.book`` decides; this file owns files, memory and the clock. All of it runs on the event loop; threads
read files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import structlog

from atta.errors import AttaError, DataError, QuotaExceededError
from atta.kvstore.cache import RowCache
from atta.kvstore.cache.rows import bytes_of
from atta.kvstore.live.book import Rows, Sources, VersionBook, source_of
from atta.kvstore.live.folder import VersionFolder
from atta.kvstore.store import Store, Table
from atta.observe.machine.memory import available_bytes
from atta.partition.dataset import Dataset
from atta.samplers import kernels

__all__ = ["LiveVersions", "VersionView"]

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
        sources: where the rows of its tables are.
        rows: the cache of its remote rows.
    """

    number: int
    sources: Sources = field(repr=False)
    rows: RowCache = field(repr=False)


class LiveVersions:
    """``open`` and ``close`` are for sessions, ``tables`` for peers, the rest for whoever publishes."""

    def __init__(
        self, data: str | Path, dataset: Dataset, store: Store, rows: RowCache, *, owner: int, resident: bool
    ) -> None:
        """Load the newest version on the disk. ``rows``: the cache of the dataset's own rows.

        Raises:
            DataError: a file of it is missing or damaged.
            QuotaExceededError: it does not fit into memory.
        """
        self._folder, self._dataset, self._owner = VersionFolder(data, dataset.dataset_id), dataset, owner
        self._store, self._resident = store, resident
        self.book = VersionBook()
        self._caches = {0: rows}
        self._loading: dict[tuple[Rows, str], asyncio.Future[np.ndarray]] = {}
        self._prepared_at = 0.0
        self.book.refresh(self._on_disk())
        for one in self.book.needed(time.monotonic()):
            store.add(one, self._load(one))
        if self.book.newest:
            log.info("version of tables", newest=self.book.newest, mbytes=store.live_bytes // 1_000_000)
            self._trim()

    def stats(self) -> dict[str, float]:
        """Gauges."""
        return {
            "tables_version": float(self.book.newest),
            "tables_versions_read": float(len(self.book.in_use())),
            "tables_version_bytes": float(self._store.live_bytes),
            "cache_bytes": float(bytes_of(self._caches.values())),
        }

    # -- sessions and peers --------------------------------------------------------------------------------------------

    async def open(self, number: int | None) -> VersionView:
        """The version for a session; None: the newest. ``close`` must follow.

        Raises:
            UnknownNameError: it does not exist any more; names those that do.
            DataError: a file of it is missing or damaged. QuotaExceededError: it does not fit into memory.
        """
        if number is not None and number not in self.book.known:
            await self._look()
        number = self.book.open(number)
        try:
            sources = self.book.sources(number)
            await self._hold((t, name, source) for (t, name), source in sources.items())
        except BaseException:
            self._closed(number)
            raise
        return VersionView(number, sources, self._cache(number))

    def close(self, view: VersionView) -> None:
        """A session has ended. What it alone has read goes."""
        self._closed(view.number)

    def _closed(self, number: int) -> None:
        self.book.close(number)
        self._trim()

    async def tables(self, node_type: str, names: Sequence[str], version: int) -> list[Table]:
        """The tables that a peer's pull names.

        Raises:
            UnknownNameError: there is no such table or version; names those that exist. Also what ``open`` raises.
        """
        if not version:
            return [self._store.table(node_type, name) for name in names]
        if version not in self.book.known and (self.book.prepared is None or self.book.prepared[0] != version):
            await self._look()
        sources = self.book.sources(version)
        wanted = [(node_type, name, sources.get((node_type, name), 0)) for name in names]
        self.book.asked(wanted, time.monotonic())
        await self._hold(one for one in wanted if one[2])
        return [self._store.table(*one) for one in wanted]

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
        """Read and check a version that is about to be committed. Sessions do not see it yet.

        Raises:
            DataError: it is not on this machine's disk, or damaged, or another one.
            UnknownNameError, QuotaExceededError: see ``VersionBook.prepare``; it does not fit into memory.
        """
        if number in self.book.known:
            return  # the request is repeated
        found = await asyncio.to_thread(self._folder.read, number)
        if not found.id or found.id != version_id:
            raise DataError(found.path, "is not the version that is being published; does this daemon see that folder?")
        self.book.prepare(number, found.sources)
        self._prepared_at = time.monotonic()
        for one in [one for one in self._store.live if one[2] == number]:
            self._store.drop(one)  # of another version that had this number and was never committed
        try:
            await self._hold(((t, name, source) for (t, name), source in found.sources.items()), version_id)
        except BaseException:
            self.abort(number)
            raise

    async def commit(self, number: int) -> None:
        """The version is committed on the disk: sessions that open from now on read it.

        Raises:
            DataError: it is not committed on this machine's disk.
        """
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
                log.warning("versions of tables cannot be read", error=str(error))

    async def _look(self) -> None:
        before = self.book.newest
        self.book.refresh(await asyncio.to_thread(self._on_disk))
        try:
            sources = self.book.sources(self.book.newest)
            await self._hold((t, name, source) for (t, name), source in sources.items())
        finally:
            self._trim()
        if self.book.newest != before:
            log.info("version of tables", newest=self.book.newest, mbytes=self._store.live_bytes // 1_000_000)

    # -- memory --------------------------------------------------------------------------------------------------------

    async def _hold(self, wanted: Iterable[Rows], prepared: str = "") -> None:
        """Have these rows in memory. ``prepared``: the id of the version that is being prepared, as another one may
        have had its number."""
        for one in wanted:
            if one in self._store.live:
                continue
            key = one, prepared
            if key not in self._loading:
                loading = asyncio.get_running_loop().run_in_executor(None, self._load, one)
                loading.add_done_callback(partial(self._loaded, key))
                self._loading[key] = loading
            data = await asyncio.shield(self._loading[key])
            if one not in self._store.live:
                self._store.add(one, data)

    def _loaded(self, key: tuple[Rows, str], loading: asyncio.Future[np.ndarray]) -> None:
        self._loading.pop(key, None)
        if not loading.cancelled():
            loading.exception()  # perhaps nobody waits any more: it counts as seen

    def _load(self, one: Rows) -> np.ndarray:
        """The rows of this daemon's partitions; on a thread."""
        node_type, name, source = one
        low, high = self._dataset.book.range(node_type, self._owner)
        nbytes, free = (high - low) * self._dataset.schema.table(node_type, name).row_bytes, available_bytes()
        joined = len(self._dataset.groups[self._owner]) > 1
        if joined and nbytes > free:
            raise QuotaExceededError(
                f"version {source} of {node_type}/{name} takes {nbytes >> 20} MiB of memory, {free >> 20} MiB are available"
            )
        data = self._folder.load(self._dataset, self._owner, (node_type, name), source)
        return kernels.resident(data) if self._resident and not joined and 4 * nbytes <= free else data

    def _trim(self) -> None:
        """Let go of what nobody reads."""
        needed = self.book.needed(time.monotonic())
        for one in self._store.live - needed:
            self._store.drop(one)
        used = {*self.book.in_use(), self.book.newest}
        for number in [number for number in self._caches if number and number not in used]:
            del self._caches[number]
        if 0 not in used:
            self._cache(self.book.newest)  # first: it goes on with rows of tables that did not change
            self._caches[0].forget()

    def _on_disk(self) -> dict[int, Sources]:
        return {number: files.sources for number, files in self._folder.committed().items()}
