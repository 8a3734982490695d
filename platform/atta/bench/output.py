"""How benchmarks hand out what they found: the head of a JSON document, pictures, and what every report can do.

``atta.cli.bench.measuring.hand_out`` prints, writes and draws a ``Report``; ``bench/record.py`` writes the records in
bench/results.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from atta.observe.extras import load
from atta.observe.versions import machine, versions
from atta.partition.disk.staging import StagedFile

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["BAR_COLOUR", "Report", "document", "figure", "now", "save_figure"]

BAR_COLOUR = "#4c78a8"


class Report(Protocol):
    """The figures of one benchmark."""

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` writes."""

    def show(self) -> RenderableType:
        """The same figures for people."""

    def plot(self, path: str) -> None:
        """Draw the figure that ``--plot`` promises; raises ConfigError without matplotlib."""


def now() -> str:
    """The time in UTC, to the second, as ISO 8601 writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def document(bench: str, *, started: str | None = None, **contents: Any) -> dict[str, Any]:
    """The JSON document of a benchmark: when it started (default: now), machine and versions, then ``contents``."""
    about = {"started": started or now(), "machine": machine(), "versions": versions()}
    return {"schema": 1, "bench": bench, **about, **contents}


@contextmanager
def figure(path: str | Path, size: tuple[float, float], columns: int = 1) -> Iterator[Any]:
    """Matplotlib's axes to draw on, an array for several ``columns``; the picture is written when the block ends.

    Args:
        path: see ``save_figure``.
        size: width and height in inches.
        columns: number of plots side by side.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
        DiskFullError: there is no space left.
    """
    mpl = load("--plot", "matplotlib")
    mpl.use("Agg")
    plt = load("--plot", "matplotlib.pyplot")
    canvas, axes = plt.subplots(1, columns, figsize=size, layout="constrained")
    try:
        yield axes
        save_figure(canvas, path)
    finally:
        plt.close(canvas)


def save_figure(canvas: Any, path: str | Path) -> None:
    """Write a matplotlib figure, whole or not at all, in the format that the ending of ``path`` names (else PNG).

    Raises:
        ConfigError: the file cannot be written.
        DiskFullError: there is no space left.
    """
    with StagedFile(path, overwrite=True) as partial:
        canvas.savefig(partial, dpi=150, format=Path(path).suffix.lstrip(".") or "png")
