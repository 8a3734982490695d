"""A table on disk: its arrays as ``.npy`` files, written block by block so that a writer can tell when the system slows
it, and ``table.json`` with everything else, sizes and checksums."""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from atta.errors import DataError
from atta.kvstore.mutable.sequences import Client, Sequences
from atta.kvstore.spec import MutableSpec
from atta.partition.disk.files import (
    FileRecord,
    check_file,
    map_array,
    read_sealed,
    write_sealed,
)
from atta.partition.disk.staging import disk_full

BLOCK_BYTES = 4 << 20
SLOW_S = 0.02
"""A block takes 1 ms, or 10 ms where the system has to find fresh pages for it. Longer means that it waits for the disk."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system while ``path`` is written into a DataError that names the path.

    ``Staging`` handles a full disk. It names the snapshot, because the file has only a temporary name.
    """
    try:
        yield
    except OSError as error:
        if disk_full(path, error):
            raise
        raise DataError(path, f"cannot be written: {error.strerror or error}") from error


class ArrayFiles:
    """The files of all arrays of a table, under construction. Use it in a ``with`` block. Errors are those of
    ``writing``."""

    def __init__(self, folder: Path, arrays: Mapping[str, np.ndarray], over: Path | None = None) -> None:
        """Write ``name.npy`` into ``folder`` for each array. A file of that name in the folder ``over`` is taken from
        there and written over, as by ``LogFile``."""
        self._files = {
            name: _ArrayFile(folder / f"{name}.npy", array, over and over / f"{name}.npy")
            for name, array in arrays.items()
        }

    def __enter__(self) -> ArrayFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, *, slow_s: float = math.inf) -> None:
        """Write what is not written yet, unless a block takes longer than ``slow_s`` seconds."""
        for file in self._files.values():
            with writing(file.path):
                if not file.write(slow_s):
                    return

    def copy(self) -> None:
        """Let go of the arrays: copy what is not written yet."""
        for file in self._files.values():
            file.rest = file.rest.copy()

    def finish(self) -> dict[str, FileRecord]:
        """Write the rest, and return what a manifest says of the files by the arrays' names."""
        self.write()
        records = {}
        for name, file in self._files.items():
            with writing(file.path):
                records[name] = file.finish()
        return records


class _ArrayFile:
    def __init__(self, path: Path, array: np.ndarray, over: Path | None) -> None:
        self.path, self._fd, self._size, self._digest = path, -1, 0, xxhash.xxh3_64()
        self._dtype, self._shape, self.rest = array.dtype.str, array.shape, array.reshape(-1).view(np.uint8)
        self._over = over if over is not None and over.is_file() else None

    def write(self, slow_s: float) -> bool:
        """Whether all is written; False: a block took longer than ``slow_s``."""
        if self._fd < 0:
            if self._over is not None:
                self._over.rename(self.path)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            head = io.BytesIO()
            header = {"descr": self._dtype, "fortran_order": False, "shape": self._shape}
            np.lib.format.write_array_header_1_0(head, header)
            self._put(memoryview(head.getvalue()))
        while len(self.rest):
            began = time.monotonic()
            self._put(self.rest[:BLOCK_BYTES].data)
            self.rest = self.rest[BLOCK_BYTES:]
            if time.monotonic() - began > slow_s:
                return False
        return True

    def _put(self, data: memoryview) -> None:
        self._digest.update(data)
        while data:
            count = os.pwrite(self._fd, data, self._size)
            self._size += count
            data = data[count:]

    def finish(self) -> FileRecord:
        os.ftruncate(self._fd, self._size)
        self.close()
        return FileRecord(self._size, self._digest.hexdigest(), self._dtype, self._shape)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


MANIFEST = "table.json"
_FORMAT = "atta-mutable-table"
_VERSION = 1
_NUMBERS = ("first_row", "rows", "created_rows", "step", "table_id", "load_id", "key", "lsn")


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot without its arrays.

    Attributes:
        spec: spec of the table.
        first_row: the shard's first global row.
        rows: number of rows in the shard.
        created_rows: number of rows when the shard was created.
        step: number of the optimiser's steps so far.
        clients: as ``Sequences.to_json`` describes them.
        table_id: the same in all shards of the table; 0: not used.
        whole: whether all shards are known to have been created.
        over: as ``Sequences.over`` says. This and what follows is for a daemon that goes on with its own tables.
        load_id, key, lsn: as the table has them.
    """

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


def array_shapes(spec: MutableSpec, rows: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(dtype string, shape) of every array of a shard, by name."""
    shape = (rows, *spec.row_shape)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"values": (spec.dtype, shape)}
    if spec.versioned:
        shapes["versions"] = ("<i8", (rows,))
    for name in () if spec.optimiser is None else spec.optimiser.state_names:
        shapes[name] = ("<f4", shape)
    return shapes


def write_saved(folder: Path, saved: Saved, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a table into ``folder``, which exists. Only the manifest is forced to disk. Raises DataError: a file cannot
    be written, for example because the disk is full; names the file."""
    with ArrayFiles(folder, arrays) as files:
        write_manifest(folder, saved, files)


def write_manifest(folder: Path, saved: Saved, files: ArrayFiles) -> None:
    """Complete the files of a table's arrays in ``folder``, and add the manifest. Raises as ``write_saved``."""
    records = {name: record.to_json() for name, record in files.finish().items()}
    content = {name: getattr(saved, name) for name in saved.__slots__}
    manifest = {"format": _FORMAT, "version": _VERSION, **content, "spec": saved.spec.to_dict(), "files": records}
    with writing(folder / MANIFEST):
        write_sealed(folder / MANIFEST, manifest)


def read_saved(folder: Path) -> tuple[Saved, dict[str, FileRecord]]:
    """The manifest of a snapshot, after its own checks, and the records of its files; raises DataError naming it."""
    path = folder / MANIFEST
    value = read_sealed(path, "a snapshot of a mutable table", _FORMAT, _VERSION)
    try:
        spec = MutableSpec.from_dict(value["spec"])
        numbers = {name: _count(value[name]) for name in _NUMBERS}
        if numbers["first_row"] + numbers["rows"] > spec.limit:
            raise ValueError(f"{numbers['rows']} rows from row {numbers['first_row']} on; there may be {spec.limit}")
        Sequences.from_json(value["clients"])
        saved = Saved(spec, clients=value["clients"], whole=bool(value["whole"]), over=list(value["over"]), **numbers)
        shapes = array_shapes(spec, saved.rows)
        records = {name: FileRecord.from_json(value["files"][name], path, name) for name in shapes}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(path, f"malformed: {error}") from None
    return saved, records


def load_arrays(folder: Path, saved: Saved, records: Mapping[str, FileRecord]) -> dict[str, np.ndarray]:
    """The arrays of a snapshot, read into the memory of this process; raises DataError naming a damaged file."""
    arrays = {}
    for name, (dtype, shape) in array_shapes(saved.spec, saved.rows).items():
        path = folder / f"{name}.npy"
        if (records[name].dtype, records[name].shape) != (dtype, shape):
            raise DataError(
                path, f"holds {records[name].dtype}{list(records[name].shape)} instead of {dtype}{list(shape)}"
            )
        check_file(path, records[name], verify=True)
        arrays[name] = np.array(map_array(path))
    return arrays


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of rows, steps or a table")
    return value
