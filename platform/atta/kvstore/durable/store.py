"""The folder in which a daemon keeps its tables: files of the log, and checkpoints that make older files needless.

    DIR/part-0000/
        store.json                         whose tables these are
        lock                               held by the daemon that uses the folder
        checkpoint-00000000000000004711/   all tables, each at or after record 4711; and log.json
        log-00000000000000004712           the records from 4712 on

To open the store is to load the newest checkpoint and to replay the records behind it. A new file of the log begins
whenever the store is opened, and with every checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError
from atta.kvstore.durable.entries import decode_entry
from atta.kvstore.durable.files import (
    CHECKPOINT_FORMAT,
    POSITION_FILE,
    STORE_FILE,
    STORE_FORMAT,
    checkpoint_place,
    write_store_file,
)
from atta.kvstore.durable.frames import Buffer, LogHeader, LogPosition
from atta.kvstore.durable.logfile import LogFile, LogRead, cut_off, force, write_again
from atta.kvstore.durable.replay import Replay
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.snapshots.parts import MANIFEST
from atta.partition.disk.files import read_sealed, write_sealed
from atta.partition.disk.staging import Staging, disk_full

__all__ = ["Recovered", "TableStore"]

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found: the tables by name, the number of ``records`` replayed, and ``torn_bytes`` that were cut off."""

    tables: dict[str, MutableTable]
    records: int
    torn_bytes: int


