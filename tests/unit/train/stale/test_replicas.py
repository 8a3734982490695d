"""Replicas of rows: random histories against a dictionary of all that was ever published."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atta.errors import ConfigError, NonFiniteError, QuotaExceededError, StaleRowError
from atta.train.stale import rules
from atta.train.stale.replicas import ReplicaTable
from atta.train.stale.rules import NEVER, Rule
from atta.train.stale.table import Direction, TableShape, all_finite

ROWS = 7
WIDTHS: dict[tuple[int, Direction], int] = {(1, "forward"): 3, (2, "forward"): 2, (1, "backward"): 3}
keys = st.sampled_from(sorted(WIDTHS))
some_rows = st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS)


def table(history: int = 1, **options: Any) -> ReplicaTable:
    return ReplicaTable(TableShape(ROWS, WIDTHS, history), torch.arange(ROWS) % 3, **options)


class Replicas(RuleBasedStateMachine):
    """``known[key][row][version]`` is what was accepted; committed versions never change any more."""

    @initialize(history=st.integers(1, 4))
    def begin(self, history: int) -> None:
        self.history, self.table = history, table(history)
        self.known: dict[Any, list[dict[int, list[float]]]] = {key: [{} for _ in range(ROWS)] for key in WIDTHS}
        self.committed, self.open, self.next = NEVER, NEVER, 1.0

    def values(self, rows: list[int], width: int) -> torch.Tensor:
        values = torch.arange(len(rows) * width, dtype=torch.float32).reshape(len(rows), width) + self.next
        self.next += len(rows) * width
        return values

    @rule(key=keys, rows=some_rows, ahead=st.integers(-3, 3))
    def publish(self, key: Any, rows: list[int], ahead: int) -> None:
        version = max(0, max(self.committed, self.open) + ahead)
        values = self.values(rows, WIDTHS[key])
        if self.open != NEVER and version > self.open:
            with pytest.raises(ConfigError, match="not committed"):
                self.table.publish(*key, torch.tensor(rows, dtype=torch.int64), values, version)
            return
        self.table.publish(*key, torch.tensor(rows, dtype=torch.int64), values, version)
        if version > self.committed and version >= self.open:
            self.open = version
            for row, value in zip(rows, values.tolist(), strict=True):
                self.known[key][row][version] = value

    @rule(skip=st.integers(0, 2))
    def commit(self, skip: int) -> None:
        version = max(self.committed, self.open) + (skip if self.open == NEVER else 0)
        self.table.commit(version)
        self.committed, self.open = version, NEVER

    @precondition(lambda self: self.open > 0)
    @rule()
    def commit_too_early(self) -> None:
        with pytest.raises(ConfigError, match="cannot be committed"):
            self.table.commit(self.open - 1)

    @rule(key=keys, rows=st.lists(st.integers(0, ROWS - 1), max_size=9), data=st.data())
    def fetch(self, key: Any, rows: list[int], data: st.DataObject) -> None:
        now = max(self.committed, self.open, 0)
        wanted: Rule = data.draw(
            st.one_of(
                st.just(rules.exact(now)),
                st.integers(0, 3).map(lambda age: rules.at_most(now, age)),
                st.integers(max(0, now - 2), now).map(rules.snapshot),
                st.just(rules.latest()),
                st.integers(1, self.history).map(lambda count: rules.window(now, count)),
            )
        )
        expected = [self.admitted(key, row, wanted) for row in rows]
        asked = torch.tensor(rows, dtype=torch.int64)
        if any(not found for found in expected):
            with pytest.raises(StaleRowError, match=f"layer {key[0]}, {key[1]}: row"):
                self.table.fetch(*key, asked, wanted)
            return
        got = self.table.fetch(*key, asked, wanted)
        values, versions = (got.values[None], got.versions[None]) if wanted.count == 1 else got
        for i, (row, found) in enumerate(zip(rows, expected, strict=True)):
            assert versions[:, i].tolist() == found
            assert values[:, i].tolist() == [self.known[key][row][v] for v in found]

    def admitted(self, key: Any, row: int, wanted: Rule) -> list[int]:
        held = sorted(self.known[key][row])
        held = [v for v in held if v <= self.committed][-self.kept(key, row) :] + [
            v for v in held if v > self.committed
        ]
        good = [v for v in held if wanted.oldest <= v <= wanted.newest]
        good = [v for v in good if v <= self.committed] if wanted.committed else good
        good = good[-wanted.count :]
        return good[:1] * (wanted.count - len(good)) + good

    def kept(self, key: Any, row: int) -> int:
        """Committed versions that are still there: one place more than ``history``, unless an open version has it."""
        written = any(v > self.committed for v in self.known[key][row])
        return self.history + (not written)

    @rule()
    def save_and_load(self) -> None:
        fresh = table(self.history)
        fresh.load_state(self.table.state())
        self.table = fresh

    @invariant()
    def holds(self) -> None:
        self.table.validate()
        assert self.table.committed == self.committed


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_epoch_is_seen_as_a_whole_when_it_is_committed() -> None:
    held, rows = table(), torch.arange(ROWS)
    held.publish(1, "forward", rows, torch.zeros(ROWS, 3), 0)
    held.commit(0)
    held.publish(1, "forward", rows[:4], torch.ones(4, 3), 5)
    assert held.fetch(1, "forward", rows, rules.snapshot(0)).values.sum() == 0
    held.publish(1, "forward", rows[4:], torch.ones(3, 3), 5)
    with pytest.raises(StaleRowError, match="row 0 has versions 0, 5; the reader may use 5 to 0"):
        held.fetch(1, "forward", rows, rules.snapshot(5))
    held.commit(5)
    found = held.fetch(1, "forward", rows, rules.snapshot(5))
    assert found.values.sum() == 3 * ROWS
    assert found.versions.tolist() == [5] * ROWS


def test_rows_that_are_not_finite_are_refused_and_name_their_trainer() -> None:
    held, values = table(), torch.zeros(3, 3)
    held.publish(1, "forward", torch.arange(3), values, 1)
    for bad in (math.nan, math.inf, -math.inf):
        values[1, 2] = bad
        with pytest.raises(NonFiniteError, match=r"trainer 2, epoch 1, layer 1: rows have an infinity or NaN") as error:
            held.publish(1, "forward", torch.tensor([0, 5, 6]), values, 1)
        assert (error.value.trainer, error.value.epoch, error.value.layer) == (2, 1, 1)
    with pytest.raises(NonFiniteError, match="gradients of rows"):
        held.publish(1, "backward", torch.tensor([0, 5, 6]), values, 1)
    with pytest.raises(StaleRowError):
        held.fetch(1, "forward", torch.tensor([5]), rules.latest())


def test_bytes_are_known_before_and_bounded() -> None:
    shape = TableShape(100, {(1, "forward"): 64, (2, "forward"): 10}, history=5, dtype=torch.float64)
    assert shape.nbytes == 6 * 100 * ((64 + 10) * 8 + 2 * 8)
    held = ReplicaTable(shape, torch.zeros(100, dtype=torch.int64), quota_bytes=shape.nbytes)
    assert held.nbytes == shape.nbytes
    with pytest.raises(QuotaExceededError, match=f"need {shape.nbytes} bytes"):
        ReplicaTable(shape, torch.zeros(100, dtype=torch.int64), quota_bytes=shape.nbytes - 1)


def test_requests_that_contradict_the_table() -> None:
    held, rows = table(), torch.arange(2)
    good = torch.zeros(2, 3)
    for values, where in ((good[:, :2], rows), (good.double(), rows), (good, rows + 6), (good, rows - 1)):
        with pytest.raises(ConfigError, match="layer 1, forward"):
            held.publish(1, "forward", where, values, 1)
    with pytest.raises(ConfigError, match="no rows of layer 9"):
        held.publish(9, "forward", rows, good, 1)
    with pytest.raises(ConfigError, match="below 0"):
        held.publish(1, "forward", rows, good, -1)
    with pytest.raises(ConfigError, match="2 versions, 1 are kept"):
        held.fetch(1, "forward", rows, rules.window(0, 2))
    with pytest.raises(ConfigError, match="another size"):
        held.load_state(table(2).state())
    with pytest.raises(ConfigError, match="5 owners for 7 rows"):
        ReplicaTable(TableShape(ROWS, WIDTHS), torch.zeros(5))
    with pytest.raises(ConfigError, match="widths"):
        TableShape(3, {(1, "forward"): 0})


def test_published_rows_do_not_hold_the_graph_of_autograd() -> None:
    held, rows = table(), torch.arange(ROWS)
    h = torch.ones(ROWS, 3, requires_grad=True)
    held.publish(1, "forward", rows, h * 2, 1)
    assert not held.fetch(1, "forward", rows, rules.exact(1)).values.requires_grad


@given(
    st.lists(st.floats(width=32) | st.sampled_from([math.inf, -math.inf, math.nan, 3e38, -3e38]), max_size=20),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_numbers_are_finite_if_each_is(numbers: list[float], dtype: torch.dtype) -> None:
    values = torch.tensor(numbers, dtype=torch.float32).to(dtype)
    assert all_finite(values) == all(math.isfinite(value) for value in values.tolist())


def test_large_numbers_whose_sum_is_infinite_are_finite() -> None:
    assert all_finite(torch.full((2, 3), 3e38))
    assert not all_finite(torch.tensor([[math.inf, -math.inf]]))
