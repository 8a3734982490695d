"""A bar over the batches of an epoch, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["bar"]

T = TypeVar("T")


def bar(items: Iterable[T], total: int, title: str, *, shown: bool) -> Iterator[T]:
    """Yield ``items``; with ``shown`` and a terminal on standard error, a bar that disappears when they are through."""
    if not shown or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, title, total=total, console=Console(stderr=True), transient=True)
