"""The files of a store of tables: one of its log, which is written a group of records at a time, and the small ones
that say whose tables these are, and where the log goes on behind a checkpoint."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atta.errors import DataError, blaming
from atta.kvstore.durable import frames
from atta.partition.disk.files import check_regular, write_sealed
from atta.partition.disk.staging import disk_full

_BUFFERS = 1000
"""Most buffers in one call of the operating system, which allows 1,024."""
_BLOCK_BYTES = 4 << 20


class LogFile:
    """The file that grows. One thread uses it at a time."""

    def __init__(self, path: Path, header: frames.LogHeader, *, over: Path | None = None, on_disk: bool = True) -> None:
        """Make a file without records. A file of that name without records is replaced.

        ``over``: a file that nobody needs any more. It gets the new name and is written over, so that the pages which the
        system has for it are used again. ``on_disk``: force the header and the name to the disk.

        Raises OSError: it cannot be made. Then ``over`` is gone."""
        self.path, self.position, self.nbytes = path, header.before, frames.FILE_HEADER_BYTES
        self.first_lsn, self._forced = header.before.lsn + 1, header.forced
        self.broken: OSError | None = None
        """Why nobody knows what the file has on the disk; None: that is known."""
        begun, is_new, renamed = path.with_name(f"{path.name}.begun"), not path.exists(), False
        if over is not None:
            over.rename(begun)
        self._fd = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if over else os.O_TRUNC), 0o644)
        try:
            self._size = os.fstat(self._fd).st_size
            _write(self._fd, [header.encode(), self._end_mark(header.before)], 0)
            if on_disk:
                os.fsync(self._fd)
            begun.rename(path)
            renamed = True
            if on_disk:
                force(path.parent)
        except BaseException:
            os.close(self._fd)
            begun.unlink(missing_ok=True)
            if renamed and is_new:  # the file before goes on, and must stay the last one
                path.unlink(missing_ok=True)
            raise

    @property
    def disk_bytes(self) -> int:
        """Size of the file on the disk. ``nbytes`` ends with the last record."""
        return max(self._size, self.nbytes + frames.END_BYTES)

    def _end_mark(self, last: frames.LogPosition) -> bytes:
        return frames.end_mark(last, forced=self._forced)

    def append(self, bodies: Sequence[Sequence[frames.Buffer]]) -> frames.LogPosition:
        """Write a group of records, each with the buffers of its body, and return the position before it. After an
        error nothing of the group is in the file. If not even that is certain, every later call fails too. Raises
        OSError: the group cannot be written, for example because the disk is full."""
        if self.broken is not None:
            raise self.broken
        before, position, buffers = self.position, self.position, []
        for parts in bodies:
            head, position = frames.frame(parts, position, before.lsn)
            buffers += [head, *parts]
        try:
            size = _write(self._fd, [*buffers, self._end_mark(position)], self.nbytes)
        except OSError:
            self._undo()
            raise
        if self._forced:
            try:
                os.fdatasync(self._fd)
            except OSError as error:  # nobody knows what is on the disk; a second attempt would claim success
                self._undo()
                self.broken = error
                raise
        self.position, self.nbytes = position, self.nbytes + size - frames.END_BYTES
        return before

    def cut(self) -> None:
        """Cut off what the file has from before it was written over; raises OSError."""
        os.ftruncate(self._fd, self.nbytes + frames.END_BYTES)

    def close(self) -> None:
        """Close the file. Calling it twice does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _undo(self) -> None:
        """Put the end mark back, and cut off what follows: a part of it may look like records."""
        size = self.nbytes
        with contextlib.suppress(OSError):  # the file may end without a mark; then a later group proves what is there
            size += _write(self._fd, [self._end_mark(self.position)], self.nbytes)
        try:
            os.ftruncate(self._fd, size)
            self._size = size
            if self._forced:  # the next file may say on the disk that this one ends here
                os.fsync(self._fd)
        except OSError as error:
            self.broken = error


class LogRead(frames.LogReader):
    """A file of a log, mapped to be read."""

    ADVICE = " What follows may have been acknowledged. To go on without it, cut the file off there."
    """What to do about damage."""

    def __init__(self, path: Path) -> None:
        """Raises DataError naming the file: it is missing, or its header is damaged or of another version."""
        check_regular(path)
        with blaming(DataError, path), path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""
        self.path, self.nbytes = path, len(data)
        with blaming(DataError, path, of=ValueError):
            super().__init__(data)

    def __iter__(self) -> Iterator[frames.Record]:
        """The records in order; raises DataError at damage, naming the file and the place."""
        yield from super().__iter__()
        if self.damage:
            raise DataError(self.path, f"{self.damage}, at byte {self.end} of {self.nbytes}.{self.ADVICE}".rstrip("."))


