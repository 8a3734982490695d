"""Folders and files appear whole or not at all: written as ``DST.partial``, forced to disk, then renamed."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType

from atta.errors import ConfigError

__all__ = ["StagedFile", "Staging"]


class Staging:
    """A folder under construction.

    Args:
        dst: final path. It must not exist, or be an empty folder, or (with ``overwrite``) a folder holding ``marker``.
        marker: the file whose presence says that an existing folder is one of ours and may be replaced.
        overwrite: replace an existing folder.

    Raises:
        ConfigError: ``dst`` exists and may not be replaced, or another process is writing it.
    """

    def __init__(self, dst: str | Path, marker: str, *, overwrite: bool = False) -> None:
        self.dst = Path(dst)
        self._check_destination(marker, overwrite)
        self.path = self.dst.with_name(self.dst.name + ".partial")
        self._lock = self._take()

    def _check_destination(self, marker: str, overwrite: bool) -> None:
        if not self.dst.name:
            raise ConfigError(f"{self.dst}: not a folder that can be written")
        if not self.dst.exists() or (self.dst.is_dir() and not any(self.dst.iterdir())):
            return
        if not overwrite:
            raise ConfigError(f"{self.dst}: exists already; choose another folder or pass --overwrite")
        if not (self.dst / marker).is_file():
            raise ConfigError(f"{self.dst}: exists and holds no {marker}, so it is not overwritten")

    def _take(self) -> int:
        """Create the folder and lock it; leftovers of a writer that died are removed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ConfigError(f"{self.path}: another process is writing this folder") from None
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        return lock

    def commit(self) -> None:
        """Force everything to disk and move it to its final name."""
        for folder, _, names in os.walk(self.path, topdown=False):
            for name in names:
                _sync(Path(folder, name))
            _sync(Path(folder))
        old = self.dst.with_name(self.dst.name + ".old")
        if self.dst.exists():
            if old.exists():
                shutil.rmtree(old)
            self.dst.rename(old)
        self.path.rename(self.dst)
        if old.exists():  # also one that a writer has left behind who died just here
            shutil.rmtree(old)
        _sync(self.dst.parent)
        os.close(self._lock)

    def abort(self) -> None:
        """Remove what was written so far."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


class StagedFile:
    """A single file under construction; entering yields the path to write to, leaving without an exception gives it its name.

    Args:
        dst: final path. It must not exist, or (with ``overwrite``) be a file.
        overwrite: replace an existing file.

    Raises:
        ConfigError: ``dst`` exists and may not be replaced, cannot be written, or another process is writing it.
    """

    def __init__(self, dst: str | Path, *, overwrite: bool = False) -> None:
        self.dst = Path(dst)
        if self.dst.is_dir() or not self.dst.name:
            raise ConfigError(f"{self.dst}: a folder; wanted is the name of a file")
        if self.dst.exists() and not overwrite:
            raise ConfigError(f"{self.dst}: exists already; choose another name or pass --overwrite")
        self.path = self.dst.with_name(self.dst.name + ".partial")
        self._lock = self._take()

    def _take(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ConfigError(f"{self.path}: another process is writing this file") from None
        return lock

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                _sync(self.path)
                self.path.replace(self.dst)
                _sync(self.dst.parent)
        finally:
            self.path.unlink(missing_ok=True)  # already gone when it has its name
            os.close(self._lock)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
