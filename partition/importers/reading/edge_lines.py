"""The columns of an edge list, block by block. Several threads parse by Arrow, each block whole lines; the blocks keep their
order."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from atta import _native
from atta.errors import DataError
from atta.observe.machine.threads import in_order
from atta.partition.importers.reading.edge_dialect import BLANKS, DATE, INTEGER, EdgeFile, fields_of, without_braces
from atta.partition.importers.reading.source import arrow_csv, first_line, open_content, pa, pc

_BLOCK = 8 << 20
_LONGEST_LINE = 1 << 20
_COMMENT = re.compile(rb"^[#%][^\n]*", re.MULTILINE)
_MANY_BLANKS = re.compile(rb"[ \t\r]+")
_SPACED = (b"  ", b" \n", b"\n ", b"\t", b"\r")
_SHOWN = 60


class FractionError(Exception):
    """An edge table of whole numbers, whose name is the argument, has a fraction."""


@dataclass(frozen=True)
class LineLayout:
    """What is read of the lines of a file: ``"integer"`` (an id), ``"text"``, ``"int64"``, ``"float64"`` or ``"date"``,
    which becomes seconds since 1970, by the names of the file's ``places``."""

    file: EdgeFile
    kinds: Mapping[str, str]


class _BadLineError(Exception):
    """The line at a position of a block, and why it is wrong."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(position, why)
        self.position, self.why = position, why


def parsed(layout: LineLayout) -> Iterator[tuple[int, dict[str, Any]]]:
    """For each block of lines its bytes, and the Arrow array of each column that the layout names. Raises DataError: a
    line is wrong; names the file, the line, the value; FractionError: one of kind ``int64`` has a fraction."""
    path = layout.file.path

    def columns_at(start: int, block: bytes) -> tuple[int, dict[str, Any]]:
        try:
            return len(block), _columns(block, layout)
        except _BadLineError as error:
            raise DataError(path, f"line {_lines_before(path, start) + error.position + 1}: {error.why}") from None

    with open_content(path) as file:
        jobs = (partial(columns_at, start, block) for start, block in _blocks(path, file, layout.file.heading))
        yield from in_order(jobs, pa.cpu_count())


def _blocks(path: Path, file: BinaryIO, heading: bool) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines and where they begin; a heading is left out, and so is a mark of the byte order."""
    start, rest = 0, b""
    while piece := file.read(_BLOCK):
        cut = piece.rfind(b"\n") + 1
        if not cut:
            rest += piece
            if len(rest) > _LONGEST_LINE:
                raise DataError(path, f"line {_lines_before(path, start) + 1}: longer than {_LONGEST_LINE} bytes")
            continue
        block, rest = rest + piece[:cut], piece[cut:]
        yield start, _without_heading(block) if start == 0 and heading else block
        start += len(block)
    if rest:
        yield start, _without_heading(rest) if start == 0 and heading else rest


def _without_heading(block: bytes) -> bytes:
    """``block`` without the text of its first line that is neither empty nor a comment; the line stays, empty."""
    at = 0
    while (end := block.find(b"\n", at)) >= 0 and block[at:end].strip(codecs.BOM_UTF8 + b" \t\r")[:1] in (
        b"",
        b"#",
        b"%",
    ):
        at = end + 1
    return block[:at] + (block[end:] if end >= 0 else b"")


def _lines_before(path: Path, start: int) -> int:
    with open_content(path) as file:
        lines = 0
        while start > 0 and (piece := file.read(min(start, _BLOCK))):
            lines += piece.count(b"\n")
            start -= len(piece)
    return lines


