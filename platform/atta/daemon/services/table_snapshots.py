"""Saving and loading all tables of a daemon in two phases, so that it happens on all daemons of a cluster or on none.

The client asks all daemons to *prepare*, beside what is in use, then to *commit*; if one refuses, all to abort. Before a save
all *hold* pushes until each has copied its tables: the copies are one cut. One request at a time is worked on, on a thread of
its own: a slow disk must not delay rows, and a disk that hangs must not keep the daemon from ending.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from atta.errors import ConfigError, QuotaExceededError, UnknownNameError
from atta.kvstore.durable.saved import SnapshotParts
from atta.kvstore.mutable.sequences import Changes
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import check_name
from atta.kvstore.tables import Tables
from atta.partition.dataset import part_folder

SHUTDOWN = "shutdown"
"""The snapshot that a daemon writes before it ends."""
MAX_HOLD_S = 3600.0
"""Longest time that what was prepared is held, even if the client asks for more."""
MAX_PUSH_HOLD_S = 30.0
"""Longest time that pushes wait until a save begins to copy, even if the client asks for more."""
MAX_SNAPSHOTS = 64
"""A daemon keeps snapshots of at most so many names, apart from ``SHUTDOWN``."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A save (name and id of the snapshot) or a load (its id) that waits for its commit."""

    key: object
    until: float
    tables: Mapping[str, MutableTable] = field(default_factory=dict)


class PushHold:
    """Whether pushes wait for a save. Changed by the event loop and by the thread that saves."""

    def __init__(self, part: int, clock: Callable[[], float]) -> None:
        self._part, self._clock = part, clock
        self._snapshot_id, self._until = "", 0.0
        self.changes = Changes()

    @property
    def closed(self) -> bool:
        """Whether pushes wait now."""
        return self._clock() < self._until

    @property
    def left_s(self) -> float | None:
        """For how many seconds they wait at most; None: until they are told."""
        left = self._until - self._clock()
        return None if math.isinf(left) else max(0.0, left)

    def begin(self, snapshot_id: str, hold_s: float) -> None:
        """Let pushes wait for ``hold_s`` seconds at most, unless ``keep`` comes; repeating it changes nothing. Raises
        QuotaExceededError: they wait for another save."""
        check_hold(hold_s)
        if not self.closed:
            self._snapshot_id, self._until = snapshot_id, self._clock() + min(hold_s, MAX_PUSH_HOLD_S)
        if self._snapshot_id != snapshot_id:
            raise QuotaExceededError(f"part {self._part}: another save of tables is under way")

    def keep(self, snapshot_id: str) -> None:
        """Let pushes wait until ``release``. Raises UnknownNameError: they do not wait for this save, or not any more."""
        if self._snapshot_id != snapshot_id or not self.closed:
            raise UnknownNameError(
                f"part {self._part}: pushes went on before all daemons had copied their tables; save again"
            )
        self._until = math.inf

    def release(self, snapshot_id: str) -> None:
        """Let pushes go on that wait for this save."""
        if self._snapshot_id == snapshot_id:
            self._until = 0.0
            self.changes.notify()


