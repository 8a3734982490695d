"""Folders and files that appear complete or not at all: written as ``DST.partial``, forced to disk, then renamed. A
replaced folder changes places with the new one in a single step, or is first renamed to ``.DST.replaced``. A writer
holds a lock, which the kernel frees when it dies, so the next writer or reader (``recover``) knows a leftover and
removes it, or puts it back."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from atta.errors import AttaError, ConfigError, DataError, DiskFullError
from atta.partition.disk.store import path_here

_ATTEMPTS, _PAUSE_S = 10, 0.01


def locked_soon(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock ``fd`` unless a writer holds it. A reader that removes leftovers holds it for a moment only, so retry."""
    for _ in range(_ATTEMPTS):
        if lock(fd, kind) is not False:
            return True
        time.sleep(_PAUSE_S)
    return False


def lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool | None:
    """Lock an open file or folder until it is closed or this process dies. False: another process holds the lock. None:
    this file system has no locks (NFS has none for folders)."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno == errno.EWOULDBLOCK else None
    return True


class Reading:
    """Says that this process reads a folder, until it is collected or the process ends. No ``Staging`` replaces the
    folder meanwhile, where the file system has locks."""

    def __init__(self, marker: Path) -> None:
        """``marker``: the file of Atta's folders that ``Staging`` was given."""
        fd = os.open(marker, os.O_RDONLY)
        weakref.finalize(self, os.close, fd)
        locked_soon(fd, fcntl.LOCK_SH)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder, which is made if need be, until the block ends or this process dies. A folder that is empty then is
    removed. Raises ConfigError: another process has locked it."""
    folder = _place(folder)
    fd = _take(folder, _make_folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
        os.close(fd)


def check_unread(folder: Path, marker: str) -> None:
    """Raise ConfigError if a process has said that it reads the folder."""
    fd = os.open(folder / marker, os.O_RDONLY)
    try:
        if lock(fd) is False:
            raise ConfigError(
                f"{folder}: is served by a daemon{_holders(fd)}, so it is not overwritten; stop the daemon first, or choose "
                "another folder"
            )
    finally:
        os.close(fd)


def _holders(fd: int) -> str:
    """The processes that have locked an open file, as the kernel lists them; empty: it does not tell."""
    inode = f":{os.fstat(fd).st_ino}"
    try:
        listed = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ""
    found = sorted({int(line[4]) for line in listed if line[1] == "FLOCK" and line[5].endswith(inode)} - {0})
    return f" (process {', '.join(map(str, found))})" if found else ""


_FULL = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "no space left: the disk quota is used up",
    errno.EFBIG: "no space left: larger than a file may be here",
}
_PROBE = 1 << 16
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# Manifests of Atta's folders. Readers remove no other folder, whatever its name is.
_OURS = re.compile(r"nodes|edges|shared|tables|work|part-\d+|[\w.-]+\.(json|npy|log)")
_libc = ctypes.CDLL(None, use_errno=True)


def disk_full(path: str | Path, error: BaseException | None) -> DiskFullError | None:
    """DiskFullError for ``path`` if ``error`` says that the disk is full; otherwise None."""
    cause = _FULL.get(error.errno or 0) if isinstance(error, OSError) else None
    return None if cause is None else DiskFullError(path, cause)


def check_replaceable(dst: str | Path, marker: str, *, overwrite: bool) -> None:
    """Raise ConfigError where ``Staging`` would: work that takes long asks before it begins."""
    place = _place(path_here(dst, "writing"))
    if not place.name:
        raise ConfigError(f"{place}: not a folder that can be written")
    if _vacant(place):
        return
    if not overwrite:
        raise ConfigError(f"{place}: exists already; choose another folder or pass --overwrite")
    if not (place / marker).is_file():
        raise ConfigError(f"{place}: exists and holds no {marker}, so it is not overwritten")
    check_unread(place, marker)


def _no_room(dst: Path, error: BaseException | None) -> DiskFullError | None:
    if isinstance(error, Exception) and not isinstance(error, AttaError | OSError):
        try:  # libraries in C++ do not name the cause: try a write and see its error
            with tempfile.TemporaryFile(dir=dst.parent) as file:
                file.write(bytes(_PROBE))
                file.flush()
        except OSError as failed:
            return disk_full(dst, failed)
    return disk_full(dst, error)


class _Staged:
    """What is under construction at ``path`` and gets the name ``dst`` if the block ends without an exception."""

    dst: Path
    path: Path

    def _commit(self) -> None:
        raise NotImplementedError

    def _clean(self) -> None:
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self._commit()
            elif full := _no_room(self.dst, error):
                raise full from error
        except OSError as failed:
            raise disk_full(self.dst, failed) or DataError(self.dst, f"cannot be written: {failed.strerror}") from None
        finally:
            self._clean()


class Staging(_Staged):
    """A folder under construction: write to ``path``. Leaving the block gives it the name ``dst``; an exception removes
    it. With ``overwrite``, an existing folder is replaced if it holds the file ``marker``. Raises ConfigError: ``dst``
    exists and may not be replaced, is a URL, or another process is writing or serving it; DiskFullError: there is no
    space left, and what was there is untouched."""

    def __init__(self, dst: str | Path, marker: str, *, overwrite: bool = False) -> None:
        self.dst = _place(path_here(dst, "writing"))
        self.marker = marker
        recover(self.dst)
        check_replaceable(self.dst, marker, overwrite=overwrite)
        self.path = _partial(self.dst)
        self._locks = [_take(self.path, _make_folder)]
        try:
            _empty(self.path)
        except BaseException:
            self._clean()
            raise

    def __enter__(self) -> Staging:
        return self

    def _commit(self) -> None:
        for folder, _, names in os.walk(self.path, topdown=False):
            for name in (*names, ""):
                _sync(Path(folder, name))
        if not (self.path / self.marker).is_file() or not _same(self.path, self._locks[0]):
            raise DataError(self.path, "another process removed it while it was written")
        if _vacant(self.dst):
            self.path.rename(self.dst)
        else:
            self._replace()
        _sync(self.dst.parent)

    def _replace(self) -> None:
        # The old folder gets the name of a leftover, and another writer would remove it without this lock.
        self._locks.append(_take(self.dst, _open_folder))
        check_unread(self.dst, self.marker)  # once more: a daemon may have started in the meantime
        if not _exchange(self.path, self.dst):
            self.dst.rename(_replaced(self.dst))
            self.path.rename(self.dst)

    def _clean(self) -> None:
        try:
            for left in (_replaced(self.dst), self.path):
                if any(_same(left, lock) for lock in self._locks):  # else it is another writer's
                    _settle(self.dst, left)
        finally:
            for lock in self._locks:
                os.close(lock)


class StagedFile(_Staged):
    """A single file under construction. Entering the block yields the path to write to; leaving it without an exception
    gives the file the name ``dst``. Errors as ``Staging``."""

    def __init__(self, dst: str | Path, *, overwrite: bool = False) -> None:
        self.dst = _place(path_here(dst, "writing"))
        if self.dst.is_dir() or not self.dst.name:
            raise ConfigError(f"{self.dst}: a folder; wanted is the name of a file")
        if self.dst.exists() and not self.dst.is_file():
            raise ConfigError(f"{self.dst}: not a regular file, so it is not overwritten")
        self._check_free(overwrite=overwrite)
        self.path = _partial(self.dst)
        self._lock = _take(self.path, _make_file)
        try:
            self._check_free(overwrite=overwrite)  # another writer may just have ended
        except ConfigError:
            self._clean()
            raise

    def _check_free(self, *, overwrite: bool) -> None:
        if self.dst.exists() and not overwrite:
            raise ConfigError(f"{self.dst}: exists already; choose another name or pass --overwrite")

    def __enter__(self) -> Path:
        return self.path

    def _commit(self) -> None:
        _sync(self.path)
        self.path.replace(self.dst)
        _sync(self.dst.parent)

    def _clean(self) -> None:
        if _same(self.path, self._lock):  # otherwise it may be the next writer's
            os.ftruncate(self._lock, 0)  # a library may keep the file open, which keeps its space taken
            self.path.unlink()
        os.close(self._lock)


def recover(dst: str | Path) -> None:
    """Finish or undo the work of a writer of the folder ``dst`` that died. Readers call it before they open ``dst``. It
    leaves alone the folders of a living writer, folders that do not look like Atta's, and places where this process may
    not write."""
    dst = _place(dst)
    if not dst.name:
        return
    for left in (_replaced(dst), _partial(dst)):
        with contextlib.suppress(OSError):
            if os.path.lexists(left) and _ours(left):
                _recover(dst, left)


def remove_partial_file(dst: str | Path) -> None:
    """Remove the leftover of a writer of the file ``dst`` that died. The next writer of ``dst`` would do so too."""
    left = _partial(_place(dst))
    with contextlib.suppress(OSError):
        fd = os.open(left, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if lock(fd) and _same(left, fd):
                left.unlink()
        finally:
            os.close(fd)


def _recover(dst: Path, left: Path) -> None:
    fd = _open_folder(left)
    try:
        locked = lock(fd)
        if locked is False:
            _await(dst)
        elif _same(left, fd) and (locked or left == _replaced(dst)):
            _settle(dst, left)
    finally:
        os.close(fd)


def _await(dst: Path) -> None:
    """Wait while a living writer is between two renames. This takes microseconds; wait at most a second."""
    for _ in range(100):
        if not _vacant(dst) or not _replaced(dst).exists():
            break
        time.sleep(_PAUSE_S)


def _settle(dst: Path, left: Path) -> None:
    """Put the replaced folder back if nothing has its name; remove any other leftover. The caller holds its lock."""
    if left == _replaced(dst) and _vacant(dst):
        left.rename(dst)
        _sync(dst.parent)
    else:
        shutil.rmtree(left, ignore_errors=True)


def _place(dst: str | Path) -> Path:
    """The path itself, or the target if it is a symbolic link. The link stays and its target is replaced."""
    path = Path(dst)
    return path.resolve() if path.is_symlink() else path


def _partial(dst: Path) -> Path:
    return dst.with_name(dst.name + ".partial")


def _replaced(dst: Path) -> Path:
    return dst.with_name(f".{dst.name}.replaced")


def _vacant(path: Path) -> bool:
    """Whether a folder may get this name: nothing has it, or an empty folder has it."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def _ours(folder: Path) -> bool:
    return not folder.is_symlink() and all(_OURS.fullmatch(entry.name) for entry in folder.iterdir())


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _make_folder(path: Path) -> int:
    path.mkdir(parents=True, exist_ok=True)
    return _open_folder(path)


def _make_file(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)


def _take(path: Path, make: Callable[[Path], int]) -> int:
    """Open ``path`` by ``make`` and lock it; returns the descriptor that holds the lock."""
    while True:
        try:
            fd = make(path)
        except FileNotFoundError:
            if path.parent.is_dir():  # another writer renamed or removed it before it was opened
                continue
            raise ConfigError(f"{path}: cannot be written: its folder was removed") from None
        except OSError as error:
            raise disk_full(path, error) or ConfigError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            if not locked_soon(fd):
                raise ConfigError(f"{path}: another process is writing it{_holders(fd)}")
            if _same(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # its writer renamed it in the meantime


def _same(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; False: this system or file system cannot do that."""
    rename = getattr(_libc, "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
