"""A lock that many threads share or one holds alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["Gate"]


class Gate:
    """A lock for readers and a writer (Courtois, Heymans, Parnas, 1971, second problem): a waiting writer goes before
    new readers.

    Not re-entrant.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._alone = False
        self._waiting = 0  # number of threads that wait to hold the lock alone

    @property
    def open(self) -> bool:
        """Whether ``shared`` would not wait now. This is only a hint: it may change at any time."""
        return not self._alone and not self._waiting

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with others."""
        with self._changed:
            self._changed.wait_for(lambda: self.open)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._inside)
                self._alone = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
