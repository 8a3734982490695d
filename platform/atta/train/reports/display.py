"""Shows a run to people: a line per epoch, and on a terminal a progress bar of its batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from atta.observe.printable import printable

TRAINING_BEGINS = "training begins"
"""What strategies say that report their first epoch only in the end."""


class Display:
    """Writes to standard error; silent unless ``enabled``."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._bars = enabled and sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Print a line."""
        if self._enabled:
            print(printable(text), file=sys.stderr, flush=True)

    @contextmanager
    def batches(self, what: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a progress bar that disappears at the end; yield a function to call after each of ``total`` batches."""
        if not self._bars:
            yield lambda: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda: progress.advance(task)
