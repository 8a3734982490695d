"""One item ahead: order, bound, failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from atta.errors import ConfigError
from atta.train.cooperative.subgraphs import one_ahead


def test_items_come_in_order() -> None:
    assert list(one_ahead(range(20))) == list(range(20))
    assert list(one_ahead([])) == []
    assert list(one_ahead([None, None])) == [None, None]


def test_the_next_item_is_made_while_one_is_in_use_and_no_other() -> None:
    begun = [threading.Event() for _ in range(6)]
    threads = set()

    def items() -> Iterator[int]:
        for i, event in enumerate(begun):
            threads.add(threading.current_thread())
            event.set()
            yield i

    series = one_ahead(items())
    assert not begun[0].is_set()
    for i in series:
        if i + 1 < len(begun):
            assert begun[i + 1].wait(10)
        assert not any(event.is_set() for event in begun[i + 2 :])
    assert threading.main_thread() not in threads
    assert all(thread.daemon for thread in threads)


def test_an_error_comes_where_the_item_would_have() -> None:
    wrong = ConfigError("the third one")

    def items() -> Iterator[int]:
        yield from (0, 1)
        raise wrong

    series = one_ahead(items())
    assert [next(series), next(series)] == [0, 1]
    with pytest.raises(ConfigError) as caught:
        next(series)
    assert caught.value is wrong


def test_stopping_early_does_not_wait() -> None:
    go = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        go.wait(60)
        yield 1

    series = one_ahead(items())
    assert next(series) == 0
    series.close()  # type: ignore[attr-defined]
    running = [thread for thread in threading.enumerate() if thread.name == "atta-ahead"]
    assert [thread.daemon for thread in running] == [True]
    go.set()
    running[0].join(10)
    assert not running[0].is_alive()
