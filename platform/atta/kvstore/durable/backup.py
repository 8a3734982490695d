"""The copy that a backup keeps of its primary's store, record by record, so that it is a ``TableStore`` when it is
promoted; and the votes on who may take over: one daemon for each epoch of a store, if a majority of all daemons agrees.

An epoch counts how often a store was opened. Promotion adds a large number, so whoever has opened the store before is
known to be stale, however often it is started again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError, StalePrimaryError
from atta.kvstore.durable import logfile
from atta.kvstore.durable.frames import LogHeader, LogPosition, frame
from atta.partition.disk.files import read_sealed

PROMOTED = 1 << 32
"""What a promotion adds to the epoch."""
NOWHERE = LogPosition(0, 0)
BEHIND_FILE, BEHIND_FORMAT = "behind.json", ("atta-table-copy", 1)
"""Says which record the copy must reach before it may be promoted. There is none once it has."""
EPOCH_FILE, EPOCH_FORMAT = "epoch.json", ("atta-table-copy-epoch", 1)
"""The latest epoch that was followed. The files of the log tell it only once there are records of it."""

StoreName = tuple[bytes, int]
"""The id of a store, and the epoch of whoever speaks."""


class BackupFolder:
    """The copy in one folder. One thread uses it at a time."""

    def __init__(self, folder: Path, where: str) -> None:
        """``where``: the address of this daemon, for errors. Nothing is read yet."""
        self.folder, self._where = folder, where
        self._store_id, self._epoch = b"", 0
        self._file: logfile.LogFile | None = None
        self.position = NOWHERE
        """The last record."""
        self._least = 0  # the record that the copy must reach
        self._is_read = False

    def store(self) -> StoreName | None:
        """Which store is copied here, and its latest epoch; None: none is, or not all of it yet. Raises DataError: the
        copy is damaged."""
        if not (self.folder / logfile.STORE_FILE).exists():
            return None
        with logfile.written(self.folder):
            self._read()
        return None if self._least else (self._store_id, self._epoch)

    def follow(self, store: StoreName, about: Mapping[str, Any], reach: int = 0) -> LogPosition:
        """Begin to copy this store, and return where the copy ends. Repeating it does nothing.

        Args:
            about: whose tables these are.
            reach: the last record of the store. It may have been acknowledged, so the copy cannot be promoted before it
                has it.

        Raises:
            StalePrimaryError: whoever asks has been replaced.
            ConfigError: another store is copied here.
            DataError: the copy is damaged, or cannot be written.
        """
        with logfile.written(self.folder):
            if not (self.folder / logfile.STORE_FILE).exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                if reach:
                    logfile.replace_sealed(self.folder / BEHIND_FILE, BEHIND_FORMAT, {"number": reach})
                logfile.replace_sealed(
                    self.folder / logfile.STORE_FILE, logfile.STORE_FORMAT, {"id": store[0].hex(), **about}
                )
            self._read()
        if store[0] != self._store_id:
            raise ConfigError(
                f"{self._where}: {self.folder} is the copy of another store of tables; remove it to begin another copy"
            )
        self._check(store, following=True)
        with logfile.written(self.folder):
            if self._epoch < store[1]:
                logfile.replace_sealed(self.folder / EPOCH_FILE, EPOCH_FORMAT, {"number": store[1]})
                self._epoch = store[1]
            if self.position.lsn < reach:
                logfile.replace_sealed(self.folder / BEHIND_FILE, BEHIND_FORMAT, {"number": reach})
                self._least = reach
            self._catch_up()
        return self.position

    def append(
        self,
        store: StoreName,
        before: LogPosition,
        after: LogPosition,
        bodies: Sequence[memoryview | bytes],
        *,
        file_epoch: int,
        new_file: bool,
    ) -> LogPosition:
        """Write records that follow ``before``, and return where the copy ends. A repetition writes nothing.

        Raises:
            StalePrimaryError: whoever asks has been replaced.
            ConfigError: the copy does not end at ``before``, or the records do not lead to ``after``.
            DataError: it cannot be written. Then nothing of the records is in the copy.
        """
        self._check(store)
        if self.position == after:
            return after
        if self.position != before:
            raise ConfigError(f"{self._where}: the copy ends at record {self.position.lsn}, not {before.lsn}")
        found = before
        for body in bodies:
            _, found = frame([body], found, before.lsn)
        if found != after:
            raise ConfigError(f"{self._where}: records from {before.lsn + 1} on were altered on their way")
        with logfile.written(self.folder):
            if new_file or self._file is None:
                self._begin(before, file_epoch)
            assert self._file is not None
            self._file.append([[body] for body in bodies])
            self.position = after
            self._catch_up()
        return after

    def piece(self, store: StoreName, at: LogPosition, path: str, offset: int, data: bytes) -> None:
        """Write a piece of a file of the checkpoint at ``at``. Raises StalePrimaryError, DataError: as ``append``;
        ConfigError: the path leads elsewhere."""
        self._check(store)
        names = path.split("/")
        if not 1 <= len(names) <= 4 or any(name in ("", ".", "..") or "\0" in name for name in names):
            raise ConfigError(f"{self._where}: {path!r} is no file of a checkpoint")
        if logfile.checkpoint_path(self.folder, at).exists():
            return  # it is late: its repetition came in time, and the checkpoint is complete
        target = self._partial(at).joinpath(*names)
        with logfile.written(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                if os.pwrite(fd, data, offset) != len(data):
                    raise OSError(f"wrote less than {len(data)} bytes")
            finally:
                os.close(fd)

    def complete(self, store: StoreName, at: LogPosition) -> LogPosition:
        """The checkpoint at ``at`` is whole: what is older goes. Returns where the copy ends. Raises DataError: it is
        not whole."""
        self._check(store)
        partial, whole = self._partial(at), logfile.checkpoint_path(self.folder, at)
        if whole.exists():
            return self.position  # a repetition
        if logfile.checkpoint_header(partial, self._store_id).before != at:
            raise DataError(partial / logfile.TABLES_FILE, "is of another place than was said")
        with logfile.written(whole):
            partial.rename(whole)
            if self.position.lsn < at.lsn:
                self.close()
                self.position = at
            for path in self.folder.glob("log-*"):
                if logfile.LogRead(path).header.before.lsn < at.lsn and (self._file is None or path != self._file.path):
                    path.unlink()
            for path in self.folder.glob("checkpoint-*"):
                if path.name < whole.name:
                    shutil.rmtree(path, ignore_errors=True)
            self._catch_up()
        return self.position

    def promote(self, to: Path) -> LogPosition:
        """Make the copy the store at ``to``, which whoever opens it knows to be newer than all before. Raises
        ConfigError: there is no copy, not all of it yet, or there is a store at ``to`` already; DataError: the copy is
        damaged or cannot be written."""
        if not (self.folder / logfile.STORE_FILE).exists():
            raise ConfigError(f"{self._where}: keeps no copy of tables, so it cannot take over ({self.folder})")
        if (to / logfile.STORE_FILE).exists() and any(to.glob("log-*")):
            raise ConfigError(f"{self._where}: holds tables of its own ({to}), so it cannot take over")
        with logfile.written(self.folder):
            self._read()
            position = self.position
            if self._least:
                raise ConfigError(
                    f"{self._where}: its copy of the tables ends at record {position.lsn}, and records up to {self._least} "
                    "may have been acknowledged, so it cannot take over. To do so without them, stop it, remove "
                    f"{self.folder / BEHIND_FILE}, and start it again"
                )
            self._begin(position, self._epoch + PROMOTED)
            self.close()
            (self.folder / EPOCH_FILE).unlink(missing_ok=True)
            shutil.rmtree(to, ignore_errors=True)
            self.folder.rename(to)
        self._is_read = False
        return position

    def take_back(self, taken: Path) -> None:
        """What was promoted to ``taken`` cannot be used: keep it as a copy again, in the epoch that it had. So its
        primary, if there is one, goes on. Raises DataError."""
        with logfile.written(self.folder):
            for path in taken.glob("log-*"):
                # Begun by the promotion, no records.
                if path.name[4:].isdigit() and int(path.name[4:]) > self.position.lsn:
                    path.unlink()
            logfile.replace_sealed(taken / EPOCH_FILE, EPOCH_FORMAT, {"number": self._epoch})
            taken.rename(self.folder)

    def close(self) -> None:
        """Let go of the file that grows."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check(self, store: StoreName, *, following: bool = False) -> None:
        if not self._is_read or store[0] != self._store_id:
            raise ConfigError(f"{self._where}: follows no such store of tables")
        if store[1] < self._epoch or (store[1] > self._epoch and not following):
            raise StalePrimaryError(
                self._where, f"has followed epoch {self._epoch} of the tables since; epoch {store[1]} is not the latest"
            )

    def _read(self) -> None:
        """Find out where the copy ends, and check all records of it, unless that is done."""
        if self._is_read:
            return
        self._store_id = bytes.fromhex(
            read_sealed(self.folder / logfile.STORE_FILE, "a store of tables", *logfile.STORE_FORMAT)["id"]
        )
        for path in (*self.folder.glob("*.begun"), *self.folder.glob("checkpoint-*.partial")):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        found = logfile.checkpoints_in(self.folder)
        self.position, self._epoch = NOWHERE, 0
        if found:
            header = logfile.checkpoint_header(found[-1], self._store_id)
            self.position, self._epoch = header.before, header.epoch
        self._epoch = max(self._epoch, self._number(EPOCH_FILE, EPOCH_FORMAT))
        self._least = self._number(BEHIND_FILE, BEHIND_FORMAT)
        for log in logfile.logs_behind(self.folder, self._store_id, self.position):
            for _ in log:
                pass
            if log.torn_bytes:
                logfile.cut_off(log.path, log.end)
            self.position, self._epoch = log.position, max(self._epoch, log.header.epoch)
        self._is_read = True

    def _number(self, name: str, form: tuple[str, int]) -> int:
        path = self.folder / name
        return int(read_sealed(path, "a copy of tables", *form)["number"]) if path.exists() else 0

    def _catch_up(self) -> None:
        """The copy may be promoted if it has what it must reach."""
        if self._least and self.position.lsn >= self._least:
            (self.folder / BEHIND_FILE).unlink(missing_ok=True)
            self._least = 0

    def _begin(self, before: LogPosition, epoch: int) -> None:
        self.close()
        header = LogHeader(self._store_id, epoch, before, forced=False)
        self._file = logfile.LogFile(logfile.log_path(self.folder, before), header)

    def _partial(self, at: LogPosition) -> Path:
        return self.folder / f"checkpoint-{at.lsn:020d}.partial"


