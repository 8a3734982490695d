"""How long-running work reports its progress: it calls two methods of an object that its caller passes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

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


SHOWN_S = 0.2
"""How often a notebook's bars are drawn anew."""
STAGES_SHOWN = 8
"""At most this many stages are shown, the latest ones."""


def shown(progress: Progress | None) -> Progress:
    """``progress``; None: bars below the cell in a notebook, and nothing elsewhere."""
    if progress is not None:
        return progress
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython(), "kernel", None) if ipython is not None else None
    return NotebookProgress() if kernel is not None else Silent()


class NotebookProgress:
    """Shows a bar for each stage below the cell that runs. Several threads may advance it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._stages: list[tuple[str, int, int | None, float]] = []
        self._began, self._drawn = 0.0, 0.0
        self._handle: Any = None

    def stage(self, name: str, total: int | None) -> None:
        """Begin a stage."""
        with self._lock:
            if self._stages:
                _, done, whole, _ = self._stages[-1]
                self._count(0 if whole is None else whole - done)  # what comes next shows that it is done
            self._began = self._clock()
            self._stages = [*self._stages, (name, 0, total, 0.0)][-STAGES_SHOWN:]
            self._draw()

    def advance(self, amount: int) -> None:
        """Count, and draw if it is time."""
        with self._lock:
            self._count(amount)
            _, done, total, _ = self._stages[-1]
            if done == total or self._clock() - self._drawn >= SHOWN_S:
                self._draw()

    def _count(self, amount: int) -> None:
        name, done, total, _ = self._stages[-1]
        self._stages[-1] = name, done + amount, total, self._clock() - self._began

    def _draw(self) -> None:
        from atta.observe import html

        plain = "\n".join(f"{name}: {done:,}" for name, done, _, _ in self._stages)
        picture = {"text/html": html.bars(self._stages), "text/plain": plain}
        if self._handle is None:
            display: Any = import_module("IPython.display").display
            self._handle = display(picture, raw=True, display_id=True)
        else:
            self._handle.update(picture, raw=True)
        self._drawn = self._clock()
