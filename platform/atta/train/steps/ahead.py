"""Makes the next item of a series in the background while the current one is in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["one_ahead"]

T = TypeVar("T")


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items`` in order; a thread makes the next one while the current one is in use.

    If making an item raises an error, the error is raised in place of the item. The threads are daemon threads, one at a time. So a
    consumer that stops early, by an error or Ctrl-C, does not wait for the item that is being made.
    """
    source = iter(items)
    end = object()
    coming = _started(lambda: next(source, end))
    while (item := coming.result()) is not end:
        coming = _started(lambda: next(source, end))
        yield item  # type: ignore[misc]  # only the end marker is not a T


def _started(make: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:  # the waiting thread must see every error
            future.set_exception(error)

    threading.Thread(target=run, name="atta-ahead", daemon=True).start()
    return future
