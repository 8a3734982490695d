"""One owner's part of the snapshots of one name: the part in use, and parts that wait beside it (``part-0000.ID``).

Parts of one snapshot have the same id. When all owners have written theirs, each renames it to ``part-0000``. So at any
interruption, the newest id that all owners have is a whole snapshot."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from atta.errors import ConfigError, DataError
from atta.kvstore.durable.logfile import TABLES_FILE, force
from atta.kvstore.durable.saved import Contents, TablesFile, writing

_ID = re.compile(r"[0-9a-f]{16}")
_REPLACED = "replaced"
MAX_BESIDE = 8
"""At most so many parts that were never committed stay beside the part in use."""


class SnapshotParts:
    """The parts of one snapshot name that one owner has on its disk."""

    def __init__(self, place: Path) -> None:
        """``place``: the folder of the part in use."""
        self.place = place

    def beside(self, snapshot_id: str) -> Path:
        """The folder in which a part is written before it becomes the part in use. Raises ConfigError: the id is
        malformed, or the folder in use is not a snapshot."""
        if not _ID.fullmatch(snapshot_id):
            raise ConfigError(f"snapshot id {snapshot_id!r}: 16 hexadecimal digits")
        if self.place.exists() and any(self.place.iterdir()) and not (self.place / TABLES_FILE).is_file():
            raise ConfigError(f"{self.place}: exists and holds no {TABLES_FILE}, so it is not replaced")
        return self.place.with_name(f"{self.place.name}.{snapshot_id}")

    def complete(self) -> dict[str, Path]:
        """The folders of complete parts by their ids, the newest first.

        The replaced part is older than the part in use, and parts that wait beside it are newer. So a clock that was
        set back misleads nobody. Raises DataError: no part is complete. Names what is wrong with the part in use."""
        found: dict[Path, Contents] = {}
        damaged: DataError | None = None
        # A .partial folder may be incomplete on the disk.
        for path in [self.place, *(other for other in self._others() if other.suffix != ".partial")]:
            try:
                found[path] = TablesFile(path).contents
            except DataError as error:
                damaged = error if path == self.place else damaged
        if not found:
            assert damaged is not None
            raise damaged
        newest: dict[str, Path] = {}
        for path in sorted(found, key=lambda path: (self._age(path), -found[path].written_ns)):
            newest.setdefault(found[path].id, path)
        return newest

    def uses(self, snapshot_id: str) -> bool:
        """Whether the part in use has this id."""
        try:
            return TablesFile(self.place).contents.id == snapshot_id
        except DataError:
            return False

    def folder(self, snapshot_id: str) -> Path:
        """The folder of the complete part with this id; raises DataError if there is none."""
        found = self.complete()
        if snapshot_id not in found:
            raise DataError(self.place, f"has no complete part of snapshot {snapshot_id or '(without id)'}")
        return found[snapshot_id]

    def commit(self, snapshot_id: str, *, keep: bool = False) -> None:
        """Make the part with this id the part in use, if it is not yet.

        ``keep``: do not remove the part that was in use, in case other owners fail to commit. Raises DataError: there
        is no such part."""
        path, kept = self.folder(snapshot_id), None
        if path != self.place:
            with writing(self.place):
                self._remove_others(path)  # or one that waits would be newer than the part in use, after a crash
                kept = self._step_aside()
                path.rename(self.place)
                force(self.place.parent)
        self._remove_others(kept if keep else None)

    def _remove_others(self, kept: Path | None) -> None:
        for other in self._others():
            if other != kept:
                shutil.rmtree(other, ignore_errors=True)

    def abort(self, snapshot_id: str) -> None:
        """Remove the part with this id that was written beside the part in use, if it is there."""
        for path in self._others():
            if snapshot_id in path.name.split("."):
                shutil.rmtree(path, ignore_errors=True)

    def trim(self, keep: int = MAX_BESIDE) -> None:
        """Remove the oldest parts that were written and never committed, all but ``keep``."""
        beside = [path for path in self._others() if not path.name.endswith(f".{_REPLACED}")]
        beside.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in beside[: max(0, len(beside) - keep)]:
            shutil.rmtree(path, ignore_errors=True)

    def _step_aside(self) -> Path | None:
        if not self.place.exists():
            return None
        aside = self.place.with_name(f"{self.place.name}.{_REPLACED}")
        shutil.rmtree(aside, ignore_errors=True)
        return self.place.rename(aside)

    def _age(self, path: Path) -> int:
        """0: waits beside the part in use, 1: is in use, 2: was in use before."""
        return 1 if path == self.place else 2 if path.name.endswith(f".{_REPLACED}") else 0

    def _others(self) -> list[Path]:
        """Folders of parts that are not in use. Folders with other names are left alone."""
        ours = re.compile(rf"{re.escape(self.place.name)}\.({_ID.pattern}|{_REPLACED})(\.partial)?")
        if not self.place.parent.is_dir():
            return []
        return sorted(path for path in self.place.parent.iterdir() if ours.fullmatch(path.name) and path.is_dir())
