"""Option types with units and numbers of processes, the JSON writer, tables on terminals, host names that come late."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.table import Table
from rich.text import Text

from atta.cli import predict
from atta.cli.output import (
    DURATION,
    INTS,
    NAMES,
    NODE_RANK,
    PARTS,
    RATE,
    SIZE,
    ReportConsole,
    echo,
    need_torch,
    printer,
    progress_bars,
    teller,
    write_json,
)
from atta.errors import ConfigError, DiskFullError, UnavailableError
from atta.partition import Graph, GraphWriter
from atta.train.launching.predictors import PredictReport
from atta.train.settings.predict import PredictConfig
from atta.wire.clusterfile import await_names, resolves
from atta.wire.parts import NODE_VARIABLES, PART_VARIABLES, own_number

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


@pytest.mark.parametrize("width", [32, 40, 44, 46, 60, 67, 68, 69, 80])
@pytest.mark.parametrize("least", [None, 30])
def test_lines_are_broken_before_words_and_borders_are_kept(width: int, least: int | None) -> None:
    rows = [("users", "x f4[16]\nmemory f4[3]", "train 800, val 200"), ("users__follow__users", "weight f4", "")]
    table = Table("type", "tables")
    table.add_column("splits", min_width=least)
    for row in rows:
        table.add_row(*row)
    console = ReportConsole(file=io.StringIO(), width=width)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    words = [word for line in lines for word in re.split("[┃│ ]+", line)]
    assert {word for row in rows for cell in row for word in cell.split()} <= {*words}
    assert "…" not in words
    if "┃" in "".join(lines):
        assert {line[-1] for line in lines} <= {*"┓┃┩│┘"}
    assert max(map(len, lines)) <= width


def test_a_table_that_does_not_fit_is_printed_as_records() -> None:
    lines = [line.strip() for line in printed(20).splitlines()]
    assert lines == [
        "Partitioning",
        "method   metis", "seconds  0.0145", "memory   25.28", "",
        "method   streamed", "memory   42.47",
    ]  # fmt: skip
    assert "┃" in printed(80)


@pytest.mark.parametrize("width", [40, 60, 70])
def test_a_wide_table_is_turned(width: int) -> None:
    table = Table("part", *(heads := [f"figure {n}" for n in range(7)]), title="Partitions")
    for part in range(4):
        table.add_row(str(part), *(f"{1000 * part + n:,} MiB" for n in range(7)))
    console = ReportConsole(file=io.StringIO(), width=width)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    cells = [cell.strip() for line in lines for cell in re.split("[┃│]", line)]
    assert all(cells.count(head) == (2 if width == 40 else 1) for head in heads)
    assert all(cells.count(f"{1000 * part + n:,} MiB") == 1 for part in range(4) for n in range(7))
    assert max(map(len, lines)) <= width


SLURM = {"SLURM_NODEID": "1", "SLURM_PROCID": "5"}


@pytest.mark.parametrize(
    ("environment", "host", "part", "node"),
    [
        ({"JOB_COMPLETION_INDEX": "3"}, "trainer-7", 3, 3),
        ({"JOB_COMPLETION_INDEX": "0", **SLURM}, "x", 0, 0),
        (SLURM, "node-9", 5, 1),
        ({"SLURM_NODEID": "2"}, "node-9", 2, 2),
        ({"SLURM_PROCID": "4"}, "node-9", 4, 4),
        ({"JOB_COMPLETION_INDEX": " "}, "atta-daemon-12", 12, 12),
        ({}, "atta-daemon-1.atta-daemon.default.svc.cluster.local", 1, 1),
        ({}, "node007.rack3", 7, 7),
        ({}, "42", 42, 42),
    ],
)
def test_a_process_knows_its_number(environment: dict[str, str], host: str, part: int, node: int) -> None:
    assert own_number(environment, host, PART_VARIABLES) == part
    assert own_number(environment, host, NODE_VARIABLES) == node


@pytest.mark.parametrize(
    ("environment", "host", "words"),
    [
        ({}, "daemon", "end the host name 'daemon' with it"),
        ({}, "daemon.rack3", "host name"),
        ({}, "", "host name"),
        ({"SLURM_PROCID": "-1"}, "daemon-0", "SLURM_PROCID='-1' is not a number"),
        ({"JOB_COMPLETION_INDEX": "two"}, "daemon-0", "JOB_COMPLETION_INDEX='two'"),
        ({"JOB_COMPLETION_INDEX": "٣"}, "daemon-0", "is not a number"),
        ({"JOB_COMPLETION_INDEX": "1048577"}, "daemon-0", "from 0 to 1048576"),
        ({}, "ip-10000000000", "is not a number"),
    ],
)
def test_what_is_no_number_is_named(environment: dict[str, str], host: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        own_number(environment, host, PART_VARIABLES)


def test_options_take_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {*PART_VARIABLES, *NODE_VARIABLES}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "daemon")
    for kind in (PARTS, NODE_RANK):
        with pytest.raises(click.BadParameter, match="no number: set"):
            kind.convert("auto", None, None)
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert PARTS.convert("auto", None, None) == range(5, 6)
    assert NODE_RANK.convert("auto", None, None) == 1
    assert NODE_RANK.convert("3", None, None) == 3
    with pytest.raises(click.BadParameter):
        NODE_RANK.convert("first", None, None)


class Names:
    """Host names that get an address at a time of a clock that ``sleep`` alone moves."""

    def __init__(self, **from_s: float) -> None:
        self.from_s, self.now, self.told = from_s, 0.0, list[str]()

    def wait(self, addresses: list[str], within_s: float) -> None:
        def known(host: str) -> bool:
            return self.now >= self.from_s[host]

        def sleep(seconds: float) -> None:
            assert seconds > 0
            self.now += seconds

        await_names(addresses, within_s, self.told.append, known=known, clock=lambda: self.now, sleep=sleep)


def test_names_are_waited_for_but_not_for_ever() -> None:
    names = Names(a=0, b=7, c=30)
    names.wait(["a:1", "b:1", "b:2", "c:1"], 60)
    assert 30 <= names.now < 31
    assert names.told == ["waiting up to 60 s for the host names b, c"]
    names = Names(a=0)
    names.wait(["a:1", "a:2"], 60)
    assert (names.now, names.told) == (0, [])
    names = Names(a=0, **{f"h{n}": 90.0 for n in range(6)})
    with pytest.raises(UnavailableError, match=r"h0, h1, h2, h3 and 2 more: .* no address after 60 s"):
        names.wait(["a:1", *(f"h{n}:1" for n in range(6))], 60)
    assert names.now == 60
    assert resolves("127.0.0.1")
    assert resolves("[::1]")
    assert not resolves("no-such-host.invalid")
    assert not resolves("a" * 70)


@pytest.mark.parametrize(
    ("settings", "vertices", "files", "said"),
    [
        ({}, 1, 1, "1 vertex: embeddings in 1 file in o, 2.0 s"),
        ({"what": "classes"}, 1200, 2, "1,200 vertices: classes in 2 files in o, 2.0 s"),
        ({"links": "l"}, 1, 2, "1 pair: scores in 2 files in o, 2.0 s"),
        ({"links": "l", "what": "classes"}, 3, 1, "3 pairs: classes in 1 file in o, 2.0 s"),
        ({"top": 1}, 2, 1, "2 vertices: at most 1 target for each in 1 file in o, 2.0 s"),
        ({"out": None, "table": "t", "data": None, "cluster": "c"}, 2, 0, "2 vertices: embeddings in table t, 2.0 s"),
    ],
)
def test_a_prediction_is_told_in_the_right_number(
    settings: dict[str, Any], vertices: int, files: int, said: str
) -> None:
    config = PredictConfig(**{"checkpoint": "c", "data": "d", "out": "o", **settings})
    assert predict._summary(PredictReport(config, vertices, 4, ["f"] * files, 2.0)) == said


def test_sizes_of_a_graph_are_told_in_the_right_number(tmp_path: Path) -> None:
    for vertices, said in ((1, "1 vertex, 0 edges"), (2, "2 vertices, 1 edge"), (1001, "1,001 vertices, 1,000 edges")):
        with GraphWriter(tmp_path / str(vertices)) as out:
            out.add_nodes("node", vertices)
            out.add_edges("node__to__node", np.arange(vertices - 1), np.arange(1, vertices))
        assert Graph.open(tmp_path / str(vertices)).schema.sizes == said


def test_a_terminal_is_told_what_takes_seconds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    need_torch("training")
    assert capfd.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    need_torch("training")
    need_torch("training", quiet=True)
    assert capfd.readouterr().err == "loading PyTorch\n"
