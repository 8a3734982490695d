"""For tests of tables: tables, their clients and snapshots are validated after every change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from atta.kvstore.durable.saved import Contents, SnapshotParts, TablesFile, TablesWriter
from atta.kvstore.mutable.sequences import Sequences
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.tables import Tables
from tests.unit.invariants import watch


@pytest.fixture(autouse=True, scope="session")
def tables_hold_their_invariants() -> Iterator[None]:
    """Check the invariants of tables after every change."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        watch(monkeypatch, Sequences, "register", "forget", "expire")
        watch(monkeypatch, MutableTable, "push", "grow", "note_load", "close")
        watch(monkeypatch, Tables, "create", "delete", "grow", "forget", "adopt", "close")
        watch(monkeypatch, SnapshotParts, "commit", "abort")
        yield


def save_table(table: MutableTable, folder: Path) -> None:
    """Write one table into ``folder``, in the place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with TablesWriter(folder, Contents([table.spec.name])) as file:
        table.write_to(file)


def load_table(folder: Path) -> MutableTable:
    """What ``save_table`` wrote."""
    file = TablesFile(folder)
    (found,) = [MutableTable.of(saved, file.arrays(saved)) for saved in file.tables()]
    return found
