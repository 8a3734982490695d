"""Creating, finding, growing and dropping tables within a quota."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from atta.errors import ConfigError, QuotaExceededError, UnknownNameError
from atta.kvstore.initial import Constant
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.kvstore.tables import Tables
from tests.unit.kvstore.test_rows import together

SPEC = MutableSpec("users", 10, row_shape=(4,), max_rows=30)


def test_creating_again_returns_the_table() -> None:
    tables = Tables(1000)
    table = tables.create(SPEC, 2, 5)
    assert tables.create(dataclasses.replace(SPEC), 2, 5) is table
    tables.grow("users", 6)
    assert tables.create(SPEC, 2, 5) is table
    assert tables.get("users") is table
    assert tables.list() == (table,)
    for spec, first, rows, words in [
        (dataclasses.replace(SPEC, dtype="<f8"), 2, 5, "dtype is '<f4', not '<f8'"),
        (dataclasses.replace(SPEC, init=Constant(1)), 2, 5, "init"),
        (dataclasses.replace(SPEC, optimiser=OptimiserSpec.sgd()), 2, 5, "optimiser"),
        (SPEC, 1, 5, "first_row is 2, not 1"),
        (SPEC, 2, 6, "rows of the shard is 5, not 6"),
    ]:
        with pytest.raises(ConfigError, match=words):
            tables.create(spec, first, rows)


def test_names_that_do_not_exist() -> None:
    tables = Tables(1000)
    tables.create(SPEC)
    with pytest.raises(UnknownNameError, match="did you mean 'users'"):
        tables.get("user")
    with pytest.raises(UnknownNameError):
        tables.grow("items", 5)
    assert tables.delete("users")
    assert not tables.delete("users")
    with pytest.raises(UnknownNameError):
        tables.get("users")


def test_the_quota_is_checked_before_anything_is_allocated() -> None:
    tables = Tables(200)
    tables.create(SPEC)
    assert tables.used_bytes == 160
    huge = MutableSpec("huge", 2**40, row_shape=(1000,))  # could not even be allocated
    for call in (lambda: tables.create(huge), lambda: tables.grow("users", 13)):
        with pytest.raises(QuotaExceededError, match="160 of 200"):
            call()
    with pytest.raises(ConfigError, match="may have 10"):
        tables.create(MutableSpec("x", 10), 5, 6)
    tables.grow("users", 12)
    assert tables.used_bytes == 192
    tables.delete("users")
    tables.create(MutableSpec("other", 12, row_shape=(4,)))
    adam = MutableSpec("adam", 1, optimiser=OptimiserSpec.adam(), versioned=True)
    with pytest.raises(QuotaExceededError, match="20 more bytes"):
        tables.create(adam)


def test_many_threads_create_one_table() -> None:
    tables, found = Tables(10_000), []
    together(*[lambda: found.append(tables.create(SPEC))] * 8)
    assert len(set(map(id, found))) == 1
    assert tables.used_bytes == SPEC.nbytes(10)


def test_a_client_is_forgotten_by_all_tables() -> None:
    tables = Tables(1000)
    for name in ("a", "b"):
        tables.create(MutableSpec(name, 1)).push(np.array([0]), bytes(4), "add", client=7, sequence=0)
    tables.forget(7)
    assert [table.idle_clients(5) for table in tables.list()] == [[], []]
