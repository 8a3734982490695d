"""The tests break every invariant of tables, clients and snapshots by hand: ``validate`` says which one is broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atta.kvstore.durable.saved import SnapshotParts
from atta.kvstore.mutable.sequences import WINDOW, Sequences
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.kvstore.tables import Tables
from tests.unit.invariants import validate

SPEC = MutableSpec("t", 4, row_shape=(2,), optimiser=OptimiserSpec.adagrad(0.1), versioned=True, max_rows=9)
ID = "0123456789abcdef"


def pushed() -> Sequences:
    sequences = Sequences(max_clients=2)
    sequences.register("a")
    for number in (0, 2):
        with sequences.once("a", number):
            pass
    validate(sequences)
    return sequences


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda seen: setattr(seen, "expected", -1), "expects push -1"),
        (lambda seen: seen.ahead.add(seen.expected), "is missing, and has been applied"),
        (lambda seen: seen.ahead.add(0), "outside the window"),
        (lambda seen: seen.busy.add(seen.expected + WINDOW), "outside the window"),
        (lambda seen: seen.busy.add(2), "are being applied"),
        (lambda seen: (seen.busy.add(1), setattr(seen, "over", True)), "after a snapshot was loaded"),
    ],
)
def test_pushes_of_a_client(change: Callable[..., object], words: str) -> None:
    sequences = pushed()
    change(sequences._clients["a"])
    with pytest.raises(AssertionError, match=words):
        validate(sequences)


def test_number_of_clients() -> None:
    sequences = pushed()
    sequences._clients.update({name: type(sequences._clients["a"])() for name in "bc"})
    with pytest.raises(AssertionError, match="3 clients"):
        validate(sequences)


@pytest.mark.parametrize(
    ("field", "broken", "words"),
    [
        ("values", np.zeros((4, 2), "<f8"), "values are <f8"),
        ("values", np.zeros((4, 3), "<f4"), "values are"),
        ("versions", None, "versions do not fit"),
        ("versions", np.zeros(3, "<i8"), "versions are"),
        ("versions", np.full(4, -2), "below -1"),
        ("state", {}, "the optimiser has"),
        ("state", {"sum": np.zeros((5, 2), "<f4")}, "the optimiser's sum"),
    ],
)
def test_rows_of_a_table(field: str, broken: object, words: str) -> None:
    table = MutableTable(SPEC)
    validate(table)
    table._contents = dataclasses.replace(table._contents, **{field: broken})
    with pytest.raises(AssertionError, match=words):
        validate(table)


@pytest.mark.parametrize(
    ("field", "broken", "words"),
    [
        ("first_row", 7, "rows 7..11 of 9"),
        ("first_row", -1, "the first row is -1"),
        ("created_rows", 5, "4 rows are left of 5"),
        ("_step", -1, "step -1"),
        ("spec", dataclasses.replace(SPEC, optimiser=None), "the optimiser has"),
    ],
)
def test_a_table(field: str, broken: object, words: str) -> None:
    table = MutableTable(SPEC)
    setattr(table, field, broken)
    with pytest.raises(AssertionError, match=words):
        validate(table)


def test_a_broken_client_breaks_its_table() -> None:
    table = MutableTable(SPEC)
    table.register("a")
    table._sequences._clients["a"].ahead.add(0)
    with pytest.raises(AssertionError, match="push 0"):
        validate(table)


def test_all_tables() -> None:
    tables = Tables(10_000)
    table = tables.create(SPEC)
    validate(tables)
    tables.quota_bytes = table.nbytes - 1
    with pytest.raises(AssertionError, match="bytes for mutable tables are used"):
        validate(tables)
    tables.quota_bytes = 10_000
    tables._tables = {"u": table}
    with pytest.raises(AssertionError, match="held as u"):
        validate(tables)


def test_parts_of_a_snapshot(tmp_path: Path) -> None:
    parts, tables = SnapshotParts(tmp_path / "part-0000"), Tables(10_000)
    tables.create(SPEC)
    tables.snapshot(parts.beside(ID), snapshot_id=ID)
    (tmp_path / f"part-0000.{ID[::-1]}.partial").mkdir()  # still being written
    validate(parts)
    (tmp_path / f"part-0000.{ID}").rename(tmp_path / f"part-0000.{'f' * 16}")
    with pytest.raises(AssertionError, match=f"holds the part of snapshot {ID}"):
        validate(parts)
    (tmp_path / f"part-0000.{'f' * 16}" / "tables.log").unlink()
    with pytest.raises(AssertionError, match="holds no tables"):
        validate(parts)
