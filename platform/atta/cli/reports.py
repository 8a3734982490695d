"""The consoles that everything is printed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from atta.observe.lastwords import printable


class PlainConsole(Console):
    """Shows names, errors and data as they are, or escaped where a terminal would obey them. Rich lets those through.

    ``[fd09::1]`` and names with brackets or colons are no markup.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As ``rich.console.Console.render_str``: columns become as wide as what is shown."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As ``rich.console.Console.render``, which is also given texts that are none of the console's."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


class ReportConsole(PlainConsole):
    """Prints a table that is too wide for the terminal as one record per row, as ``psql`` does by ``\\x auto``."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print what fits as it is, and wide tables as records."""
        super().print(*map(self._fitting, objects), **options)

    def _fitting(self, shown: Any) -> Any:
        """``shown`` with records in place of the tables that do not fit, also those of a group."""
        if isinstance(shown, Group):
            return Group(*map(self._fitting, shown.renderables))
        return records(shown) if isinstance(shown, Table) and not self._fits(shown) else shown

    def _fits(self, table: Table) -> bool:
        """Whether no word of the table has to be cut."""
        unbounded = self.options.update(width=10_000)
        return self.measure(table, options=unbounded).minimum <= self.width


def records(table: Table) -> Group:
    """``table`` with one line per cell that is not empty: the column's header and the cell."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for row, cells in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
        if row:
            shown.add_row("", "")
        for column, cell in zip(table.columns, cells, strict=True):
            if cell != "":
                shown.add_row(column.header, cell)
    return Group(*([table.title] if table.title else []), shown)
