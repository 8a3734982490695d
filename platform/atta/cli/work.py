"""What commands that read and write folders share: progress bars, sizes and durations for people, ``--overwrite``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.progress import Progress as Bars

from atta.cli.output import echo, progress_bars
from atta.observe.progress import Progress

__all__ = ["duration", "overwrite_option", "say", "size", "work_progress"]

overwrite_option = click.option("--overwrite", is_flag=True, help="Replace DST if it is a folder that Atta wrote.")


class _RichProgress:
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: Any = None

    def stage(self, name: str, total: int | None) -> None:
        self.finish()
        self._task = self._bars.add_task(name, total=total)

    def advance(self, amount: int) -> None:
        self._bars.advance(self._task, amount)

    def finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[-1].total
            self._bars.update(self._task, total=total or 1, completed=total or 1)


@contextmanager
def work_progress(quiet: bool) -> Iterator[Progress]:
    """Yield a progress receiver. It shows bars on a terminal, and nothing elsewhere."""
    with progress_bars(quiet) as bars:
        receiver = _RichProgress(bars)
        yield receiver
        receiver.finish()


def say(quiet: bool, text: str) -> None:
    """Print, unless ``quiet``."""
    if not quiet:
        echo(text)


def size(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
