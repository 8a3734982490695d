"""Temporary folders that end with their process. The next process removes those of processes that were killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import BinaryIO

LOCK = "lock"
YOUNG_S = 60.0
"""How old a folder must be before it counts as abandoned: a younger one may not be locked yet."""


class OwnFolder:
    """Like ``tempfile.TemporaryDirectory``. A locked file in it shows that its process lives. Forked children of that
    process leave the folder where it is."""

    def __init__(self, prefix: str) -> None:
        """Make a folder; also remove folders of this prefix whose processes were killed."""
        _remove_abandoned(prefix)
        self.name = tempfile.mkdtemp(prefix=prefix)
        lock = (Path(self.name) / LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._finalizer = weakref.finalize(self, _remove, self.name, lock, os.getpid())

    def cleanup(self) -> None:
        """Remove the folder; repeating it does nothing."""
        self._finalizer()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _remove(folder: str, lock: BinaryIO, process: int) -> None:
    lock.close()
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if time.time() - folder.stat().st_mtime < YOUNG_S:
                continue
            with (folder / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, another user's, or gone already
