"""Every push once: in any order, any number of times, from many threads, within bounds."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, QuotaExceededError
from atta.kvstore.gate import Gate
from atta.kvstore.sequences import WINDOW, Client, Sequences
from tests.unit.kvstore.test_rows import together


def apply(sequences: Sequences, client: Client, number: int) -> bool:
    with sequences.once(client, number) as fresh:
        return fresh


@given(st.permutations(range(12)), st.lists(st.integers(0, 11), max_size=20))
def test_each_number_counts_once(order: list[int], again: list[int]) -> None:
    sequences, seen = Sequences(), set()
    for number in (*order[:6], *again, *order):
        assert apply(sequences, "a", number) == (number not in seen)
        seen.add(number)
        sequences = Sequences.from_json(json.loads(json.dumps(sequences.to_json())))
    assert sequences.to_json() == [["a", 12, []]]


def test_a_number_may_lie_a_window_ahead_at_most() -> None:
    sequences = Sequences()
    assert apply(sequences, 1, WINDOW - 1)
    for number in (WINDOW, 2**62):
        with pytest.raises(QuotaExceededError, match="push 0, which is missing"):
            apply(sequences, 1, number)
    assert sequences.to_json() == [[1, 0, [WINDOW - 1]]]
    assert apply(sequences, 1, 0)
    assert apply(sequences, 1, WINDOW)
    for number in range(1, WINDOW - 1):
        assert apply(sequences, 1, number)
    assert sequences.to_json() == [[1, WINDOW + 1, []]]


def test_an_error_leaves_the_number_unused() -> None:
    sequences = Sequences()
    with pytest.raises(RuntimeError, match="no"), sequences.once("a", 0):
        raise RuntimeError("no")
    assert sequences.to_json() == []
    assert sequences.idle(5) == []
    assert apply(sequences, "a", 0)
    assert not apply(sequences, "a", 0)


def test_clients_are_bounded_and_forgotten_on_request_only() -> None:
    sequences = Sequences(max_clients=3)
    for client in ("a", 2**64 - 1, "c", "a"):
        apply(sequences, client, len(sequences.to_json()))
    with pytest.raises(QuotaExceededError, match="3 clients"):
        apply(sequences, "d", 0)
    assert sequences.idle(2) == [2**64 - 1, "c"]
    assert sequences.forget("c")
    assert not sequences.forget("c")
    assert apply(sequences, "d", 0)


@pytest.mark.parametrize(
    ("client", "number"),
    [
        ("", 0),
        ("x" * 257, 0),
        (None, 0),
        (1.0, 0),
        (True, 0),
        (2**64, 0),
        ("a", -1),
        ("a", 1.0),
        ("a", True),
        ("a", 2**63),
    ],
)
def test_what_is_no_client_or_number_is_refused(client: Any, number: Any) -> None:
    with pytest.raises(ConfigError, match="client"):
        apply(Sequences(), client, number)


@pytest.mark.parametrize(
    "value",
    [None, [1], [["a", 0]], [["a", 0, [0]]], [["a", 0, [WINDOW]]], [["a", -1, []]], [[[], 0, []]], [["a", 0, 3]]],
)
def test_impossible_descriptions_are_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Sequences.from_json(value)


def test_a_retry_waits_for_the_push_itself() -> None:
    sequences, inside, go = Sequences(), threading.Event(), threading.Event()
    order: list[str] = []

    def push() -> None:
        with sequences.once("a", 0) as fresh:
            assert fresh
            inside.set()
            assert go.wait(30)
            order.append("applied")

    def retry() -> None:
        assert inside.wait(30)
        threading.Timer(0.05, go.set).start()
        assert not apply(sequences, "a", 0)
        order.append("acknowledged")

    together(push, retry)
    assert order == ["applied", "acknowledged"]


def test_many_threads_agree_on_who_applies() -> None:
    sequences, counts, lock = Sequences(), np.zeros((3, 200), np.int64), threading.Lock()

    def run(seed: int) -> None:
        for number in np.random.default_rng(seed).permutation(200).tolist():
            for client in range(3):
                with sequences.once(client, number) as fresh, lock:
                    counts[client, number] += fresh

    together(*(lambda s=s: run(s) for s in range(4)))  # type: ignore[misc]
    assert (counts == 1).all()
    assert sorted(sequences.to_json()) == [[client, 200, []] for client in range(3)]


def test_the_gate_lets_in_many_or_one() -> None:
    gate, together_inside = Gate(), threading.Barrier(2)
    inside: list[str] = []

    def shared() -> None:
        for _ in range(100):
            with gate.shared():
                inside.append("shared")
                time.sleep(1e-5)  # lets others run
                assert "alone" not in inside
                inside.remove("shared")

    def exclusive() -> None:
        for _ in range(50):
            with gate.exclusive():
                assert inside == []
                inside.append("alone")
                time.sleep(1e-5)
                assert inside == ["alone"]
                inside.remove("alone")

    def meet() -> None:
        with gate.shared():
            together_inside.wait(30)  # two are inside at the same time

    together(shared, shared, exclusive, exclusive)
    together(meet, meet)


def test_settled_numbers_are_not_waited_for() -> None:
    sequences = Sequences()
    assert settle(sequences, 10_000, settled=10_000)  # far ahead of 0, which will not come
    assert not settle(sequences, 10_000, settled=10_000)
    assert not settle(sequences, 5)  # settled: a stray copy of an old push
    assert settle(sequences, 10_002, settled=10_001)
    assert settle(sequences, 10_001, settled=10_001)
    assert sequences.to_json() == [["c", 10_003, []]]
    assert settle(sequences, 10_003, settled=99_999)  # a client cannot settle what it sends


def settle(sequences: Sequences, sequence: int, settled: int = 0) -> bool:
    with sequences.once("c", sequence, settled) as fresh:
        return fresh
