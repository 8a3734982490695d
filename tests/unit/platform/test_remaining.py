"""An answer that breaks off is continued with the missing rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.peers.remaining import Remaining, rest_of
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.methods import Method


@dataclass
class Script:
    """How a peer answers: rows per chunk, and after how many chunks of each try the connection breaks."""

    step: int
    breaks: list[int]


scripts = st.builds(Script, st.integers(1, 4), st.lists(st.integers(0, 5), max_size=6))
sizes = st.lists(st.integers(0, 7), min_size=1, max_size=4)


def feature_items(rows: list[int]) -> list[FeatureItem]:
    tables = [np.random.default_rng(i).permutation(50)[:n] for i, n in enumerate(rows)]
    return [FeatureItem(f"t{i}", ("x",), table, table + 100) for i, table in enumerate(tables)]


def chunks_of(items: list[Any], step: int) -> list[tuple[int, int, list[int]]]:
    """A daemon's answer: (item, first row, the rows themselves), counted from the start of the request."""
    return [
        (i, at, list(item.rows[at : at + step]))
        for i, item in enumerate(items)
        for at in range(0, len(item.rows), step)
    ]


@given(sizes, scripts)
def test_every_row_comes_once_however_often_the_answer_breaks_off(rows: list[int], script: Script) -> None:
    items = feature_items(rows)
    left, got = Remaining(rows), {}
    for most in [*script.breaks, None]:
        asked = rest_of(items, *left.ask())
        assert not left.progressed
        answers = chunks_of(list(asked), script.step)[:most]
        for index, first_row, values in answers:
            item, row = left.take(index, first_row, len(values))
            for offset, value in enumerate(values):
                assert (item, row + offset) not in got, "it had come before"
                got[item, row + offset] = value
        assert left.progressed == bool(answers)
    assert left.done
    assert got == {(i, row): value for i, item in enumerate(items) for row, value in enumerate(item.rows)}


@pytest.mark.parametrize("answer", [(1, 0, 1), (0, 1, 1), (0, 0, 4), (0, 0, 0), (2, 0, 1), (0, 2**40, 1)])
def test_answers_out_of_turn_are_refused(answer: tuple[int, int, int]) -> None:
    left = Remaining([3, 2])
    with pytest.raises(ValueError, match="row 0 of item 0 is next"):
        left.take(*answer)


def test_nothing_may_follow_the_last_row() -> None:
    left = Remaining([1])
    left.take(0, 0, 1)
    for answer in [(0, 0, 1), (0, 1, 1), (1, 0, 1), (7, 0, 0)]:
        with pytest.raises(ValueError, match="is next"):
            left.take(*answer)


def test_the_rest_of_an_item_keeps_what_belongs_to_its_rows() -> None:
    rows = np.arange(5)
    item = SampleItem(
        "e", rows, rows + 10, 3, False, Method.UNIFORM, 7, trees=rows + 20, times=rows + 30, tables=("w",)
    )
    plain = SampleItem("f", rows, rows, 3, True, Method.UNIFORM, 8)
    assert rest_of([item, plain], 0, 0) == [item, plain]
    assert rest_of([item, plain], 1, 0) == [plain]
    first, second = rest_of([item, plain], 0, 2)
    assert second is plain
    assert first.rows.tolist() == [2, 3, 4]
    assert first.positions.tolist() == [12, 13, 14]
    assert first.trees is not None
    assert first.trees.tolist() == [22, 23, 24]
    assert first.times is not None
    assert first.times.tolist() == [32, 33, 34]
    assert (first.edge_type, first.fan_out, first.stream_key, first.tables) == ("e", 3, 7, ("w",))
    (bare,) = rest_of([plain], 0, 4)
    assert (bare.trees, bare.times, bare.rows.tolist()) == (None, None, [4])
