"""Snapshots that are damaged, mixed up or not Atta's are refused with the file's name, and nothing changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError, DataError, QuotaExceededError
from atta.kvstore.initial import Uniform
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.kvstore.tables import Tables


def small(name: str = "t") -> MutableTable:
    spec = MutableSpec(name, 3, row_shape=(2,), optimiser=OptimiserSpec.adagrad(), init=Uniform(0, 1), versioned=True)
    table = MutableTable(spec)
    table.register("c")
    table.push(np.array([1, 2]), np.ones((2, 2), np.float32), "step", client="c", sequence=0)
    table.push(np.array([0]), np.ones((1, 2), np.float32), "write", client="c", sequence=2, version=3)
    return table


def look(table: MutableTable) -> tuple[object, ...]:
    pulled = table.pull(np.arange(3))
    assert pulled.versions is not None
    return pulled.values.tolist(), pulled.versions.tolist(), table.step, table._sequences.to_json()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_every_changed_byte_is_noticed(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "snapshot"
    small().snapshot(folder)
    table = small()
    table.push(np.array([1]), np.ones((1, 2), np.float32), "add", client="c", sequence=1)
    before, saved = look(table), look(MutableTable.load(folder))
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for at in range(int(rng.integers(2)), len(whole), 2):  # another run tries the others
            damaged = bytearray(whole)
            damaged[at] ^= int(rng.integers(1, 256))
            path.write_bytes(damaged)
            for restore in (MutableTable.load, table.restore):
                with pytest.raises(DataError, match=path.name):
                    restore(folder)
        path.write_bytes(whole)
    assert look(table) == before
    table.restore(folder)
    assert look(table) == saved


def test_cut_and_missing_files_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    small().snapshot(folder)
    table = small()
    assert sorted(path.name for path in folder.iterdir()) == ["sum.npy", "table.json", "values.npy", "versions.npy"]
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for size in (0, 1, len(whole) // 2, len(whole) - 2):
            path.write_bytes(whole[:size])
            with pytest.raises(DataError, match=path.name):
                table.restore(folder)
        path.write_bytes(whole + b"x")
        with pytest.raises(DataError, match=path.name):
            table.restore(folder)
        path.unlink()
        with pytest.raises(DataError, match=path.name):
            table.restore(folder)
        path.write_bytes(whole)
    table.restore(folder)


def test_snapshots_of_other_tables_are_foreign(tmp_path: Path) -> None:
    small("other").snapshot(tmp_path / "other")
    MutableTable(small().spec, 1, 2).snapshot(tmp_path / "shard")
    table = small()
    before = look(table)
    for name in ("other", "shard"):
        with pytest.raises(DataError, match="not a snapshot of table t from row 0 on"):
            table.restore(tmp_path / name)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "table.json").write_text('{"format": "something"}')
    for name in ("foreign", "nothing"):
        with pytest.raises(DataError, match=name):
            table.restore(tmp_path / name)
    assert look(table) == before
    with pytest.raises(ConfigError, match="overwrite"):
        table.snapshot(tmp_path / "foreign")


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
        fresh.restore(tmp_path / "all")
    shutil.rmtree(folder / "a")
    with pytest.raises(DataError, match="tables/a"):
        fresh.restore(tmp_path / "all")
    (tmp_path / "a").rename(folder / "a")
    values = folder / "b" / "values.npy"
    whole = values.read_bytes()
    values.write_bytes(whole[:-1] + b"?")
    with pytest.raises(DataError, match=r"b/values\.npy"):
        fresh.restore(tmp_path / "all")
    values.write_bytes(whole)
    manifest = tmp_path / "all" / "tables.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"a"', '"c"'))
    with pytest.raises(DataError, match=r"tables\.json"):
        fresh.restore(tmp_path / "all")
    manifest.write_text(text)
    with pytest.raises(QuotaExceededError, match="quota"):
        Tables(100).restore(tmp_path / "all")
    assert fresh.list() == (kept,)
    fresh.restore(tmp_path / "all")
    assert [table.spec.name for table in fresh.list()] == ["a", "b"]
