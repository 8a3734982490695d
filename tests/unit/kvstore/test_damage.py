"""Snapshots that are damaged, mixed up or not Atta's are refused with the file's name, and nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import DataError, QuotaExceededError
from atta.kvstore.durable.saved import Contents, TablesWriter
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec, Uniform
from atta.kvstore.tables import Tables
from tests.unit.kvstore.conftest import load_table, save_table


def small(name: str = "t") -> MutableTable:
    spec = MutableSpec(name, 3, row_shape=(2,), optimiser=OptimiserSpec.adagrad(), init=Uniform(0, 1), versioned=True)
    table = MutableTable(spec)
    table.register("c")
    table.push(np.array([1, 2]), np.ones((2, 2), np.float32), "step", client="c", sequence=0)
    table.push(np.array([0]), np.ones((1, 2), np.float32), "write", client="c", sequence=2, version=3)
    return table


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_every_changed_byte_is_noticed(tmp_path: Path, rng: np.random.Generator) -> None:
    save_table(small(), tmp_path / "t")
    for path in sorted((tmp_path / "t").iterdir()):
        whole = path.read_bytes()
        for at in range(int(rng.integers(2)), len(whole), 2):  # another run tries the others
            damaged = bytearray(whole)
            damaged[at] ^= int(rng.integers(1, 256))
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=path.name):
                load_table(tmp_path / "t")
        path.write_bytes(whole)
    load_table(tmp_path / "t")


def test_cut_and_missing_files_are_noticed(tmp_path: Path) -> None:
    save_table(small(), tmp_path / "t")
    path = tmp_path / "t" / "tables.log"
    whole = path.read_bytes()
    for wrong in (b"", *(whole[:size] for size in range(1, len(whole), 7)), whole[:-2], whole + b"x", None):
        path.unlink() if wrong is None else path.write_bytes(wrong)
        with pytest.raises(DataError, match=path.name):
            load_table(tmp_path / "t")
    with pytest.raises(DataError, match="nothing: no such folder; not a snapshot of mutable tables"):
        load_table(tmp_path / "nothing")
    path.write_bytes(b"something" * 10)
    with pytest.raises(DataError, match=r"tables\.log: not a log of tables"):
        load_table(tmp_path / "t")


def test_tables_are_restored_together_or_not_at_all(tmp_path: Path) -> None:
    tables = Tables(10_000)
    for name in ("a", "b"):
        tables.create(small(name).spec)
    tables.snapshot(tmp_path / "all")
    fresh = Tables(10_000)
    kept = fresh.create(MutableSpec("kept", 5))
    path = tmp_path / "all" / "tables.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    with pytest.raises(DataError, match=r"tables\.log"):
        fresh.prepare(tmp_path / "all")
    path.write_bytes(whole)
    with TablesWriter(tmp_path, Contents(["a"])) as file:
        tables.get("b").write_to(file)
    with pytest.raises(DataError, match="holds table b instead of a"):
        fresh.prepare(tmp_path)
    with pytest.raises(QuotaExceededError, match="quota"):
        Tables(100).prepare(tmp_path / "all")
    assert fresh.list() == (kept,)
    fresh.adopt(fresh.prepare(tmp_path / "all"), 0, {})
    assert [table.spec.name for table in fresh.list()] == ["a", "b"]


@pytest.mark.parametrize(
    ("contents", "change", "words"),
    [
        ({"tables": 3}, {}, "malformed"),
        ({"tables": ["../x"]}, {}, r"table name '\.\./x'"),
        ({"written_ns": "now"}, {}, "'now' is not a number"),
        ({}, {"lsn": -1}, "malformed: -1 is not a number"),
        ({}, {"key": {}}, "malformed: {} is not a number"),
        ({}, {"spec": 3}, "malformed: table: 3 is not a description"),
        ({}, {"clients": [1]}, "malformed"),
        ({}, {"rows": 2**50}, "there may be 3"),
    ],
)
def test_what_makes_no_sense_under_a_right_checksum(
    tmp_path: Path, contents: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    saved, arrays = small().copied()
    content = {name: getattr(saved, name) for name in saved.__slots__}
    with TablesWriter(tmp_path, Contents(**{"tables": ["t"], **contents})) as file:
        file._describe({**content, "spec": saved.spec.to_dict(), **change})
        file.write([array.reshape(-1).view(np.uint8) for array in arrays.values()])
    with pytest.raises(DataError, match=rf"tables\.log: .*{words}"):
        load_table(tmp_path)
