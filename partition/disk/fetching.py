"""Brings objects to this machine, several at a time, and goes on where an earlier attempt broke off.

A file that is not complete has another name: ``NAME.partial``. It gets its own when it has the checksum of its record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from atta.errors import DataError, QuotaExceededError
from atta.observe.progress import Progress
from atta.partition.disk.files import FileRecord, check_file
from atta.partition.disk.staging import disk_full
from atta.partition.disk.store import BrokenTransferError, RemoteFolder

Value = TypeVar("Value")

__all__ = ["AT_ONCE", "fetch_files", "send_files"]

AT_ONCE = 4
"""Objects under way at a time."""
BLOCK = 8 << 20
"""Bytes of a request."""
TRIES = 5
"""How often in a row a transfer may break off without a byte having come."""
PAUSE_S = 0.5
"""How long to wait after the first of them; each one doubles it."""


def fetch_files(
    store: RemoteFolder,
    records: Mapping[str, FileRecord],
    folder: Path,
    progress: Progress,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Bring the objects of ``records`` that are not in ``folder`` yet, and verify each.

    Raises:
        DataError: an object is missing or differs from its record; BrokenTransferError: it did not come after all tries.
        QuotaExceededError: the folder has not enough room.
    """
    for name in records:
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            raise DataError(f"{store.url}/{name}", "is no name within the folder")
    missing = {name: record for name, record in records.items() if not (folder / name).is_file()}
    _check_room(folder, sum(record.size - _size(_partial(folder / name)) for name, record in missing.items()))
    progress.stage("fetch", sum(record.size for record in missing.values()))
    _all(_Fetching(store, folder, progress, sleep).fetch, missing)


def send_files(store: RemoteFolder, folder: Path, last: str, progress: Progress) -> None:
    """Write all files of ``folder``; ``last`` is the name of the one that says that all are there."""
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    sizes = {name: (folder / name).stat().st_size for name in names}
    progress.stage("send", sum(sizes.values()))

    def send(name: str, size: int) -> None:
        store.write(folder / name, name)
        progress.advance(size)

    _all(send, {name: size for name, size in sizes.items() if name != last})
    send(last, sizes[last])


def _all(work: Callable[[str, Value], None], wanted: Mapping[str, Value]) -> None:
    """Do ``work`` for all names; the first error stops what has not begun."""
    with ThreadPoolExecutor(AT_ONCE, "atta-storage") as pool:
        waiting = [pool.submit(work, name, value) for name, value in wanted.items()]
        try:
            for done in waiting:
                done.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass(frozen=True)
class _Fetching:
    """From a store to a folder."""

    store: RemoteFolder
    folder: Path
    progress: Progress
    sleep: Callable[[float], None]

    def fetch(self, name: str, record: FileRecord) -> None:
        partial = _partial(self.folder / name)
        partial.parent.mkdir(parents=True, exist_ok=True)
        resumed = _size(partial)
        self.progress.advance(min(resumed, record.size))
        try:
            self._complete(name, record, partial)
        except DataError as error:
            if not resumed or isinstance(error, BrokenTransferError):
                raise
            # What an earlier attempt has left may be of an object that has been replaced since.
            self._complete(name, record, partial)
        partial.rename(self.folder / name)

    def _complete(self, name: str, record: FileRecord, partial: Path) -> None:
        """Append what the partial file lacks, then verify it; it is removed if it differs."""
        failures = 0
        while (have := _size(partial)) < record.size:
            try:
                block = self.store.read_range(name, have, min(have + BLOCK, record.size))
            except BrokenTransferError:
                failures += 1
                if failures == TRIES:
                    raise
                self.sleep(PAUSE_S * 2.0 ** (failures - 1))
                continue
            if not block:
                break  # it is shorter than its record; the check says so
            failures = 0
            _append(partial, block)
            self.progress.advance(len(block))
        try:
            check_file(partial, record, verify=True)
        except DataError as error:
            partial.unlink(missing_ok=True)
            raise DataError(f"{self.store.url}/{name}", error.cause) from None


def _append(path: Path, block: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise disk_full(path, error) or DataError(path, error.strerror or str(error)) from error


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check_room(folder: Path, wanted: int) -> None:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if wanted > free:
        raise QuotaExceededError(f"{folder}: needs {wanted:,} bytes, {free:,} are free")
