"""Files that a process reads as long as it lives, while others may write to them: whether they are what it has opened."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from atta import _native
from atta.errors import ChangedFileError, DataError
from atta.partition.disk.files import FileRecord, check_file, torn_files
from atta.partition.disk.staging import Reading

_State = tuple[int, ...]
_REMAPPED = "split_"
"""Files whose names begin so are mapped at each use. Of others, a process keeps what it has mapped."""


class WatchedFiles:
    """Files of a dataset that a process has mapped, or will. ``look`` compares what the system says of each file with
    what it said before. Only a file of which it says something else is read: its bytes may still be the same. The time
    of the last change of a file cannot be set back, so no write goes unnoticed, except one that goes around the file
    system."""

    def __init__(self, folder: Path, marker: str, records: Mapping[str, FileRecord]) -> None:
        """``records``: of the files in ``folder``, by name; ``marker``: see ``Reading``. Make it before the files are
        verified."""
        self._reading = Reading(folder / marker)
        self._folder, self._records = folder, records
        self._seen = {name: _state(folder / name) for name in records}
        self._looking = threading.Lock()
        self._error: ChangedFileError | None = None
        self.replaced = False
        """Whether another file has the name of one of these. What is mapped is still the old one."""

    def look(self) -> None:
        """Look at all files now. It takes a few microseconds for each, and as long as it takes to read those that have
        changed. ``error`` then says what was found."""
        with self._looking:
            for name in self._records if self._error is None else ():
                try:
                    self._look_at(name)
                except DataError as error:
                    self._fail(error.path, error.cause)

    def _look_at(self, name: str) -> None:
        path, before = self._folder / name, self._seen[name]
        now = _state(path)
        if now == before:
            return
        if same_file := now[:2] == before[:2]:
            check_file(path, self._records[name], verify=True)
        self._seen[name] = now
        if not same_file:
            self.replaced = True
            if now and path.name.startswith(_REMAPPED):
                check_file(path, self._records[name], verify=True)

    @property
    def error(self) -> ChangedFileError | None:
        """The first change that was found, by ``look`` or because a page of a mapped file could not be read; None:
        there is none. What was read until now may be wrong otherwise."""
        if self._error is None and _native.files_damaged() and (torn := torn_files()):
            self._fail(torn[0], "cannot be read to its end: it was truncated, or the disk fails")
        return self._error

    @property
    def described(self) -> str:
        """What is wrong, and what to do; empty: nothing is."""
        if (error := self.error) is not None:
            return str(error)
        return f"{self._folder}: other files lie there than are served: restart the daemon" if self.replaced else ""

    def check(self) -> None:
        """Raise ``error``, if there is one, as an exception of its own: others hold the first."""
        if (found := self.error) is not None:
            raise ChangedFileError(found.path, found.cause)

    def _fail(self, path: str, cause: str) -> None:
        self._error = ChangedFileError(
            path, f"{cause}; it changed while it was served: deploy the partition again, then restart the daemon"
        )
        _native.declare_files_damaged()


def _state(path: Path) -> _State:
    """Figures that change whenever the file is written, or another has its name; () if there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
