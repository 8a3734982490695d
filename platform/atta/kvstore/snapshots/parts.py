"""Snapshots of one name that one owner keeps: the one in use, and those that were written beside it.

A snapshot of a cluster has a part on every owner. Parts of one snapshot carry the same id. A part is first written, whole, beside
the one in use (``part-0000.ID``); when all owners have done so, each lets it take the other's place (``part-0000``). Until then
every owner still has the older part, and from then on every owner has the newer one: wherever this is broken off, the newest id
that all owners have is a whole snapshot.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from atta.errors import ConfigError, DataError
from atta.kvstore.snapshots.files import writing
from atta.kvstore.spec import check_name
from atta.partition.disk.files import read_sealed, write_sealed

__all__ = ["MANIFEST", "Contents", "SnapshotParts", "read_contents", "write_contents"]

MANIFEST = "tables.json"
_FORMAT = "atta-mutable-tables"
_VERSION = 1
_ID = re.compile(r"[0-9a-f]{16}")
_REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Contents:
    """``tables``: their names. ``snapshot_id``: "" before snapshots had one. ``written_ns``: since 1970, of this owner's clock."""

    tables: tuple[str, ...]
    snapshot_id: str
    written_ns: int


def write_contents(folder: Path, snapshot_id: str, tables: list[str]) -> None:
    """Write the manifest of a snapshot, which completes it; raises DataError."""
    content = {"tables": tables, "id": snapshot_id, "written_ns": time.time_ns()}
    with writing(folder / MANIFEST):
        write_sealed(folder / MANIFEST, {"format": _FORMAT, "version": _VERSION, **content})


def read_contents(folder: Path) -> Contents:
    """What the manifest of a snapshot says; raises DataError naming it."""
    path = folder / MANIFEST
    value = read_sealed(path, "a snapshot of mutable tables", _FORMAT, _VERSION)
    names, snapshot_id, written = value.get("tables"), value.get("id", ""), value.get("written_ns", 0)
    try:
        for name in names if isinstance(names, list) else [names]:
            check_name(name)
        if type(written) is not int or not isinstance(snapshot_id, str):
            raise ConfigError(f"id {snapshot_id!r}, written_ns {written!r}")
    except ConfigError as error:
        raise DataError(path, f"malformed: {error}") from None
    return Contents(tuple(names or ()), snapshot_id, written)


class SnapshotParts:
    """The parts of one name of one owner."""

    def __init__(self, place: Path) -> None:
        """``place``: the folder of the part in use."""
        self.place = place

    def beside(self, snapshot_id: str) -> Path:
        """Where a part is written before it takes its place.

        Raises:
            ConfigError: that is no id, or what has the place is no snapshot.
        """
        if not _ID.fullmatch(snapshot_id):
            raise ConfigError(f"snapshot id {snapshot_id!r}: 16 hexadecimal digits")
        if self.place.exists() and any(self.place.iterdir()) and not (self.place / MANIFEST).is_file():
            raise ConfigError(f"{self.place}: exists and holds no {MANIFEST}, so it is not replaced")
        return self.place.with_name(f"{self.place.name}.{snapshot_id}")

    def complete(self) -> dict[str, Path]:
        """The folders of complete parts by their ids, the newest first.

        Raises:
            DataError: there is none; names what is wrong with the one in use.
        """
        found: dict[Path, Contents] = {}
        damaged: DataError | None = None
        # What ends with .partial is perhaps not on the disk yet.
        for path in [self.place, *(other for other in self._others() if other.suffix != ".partial")]:
            try:
                found[path] = read_contents(path)
            except DataError as error:
                damaged = error if path == self.place else damaged
        if not found:
            assert damaged is not None
            raise damaged
        oldest_first = sorted(found, key=lambda path: found[path].written_ns)
        return dict(reversed({found[path].snapshot_id: path for path in oldest_first}.items()))

    def uses(self, snapshot_id: str) -> bool:
        """Whether the part in use is of this id."""
        try:
            return read_contents(self.place).snapshot_id == snapshot_id
        except DataError:
            return False

    def folder(self, snapshot_id: str) -> Path:
        """The complete part of this id; raises DataError if there is none."""
        found = self.complete()
        if snapshot_id not in found:
            raise DataError(self.place, f"has no complete part of snapshot {snapshot_id or '(without id)'}")
        return found[snapshot_id]

    def commit(self, snapshot_id: str, *, keep: bool = False) -> None:
        """Let the part of this id take its place; it may have it already.

        ``keep``: leave the part beside that had the place, for the case that other owners do not come so far.

        Raises:
            DataError: there is no such part.
        """
        path, kept = self.folder(snapshot_id), None
        if path != self.place:
            with writing(self.place):
                kept = self._step_aside()
                path.rename(self.place)
                _sync(self.place.parent)
        for other in self._others():
            if not keep or other != kept:
                shutil.rmtree(other, ignore_errors=True)

    def abort(self, snapshot_id: str) -> None:
        """Remove the part that was written beside the one in use, if it is there."""
        for path in self._others():
            if snapshot_id in path.name.split("."):
                shutil.rmtree(path, ignore_errors=True)

    def _step_aside(self) -> Path | None:
        if not self.place.exists():
            return None
        aside = self.place.with_name(f"{self.place.name}.{_REPLACED}")
        shutil.rmtree(aside, ignore_errors=True)
        return self.place.rename(aside)

    def _others(self) -> list[Path]:
        """Folders of this part that are not in use; what is not ours is none of them."""
        ours = re.compile(rf"{re.escape(self.place.name)}\.({_ID.pattern}|{_REPLACED})(\.partial)?")
        if not self.place.parent.is_dir():
            return []
        return sorted(path for path in self.place.parent.iterdir() if ours.fullmatch(path.name) and path.is_dir())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
