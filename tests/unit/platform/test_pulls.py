"""Pulls by memory: the same bits as in messages, never torn rows, whatever becomes of an owner; nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.tables import lending, pulls
from atta.client.tables.remote import RemoteTable
from atta.daemon.engine import lent as table_rows
from atta.daemon.services import tables as tables_service
from atta.errors import ConfigError, RemoteError, StaleRowError, UnavailableError
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.spec import MutableSpec, Normal, OptimiserSpec
from atta.protos.v1 import table_pb2
from atta.wire import memfiles, rpc
from tests.unit.platform.table_owner import Lost, Owner, event_loop, opened, same_bits
from tests.unit.platform.test_lent import files, mapped

CLIENT = 1


loop = pytest.fixture(scope="module")(event_loop)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all sizes be so small that a few rows take many pieces, and more memory than there is."""
    monkeypatch.setattr(pulls, "LEAST_LENT_BYTES", 0)
    monkeypatch.setattr(pulls, "LENT_PIECE_BYTES", 1024)
    monkeypatch.setattr(pulls, "PIECE_ROWS", 40)
    monkeypatch.setattr(lending, "LENT_BYTES", 3 * memfiles.PAGE)
    monkeypatch.setattr(tables_service, "LENT_STEP_BYTES", 300)


def in_messages(table: RemoteTable, owners: list[Owner], rows: np.ndarray, **options: Any) -> Pulled:
    for owner in owners:
        owner.takes_lent = False
        owner.asked.clear()
    found = table.pull(rows, **options)
    assert not any(request.HasField("memory") for owner in owners for request in owner.asked)
    return found


DTYPES = ["|b1", "|i1", "<i2", "<i8", "<u4", "<f2", "<f4", "<f8"]


@settings(max_examples=40)
@given(st.data())
def test_memory_and_messages_give_the_same_bits(loop: asyncio.AbstractEventLoop, data: st.DataObject) -> None:
    draw = data.draw
    dtype = draw(st.sampled_from(DTYPES), "dtype")
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=2), "row shape"))
    versioned, count = draw(st.booleans(), "versioned"), draw(st.integers(2, 200), "rows")
    learns = dtype == "<f4" and draw(st.booleans(), "learns")
    optimiser = OptimiserSpec.adam() if learns else None
    spec = MutableSpec("t", count, dtype, shape, versioned=versioned, optimiser=optimiser)
    owners = [Owner(loop, number, 2) for number in range(2)]
    rng = np.random.default_rng(draw(st.integers(0, 99), "seed"))
    shadow = rng.integers(0, 2 if dtype == "|b1" else 100, (count, *shape)).astype(dtype)
    ages = rng.integers(0, 2, count)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        table = opened(spec, *owners)
        for owner in owners:
            own = owner.table
            own.register(CLIENT)
            mine = np.arange(own.span.start, own.span.stop)
            for age in (0, 1):
                rows = mine[ages[mine] == age]
                own.push(rows, shadow[rows], "write", client=CLIENT, sequence=age, version=age if versioned else None)
        rows = np.array(draw(st.lists(st.integers(0, count - 1), max_size=300), "asked"), dtype=np.int64)
        options: dict[str, Any] = {"versions": draw(st.booleans(), "with versions")}
        if dtype == "<f4":
            options["codec"] = draw(st.sampled_from(["", "fp16", "bf16", "int8"]), "codec")
        if learns:
            options["array"] = draw(st.sampled_from(["", "exp_avg"]), "array")
        if versioned and not options.get("array") and draw(st.booleans(), "of one version"):
            options["version"] = 1
            rows = rows[ages[rows] == 1]
        found = table.pull(rows, **options)
        assert sum(owner.stat("table_rows_lent") for owner in owners) == len(rows)
        assert same_bits(found, in_messages(table, owners, rows, **options))
    assert found.values.dtype == shadow.dtype
    if not options.get("array") and not options.get("codec"):
        assert np.array_equal(found.values, shadow[rows])
    if found.versions is not None:
        kept = versioned and not options.get("array")
        assert np.array_equal(found.versions, ages[rows] if kept else np.full(len(rows), -1))


