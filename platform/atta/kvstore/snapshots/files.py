"""A table on disk: its arrays as ``.npy`` files, and ``table.json`` with everything else, sizes and checksums.

``table.json`` has a checksum of its own, so a changed number in it is noticed, as a changed byte in an array is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.kvstore.mutable.sequences import Client, Sequences
from atta.kvstore.snapshots.arrays import ArrayFiles, writing
from atta.kvstore.spec import MutableSpec
from atta.partition.disk.files import (
    FileRecord,
    check_file,
    map_array,
    read_sealed,
    write_sealed,
)

__all__ = [
    "MANIFEST",
    "Saved",
    "array_shapes",
    "load_arrays",
    "read_saved",
    "write_manifest",
    "write_saved",
]

MANIFEST = "table.json"
_FORMAT = "atta-mutable-table"
_VERSION = 1


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
    """Write a table into ``folder``, which exists. Only the manifest is forced to disk.

    Raises:
        DataError: a file cannot be written, for example because the disk is full; names the file.
    """
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
        names = ("first_row", "rows", "created_rows", "step")
        first_row, rows, created_rows, step = (_count(value[name]) for name in names)
        if first_row + rows > spec.limit:
            raise ValueError(f"{rows} rows from row {first_row} on; there may be {spec.limit}")
        clients = value["clients"]
        Sequences.from_json(clients)
        table_id, whole, over = _count(value["table_id"]), bool(value["whole"]), list(value["over"])
        place = [_count(value[name]) for name in ("load_id", "key", "lsn")]
        shapes = array_shapes(spec, rows)
        records = {name: FileRecord.from_json(value["files"][name], path, name) for name in shapes}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(path, f"malformed: {error}") from None
    return Saved(spec, first_row, rows, created_rows, step, clients, table_id, whole, over, *place), records


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
