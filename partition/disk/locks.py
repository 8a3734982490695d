"""Locks of writers, and of daemons that read, on the files and folders of datasets. The kernel frees them with the process."""

from __future__ import annotations

import errno
import fcntl
import os
import time
import weakref
from pathlib import Path

from atta.errors import ConfigError

__all__ = ["Reading", "check_unread", "lock", "locked_soon"]

_ATTEMPTS, _PAUSE_S = 10, 0.01


def locked_soon(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock ``fd`` unless a writer holds it. A reader that removes leftovers holds it for a moment only, so retry."""
    for _ in range(_ATTEMPTS):
        if lock(fd, kind) is not False:
            return True
        time.sleep(_PAUSE_S)
    return False


def lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool | None:
    """Lock an open file or folder until it is closed or this process dies.

    False: another process holds the lock. None: this file system has no locks (NFS has none for folders).
    """
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