class TableSnapshots:
    """The snapshots of one daemon. The methods read and write a disk; only one of them works at a time."""

    def __init__(
        self,
        tables: Tables,
        part: int,
        folder: Path | None,
        *,
        limit_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``folder``: holds the snapshots; None: none are kept. ``limit_bytes``: the most that all of this part may take
        there while one is saved; None: no bound. ``clock``: in seconds."""
        self._limit_bytes = limit_bytes
        self._tables, self._part, self._folder, self._clock = tables, part, folder, clock
        self.hold = PushHold(part, clock)
        self._working = threading.Lock()
        self._saving: _Prepared | None = None
        self._loading: _Prepared | None = None
        self._loaded = 0

    def ids(self, name: str) -> list[str]:
        """The ids of the complete snapshots of that name, the newest first. Raises ConfigError: the name is not
        possible, or the daemon keeps no snapshots. DataError: there is none, or it is damaged."""
        with self._working:
            return list(self._parts_of(name).complete())

    def prepare_save(
        self, name: str, snapshot_id: str, hold_s: float, *, held: bool = False
    ) -> tuple[MutableTable, ...]:
        """Write all tables beside the snapshot of that name; repeating it changes nothing.

        Other saves are refused until this one is committed or aborted, or ``hold_s`` seconds have passed. ``held``:
        pushes wait for this save, and go on when the tables have been copied.

        Raises:
            DataError: a file cannot be written; names it, and nothing is left behind.
            QuotaExceededError: another save is under way, or there would be too many names or bytes.
            UnknownNameError: with ``held``: pushes have gone on already.
        """
        check_hold(hold_s)
        with self._working:
            self._drop()
            parts = self._parts_of(name)
            self._check_names(name)
            if self._saving is None:
                parts.trim()
                self._check_bytes()
                self._write(parts.beside(snapshot_id), snapshot_id, held=held)
                self._saving = _Prepared((name, snapshot_id), self._until(hold_s))
            if self._saving.key != (name, snapshot_id):
                raise QuotaExceededError(f"part {self._part}: another save of tables is under way")
            return self._tables.lasting()

    def _write(self, folder: Path, snapshot_id: str, *, held: bool) -> None:
        if not held:
            self._tables.snapshot(folder, snapshot_id=snapshot_id)
            return
        self.hold.keep(snapshot_id)
        release = partial(self.hold.release, snapshot_id)
        try:
            self._tables.snapshot(folder, snapshot_id=snapshot_id, copied=release)
        finally:
            release()

    def commit_save(self, name: str, snapshot_id: str) -> None:
        """Let what was prepared take the place of the snapshot; repeating it changes nothing. Raises UnknownNameError:
        it was not prepared, or too long ago."""
        with self._working:
            parts, saving = self._parts_of(name), self._saving
            if saving is not None and saving.key == (name, snapshot_id):
                parts.commit(snapshot_id)
                self._saving = None
            elif not parts.uses(snapshot_id):
                raise UnknownNameError(f"part {self._part}: what was prepared was held for too long; save again")

    def abort_save(self, name: str, snapshot_id: str) -> None:
        """Remove what was prepared, unless it has been committed, and let pushes go on."""
        self.hold.release(snapshot_id)
        with self._working:
            if self._saving is not None and self._saving.key == (name, snapshot_id):
                self._parts_of(name).abort(snapshot_id)
                self._saving = None

    def prepare_load(self, name: str, snapshot_id: str, load_id: int, hold_s: float) -> tuple[MutableTable, ...]:
        """Read and check a snapshot beside the present tables. It is dropped unless committed within ``hold_s``
        seconds. Raises DataError: there is no such snapshot, or it is damaged; names the file. QuotaExceededError:
        there is no room, or another load is under way."""
        check_hold(hold_s)
        with self._working:
            self._drop()
            if self._loading is None:
                tables = self._tables.prepare(self._parts_of(name).folder(snapshot_id))
                self._loading = _Prepared(load_id, self._until(hold_s), tables)
            if self._loading.key != load_id:
                raise QuotaExceededError(f"part {self._part}: another load of tables is under way")
            return tuple(table for _, table in sorted(self._loading.tables.items()))

    def commit_load(self, load_id: int, steps: Mapping[str, int]) -> None:
        """Hold what was prepared instead of the present tables; repeating it changes nothing. ``steps``: see
        ``Tables.adopt``. Raises UnknownNameError: it was not prepared, or has been dropped since."""
        with self._working:
            loading = self._loading
            if loading is not None and loading.key == load_id:
                self._tables.adopt(loading.tables, load_id, steps)
                self._loading, self._loaded = None, load_id
            elif self._loaded != load_id:
                raise UnknownNameError(f"part {self._part}: what was read to be loaded is gone; load again")

    def abort_load(self, load_id: int) -> None:
        """Drop what was prepared."""
        with self._working:
            if self._loading is not None and self._loading.key == load_id:
                self._loading = None

    def expire(self) -> None:
        """Drop what was prepared too long ago; skipped while another method works."""
        if self._working.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._working.release()

    def finish(self) -> None:
        """Close the tables, then save them as the snapshot ``SHUTDOWN``, if there are tables and a folder. The
        snapshots of all parts have the same id if their tables were created, and last loaded, together. The part's
        older snapshot stays beside the new one, in case another daemon fails to save."""
        self._tables.close()
        tables = self._tables.lasting()
        if self._folder is None or not tables:
            return
        with self._working:
            parts, snapshot_id = self._parts_of(SHUTDOWN), lineage(tables)
            self._tables.snapshot(parts.beside(snapshot_id), snapshot_id=snapshot_id, overwrite=True)
            parts.commit(snapshot_id, keep=True)

    def _check_names(self, name: str) -> None:
        """Refuse one name more than a daemon keeps snapshots of."""
        assert self._folder is not None, "checked"
        part = part_folder(self._part)
        names = {path.parent.name for path in self._folder.glob(f"*/{part}*")} - {name, SHUTDOWN}
        if len(names) >= MAX_SNAPSHOTS:
            raise QuotaExceededError(
                f"part {self._part}: keeps {len(names)} snapshots, at most {MAX_SNAPSHOTS} are possible: save under one of "
                f"their names, or remove a folder below {self._folder}"
            )

    def _check_bytes(self) -> None:
        """Refuse a snapshot for which there is no room beside those that are kept."""
        if self._limit_bytes is None or self._folder is None:
            return
        kept = sum(_size(path) for path in self._folder.glob(f"*/{part_folder(self._part)}*"))
        more = sum(table.nbytes for table in self._tables.lasting())
        if kept + more > self._limit_bytes:
            raise QuotaExceededError(
                f"part {self._part}: snapshots take {kept} bytes below {self._folder}, and one more {more}; at most "
                f"{self._limit_bytes} are allowed: remove old ones, or raise --snapshots-size"
            )

    def _until(self, hold_s: float) -> float:
        return self._clock() + min(hold_s, MAX_HOLD_S)

    def _drop(self) -> None:
        now = self._clock()
        if self._saving is not None and self._saving.until < now:
            self._saving = None  # the files stay: other daemons may have committed theirs
        if self._loading is not None and self._loading.until < now:
            self._loading = None

    def _parts_of(self, name: str) -> SnapshotParts:
        if self._folder is None:
            raise ConfigError(f"the daemon of part {self._part} keeps no snapshots; start it with --snapshots FOLDER")
        check_name(name, "snapshot")
        return SnapshotParts(self._folder / name / part_folder(self._part))


def lineage(tables: Sequence[MutableTable]) -> str:
    """16 hex digits, equal on all daemons whose tables were created, and last loaded, together."""
    text = json.dumps([[table.spec.name, table.table_id, table.load_id] for table in tables])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_hold(hold_s: float) -> None:
    """Raise ConfigError unless something can be held for this many seconds."""
    if not 0 <= hold_s < math.inf:
        raise ConfigError(f"what is prepared cannot be held for {hold_s} s")


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total