@contextlib.contextmanager
def _forced(path: Path, flags: int) -> Iterator[int]:
    """The open file, which is forced to the disk at the end; raises OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
        os.fsync(fd)
    finally:
        os.close(fd)


def cut_off(path: Path, size: int) -> None:
    """Shorten a file to ``size`` bytes, on the disk; raises OSError."""
    with _forced(path, os.O_RDWR) as fd:
        os.ftruncate(fd, size)


def force(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk; raises OSError."""
    with _forced(path, os.O_RDONLY):
        pass


def write_again(path: Path, size: int) -> None:
    """Write the first ``size`` bytes of a file once more, cut off the rest, and force it to the disk; raises OSError.
    To force it alone would not do. If that has failed before, also in another process, the system takes what it could
    not write for written."""
    with _forced(path, os.O_RDWR) as fd:
        at = 0
        while at < size:
            block = os.pread(fd, min(_BLOCK_BYTES, size - at), at)
            if not block:
                raise OSError(f"has {at} bytes, not {size}")
            _write(fd, [block], at)
            at += len(block)
        os.ftruncate(fd, size)


def _write(fd: int, buffers: Sequence[frames.Buffer], at: int) -> int:
    """Write all buffers from byte ``at`` on and return their size; raises OSError."""
    waiting = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
    written, first = 0, 0
    while first < len(waiting):
        more = os.pwritev(fd, waiting[first : first + _BUFFERS], at + written)
        if more <= 0:
            raise OSError(f"wrote {more} bytes")
        written += more
        while first < len(waiting) and more >= waiting[first].nbytes:
            more -= waiting[first].nbytes
            first += 1
        if more:
            waiting[first] = waiting[first][more:]
    return written


STORE_FILE = "store.json"
"""Says whose tables these are."""
STORE_FORMAT = ("atta-table-store", 1)
TABLES_FILE = "tables.log"
"""The tables of a checkpoint or a snapshot, in records as of the log. Its header says where the log goes on."""


def logs_in(folder: Path) -> list[Path]:
    """The files of the log, the oldest first."""
    return sorted(path for path in folder.glob("log-*") if path.name[4:].isdigit())


def log_path(folder: Path, before: frames.LogPosition) -> Path:
    """The file of the log that begins behind a record."""
    return folder / f"log-{before.lsn + 1:020d}"


def checkpoints_in(folder: Path) -> list[Path]:
    """The complete checkpoints, the oldest first."""
    return sorted(path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit())


def checkpoint_path(folder: Path, at: frames.LogPosition) -> Path:
    """The checkpoint that has everything up to a record."""
    return folder / f"checkpoint-{at.lsn:020d}"


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Name the file in errors of the system: raises DataError."""
    try:
        yield
    except OSError as error:
        raise disk_full(path, error) or DataError(path, f"cannot be written: {error.strerror or error}") from None


def replace_sealed(path: Path, form: tuple[str, int], value: Mapping[str, Any]) -> None:
    """Write a manifest of a format and version, which takes the place of the one that is there; raises OSError."""
    begun = path.with_name(f"{path.name}.begun")
    write_sealed(begun, {"format": form[0], "version": form[1], **value})
    begun.replace(path)


def logs_behind(folder: Path, store_id: bytes, place: frames.LogPosition) -> Iterator[LogRead]:
    """The files of the log behind a checkpoint at ``place``, in order. Read each to its end before the next. Older
    files are removed. Raises DataError: a file is of another store, or does not follow the one before it."""
    for path in logs_in(folder):
        log = LogRead(path)
        if log.header.store_id != store_id:
            raise DataError(path, "belongs to another store of tables")
        if log.header.before.lsn < place.lsn:
            path.unlink()
            continue
        if log.header.before != place:
            raise DataError(path, f"begins behind record {log.header.before.lsn}, but a record before is missing")
        yield log
        place = log.position


def checkpoint_header(folder: Path, store_id: bytes) -> frames.LogHeader:
    """Where the log goes on behind a checkpoint, and the epoch that wrote it. Raises DataError: the checkpoint is
    damaged, or belongs to another store."""
    header = LogRead(folder / TABLES_FILE).header
    if header.store_id != store_id:
        raise DataError(folder, "belongs to another store of tables")
    return header
