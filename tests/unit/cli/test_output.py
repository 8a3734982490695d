"""Option types with units, the JSON writer, and tables on terminals of all widths."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.table import Table
from rich.text import Text

from atta.cli.output import DURATION, INTS, NAMES, RATE, SIZE, echo, printer, progress_bars, teller, write_json
from atta.cli.reports import ReportConsole
from atta.errors import ConfigError, DiskFullError

ACCEPTED: list[tuple[click.ParamType, dict[str, Any]]] = [
    (SIZE, {"4GiB": 4 << 30, "1.5 MiB": 3 << 19, "10kB": 10_000, "123": 123}),
    (DURATION, {"2ms": 0.002, "1.5": 1.5, "3m": 180.0}),
    (RATE, {"1gbit": 125e6, "800kbit": 1e5}),
    (INTS, {"15,10, 5": (15, 10, 5), "-1": (-1,)}),
    (NAMES, {"dgl,pyg": ("dgl", "pyg")}),
]
REFUSED = [
    *((SIZE, ("4Gib5", "-1GiB", "1gbit", "1e400")), (DURATION, ("2 parsecs", "nan")), (RATE, ("5",))),
    *((INTS, ("15,,5", "15;5")), (NAMES, ("a,,b",))),
]


def test_units_are_converted_and_nonsense_is_refused_with_an_example() -> None:
    for kind, values in ACCEPTED:
        for text, value in values.items():
            assert kind.convert(text, None, None) == (pytest.approx(value) if isinstance(value, float) else value)
    for kind, text in ((kind, text) for kind, texts in REFUSED for text in texts):
        with pytest.raises(click.BadParameter, match="such as") as refused:
            kind.convert(text, None, None)
        assert repr(text) in refused.value.message


def test_a_minimum_is_kept() -> None:
    kind = SIZE.at_least("64MiB")
    assert kind.convert("64MiB", None, None) == 64 << 20
    with pytest.raises(click.BadParameter, match="less than 64MiB"):
        kind.convert("63MiB", None, None)


@given(st.lists(st.integers(), min_size=1))
def test_integers_survive_a_round_trip(values: list[int]) -> None:
    assert INTS.convert(",".join(map(str, values)), None, None) == tuple(values)


def test_json_goes_to_a_file_or_alone_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"schema": 1, "values": [1.5, None]}
    target = tmp_path / "out.json"
    write_json(str(target), document)
    assert json.loads(target.read_text()) == document
    assert list(tmp_path.iterdir()) == [target]
    write_json("-", document)
    assert json.loads(capsys.readouterr().out) == document
    write_json(None, document)
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match="absent"):
        write_json(str(tmp_path / "absent" / "out.json"), {})
    with progress_bars(quiet=False) as bars:
        task = bars.add_task("work", total=2)
        bars.advance(task, 2)
    assert capsys.readouterr() == ("", "")


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.json"
    target.write_text("before")

    def fill(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text[:3].encode())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", fill)
    with pytest.raises(DiskFullError, match=re.escape(str(target))):
        write_json(str(target), {"figure": 1})
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_addresses_and_names_of_users_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    names = "[fd09::1]:7070", "[bold]users[/bold]", ":smile:"
    table = Table(*names, title="[red] of users")
    table.add_row(*names)
    printer().print(table)
    printer().print("at [fe80::2]:7070")
    teller(quiet=False)("generating in [dim]graphs")
    teller(quiet=True)("nothing")
    said = capsys.readouterr()
    assert all(said.out.count(name) == 2 for name in names)
    assert "[red] of users" in said.out
    assert "at [fe80::2]:7070" in said.out
    assert said.err == "generating in [dim]graphs\n"


def test_what_a_terminal_would_obey_is_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil, shown = "\x1b]0;pwned\x1b[2J\x9b31m\u202e", r"\x1b]0;pwned\x1b[2J\x9b31m\u202e"
    table = Table(evil, title=evil)
    table.add_row(evil)
    table.add_row(Text(evil))
    printer().print(table, Text(evil), evil)
    echo(f"{evil}\a")
    teller(quiet=False)(evil)
    echo(evil, err=True)
    said = capsys.readouterr()
    assert said.out.count(shown) == 7
    assert said.err.count(shown) == 2
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress_bars(quiet=False) as bars:
        bars.add_task(f"edges [red]{evil}", total=1)
    drawn = capsys.readouterr().err
    assert r"edges [red]\x1b]0;pwned" in drawn
    assert not set("\x1b\x9b\u202e\a") & set(said.out + said.err)
    assert not set("\x9b\u202e\a") & set(drawn)


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
    assert printed(width, grouped=True) == "before\n" + said


def test_a_table_that_does_not_fit_is_printed_as_records() -> None:
    lines = [line.strip() for line in printed(20).splitlines()]
    assert lines == [
        "Partitioning",
        "method   metis", "seconds  0.0145", "memory   25.28", "",
        "method   streamed", "memory   42.47",
    ]  # fmt: skip
    assert "┃" in printed(80)