class TableStore:
    """The store of one daemon. ``open`` it first. ``append`` and ``rotate`` are for one thread at a time; so is
    ``checkpoint``, but it may run beside them."""

    def __init__(self, folder: Path, about: Mapping[str, Any], *, forced: bool) -> None:
        """Take the folder; makes it if there is none.

        Args:
            folder: of this daemon alone.
            about: whose tables these are; plain values for JSON.
            forced: whether every group of records is forced to the disk.

        Raises:
            ConfigError: another daemon uses the folder, or it belongs to another dataset or other partitions.
            DataError: it cannot be made, or ``store.json`` is damaged.
        """
        self.folder, self.forced, self.about = folder, forced, dict(about)
        self.epoch = 0
        """How often the store has been opened; more if a backup was promoted."""
        self._older: dict[Path, int] = {}  # files of the log before the present one, and their sizes
        self._changing = threading.Lock()
        self._log: LogFile | None = None
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
        """Size of all files of the log."""
        return sum(self._older.values()) + self._present.nbytes

    @property
    def position(self) -> LogPosition:
        """The last record."""
        return self._present.position

    @property
    def begins_file(self) -> bool:
        """Whether the present file of the log has no records yet."""
        return self._present.first_lsn > self._present.position.lsn

    def open(self, load: Callable[[Path], Mapping[str, MutableTable]]) -> Recovered:
        """Read the newest checkpoint by ``load``, replay the log behind it, and begin a new file of the log.

        Raises:
            DataError: a file is damaged, is missing or cannot be written; names it. Then the store is closed.
        """
        try:
            return self._open(load)
        except BaseException:
            self.close()
            raise

    def _open(self, load: Callable[[Path], Mapping[str, MutableTable]]) -> Recovered:
        for path in self.folder.glob("*.begun"):
            path.unlink(missing_ok=True)
        _remove(self.folder.glob("checkpoint-*.partial"))
        place, epoch, tables = self._newest_checkpoint(load)
        replay, records, torn, files = Replay(tables), 0, 0, self._files()
        for path in files:
            log = LogRead(path)
            if log.header.store_id != self.store_id:
                raise DataError(path, "belongs to another store of tables")
            if log.header.before.lsn < place.lsn:
                path.unlink()  # from before the checkpoint
                continue
            if log.header.before != place:
                raise DataError(path, f"begins behind record {log.header.before.lsn}, but a record before is missing")
            records += _replay(log, replay)
            if log.torn_bytes and path != files[-1]:
                raise DataError(path, f"ends within a record, at byte {log.end}, but later files follow")
            self._settle(path, log, last=path == files[-1])
            torn, place, epoch = log.torn_bytes, log.position, max(epoch, log.header.epoch)
            self._older[path] = log.end
        self.epoch = epoch + 1
        self._begin(place)
        return Recovered(replay.by_name(), records, torn)

    def _settle(self, path: Path, log: LogRead, *, last: bool) -> None:
        """Cut off what is torn. What was read may count as acknowledged from now on, also a group that was written by a
        process that was killed before it had forced the group to the disk. Only the last file can have such a group."""
        try:
            if self.forced and last:
                write_again(path, log.end)
            elif self.forced:
                force(path)
            elif log.torn_bytes:
                cut_off(path, log.end)
        except OSError as error:
            raise _unwritten(path, error) from None

    def append(self, bodies: Sequence[Sequence[Buffer]]) -> LogPosition:
        """Write a group of records and return the position before it; see ``LogFile.append``."""
        return self._present.append(bodies)

    def rotate(self) -> LogPosition:
        """Begin a new file of the log, and return the last record before it; raises DataError."""
        present = self._present
        if present.broken is not None:  # whether it ends there on the disk is not known
            raise _unwritten(present.path, present.broken)
        if present.first_lsn <= present.position.lsn:
            self._begin(present.position)
            with self._changing:
                self._older = {**self._older, present.path: present.nbytes}
            present.close()
        return present.position

    def checkpoint(self, at: LogPosition, write: Callable[[Path], None]) -> None:
        """Write all tables by ``write``, then remove what is older. ``at``: as ``rotate`` returned it.

        Raises:
            DataError: a file cannot be written; names it. Then nothing was removed.
        """
        folder = self.folder / f"checkpoint-{at.lsn:020d}"
        try:
            with Staging(folder, MANIFEST, overwrite=True) as staging:
                write(staging.path)
                value = {"store": self.store_id.hex(), "epoch": self.epoch, "lsn": at.lsn, "chain": at.chain}
                name, version = CHECKPOINT_FORMAT
                write_sealed(staging.path / POSITION_FILE, {"format": name, "version": version, **value})
        except OSError as error:
            raise _unwritten(folder, error) from None
        with self._changing:
            needless = [path for path in self._older if _number(path) <= at.lsn]
            self._older = {path: size for path, size in self._older.items() if path not in needless}
        for path in needless:
            path.unlink(missing_ok=True)
        _remove(path for path in self.folder.glob("checkpoint-*") if path.name < folder.name)

    def close(self) -> None:
        """Let go of the folder. Calling it twice does nothing."""
        if self._log is not None:
            self._log.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _present(self) -> LogFile:
        assert self._log is not None, "the store is not open"
        return self._log

    def _begin(self, before: LogPosition) -> None:
        path = self.folder / f"log-{before.lsn + 1:020d}"
        try:
            self._log = LogFile(path, LogHeader(self.store_id, self.epoch, before, self.forced))
        except OSError as error:
            raise _unwritten(path, error) from None
        self._older.pop(path, None)  # it had no records

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("log-*") if path.name[4:].isdigit())

    def _newest_checkpoint(
        self, load: Callable[[Path], Mapping[str, MutableTable]]
    ) -> tuple[LogPosition, int, Iterable[MutableTable]]:
        found = sorted(path for path in self.folder.glob("checkpoint-*") if path.name[11:].isdigit())
        if not found:
            return LogPosition(0, 0), 0, ()
        place, epoch = checkpoint_place(found[-1], self.store_id)
        tables = load(found[-1]).values()
        _remove(found[:-1])
        return place, epoch, tables

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.folder}: another daemon keeps its tables there; choose another --tables-dir"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be locked, so it is not safe there: {error.strerror}") from None

    def _identify(self, about: Mapping[str, Any]) -> bytes:
        path = self.folder / STORE_FILE
        if not path.exists():
            if self._files():
                raise DataError(path, "is missing, but there are logs of tables")
            store_id = secrets.token_bytes(ID_BYTES)
            try:
                write_store_file(self.folder, store_id, about)
            except OSError as error:
                raise _unwritten(path, error) from None
            return store_id
        value = read_sealed(path, "a store of tables", *STORE_FORMAT)
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
        found = sorted(path for path in self.folder.glob("checkpoint-*") if path.name[11:].isdigit())
        return (found[-1], checkpoint_place(found[-1], self.store_id)[0]) if found else None

    def logs_behind(self, place: LogPosition) -> list[LogRead] | None:
        """The files of the log that have records behind ``place``, in order; None: the log does not lead there.

        Between calls of ``append`` alone.

        Raises:
            DataError: a file is damaged.
        """
        if place == self.position:
            return []
        logs = [LogRead(path) for path in self._files()]
        for number, log in enumerate(logs):
            if log.header.before == place:
                return logs[number:]
            if any(_passed(log, place)):
                return [LogRead(log.path), *logs[number + 1 :]]
        return None


def _passed(log: LogRead, place: LogPosition) -> Iterator[bool]:
    """Whether a record of the log ends at ``place``, one by one."""
    return (log.position == place for _ in log)


def _replay(log: LogRead, replay: Replay) -> int:
    count = 0
    for record in log:
        try:
            replay.apply(record.lsn, decode_entry(record.body))
        except ValueError as error:
            raise DataError(log.path, f"record {record.lsn}: {error}") from None
        count += 1
    return count


def _unwritten(path: Path, error: OSError) -> DataError:
    return disk_full(path, error) or DataError(path, f"cannot be written: {error.strerror or error}")


def _number(path: Path) -> int:
    """The first record of a file of the log."""
    return int(path.name.removeprefix("log-"))


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
