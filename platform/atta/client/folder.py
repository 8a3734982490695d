"""Temporary folders that end with their process. The next process removes those of processes that were killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from pathlib import Path

__all__ = ["OwnFolder"]

LOCK = "lock"
YOUNG_S = 60.0
"""How old a folder must be before it counts as abandoned: a younger one may not be locked yet."""


class OwnFolder(tempfile.TemporaryDirectory[str]):
    """Like ``tempfile.TemporaryDirectory``. A locked file in it shows that its process lives."""

    def __init__(self, prefix: str) -> None:
        """Make a folder; also remove folders of this prefix whose processes were killed."""
        _remove_abandoned(prefix)
        super().__init__(prefix=prefix)
        self._lock = (Path(self.name) / LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def cleanup(self) -> None:
        """Remove the folder."""
        self._lock.close()
        super().cleanup()


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
