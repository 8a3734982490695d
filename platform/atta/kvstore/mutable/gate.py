"""A lock for many at once or one alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["Gate"]


class Gate:
    """Readers and a writer (Courtois, Heymans, Parnas, 1971, second problem): one who waits to be alone goes before
    newcomers.

    Not re-entrant.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._alone = False
        self._waiting = 0  # to be alone

    @property
    def open(self) -> bool:
        """Whether ``shared`` would not wait just now. Only a hint: it may change at any time."""
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
