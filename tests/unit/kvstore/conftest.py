"""For tests of tables: tables, their clients and snapshots are validated after every change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atta.kvstore.durable.saved import SnapshotParts
from atta.kvstore.mutable.sequences import Sequences
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.tables import Tables
from tests.unit.invariants import watch


@pytest.fixture(autouse=True, scope="session")
def tables_hold_their_invariants() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        watch(monkeypatch, Sequences, "register", "forget", "expire")
        watch(monkeypatch, MutableTable, "push", "grow", "note_load", "close")
        watch(monkeypatch, Tables, "create", "delete", "grow", "forget", "adopt", "close")
        watch(monkeypatch, SnapshotParts, "commit", "abort")
        yield
