"""Snapshots that are damaged, mixed up or not Atta's are refused with the file's name, and nothing changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from atta.errors import DataError, QuotaExceededError
from atta.kvstore.initial import Uniform
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.kvstore.tables import Tables
from tests.unit.kvstore.conftest import save_table


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
                MutableTable.load(tmp_path / "t")
        path.write_bytes(whole)
    MutableTable.load(tmp_path / "t")


def test_cut_and_missing_files_are_noticed(tmp_path: Path) -> None:
    save_table(small(), tmp_path / "t")
    paths = sorted((tmp_path / "t").iterdir())
    assert [path.name for path in paths] == ["sum.npy", "table.json", "values.npy", "versions.npy"]
    for path in paths:
        whole = path.read_bytes()
        for wrong in (b"", whole[:1], whole[: len(whole) // 2], whole[:-2], whole + b"x", None):
            path.unlink() if wrong is None else path.write_bytes(wrong)
            with pytest.raises(DataError, match=path.name):
                MutableTable.load(tmp_path / "t")
        path.write_bytes(whole)
    for path in (tmp_path / "foreign" / "table.json", tmp_path / "nothing" / "table.json"):
        if path.parent.name == "foreign":
            path.parent.mkdir()
            path.write_text('{"format": "something"}')
        with pytest.raises(DataError, match=path.parent.name):
            MutableTable.load(path.parent)


def test_a_registry_is_restored_whole_or_not_at_all(tmp_path: Path) -> None:
    tables = Tables(10_000)
    for name in ("a", "b"):
        tables.create(small(name).spec)
    tables.snapshot(tmp_path / "all")
    fresh = Tables(10_000)
    kept = fresh.create(MutableSpec("kept", 5))
    folder = tmp_path / "all" / "tables"
    (folder / "a").rename(tmp_path / "a")
    shutil.copytree(folder / "b", folder / "a")
    with pytest.raises(DataError, match="holds table b instead of a"):
        fresh.prepare(tmp_path / "all")
    shutil.rmtree(folder / "a")
    with pytest.raises(DataError, match="tables/a"):
        fresh.prepare(tmp_path / "all")
    (tmp_path / "a").rename(folder / "a")
    values = folder / "b" / "values.npy"
    whole = values.read_bytes()
    values.write_bytes(whole[:-1] + b"?")
    with pytest.raises(DataError, match=r"b/values\.npy"):
        fresh.prepare(tmp_path / "all")
    values.write_bytes(whole)
    manifest = tmp_path / "all" / "tables.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"a"', '"c"'))
    with pytest.raises(DataError, match=r"tables\.json"):
        fresh.prepare(tmp_path / "all")
    manifest.write_text(text)
    with pytest.raises(QuotaExceededError, match="quota"):
        Tables(100).prepare(tmp_path / "all")
    assert fresh.list() == (kept,)
    fresh.adopt(fresh.prepare(tmp_path / "all"), 0, {})
    assert [table.spec.name for table in fresh.list()] == ["a", "b"]
