"""Object storage and this machine: a folder here that stands for one there, and files that are sent and fetched,
several at a time. What was fetched in part is ``NAME.partial`` until it has the checksum of its record."""

from __future__ import annotations

import hashlib
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
from atta.partition.disk.store import BrokenTransferError, RemoteFolder, is_url


def cache_folder(*names: str) -> Path:
    """A folder below that of caches of this user: ``$XDG_CACHE_HOME/atta``, or ``~/.cache/atta``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "atta", *names)


class Mirror:
    """What a folder is to those who write and read files in it, wherever it lies. For a path of this machine ``path``
    is that folder, and nothing is sent or fetched; if it is ``remote``, files are written and read there first."""

    def __init__(self, folder: str | Path) -> None:
        """Raises ConfigError: what the kind of storage needs is not installed."""
        self._store = RemoteFolder(str(folder)) if is_url(folder) else None
        self.path, self.remote = Path(folder), self._store is not None
        if self._store is not None:
            self.path = cache_folder("mirrors", hashlib.blake2b(self._store.url.encode(), digest_size=8).hexdigest())
            self.path.mkdir(parents=True, exist_ok=True)

    def check_writable(self) -> None:
        """Try whether object storage takes a file; raises DataError. It is removed again."""
        if self._store is not None:
            probe = self.path / f"probe-{os.getpid()}"
            probe.write_bytes(b"")
            self.push(probe.name)
            self.remove(probe.name)

    def pull(self, name: str) -> Path:
        """Bring a file, as it is now; it is absent here if it is absent there. Returns its path here."""
        path = self.path / name
        if self._store is not None:
            if self._store.version(name):
                partial = path.with_name(f"{name}.{os.getpid()}.partial")
                partial.write_bytes(self._store.read(name))
                partial.rename(path)
            else:
                path.unlink(missing_ok=True)
        return path

    def push(self, name: str) -> None:
        """Send a file that is complete here."""
        if self._store is not None:
            self._store.write(self.path / name, name)

    def remove(self, name: str) -> None:
        """Remove a file, here and there."""
        if self._store is not None:
            self._store.remove(name)
        (self.path / name).unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Whether the file is there, whole."""
        return bool(self._store.version(name)) if self._store is not None else (self.path / name).is_file()

    def version(self, name: str) -> str:
        """A text that changes when the file is written anew; empty: there is none."""
        if self._store is not None:
            return self._store.version(name)
        try:
            found = (self.path / name).stat()
        except OSError:
            return ""
        return f"{found.st_dev} {found.st_ino} {found.st_mtime_ns} {found.st_size}"

    def names(self) -> list[str]:
        """The names of all files in the folder itself, where it lies."""
        if self._store is not None:
            return [name for name in self._store.names() if "/" not in name]
        return sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []


Value = TypeVar("Value")

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
    """Bring the objects of ``records`` that are not in ``folder`` yet, and verify each. Raises DataError: an object is
    missing or differs from its record; BrokenTransferError: it did not come after all tries; QuotaExceededError: the
    folder has not enough room."""
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
