"""One table: the requests that it refuses, versions, growth, snapshots while others push, and damaged snapshots."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import ConfigError, DataError, QuotaExceededError, UnknownClientError
from atta.kvstore.durable.saved import Contents, TablesFile, TablesWriter
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec, Uniform
from atta.kvstore.tables import Tables
from tests.unit.kvstore.test_rows import together

ADAM = OptimiserSpec.adam(0.1)


def table_of(**changes: Any) -> MutableTable:
    described = {"row_shape": (3,), "optimiser": ADAM, "init": Uniform(0, 1), "versioned": True, "max_rows": 120}
    return knowing(MutableTable(MutableSpec("t", 100, **(described | changes)), 40, 20))


def knowing(table: MutableTable, *clients: int | str) -> MutableTable:
    for client in clients or (1, "c"):
        table.register(client)
    return table


def everything(table: MutableTable) -> list[Any]:
    pulled = table.pull(np.array(table.span))
    return [pulled.values.tolist(), None if pulled.versions is None else pulled.versions.tolist(), table.step]


BAD: dict[str, list[dict[str, Any]]] = {
    "row 39 is outside the rows 40..59": [{"rows": [39, 40]}],
    "row 60": [{"rows": [40, 60]}],
    "outside": [{"rows": [2**63 - 1, 40]}, {"rows": np.array([2**64 - 1, 40], np.uint64)}],
    "one-dimensional": [{"rows": [[40, 41]]}],
    "integers": [{"rows": [40.0, 41.0]}],
    "instead of": [{"values": np.ones(shape, np.float32)} for shape in ((2, 4), (1, 3))]
    + [{"values": np.ones((2, 3))}],
    "23 bytes for 2 rows of 12 bytes": [{"values": bytes(23)}],
    "operation": [{"op": "multiply"}],
    "version": [{"op": "add", "version": 1}, {"version": -1}, {"version": 2**63}],
    "client": [{"client": None}],
    "push": [{"sequence": -1}],
}


def save_table(table: MutableTable, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with TablesWriter(folder, Contents([table.spec.name])) as file:
        table.write_to(file)


def load_table(folder: Path) -> MutableTable:
    file = TablesFile(folder)
    (found,) = [MutableTable.of(saved, file.arrays(saved)) for saved in file.tables()]
    return found


@pytest.mark.parametrize("words", BAD)
def test_a_refused_push_changes_nothing_and_leaves_its_number(words: str) -> None:
    table = table_of()
    before = everything(table)
    push = {"rows": [40, 41], "values": np.ones((2, 3), np.float32), "op": "write", "client": "c", "sequence": 0}
    for change in BAD[words]:
        with pytest.raises(ConfigError, match=words):
            table.push(**(push | change))
        assert everything(table) == before
    assert table.push(**push)  # type: ignore[arg-type]


def test_operations_need_what_they_work_on_and_values_may_be_no_numbers() -> None:
    plain = knowing(MutableTable(MutableSpec("t", 4)))
    flags = knowing(MutableTable(MutableSpec("t", 4, "|b1")))
    for table, values, op, words in [
        (plain, bytes(4), "step", "no optimiser"),
        (flags, bytes(1), "add", "truth values"),
        (flags, b"\x02", "write", "neither 0 nor 1"),
    ]:
        with pytest.raises(ConfigError, match=words):
            table.push(np.array([0]), values, op, client=1, sequence=0)
    with pytest.raises(ConfigError, match="version"):
        plain.push(np.array([0]), bytes(4), "write", client=1, sequence=0, version=1)
    assert plain.pull(np.array([0])).versions is None
    table = knowing(MutableTable(MutableSpec("t", 4, row_shape=(2,))))
    strange = np.array([[np.nan, -np.inf]], np.float32)
    memory = bytearray(9)
    memory[1:] = strange.tobytes()
    forms = (strange, strange.tobytes(), memoryview(memory)[1:], np.asfortranarray(strange))
    for number, values in enumerate(forms):
        table.push([number], values, "write", client=1, sequence=number)  # type: ignore[arg-type]
    assert np.array_equal(table.pull(np.arange(4)).values, np.repeat(strange, 4, axis=0), equal_nan=True)
    table.push([0], memoryview(memory)[1:], "add", client=1, sequence=4)  # type: ignore[arg-type]
    assert np.isnan(table.pull(np.array([0])).values[0, 0])


def test_empty_requests_and_a_table_without_rows(tmp_path: Path) -> None:
    table = table_of()
    nothing = np.empty((0, 3), np.float32)
    for number, op in enumerate(("write", "add", "step")):
        assert table.push([], nothing, op, client=1, sequence=number)  # type: ignore[arg-type]
    assert table.step == 1
    assert table.pull(np.array([], np.int32)).values.shape == (0, 3)
    table = knowing(MutableTable(MutableSpec("t", 0, optimiser=ADAM, versioned=True, max_rows=3)))
    save_table(table, tmp_path / "empty")
    table.grow(3)
    assert table.push(np.array([2]), np.ones(1, np.float32), "step", client=1, sequence=0)
    table = load_table(tmp_path / "empty")
    assert (table.rows, table.step, table.clients) == (0, 0, 2)
    with pytest.raises(ConfigError, match="row 0"):
        table.pull(np.array([0]))


def test_a_snapshot_is_a_cut_between_pushes(tmp_path: Path) -> None:
    table = knowing(MutableTable(MutableSpec("t", 3000, "<i8", (50,), max_rows=3010)), 0, 1, 2)
    ones, rows = np.ones((3000, 50), np.int64), np.arange(3000)
    done = threading.Event()

    def pusher(client: int) -> None:
        for number in range(60):
            table.push(rows, ones, "add", client=client, sequence=number)

    def pushers() -> None:
        try:
            together(*(lambda c=c: pusher(c) for c in range(3)))  # type: ignore[misc]
        finally:
            done.set()

    def copy() -> None:
        count = 0
        while not done.is_set() or not count:
            save_table(table, tmp_path / "cut")
            restored = load_table(tmp_path / "cut")
            values = restored.pull(rows).values
            applied = sum(expected for _, expected, _ in restored._sequences.to_json())
            assert (values == applied).all()
            count += 1
            table.grow(3000 + min(count, 10))

    together(pushers, copy)
    assert (table.pull(rows).values == 180).all()
    # A retry after the restart is still known.
    save_table(table, tmp_path / "end")
    again = load_table(tmp_path / "end")
    assert not again.push(rows, ones, "add", client=2, sequence=59)
    with pytest.raises(UnknownClientError, match="snapshot"):
        again.push(rows, ones, "add", client=2, sequence=60)
    assert (again.pull(rows).values == 180).all()


def test_pulls_go_on_while_a_table_grows() -> None:
    table = knowing(MutableTable(MutableSpec("t", 10, "<i8", (50,), versioned=True, max_rows=200)))
    rows, done = np.arange(10), threading.Event()

    def change() -> None:
        try:
            for number in range(190):
                values = np.full((10, 50), number, np.int64)
                table.push(rows, values, "write", client=1, sequence=number, version=number)
                table.grow(11 + number)
        finally:
            done.set()

    def pull() -> None:
        while not done.is_set():
            pulled = table.pull(rows)
            wanted = np.maximum(pulled.versions, 0)  # zeros before the first write
            assert (pulled.values == wanted[:, None]).all()

    together(change, pull, pull)


def test_what_the_optimiser_keeps_can_be_read_and_written() -> None:
    """A second table that takes over rows, moments and step number makes the same next step, bit for bit."""
    rng = np.random.default_rng(2)
    rows = np.arange(40, 60)
    gradients = rng.standard_normal((2, 20, 3)).astype(np.float32)
    first, second = table_of(versioned=False), table_of(versioned=False, init=Uniform(5, 6))
    assert not first.pull(rows, "exp_avg").values.any()
    first.push(rows, gradients[0], "step", client=1, sequence=0, step=7)
    for number, array in enumerate(("", "exp_avg", "exp_avg_sq")):
        second.push(rows[::-1], first.pull(rows[::-1], array).values, "write", client=1, sequence=number, array=array)
    assert first.pull(rows, "exp_avg").values == pytest.approx(0.1 * gradients[0])
    for table, number in ((first, 1), (second, 3)):
        table.push(rows, gradients[1], "step", client=1, sequence=number, step=8)
    for array in ("", "exp_avg", "exp_avg_sq"):
        assert np.array_equal(first.pull(rows, array).values, second.pull(rows, array).values)
    table, rows, values, before = table_of(), np.array([41]), np.ones((1, 3), np.float32), everything(table_of())
    with pytest.raises(ConfigError, match="its optimiser keeps no 'sum', only exp_avg, exp_avg_sq"):
        table.pull(rows, "sum")
    with pytest.raises(ConfigError, match="keeps no 'exp_avg', only nothing"):
        table_of(optimiser=None).pull(rows, "exp_avg")
    for change in ({"op": "add"}, {"op": "step"}, {"version": 3}):
        with pytest.raises(ConfigError, match="exp_avg of the optimiser is only written, without a version"):
            table.push(rows, values, **{"op": "write", "client": 1, "sequence": 0, "array": "exp_avg", **change})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="keeps no 'sum'"):
        table.push(rows, values, "write", client=1, sequence=0, array="sum")
    assert everything(table) == before
    assert not table.pull(rows, "exp_avg").values.any()


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
def test_nonsense_under_a_right_checksum(tmp_path: Path, contents: Any, change: dict[str, Any], words: str) -> None:
    saved, arrays = small().copied()
    content = {name: getattr(saved, name) for name in saved.__slots__}
    with TablesWriter(tmp_path, Contents(**{"tables": ["t"], **contents})) as file:
        file._describe({**content, "spec": saved.spec.to_dict(), **change})
        file.write([array.reshape(-1).view(np.uint8) for array in arrays.values()])
    with pytest.raises(DataError, match=rf"tables\.log: .*{words}"):
        load_table(tmp_path)