LEAST = 3
"""Fewer daemons have no majority: two that do not hear each other cannot know which one is cut off."""
MOST_STORES = 4096
"""Votes for so many stores are kept."""
VOTES_FORMAT = ("atta-votes", 1)


@dataclass(frozen=True)
class Ballot:
    """What is voted on: ``candidate`` (an address) takes over the store from whoever holds it in this epoch."""

    store: bytes
    epoch: int
    candidate: str


def is_majority(votes: int, daemons: int) -> bool:
    """Whether so many votes suffice among so many daemons, those included that do not answer."""
    return daemons >= LEAST and 2 * votes > daemons


class VoteBook:
    """The votes that one daemon has given. They survive it. One thread uses it at a time."""

    def __init__(self, path: Path) -> None:
        """``path``: a file of this daemon alone."""
        self._path = path
        self._given: dict[str, tuple[int, str]] | None = None

    def give(self, ballot: Ballot) -> str:
        """Vote for ``ballot``; returns "" or why not. The same question gets the same answer. Raises DataError: the
        votes cannot be read or written. Then none was given."""
        given = self._read()
        epoch, candidate = given.get(ballot.store.hex(), (-1, ""))
        if ballot.epoch < epoch:
            return f"voted for epoch {epoch} of these tables already"
        if ballot.epoch == epoch:
            return "" if candidate == ballot.candidate else f"voted for {candidate} already"
        if len(given) >= MOST_STORES and ballot.store.hex() not in given:
            return f"has votes for {len(given)} stores of tables"
        now = {**given, ballot.store.hex(): (ballot.epoch, ballot.candidate)}
        with logfile.written(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            logfile.replace_sealed(self._path, VOTES_FORMAT, {"given": now})
            logfile.force(self._path.parent)  # else a power cut may bring the votes of before back
        self._given = now
        return ""

    def _read(self) -> dict[str, tuple[int, str]]:
        if self._given is None:
            self._given = {}
            if self._path.exists():
                value = read_sealed(self._path, "votes", *VOTES_FORMAT)
                try:
                    self._given = {str(store): (int(e), str(c)) for store, (e, c) in dict(value["given"]).items()}
                except (KeyError, TypeError, ValueError):
                    raise DataError(self._path, "is malformed") from None
        return self._given
