"""What daemons on this machine have asked for and not taken yet: memory that is free, but promised.

Each daemon leaves a file in a folder of its user, named by its process id and start time. So a file of a process that is
gone, or whose id another process has by now, counts for nothing, and is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from atta.observe.machine.groups import PROC, words
from atta.observe.machine.memory import available_bytes, total_bytes

__all__ = ["claim", "claims_folder", "machine_room", "promised_bytes"]

LOCK_S = 5.0
"""How long a daemon waits for others that look at the memory."""
_STARTED = 19
"""Place of a process's start time among the fields of its ``stat`` that follow its name."""
_ENDED = ("Z", "X")
"""States of processes that have ended, and that nobody has waited for."""
_PRIVATE = ("RssAnon:", "RssShmem:")
"""What counts as taken: pages of files would be given up for others."""


def claims_folder() -> Path:
    """Where the daemons of this user on this machine leave their claims; it exists. Raises OSError if it cannot be had."""
    folder = Path(tempfile.gettempdir()) / f"atta-claims-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


@contextlib.contextmanager
def machine_room(folder: Path | None = None) -> Iterator[tuple[int, int]]:
    """Memory of this machine or the tightest control group, and bytes of it that are free and not promised.

    Daemons that start at the same time look one after the other: leave a ``claim`` within the block.
    """
    try:
        folder = folder or claims_folder()
        lock = (folder / "lock").open("wb")
    except OSError:  # a full disk, or a folder of somebody else: then the others are not known
        yield total_bytes(), available_bytes()
        return
    with lock:
        _lock(lock)
        yield total_bytes(), max(0, available_bytes() - promised_bytes(folder))


def _lock(file: BinaryIO) -> None:
    """Wait for the others, but not for ever: one of them may be stopped. Two that look at once may both take too much."""
    until = time.monotonic() + LOCK_S
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.01)


def claim(nbytes: int, folder: Path | None = None, pid: int | None = None) -> None:
    """Note that this process, or those that it starts, are going to take ``nbytes`` in all. 0: no more than they have."""
    pid = os.getpid() if pid is None else pid
    with contextlib.suppress(OSError):
        path = (folder or claims_folder()) / f"{pid}-{_started(pid)}"
        path.write_text(str(nbytes), encoding="ascii") if nbytes else path.unlink(missing_ok=True)


def promised_bytes(folder: Path, proc: Path = PROC) -> int:
    """What other processes have claimed and not taken yet. Claims of processes that are gone are removed."""
    promised = 0
    for path in folder.glob("*-*"):
        pid, _, started = path.name.partition("-")
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        if _started(int(pid), proc) != started:
            path.unlink(missing_ok=True)
            continue
        claimed = words(path)
        if claimed and claimed[0].isdecimal():
            promised += max(0, int(claimed[0]) - _taken(int(pid), proc))
    return promised


def _started(pid: int, proc: Path = PROC) -> str:
    """When a process started, in the kernel's ticks; empty: there is none, or it has ended."""
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return fields[_STARTED] if len(fields) > _STARTED and fields[0] not in _ENDED else ""


def _taken(pid: int, proc: Path) -> int:
    """Bytes of memory of a process that are not pages of files."""
    status = words(proc / str(pid) / "status")
    kib = (int(value) for name, value in pairwise(status) if name in _PRIVATE)
    return 1024 * sum(kib)
