"""The folder in which a daemon keeps its tables: files of the log, and checkpoints that make older files needless.

    store.json                         whose tables these are
    lock                               held by the daemon that uses the folder
    checkpoint-00000000000000004711/   all tables, each at or after record 4711
    log-00000000000000004712           the records from 4712 on

A store that *writes over* keeps needless files, within bounds, for the next file of the log and the next checkpoint:
fresh pages for files are what large pushes would wait for (decision 018).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError
from atta.kvstore.durable import logfile
from atta.kvstore.durable.entries import Replay, decode_entry
from atta.kvstore.durable.frames import Buffer, LogHeader, LogPosition
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, RowIds
from atta.partition.disk.files import read_sealed
from atta.partition.disk.staging import Staging, disk_full

ID_BYTES = 16
FILES = 16
"""A log that is written over has about so many files: a checkpoint makes all but the last needless at once, and few more
are filled meanwhile."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found: the tables by name, the number of ``records`` replayed, and ``torn_bytes`` that were cut off."""

    tables: dict[str, MutableTable]
    records: int
    torn_bytes: int


class TableStore:
    """The store of one daemon. ``open`` it first. ``append`` and ``rotate`` are for one thread at a time; so is
    ``checkpoint``, but it may run beside them."""

    def __init__(self, folder: Path, about: Mapping[str, Any], *, forced: bool, keep_bytes: int = 0) -> None:
        """Take the folder; makes it if there is none.

        ``about``: whose tables these are; plain values for JSON. ``forced``: every group of records is forced to the
        disk. ``keep_bytes``: so much of the log is kept to be written over. 0: nothing is, so whoever reads a file of the
        store beside it reads what was written there.

        Raises ConfigError: another daemon uses the folder, or it belongs to another dataset or other partitions;
        DataError: it cannot be made, or ``store.json`` is damaged."""
        self.folder, self.forced, self.about = folder, forced, dict(about)
        self.epoch = 0
        """How often the store has been opened; more if a backup was promoted."""
        self._keep_bytes = keep_bytes
        self._file_bytes = keep_bytes // FILES if keep_bytes else 1 << 60
        # Replaced, never changed, as they are read without the lock:
        self._older: dict[Path, int] = {}  # files of the log before the present one, and their sizes on the disk
        self._needless: dict[Path, int] = {}  # the same of files that may be written over
        self._changing = threading.Lock()
        self._log: logfile.LogFile | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise disk_full(folder, error) or DataError(folder, f"cannot be made: {error.strerror}") from None
        try:
            self._take_lock()
            self.store_id = self._identify(about)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def log_bytes(self) -> int:
        """Size of the files that have records behind the newest checkpoint."""
        return sum(self._older.values()) + self._present.nbytes

    @property
    def disk_bytes(self) -> int:
        """Size of all files of the log."""
        return sum(self._older.values()) + sum(self._needless.values()) + self._present.disk_bytes

    @property
    def position(self) -> LogPosition:
        """The last record."""
        return self._present.position

    @property
    def begins_file(self) -> bool:
        """Whether the present file of the log has no records yet."""
        return self._present.first_lsn > self._present.position.lsn

    def open(
        self,
        load: Callable[[Path], Mapping[str, MutableTable]],
        ids: Callable[[MutableSpec], RowIds | None] = lambda _: None,
    ) -> Recovered:
        """Read the newest checkpoint by ``load``, replay the log behind it, and begin a new file of the log. ``ids`` of
        the rows of a table that the log creates; None: they are row numbers. Raises DataError: a file is damaged, is
        missing or cannot be written; names it. Then the store is closed."""
        try:
            return self._open(load, ids)
        except BaseException:
            self.close()
            raise

    def _open(
        self, load: Callable[[Path], Mapping[str, MutableTable]], ids: Callable[[MutableSpec], RowIds | None]
    ) -> Recovered:
        for path in self.folder.glob("*.begun"):
            path.unlink(missing_ok=True)
        _remove([*self.folder.glob("checkpoint-*.partial"), self._last_but_one])
        place, epoch, tables = self._newest_checkpoint(load)
        replay, records, torn, last = Replay(tables, ids), 0, 0, max(logfile.logs_in(self.folder), default=None)
        for log in logfile.logs_behind(self.folder, self.store_id, place):
            records += _replay(log, replay)
            if log.torn_bytes and log.path != last:
                raise DataError(log.path, f"ends within a record, at byte {log.end}, but later files follow")
            self._settle(log.path, log, last=log.path == last)
            torn, place, epoch = log.torn_bytes, log.position, max(epoch, log.header.epoch)
            self._older[log.path] = log.path.stat().st_size
        self.epoch = epoch + 1
        with logfile.written(logfile.log_path(self.folder, place)):
            self._begin(place, on_disk=True)
        return Recovered(replay.by_name(), records, torn)

    def _settle(self, path: Path, log: logfile.LogRead, *, last: bool) -> None:
        """Cut off what is torn. What was read may count as acknowledged from now on, also a group that was written by a
        process that was killed before it had forced the group to the disk. Only the last file can have such a group."""
        with logfile.written(path):
            if self.forced and last:
                logfile.write_again(path, log.end)
            elif self.forced:
                logfile.force(path)
            elif log.torn_bytes:
                logfile.cut_off(path, log.end)

    def append(self, bodies: Sequence[Sequence[Buffer]]) -> LogPosition:
        """Write a group of records and return the position before it; see ``LogFile.append``."""
        nbytes = sum(memoryview(part).nbytes for parts in bodies for part in parts)
        if self._present.nbytes + nbytes > self._file_bytes and not self.begins_file and self._present.broken is None:
            self._begin_next(on_disk=self.forced)
        return self._present.append(bodies)

    def rotate(self) -> LogPosition:
        """Begin a new file of the log, and return the last record before it; raises DataError."""
        present = self._present
        with logfile.written(present.path):
            if present.broken is not None:  # whether it ends there on the disk is not known
                raise present.broken
        if not self.begins_file:
            with logfile.written(logfile.log_path(self.folder, present.position)):
                self._begin_next(on_disk=self.forced or not self._keep_bytes)
        return present.position

    def checkpoint(self, at: LogPosition, write: Callable[[Path, LogHeader, Path], None]) -> None:
        """Write all tables, then remove what is older, or keep it to be written over.

        Args:
            at: as ``rotate`` returned it.
            write: ``write(folder, header, over)`` writes the tables into a folder. It may take the file of the folder
                ``over``, if there is one.

        Raises DataError: a file cannot be written; names it. Then nothing was removed."""
        folder = logfile.checkpoint_path(self.folder, at)
        with logfile.written(folder), Staging(folder, logfile.TABLES_FILE, overwrite=True) as staging:
            write(staging.path, LogHeader(self.store_id, self.epoch, at, forced=False), self._last_but_one)
        self._make_needless([path for path in self._older if int(path.name.removeprefix("log-")) <= at.lsn])
        before = [path for path in logfile.checkpoints_in(self.folder) if path.name < folder.name]
        _remove([self._last_but_one, *before[:-1]])
        for path in before[-1:]:
            if self._keep_bytes:
                path.rename(self._last_but_one)
            else:
                _remove([path])

    def _make_needless(self, paths: Iterable[Path]) -> None:
        """Files of the log are not read any more: keep as many as may be kept."""
        for path in paths:
            with self._changing:
                older, needless = dict(self._older), dict(self._needless)
                needless[path] = older.pop(path)
                self._older = older
                if sum(needless.values()) <= self._keep_bytes:
                    self._needless = needless
                    continue
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the folder. Calling it twice does nothing."""
        if self._log is not None:
            self._log.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _present(self) -> logfile.LogFile:
        assert self._log is not None, "the store is not open"
        return self._log

    @property
    def _last_but_one(self) -> Path:
        """The checkpoint before the newest one, whose files may be written over."""
        return self.folder / "checkpoint.needless"

    def _begin_next(self, *, on_disk: bool) -> None:
        present = self._present
        self._begin(present.position, on_disk=on_disk)
        with self._changing:
            self._older = {**self._older, present.path: present.disk_bytes}
        present.close()

    def _begin(self, before: LogPosition, *, on_disk: bool) -> None:
        """Begin a file of the log; raises OSError. ``on_disk``: force its header, for example as it has a new epoch. A
        power cut may else leave the header of the time before, and lose the records with it."""
        path, over = logfile.log_path(self.folder, before), None
        with self._changing:
            if self._needless:
                *kept, (over, _) = self._needless.items()
                self._needless = dict(kept)
        header = LogHeader(self.store_id, self.epoch, before, self.forced)
        self._log = logfile.LogFile(path, header, over=over, on_disk=on_disk)
        self._older = {other: size for other, size in self._older.items() if other != path}  # it had no records

    def _newest_checkpoint(
        self, load: Callable[[Path], Mapping[str, MutableTable]]
    ) -> tuple[LogPosition, int, Iterable[MutableTable]]:
        found = logfile.checkpoints_in(self.folder)
        if not found:
            return LogPosition(0, 0), 0, ()
        header, tables = logfile.checkpoint_header(found[-1], self.store_id), load(found[-1]).values()
        _remove(found[:-1])
        return header.before, header.epoch, tables

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.folder}: another daemon has its tables there; name another --tables-dir"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be locked, so it is not safe there: {error.strerror}") from None

    def _identify(self, about: Mapping[str, Any]) -> bytes:
        path = self.folder / logfile.STORE_FILE
        if not path.exists():
            if logfile.logs_in(self.folder):
                raise DataError(path, "is missing, but there are logs of tables")
            store_id = secrets.token_bytes(ID_BYTES)
            with logfile.written(path):
                logfile.replace_sealed(path, logfile.STORE_FORMAT, {"id": store_id.hex(), **about})
            return store_id
        value = read_sealed(path, "a store of tables", *logfile.STORE_FORMAT)
        for name, wanted in about.items():
            if value.get(name) != wanted:
                raise ConfigError(
                    f"{self.folder}: holds tables of {name} {value.get(name)}, not {wanted}; choose another --tables-dir"
                )
        try:
            store_id = bytes.fromhex(value["id"])
        except (KeyError, TypeError, ValueError):
            store_id = b""
        if len(store_id) != ID_BYTES:
            raise DataError(path, "does not tell the id of the store")
        return store_id

    def newest_checkpoint(self) -> tuple[Path, LogPosition] | None:
        """The folder of the newest checkpoint, and where the log goes on behind it; raises DataError."""
        found = logfile.checkpoints_in(self.folder)
        return (found[-1], logfile.checkpoint_header(found[-1], self.store_id).before) if found else None

    def logs_behind(self, place: LogPosition) -> list[logfile.LogRead] | None:
        """The files of the log that have records behind ``place``, in order; None: the log does not lead there. Between
        calls of ``append`` alone. Raises DataError: a file is damaged."""
        if place == self.position:
            return []
        logs = [logfile.LogRead(path) for path in logfile.logs_in(self.folder)]
        for number, log in enumerate(logs):
            if log.header.before == place:
                return logs[number:]
            if any(log.position == place for _ in log):
                return [logfile.LogRead(log.path), *logs[number + 1 :]]
        return None


def _replay(log: logfile.LogRead, replay: Replay) -> int:
    count = 0
    for record in log:
        try:
            replay.apply(record.lsn, decode_entry(record.body))
        except ValueError as error:
            raise DataError(log.path, f"record {record.lsn}: {error}") from None
        count += 1
    return count


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
