"""Tables on terminals of all widths: nothing is cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Group
from rich.table import Table

from atta.cli.output import ReportConsole

ROWS = [("metis", "0.0145", "25.28"), ("streamed", "", "42.47")]


def printed(width: int, *, grouped: bool = False) -> str:
    table = Table("method", "seconds", "memory", title="Partitioning")
    for row in ROWS:
        table.add_row(*row)
    console = ReportConsole(file=io.StringIO(), width=width)
    console.print(Group("before", table) if grouped else table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [18, 24, 30, 36, 80])
def test_no_word_is_cut(width: int) -> None:
    said = printed(width)
    for word in ("Partitioning", "method", "seconds", "memory", *(cell for row in ROWS for cell in row)):
        assert word in said
    assert "…" not in said


def test_a_table_that_does_not_fit_is_printed_as_records() -> None:
    lines = [line.strip() for line in printed(20).splitlines()]
    assert lines == [
        "Partitioning",
        "method   metis", "seconds  0.0145", "memory   25.28", "",
        "method   streamed", "memory   42.47",
    ]  # fmt: skip
    assert "┃" in printed(80)


@pytest.mark.parametrize("width", [20, 80])
def test_so_is_one_of_a_group(width: int) -> None:
    assert printed(width, grouped=True) == "before\n" + printed(width)