def _columns(block: bytes, layout: LineLayout) -> dict[str, Any]:
    plain = _plain(block, layout.file)
    if not plain or plain.isspace():
        return {}
    try:
        table = _read(plain, layout, {})
    except pa.ArrowInvalid as error:
        _find_bad_line(plain, layout)
        raise _BadLineError(0, f"or a later one: {first_line(error)}") from None
    ids = [name for name, kind in layout.kinds.items() if kind == "integer"]
    if ids and _native.has_padded_number(plain):
        _check_padding(plain, layout, ids)
    columns = {name: table.column(name).chunk(0) for name in layout.kinds}  # the block is one chunk
    for name, kind in layout.kinds.items():
        if kind == "date":
            columns[name] = columns[name].cast(pa.int64())
        if kind == "text":
            columns[name] = pc.utf8_trim_whitespace(columns[name])
            if pc.min(pc.binary_length(columns[name])).as_py() == 0:
                _find_bad_line(plain, layout)
    return columns


def _plain(block: bytes, file: EdgeFile) -> bytes:
    block = block.removeprefix(codecs.BOM_UTF8)
    if b"#" in block or b"%" in block:
        block = _COMMENT.sub(b"", block)
    if file.braces is not None:
        block = without_braces(block, file.braces)
    if file.separator == BLANKS and (block[:1] == BLANKS.encode() or any(mark in block for mark in _SPACED)):
        lines = (line.strip(b" ") for line in _MANY_BLANKS.sub(b" ", block).split(b"\n"))
        block = b"\n".join(lines)
    return block


def _read(block: bytes, layout: LineLayout, kinds: Mapping[str, str]) -> Any:
    arrow = {
        "integer": pa.int64(),
        "text": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "date": pa.timestamp("s"),
    }
    wanted = {name: arrow[kind] for name, kind in {**layout.kinds, **kinds}.items()}
    separator, names = layout.file.separator, [f"#{place}" for place in range(len(layout.file.columns))]
    for name, place in layout.file.places.items():
        names[place] = name
    return arrow_csv.read_csv(
        pa.BufferReader(block),
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
        parse_options=arrow_csv.ParseOptions(
            delimiter=separator, quote_char=False if separator in (BLANKS, "\t") else '"'
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=wanted, include_columns=list(wanted), null_values=[], strings_can_be_null=False
        ),
    )


def _check_padding(block: bytes, layout: LineLayout, ids: list[str]) -> None:
    texts = _read(block, layout, dict.fromkeys(ids, "text"))
    for name in ids:
        plain = pc.utf8_trim_whitespace(texts.column(name))
        if not pc.all(pc.match_substring_regex(plain, f"^({INTEGER.pattern})$")).as_py():
            _find_bad_line(block, layout)


def _find_bad_line(block: bytes, layout: LineLayout) -> None:
    """Raise _BadLineError for the first line that is not as the layout says, or FractionError if that is a fraction."""
    for position, line in enumerate(block.split(b"\n")):
        try:
            text = line.decode().strip("\ufeff\r")
        except UnicodeDecodeError as error:
            raise _BadLineError(position, f"not UTF-8: {error.reason} at byte {error.start}") from None
        if text.strip():
            _check_line(position, fields_of(text, layout.file.separator), layout)


def _check_line(position: int, fields: list[str], layout: LineLayout) -> None:
    names = layout.file.columns
    if len(fields) != len(names):
        shown = layout.file.separator.join(fields)[:_SHOWN]
        raise _BadLineError(position, f"{len(fields)} columns instead of {len(names)}: {shown!r}")
    for name, kind in layout.kinds.items():
        place = layout.file.places[name]
        if why := _fault(fields[place], kind, name):
            raise _BadLineError(position, f"column {names[place]!r}: {fields[place][:_SHOWN]!r} {why}")


def _fault(field: str, kind: str, name: str) -> str:
    if kind == "text":
        return "" if field else "is empty"
    if kind == "integer" and not INTEGER.fullmatch(field):
        return "is no integer, as the ids before are (--string-ids takes all ids as strings)"
    if kind == "date":
        return "" if DATE.fullmatch(field) else "is no date YYYY-MM-DD, with or without HH:MM:SS"
    try:
        number = float(field)
    except ValueError:
        return "is no number"
    if kind == "float64":
        return ""
    if kind == "int64" and not re.fullmatch("-?[0-9]+", field):
        raise FractionError(name)
    return "" if -(2**63) <= int(field) < 2**63 else f"does not fit into 64 bits ({number:g})"
