"""Tables on disk: one file of records in the format of the log. The first record says which tables there are. Each table
follows: a record that describes it, then the bytes of its arrays, block by block, so that a writer can tell when the
system slows it.

A snapshot's part of one owner is a folder with such a file. There may be several: the part in use, and parts that wait
beside it (``part-0000.ID``). Parts of one snapshot have the same id. When all owners have written theirs, each renames it
to ``part-0000``. So at any interruption, the newest id that all owners have is a whole snapshot.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from atta.errors import ConfigError, DataError
from atta.kvstore.durable.frames import END_BYTES, LogHeader, LogPosition
from atta.kvstore.durable.logfile import TABLES_FILE, LogFile, LogRead, force
from atta.kvstore.mutable.sequences import Client, Sequences
from atta.kvstore.spec import MutableSpec, check_name
from atta.partition.disk.staging import disk_full, recover

BLOCK_BYTES = 4 << 20
SLOW_S = 0.02
"""A block takes 1 ms, or 10 ms where the system has to find fresh pages for it. Longer means that it waits for the disk."""
ALONE = LogHeader(bytes(16), 0, LogPosition(0, 0), forced=False)
"""Of a file that belongs to no log."""
_NUMBERS = ("first_row", "rows", "created_rows", "step", "table_id", "load_id", "key", "lsn")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system while ``path`` is written into a DataError that names the path. ``Staging``
    handles a full disk. It names the snapshot, because the file has only a temporary name."""
    try:
        yield
    except OSError as error:
        if disk_full(path, error):
            raise
        raise DataError(path, f"cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file has: the names of its ``tables`` in order, the ``id`` of the snapshot ("": a single daemon has saved its
    tables), the owner's time in nanoseconds since 1970, and whose vertices and edges the rows belong to ("": of none)."""

    tables: Sequence[str]
    id: str = ""
    written_ns: int = 0
    dataset: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """A table without its arrays, with the attributes that ``MutableTable`` has. ``clients``, ``over``: as ``Sequences``
    tells them. ``over`` and what follows is for a daemon that goes on with its own tables."""

    spec: MutableSpec
    first_row: int
    rows: int
    created_rows: int
    step: int
    clients: list[Any]
    table_id: int = 0
    whole: bool = True
    over: Sequence[Client] = ()
    load_id: int = 0
    key: int = 0
    lsn: int = 0

    @property
    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """(dtype string, shape) of every array of the shard, by name, in the order of the file."""
        spec, shape = self.spec, (self.rows, *self.spec.row_shape)
        found: dict[str, tuple[str, tuple[int, ...]]] = {"values": (spec.dtype, shape)}
        if spec.versioned:
            found["versions"] = ("<i8", (self.rows,))
        return found | dict.fromkeys(spec.optimiser.state_names if spec.optimiser else (), ("<f4", shape))


class TablesWriter(contextlib.AbstractContextManager["TablesWriter"]):
    """A file of tables under construction. Use it in a ``with`` block. Errors are those of ``writing``."""

    def __init__(self, folder: Path, contents: Contents, header: LogHeader = ALONE, over: Path | None = None) -> None:
        """``header``: where the log goes on. ``over``: a file that nobody needs any more, which is written over: see
        ``LogFile``."""
        self.path = folder / TABLES_FILE
        with writing(self.path):
            over = over if over is not None and over.is_file() else None
            self._file = LogFile(self.path, header, over=over, on_disk=False)
        self._describe(asdict(contents))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                with writing(self.path):
                    self._file.cut()
        finally:
            self._file.close()

    def _describe(self, value: Mapping[str, Any]) -> None:
        self.write([np.frombuffer(json.dumps(value).encode(), np.uint8)])

    def begin(self, saved: Saved, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Describe a table. ``write`` what is returned."""
        self._describe({name: getattr(saved, name) for name in saved.__slots__} | {"spec": saved.spec.to_dict()})
        flat = [arrays[name].reshape(-1).view(np.uint8) for name in saved.arrays]
        return [array[first : first + BLOCK_BYTES] for array in flat for first in range(0, len(array), BLOCK_BYTES)]

    def write(self, blocks: Sequence[np.ndarray], *, slow_s: float = math.inf) -> list[np.ndarray]:
        """Write blocks until one takes longer than ``slow_s`` seconds, and return the others."""
        for number, block in enumerate(blocks, 1):
            began = time.monotonic()
            with writing(self.path):
                self._file.append([[block, bytes(-block.nbytes % 8)]])
            if time.monotonic() - began > slow_s:
                return [*blocks[number:]]
        return []


class TablesFile(LogRead):
    """The tables of a snapshot or a checkpoint. Its errors are DataErrors that name the file."""

    ADVICE = ""

    def __init__(self, folder: Path) -> None:
        recover(folder)
        if not folder.is_dir():
            raise DataError(folder, "no such folder; not a snapshot of mutable tables")
        super().__init__(folder / TABLES_FILE)
        self._records = iter(self)
        with self._sound():
            self.contents = Contents(**self._described())
            for name in self.contents.tables:
                check_name(name)
            _count(self.contents.written_ns)

    def tables(self) -> Iterator[Saved]:
        """The tables in order. Read the arrays of each before the next."""
        for name in self.contents.tables:
            with self._sound():
                saved = self._saved()
                if saved.spec.name != name:
                    raise ValueError(f"holds table {saved.spec.name} instead of {name}")
            yield saved
        if next(self._records, None) is not None or self.torn_bytes or self.nbytes != self.end + END_BYTES:
            raise DataError(self.path, f"altered: ends at byte {self.nbytes} instead of {self.end + END_BYTES}")

    def _saved(self) -> Saved:
        value = self._described()
        spec = MutableSpec.from_dict(value["spec"])
        numbers = {name: _count(value[name]) for name in _NUMBERS}
        if numbers["first_row"] + numbers["rows"] > spec.limit:
            raise ValueError(f"{numbers['rows']} rows from row {numbers['first_row']} on; there may be {spec.limit}")
        Sequences.from_json(value["clients"])
        return Saved(spec, clients=value["clients"], whole=bool(value["whole"]), over=list(value["over"]), **numbers)

    def arrays(self, saved: Saved) -> dict[str, np.ndarray]:
        """The arrays of a table, in the memory of this process."""
        found = {}
        for name, (dtype, shape) in saved.arrays.items():
            found[name] = np.empty(shape, dtype)
            flat = found[name].reshape(-1).view(np.uint8)
            for first in range(0, len(flat), BLOCK_BYTES):
                part, body = flat[first : first + BLOCK_BYTES], self._body()
                if len(body) != len(part) + -len(part) % 8:
                    raise DataError(self.path, f"{len(body)} bytes of {name} instead of {len(part)}")
                part[:] = np.frombuffer(body, np.uint8, len(part))
        return found

    def _body(self) -> memoryview:
        record = next(self._records, None)
        if record is None:
            raise DataError(self.path, f"altered: ends within a table, at byte {self.end}")
        return record.body

    def _described(self) -> dict[str, Any]:
        return dict(json.loads(bytes(self._body()).rstrip(b"\0")))

    @contextlib.contextmanager
    def _sound(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise DataError(self.path, f"malformed: {error}") from None


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of rows, steps or a table")
    return value


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
        """The folders of complete parts by their ids, the newest first. The replaced part is older than the part in
        use, and parts that wait beside it are newer. So a clock that was set back misleads nobody. Raises DataError: no
        part is complete. Names what is wrong with the part in use."""
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
        """Make the part with this id the part in use, if it is not yet. ``keep``: do not remove the part that was in
        use, in case other owners fail to commit. Raises DataError: there is no such part."""
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
