"""Reports of figures: printed, written as JSON and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click
from rich.console import RenderableType

from atta.cli.output import echo, printer, write_json
from atta.observe.packages import load
from atta.partition.disk.staging import StagedFile

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Those of Okabe and Ito, which colour-blind readers tell apart, but for their yellow, which is faint on white."""


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
    there even if a file cannot be written, and files are written even if nobody reads what is printed."""
    try:
        if not quiet and json_file != "-":
            printer().print(report.show())
    finally:
        write_json(json_file, report.to_json())
        if plot:
            report.plot(plot)


@contextmanager
def figure(
    path: str | Path, size: tuple[float, float], columns: int = 1, rows: int = 1, **shared: Any
) -> Iterator[Any]:
    """Matplotlib's axes to draw on, an array for several ``columns`` or ``rows``; the picture is written when the block
    ends.

    ``size`` is in inches; ``shared``: ``sharex``, ``sharey``. Raises as ``save_figure``, and ConfigError without matplotlib.
    """
    canvas = load("--plot", "matplotlib.figure").Figure(figsize=size, layout="constrained")
    axes = canvas.subplots(rows, columns, **shared)
    for axis in canvas.axes:
        axis.set_prop_cycle(color=COLOURS)
        axis.grid(color="#e4e8ec", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    yield axes
    save_figure(canvas, path)


def save_figure(canvas: Any, path: str | Path) -> None:
    """Write a matplotlib figure, whole or not at all, in the format that the ending of ``path`` names (else PNG).
    Raises ConfigError: the file cannot be written; DiskFullError: there is no space left."""
    with StagedFile(path, overwrite=True) as partial:
        canvas.savefig(partial, dpi=150, format=Path(path).suffix.lstrip(".") or "png")
    if (command := click.get_current_context(silent=True)) and not command.params.get("quiet"):
        echo(f"wrote {path}", err=True)
