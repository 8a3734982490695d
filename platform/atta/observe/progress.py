"""How long-running work reports its progress: it calls two methods of an object that its caller passes."""

from __future__ import annotations

import threading
import time
from typing import Protocol

PROGRESS_S = 10.0
"""How often a stage of work that goes on is logged."""


class Progress(Protocol):
    """Receives the stages of a long piece of work, in order."""

    def stage(self, name: str, total: int | None) -> None:
        """Begin a stage of ``total`` units (None: unknown). The stage before it is done."""

    def advance(self, amount: int) -> None:
        """Report ``amount`` more units of the current stage as done."""


class Silent:
    """A progress receiver that shows nothing."""

    def stage(self, name: str, total: int | None) -> None:
        """Ignore the stage."""

    def advance(self, amount: int) -> None:
        """Ignore the step."""


class LoggedProgress:
    """Logs how far a stage is, from time to time, and its end. Several threads may advance it."""

    def __init__(self) -> None:
        self._name, self._total, self._done = "", 0, 0
        self._next, self._lock = 0.0, threading.Lock()

    def stage(self, name: str, total: int | None) -> None:
        """Begin a stage."""
        self._name, self._total, self._done = name, total or 0, 0
        self._next = time.monotonic() + PROGRESS_S

    def advance(self, amount: int) -> None:
        """Count, and log if it is time."""
        with self._lock:
            self._done += amount
            if self._done < self._total and time.monotonic() < self._next:
                return
            self._next = time.monotonic() + PROGRESS_S
            done, total = self._done, self._total
        import structlog  # libraries that only report to others do without

        structlog.get_logger("atta").info(self._name, done=done, of=total)
