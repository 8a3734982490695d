"""Every push once: in any order, any number of times, from many threads, within bounds."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, QuotaExceededError, UnknownClientError
from atta.kvstore.mutable import sequences as module
from atta.kvstore.mutable.sequences import WINDOW, Client, Sequences
from tests.unit.kvstore.test_rows import together


def knowing(*clients: Client, **options: int) -> Sequences:
    sequences = Sequences(**options)
    for client in clients:
        sequences.register(client)
    return sequences


def apply(sequences: Sequences, client: Client, number: int, settled: int = 0) -> bool:
    with sequences.once(client, number, settled) as fresh:
        return fresh


@given(st.permutations(range(12)), st.integers(0, 12), st.lists(st.integers(0, 11), max_size=20))
def test_each_number_counts_once_and_a_snapshot_takes_nothing_new(
    order: list[int], some: int, again: list[int]
) -> None:
    sequences, seen = knowing("a"), set()
    for number in (*order[:some], *again, *order):
        assert apply(sequences, "a", number) == (number not in seen)
        seen.add(number)
    assert sequences.to_json() == [["a", 12, []]]
    before, applied = knowing("a", "b"), {*order[:some]}
    for number in applied:
        apply(before, "a", number)
    restored = Sequences.from_json(json.loads(json.dumps(before.to_json())))
    for number in range(12):
        if number in applied:
            assert not apply(restored, "a", number)
        else:
            with pytest.raises(UnknownClientError, match="a snapshot was loaded"):
                apply(restored, "a", number)
    with pytest.raises(UnknownClientError, match="a snapshot was loaded"):
        apply(restored, "b", 0)
    assert restored.to_json() == before.to_json()  # a snapshot of a restored table knows what the first snapshot knew
    restored.register("c")
    assert apply(restored, "c", 0)


def test_a_number_may_lie_a_window_ahead_at_most() -> None:
    sequences = knowing(1)
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


def test_an_error_leaves_the_number_unused_and_nobody_waits_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = knowing("a")
    with pytest.raises(RuntimeError, match="no"), sequences.once("a", 0):
        raise RuntimeError("no")
    assert sequences.to_json() == [["a", 0, []]]
    monkeypatch.setattr(module, "BUSY_S", 0.05)
    with sequences.once("a", 0) as fresh:
        assert fresh
        with pytest.raises(QuotaExceededError, match="still being applied"), sequences.once("a", 0):
            raise AssertionError("applied twice at a time")
    assert not apply(sequences, "a", 0)


def test_clients_are_bounded_and_register_once() -> None:
    sequences = knowing("a", 2**64 - 1, "c", max_clients=3)
    with pytest.raises(QuotaExceededError, match="3 clients"):
        sequences.register("d")
    with pytest.raises(ConfigError, match="registered already"):
        sequences.register("c")
    assert sequences.forget("c")
    assert not sequences.forget("c")
    sequences.register("d")
    assert apply(sequences, "d", 0)
    assert len(sequences) == 3


def test_clients_that_went_silent_are_forgotten_also_restored_ones() -> None:
    sequences = Sequences.from_json([["old", 3, [5]], ["older", 1, []]])
    sequences.register("new")
    assert len(sequences.expire(100.0, 10.0)) == 0  # the table counts their silence from now on
    assert not apply(sequences, "old", 5)
    assert apply(sequences, "new", 0)
    assert len(sequences.expire(108.0, 10.0)) == 0
    assert len(sequences.expire(111.0, 10.0)) == 1  # "older"
    with sequences.once("new", 1):
        assert len(sequences.expire(119.0, 10.0)) == 1  # "old"; the other client's push is under way
    assert [client for client, *_ in sequences.to_json()] == ["new"]
    with pytest.raises(UnknownClientError):
        apply(sequences, "old", 5)
    assert len(sequences.expire(125.0, 10.0)) == 0
    assert len(sequences.expire(136.0, 10.0)) == 1
    assert len(sequences) == 0


def test_what_is_no_client_number_or_description_is_refused() -> None:
    bad: list[Any] = [(client, 0) for client in ("", "x" * 257, None, 1.0, True, 2**64)]
    for client, number in bad + [("a", number) for number in (-1, 1.0, True, 2**63)]:
        with pytest.raises(ConfigError, match="client"):
            apply(Sequences(), client, number)
    clients: list[Any] = [1, ["a", 0], ["a", 0, [0]], ["a", 0, [WINDOW]], ["a", -1, []], [[], 0, []], ["a", 0, 3]]
    for value in (None, *([client] for client in clients)):
        with pytest.raises((ValueError, TypeError)):
            Sequences.from_json(value)


def test_a_retry_waits_for_the_push_itself() -> None:
    sequences, inside, go = knowing("a"), threading.Event(), threading.Event()
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
    sequences, counts, lock = knowing(0, 1, 2), np.zeros((3, 200), np.int64), threading.Lock()

    def run(seed: int) -> None:
        for number in np.random.default_rng(seed).permutation(200).tolist():
            for client in range(3):
                with sequences.once(client, number) as fresh, lock:
                    counts[client, number] += fresh

    together(*(lambda s=s: run(s) for s in range(4)))  # type: ignore[misc]
    assert (counts == 1).all()
    assert sorted(sequences.to_json()) == [[client, 200, []] for client in range(3)]


def test_settled_numbers_are_not_waited_for() -> None:
    sequences = knowing("c")
    assert apply(sequences, "c", 10_000, settled=10_000)  # far ahead of 0, which will never come
    assert not apply(sequences, "c", 10_000, settled=10_000)
    assert not apply(sequences, "c", 5)  # settled: a stray copy of an old push
    assert apply(sequences, "c", 10_002, settled=10_001)
    assert apply(sequences, "c", 10_001, settled=10_001)
    assert sequences.to_json() == [["c", 10_003, []]]
    assert apply(sequences, "c", 10_003, settled=99_999)  # a client cannot settle the number that it is sending
