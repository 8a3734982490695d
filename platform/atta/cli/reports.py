"""The console that reports are printed on."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.table import Table

__all__ = ["ReportConsole", "records"]


class ReportConsole(Console):
    """Prints a table that is too wide for the terminal as one record per row, as ``psql`` does by ``\\x auto``."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As ``rich.console.Console.print``."""
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
