"""The next one of a series, made in the background while the present one is in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["one_ahead"]

T = TypeVar("T")


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """``items`` in their order, each made in a thread while the one before it is in use, and no sooner.

    What making an item raises is raised where that item would have come. Threads are daemons and follow each other: whoever stops
    early, by an error or Ctrl-C, does not wait for what is still being made.
    """
    source = iter(items)
    end = object()
    coming = _started(lambda: next(source, end))
    while (item := coming.result()) is not end:
        coming = _started(lambda: next(source, end))
        yield item  # type: ignore[misc]  # only the end is no T


def _started(make: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:  # whatever it is, the thread that waits must see it
            future.set_exception(error)

    threading.Thread(target=run, name="atta-ahead", daemon=True).start()
    return future