@pytest.fixture
def owner(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> Owner:
    shrink(monkeypatch)
    return Owner(loop)


@pytest.fixture
def table(owner: Owner) -> Iterator[RemoteTable]:
    made = opened(MutableSpec("t", 500, row_shape=(4,), init=Normal(0, 1, seed=5), versioned=True), owner)
    yield made
    made._lender.close()


ROWS = np.random.default_rng(3).integers(0, 500, 400)


def test_nothing_is_left_after_a_thousand_pulls(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # what other tests have left
    without = mapped(), files()
    shrink(monkeypatch)
    owner = Owner(loop)
    table = opened(MutableSpec("t", 500, row_shape=(4,), init=Normal(0, 1, seed=5)), owner)
    wanted = owner.table.pull(ROWS).values
    assert np.array_equal(table.pull(ROWS).values, wanted)
    before = mapped(), files()
    for _ in range(1000):
        found = table.pull(ROWS[:18])
    assert np.array_equal(found.values, wanted[:18])
    assert owner.stat("table_rows_lent") == len(ROWS) + 18_000
    assert (mapped(), files()) == before
    table._lender.close()
    owner.service._lent.expire(np.inf)
    assert (mapped(), files()) == without


def test_small_answers_come_in_messages(owner: Owner, table: RemoteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "LEAST_LENT_BYTES", 20 * 24)
    for count, lent in ((19, False), (20, True)):
        table.pull(ROWS[:count])
        assert owner.asked[-1].HasField("memory") is lent


def test_a_daemon_that_cannot_open_the_memory_is_lent_none_again(owner: Owner, table: RemoteTable) -> None:
    wanted = owner.table.pull(ROWS)
    table.pull(ROWS)
    assert table._lender._file is not None
    table._lender._file.secret = b"guessed"
    assert same_bits(table.pull(ROWS, versions=True), wanted)
    assert not owner.takes_lent
    owner.asked.clear()
    assert same_bits(table.pull(ROWS, versions=True), wanted)
    assert not any(request.HasField("memory") for request in owner.asked)


def test_a_daemon_that_has_been_lent_too_much_is_lent_again(owner: Owner, table: RemoteTable) -> None:
    wanted = owner.table.pull(ROWS)
    owner.service._lent._in_all = 0
    assert same_bits(table.pull(ROWS, versions=True), wanted)
    assert owner.stat("table_rows_lent") == 0
    owner.service._lent._in_all = 1 << 20
    assert same_bits(table.pull(ROWS, versions=True), wanted)
    assert owner.stat("table_rows_lent") == len(ROWS)


def test_a_daemon_that_runs_out_of_memory_answers_in_messages(
    owner: Owner, table: RemoteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = owner.table.pull(ROWS)
    monkeypatch.setattr(table_rows.memfiles, "populate", lambda *_: False)
    monkeypatch.setattr(lending._LoanFile, "touch", lambda *_: True)
    assert same_bits(table.pull(ROWS, versions=True), wanted)
    assert owner.takes_lent


@pytest.mark.parametrize("lost", range(3))
def test_an_owner_that_is_killed_in_the_middle_tears_no_row(owner: Owner, table: RemoteTable, lost: int) -> None:
    """It has written some rows, told of fewer, and writes on although nobody waits any more."""
    wanted, killed = owner.table.pull(ROWS), []

    def kill(count: int) -> None:
        if count == lost and not killed:
            file = table._lender._file
            assert file is not None
            killed.append(file)
            raise Lost

    owner.between, owner.lasts = kill, True
    found = table.pull(ROWS, versions=True)
    (file,) = killed
    assert same_bits(found, wanted)
    for _ in range(3):
        file.bytes[memfiles.PAGE :] = 255
        assert same_bits(found, wanted)
        assert table._lender._file is not file
        found = table.pull(ROWS, versions=True)
    owner.asked.clear()
    owner.lasts, killed[:] = False, []
    with pytest.raises(UnavailableError):
        table.pull(ROWS)
    assert table._lender._file is not killed[0]


def test_a_stale_row_ends_the_loan_well(owner: Owner, table: RemoteTable) -> None:
    table.pull(ROWS)
    file = table._lender._file
    for _ in range(3):
        with pytest.raises(StaleRowError, match="was never written"):
            table.pull(ROWS[:20], version=3)
    assert table._lender._file is file
    assert file is not None
    assert file.gaps.whole


def test_a_codec_that_does_not_exist_is_refused_by_the_owner(owner: Owner, table: RemoteTable) -> None:
    with pytest.raises(ConfigError, match="codec 'zip'"):
        table.pull(ROWS, codec="zip")


@pytest.mark.parametrize(
    "lie",
    [
        {"first_row": 390, "rows": 20},
        {"first_row": 2**63, "rows": 1},
        {"rows": 2**40},
        {"rows": 3},  # of all
    ],
    ids=str,
)
def test_an_owner_that_lies_about_the_memory_is_an_error(
    owner: Owner, table: RemoteTable, lie: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = rpc.Bulk(table_pb2.RowsChunk(lent=True, **lie))
    monkeypatch.setattr(owner, "start", lambda *_: [answer])
    with pytest.raises(RemoteError):
        table.pull(ROWS)
    owner.takes_lent = False  # nothing was lent
    with pytest.raises(RemoteError):
        table.pull(ROWS)
