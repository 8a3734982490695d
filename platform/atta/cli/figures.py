"""Reports of figures: printed, written as JSON and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from atta.cli.output import printer, write_json
from atta.observe.packages import load
from atta.partition.disk.staging import StagedFile

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR_COLOUR = "#4c78a8"


class Report(Protocol):
    """The figures of one command."""

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` writes."""

    def show(self) -> RenderableType:
        """The same figures for people."""

    def plot(self, path: str) -> None:
        """Draw the figure that ``--plot`` promises; raises ConfigError without matplotlib."""


def hand_out(report: Report, json_file: str | None, plot: str | None, *, quiet: bool) -> None:
    """Print a report, write its JSON document and draw it. Printing comes first: the figures of hours of measuring are
    there even if a file cannot be written."""
    if not quiet and json_file != "-":
        printer().print(report.show())
    write_json(json_file, report.to_json())
    if plot:
        report.plot(plot)


@contextmanager
def figure(path: str | Path, size: tuple[float, float], columns: int = 1) -> Iterator[Any]:
    """Matplotlib's axes to draw on, an array for several ``columns``; the picture is written when the block ends.

    ``size`` is in inches. Raises as ``save_figure``, and ConfigError without matplotlib.
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
    Raises ConfigError: the file cannot be written; DiskFullError: there is no space left."""
    with StagedFile(path, overwrite=True) as partial:
        canvas.savefig(partial, dpi=150, format=Path(path).suffix.lstrip(".") or "png")
