"""The small files of a store of tables: whose tables they are, and where the log goes on behind a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atta.errors import DataError
from atta.kvstore.durable.frames import LogPosition
from atta.partition.disk.files import read_sealed, write_sealed

__all__ = ["CHECKPOINT_FORMAT", "POSITION_FILE", "STORE_FILE", "STORE_FORMAT", "checkpoint_place", "write_store_file"]

STORE_FILE = "store.json"
"""Says whose tables these are."""
STORE_FORMAT = ("atta-table-store", 1)
POSITION_FILE = "log.json"
"""Of a checkpoint: where the log goes on."""
CHECKPOINT_FORMAT = ("atta-table-checkpoint", 1)


def write_store_file(folder: Path, store_id: bytes, about: Mapping[str, Any]) -> None:
    """Say whose tables the folder has."""
    begun, (name, version) = folder / f"{STORE_FILE}.begun", STORE_FORMAT
    write_sealed(begun, {"format": name, "version": version, "id": store_id.hex(), **about})
    begun.rename(folder / STORE_FILE)


def checkpoint_place(folder: Path, store_id: bytes) -> tuple[LogPosition, int]:
    """Where the log goes on behind a checkpoint, and the epoch that wrote it.

    Raises:
        DataError: the checkpoint is damaged, or belongs to another store.
    """
    value = read_sealed(folder / POSITION_FILE, "a checkpoint of tables", *CHECKPOINT_FORMAT)
    if value.get("store") != store_id.hex():
        raise DataError(folder, "belongs to another store of tables")
    numbers = [value.get(name) for name in ("lsn", "chain", "epoch")]
    if not all(type(number) is int and 0 <= number < 1 << 64 for number in numbers):
        raise DataError(folder / POSITION_FILE, "does not tell where the log goes on")
    lsn, chain, epoch = (int(number) for number in numbers if number is not None)
    return LogPosition(lsn, chain), epoch
