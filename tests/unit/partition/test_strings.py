"""String ids as rows of bytes: there and back, against Python's own encoding and a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.services import data as strings
from atta.daemon.services.data import StringIndex
from atta.errors import ConfigError, UnknownNameError
from atta.partition.graph.strings import as_strings, string_width, to_rows, to_strings
from atta.partition.schema import Schema, TableSpec

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(TEXT, max_size=30))
@settings(max_examples=60, deadline=None)
def test_rows_are_python_s_utf8_and_come_back(names: list[str]) -> None:
    array = np.array(names, dtype=np.str_)
    rows = to_rows(array)
    assert rows.dtype == np.uint8
    assert [bytes(row).rstrip(b"\0") for row in rows] == [name.encode() for name in names]
    assert to_strings(rows).tolist() == names


@given(st.lists(TEXT, unique=True, min_size=1, max_size=40), st.lists(TEXT, max_size=40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_an_index_finds_what_a_dict_finds(names: list[str], others: list[str], same_hashes: int) -> None:
    place, asked = {name: i for i, name in enumerate(names)}, others + names[::-1]
    with pytest.MonkeyPatch.context() as patch:
        if same_hashes:  # bytes decide where hashes are equal
            patch.setattr(strings, "_hashes", lambda rows: rows.sum(1).astype(np.uint64) % np.uint64(same_hashes))
        index = StringIndex(to_rows(np.array(names)))
        assert index.twice() is None
        found = index.find(to_rows(np.array(asked, np.str_)))
    assert found.tolist() == [place.get(name, -1) for name in asked]


def test_an_index_of_many_rows_and_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strings, "_CHUNK_ROWS", 1000)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (9700, 13)).astype(np.uint8)
    index = StringIndex(rows)
    some = rng.integers(0, len(rows), 500)
    assert (rows[index.find(rows[some])] == rows[some]).all()
    assert (index.find(rows[some] + 5) == -1).all()
    twice = index.twice()
    assert (twice is None) == (len(np.unique(rows, axis=0)) == len(rows))
    assert twice is None or (rows == rows[twice]).all(1).sum() > 1
    assert StringIndex(np.empty((0, 4), np.uint8)).find(rows[:3]).tolist() == [-1, -1, -1]


def test_a_string_that_two_rows_have() -> None:
    index = StringIndex(to_rows(np.array(["a", "b", "c", "b"])))
    assert index.twice() in (1, 3)
    assert index.find(to_rows(np.array(["b"]))).tolist() == [1]


@pytest.mark.parametrize(
    "held",
    [
        ["a", "ü"],
        ("a", "ü"),
        np.array(["a", "ü"]),
        np.array(["a", "ü"], dtype=">U3"),
        np.array(["a", "ü"], dtype=object),
        np.array([b"a", "ü".encode()]),
    ],
)
def test_what_holds_strings(held: Any) -> None:
    found = as_strings("ids", held)
    assert found is not None
    assert found.dtype.isnative
    assert found.tolist() == ["a", "ü"]


def test_strings_of_arrow_and_pandas() -> None:
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    for held in (pa.array(["a", "b"]), pd.Series(["a", "b"]), pd.Series(["a", "b"], dtype="string")):
        found = as_strings("ids", held)
        assert found is not None
        assert found.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "held", [None, "train", [], [1, 2], np.arange(3), np.zeros(3, bool), [1.5], [[1], [2, 3]], np.array([None, 3])]
)
def test_what_holds_no_strings(held: Any) -> None:
    assert as_strings("ids", held) is None


def test_nested_and_mixed_lists() -> None:
    found = as_strings("ids", [["a", "b"], ["c", "d"]])
    assert found is not None
    assert found.shape == (2, 2)
    with pytest.raises(ConfigError, match="ids: some ids are strings, others are int"):
        as_strings("ids", ["a", 3])
    with pytest.raises(ConfigError, match="others are NoneType"):
        as_strings("ids", np.array(["a", None], dtype=object))
    with pytest.raises(ConfigError, match="not UTF-8"):
        as_strings("ids", np.array([b"\xff"]))


def test_bytes_and_strings_that_are_no_utf8() -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        to_strings(np.array([[0xFF, 0x20]], np.uint8))
    with pytest.raises(ConfigError, match="cannot be written in UTF-8"):
        to_rows(np.array(["\ud800"]))


def test_which_node_types_have_strings() -> None:
    tables = {
        "a": {"name": TableSpec("|u1", (7,))},
        "b": {"name": TableSpec("<f4", (7,)), "x": TableSpec("<f4", (2,))},
        "c": {"name": TableSpec("|u1", ())},
    }
    schema = Schema(
        node_types=tuple(tables), edge_types=(), node_counts=dict.fromkeys(tables, 1), edge_counts={},
        node_tables=tables, edge_tables={}, splits={t: {} for t in tables},
    )  # fmt: skip
    assert [string_width(schema, t) for t in tables] == [7, None, None]
    with pytest.raises(UnknownNameError):
        string_width(schema, "d")
