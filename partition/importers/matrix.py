"""Adjacency matrices as text, compressed with gzip or not, read in pieces: MatrixMarket and METIS.

**MatrixMarket** (``*.mtx``), ``coordinate``: the entry ``i j`` is the edge from vertex i to vertex j. Values are the edge
table ``weight``. ``symmetric`` and ``skew-symmetric`` matrices hold one triangle: the entries of the other follow all given
ones, in their order, those of a skew-symmetric matrix with the opposite sign.

**METIS** (``*.graph``): line i after the first lists the neighbours of vertex i. Each edge is in the lists of both its ends,
and is stored in both directions. Both formats count from 1, and these numbers are the user ids.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.filling import EdgeStream
from atta.partition.importers.reading.source import Array, Ids, ImportOptions, open_content
from atta.partition.schema import TableSpec

_BLOCK_BYTES = 16 << 20
_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))  # what separates numbers, by byte
_NEWLINE = 10
_SHOWN = 40
_MOST_VERTICES, _MOST_PER_BYTE = 1 << 22, 64
_LARGEST = 2**63 - 1
_NAMES: dict[type, str] = {np.int64: "whole number below 2**63", np.float64: "number"}


@dataclass(frozen=True)
class NumberLines:
    """Some lines of a file: ``values`` int64 or float64 [numbers], ``counts`` int64 [lines], how many of them each line
    holds, and ``places`` int64 [lines], the number of each line in the file, from 1."""

    values: Array
    counts: Ids
    places: Ids


def number_lines(file: BinaryIO, where: Path, kind: type, *, line: int) -> Iterator[NumberLines]:
    """The lines from the current place of ``file`` on, which is the beginning of line ``line``. Lines that begin with
    ``%`` are left out. ``kind``: np.int64 or np.float64. Raises DataError naming the line and the text that is no such
    number."""
    for block in _blocks(file):
        ends = block.count(b"\n")
        places = np.arange(line, line + ends)
        text = block
        if b"%" in block:
            lines = block.split(b"\n")[:-1]
            kept = [place for place, entry in enumerate(lines) if not entry.lstrip().startswith(b"%")]
            text, places = b"".join(lines[place] + b"\n" for place in kept), places[kept]
        yield _parsed(text, places, where, kind)
        line += ends


def check_count(where: Path, count: int) -> None:
    """Refuse a number of vertices that a header states and a file of this size cannot mean; raises DataError."""
    if count > max(_MOST_VERTICES, _MOST_PER_BYTE * where.stat().st_size):
        raise DataError(where, f"states {count} vertices, which a file of this size does not describe")


def quoted(text: bytes) -> str:
    """``text`` of a file for a message: one line of printable characters, not long."""
    shown = text.decode("utf-8", "replace")
    return repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}...")


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    rest: list[bytes] = []
    while piece := file.read(_BLOCK_BYTES):
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, piece[:cut]])
            rest = []
        rest.append(piece[cut:])
    if any(rest):
        yield b"".join([*rest, b"\n"])


def _parsed(text: bytes, places: Ids, where: Path, kind: type) -> NumberLines:
    raw = np.frombuffer(text, np.uint8)
    filled = ~_BLANK[raw]
    begins = np.flatnonzero(filled & np.concatenate([[True], ~filled[:-1]])) if len(raw) else np.zeros(0, np.int64)
    so_far = np.searchsorted(begins, np.flatnonzero(raw == _NEWLINE))  # numbers up to the end of each line
    total = len(begins)
    values = _numbers(text, kind) if total else np.zeros(0, kind)
    if len(values) < total or _may_be_cut(values):
        for token, word in enumerate(re.finditer(rb"\S+", text)):
            if not _is_number(word[0], kind):
                place = int(places[np.searchsorted(so_far, token, "right")])
                raise DataError(where, f"line {place}: {quoted(word[0])} is no {_NAMES[kind]}")
    return NumberLines(values, np.diff(so_far, prepend=0), places)


def _numbers(text: bytes, kind: type) -> Array:
    """The numbers in ``text``; none, or those before the first fault, where something is no number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what older releases of numpy say instead of an error
            return np.fromstring(text, kind, sep=" ")
    except ValueError:
        return np.zeros(0, kind)


def _may_be_cut(values: Array) -> bool:
    """Whether a number may have been too large for int64. Such numbers are read as the largest."""
    limits = np.iinfo(np.int64)
    return (
        values.dtype.kind == "i"
        and len(values) > 0
        and bool(np.isin((values.min(), values.max()), (limits.min, limits.max)).any())
    )


def _is_number(word: bytes, kind: type) -> bool:
    if kind is np.int64:
        digits = re.fullmatch(rb"[+-]?0*([0-9]{1,19})", word)
        return digits is not None and int(digits[1]) < _LARGEST
    return len(_numbers(word, kind)) == 1


_BANNER = re.compile(rb"%%?MatrixMarket\b", re.IGNORECASE)
_KINDS = {"pattern": np.int64, "integer": np.int64, "real": np.float64}
_MIRRORED = {"general": (), "symmetric": (1,), "skew-symmetric": (-1,)}  # the factors of the entries that follow
_LONGEST_LINE = 1 << 16


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file ``source``."""
    with open_content(source) as file:
        market = _BANNER.match(file.read(_LONGEST_LINE)) is not None
    (_read_market if market else _read_metis)(source, out, options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a MatrixMarket file, or one called ``*.graph`` or ``*.metis`` that begins like those of METIS."""
    if _BANNER.match(head):
        return True
    if not path.name.removesuffix(".gz").endswith((".graph", ".metis")):
        return False
    lines = (line for line in head.splitlines() if not line.startswith(b"%"))
    return re.fullmatch(rb"\s*\d+\s+\d+(\s+[01]{1,3}(\s+\d+)?)?\s*", next(lines, b"")) is not None


def _add_numbered(out: GraphWriter, where: Path, node_type: str, count: int) -> None:
    check_count(where, count)
    out.add_nodes(node_type, count, ids=np.arange(1, count + 1))


def _next_line(file: BinaryIO, where: Path, line: int) -> tuple[list[bytes], int]:
    while text := file.readline(_LONGEST_LINE):
        line += 1
        if (words := text.split()) and not words[0].startswith(b"%"):
            return words, line
    raise DataError(where, f"ends after line {line}, before it says how many vertices there are")


def _header_numbers(where: Path, words: list[bytes], line: int) -> list[int]:
    for word in words:
        if not re.fullmatch(rb"[0-9]{1,18}", word):
            raise DataError(where, f"line {line}: {quoted(word)} is no number of vertices or edges")
    return [int(word) for word in words]


def _read_market(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    with open_content(source) as file:
        words = _banner(file, source)
        size, line = _next_line(file, source, 1)
    numbers = _header_numbers(source, size, line)
    if len(numbers) != 3:
        raise DataError(source, f"line {line}: wanted are the numbers of rows, columns and entries")
    *shape, entries = numbers
    square, (field, symmetry) = shape[0] == shape[1], words
    if symmetry != "general" and not square:
        raise DataError(source, f"line {line}: a {symmetry} matrix of {shape[0]} rows and {shape[1]} columns")
    for node_type, count in zip((NODE_TYPE,) if square else ("left", "right"), shape, strict=False):
        _add_numbered(out, source, node_type, count)
    kind, factors = _KINDS[field], (1, *_MIRRORED[symmetry])
    tables = {} if field == "pattern" else {"weight": TableSpec(np.dtype(kind).newbyteorder("<").str, ())}
    edge_type = EDGE_TYPE if square else "left__to__right"
    with EdgeStream(out, edge_type, options, tables, total=entries * len(factors)) as stream:
        for place, factor in enumerate(factors):
            for ends, rest in _entries(source, kind, line, shape, entries, 2 + len(tables)):
                values = dict.fromkeys(tables, rest * factor)
                if not place:
                    stream.append(ends[0], ends[1], values)
                    continue
                others = ends[0] != ends[1]
                stream.append(ends[1][others], ends[0][others], {name: rows[others] for name, rows in values.items()})


def _banner(file: BinaryIO, where: Path) -> list[str]:
    """The field and the symmetry that the first line of a MatrixMarket file states."""
    words = file.readline(_LONGEST_LINE).decode("latin-1").lower().split()[1:5]
    parts = {"object": ("matrix",), "layout": ("coordinate",), "field": tuple(_KINDS), "symmetry": tuple(_MIRRORED)}
    for place, (what, known) in enumerate(parts.items()):
        found = repr(words[place]) if len(words) > place else "nothing"
        if len(words) <= place or words[place] not in known:
            cause = f"the {what} of this MatrixMarket file is {found}; Atta reads {', '.join(known)}"
            raise DataError(where, f"line 1: {cause}")
    return words[2:]


def _entries(  # noqa: PLR0917 - what the first lines state
    where: Path, kind: type, line: int, shape: Sequence[int], stated: int, width: int
) -> Iterator[tuple[list[Array], Array]]:
    """The (sources, destinations) and values of the entries behind a ``line``, in pieces; values of patterns mean
    nothing. ``width``: of an entry."""
    left = stated
    with open_content(where) as file:
        for _ in range(line):
            file.readline(_LONGEST_LINE)
        for lines in number_lines(file, where, kind, line=line + 1):
            full = np.flatnonzero(lines.counts)
            if len(strange := full[lines.counts[full] != width]):
                place, count = lines.places[strange[0]], lines.counts[strange[0]]
                raise DataError(where, f"line {place}: {count} numbers, an entry of this matrix has {width}")
            left -= len(full)
            if left < 0:
                raise DataError(where, f"line {lines.places[full[left]]}: more entries than the {stated} stated")
            entries, places = lines.values.reshape(-1, width), lines.places[full]
            yield [_rows(where, entries[:, side], shape[side], places) for side in (0, 1)], entries[:, -1]
    if left:
        raise DataError(where, f"ends after {stated - left} of {stated} entries")


def _rows(where: Path, numbers: Array, count: int, places: Array) -> Ids:
    """Numbers that count from 1 as row numbers; raises DataError. ``places``: the line of each."""
    rows = numbers.astype(np.int64) - 1
    wrong = (rows < 0) | (rows >= count) | (rows + 1 != numbers)
    if wrong.any():
        first = int(np.argmax(wrong))
        number = str(numbers[first]).removesuffix(".0")
        raise DataError(where, f"line {places[first]}: {number} is no vertex, they are numbered from 1 to {count}")
    return rows


def _read_metis(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    with open_content(source) as file:
        (vertices, edges), sizes, weights, weighted, line = _metis(file, source)
        _add_numbered(out, source, NODE_TYPE, vertices)
        tables = {"weight": TableSpec("<i8", ())} if weighted else {}
        before, step, first = sizes + weights, 1 + weighted, 0
        of_vertices = [np.zeros((0, before), np.int64)]
        with EdgeStream(out, EDGE_TYPE, options, tables, total=2 * edges) as stream:
            for lines in number_lines(file, source, np.int64, line=line + 1):
                kept = _vertex_lines(source, lines, vertices, first, before, step)
                starts = np.cumsum(lines.counts[:kept]) - lines.counts[:kept]
                within = np.arange(len(lines.values)) - np.repeat(starts, lines.counts[:kept]) - before
                of_vertices.append(lines.values[within < 0].reshape(kept, before))
                row = np.repeat(np.arange(kept), (lines.counts[:kept] - before) // step)
                neighbours, weight = (lines.values[(within >= 0) & (within % step == at)] for at in (0, 1))
                dst = _rows(source, neighbours, vertices, lines.places[row])
                stream.append(row + first, dst, {"weight": weight} if weighted else {})
                first += kept
            if first < vertices:
                raise DataError(source, f"ends after the lines of {first} of {vertices} vertices")
            if stream.count != 2 * edges:
                what = f"states {edges} edges, each in two lists; the lists hold {stream.count} neighbours"
                raise DataError(source, what)
            if (pair := stream.one_way()) is not None:
                raise DataError(source, f"vertex {pair[0] + 1} has the neighbour {pair[1] + 1}, which does not list it")
    rows = np.concatenate(of_vertices)
    if sizes:
        out.add_table("size", rows[:, 0])
    if weights:
        out.add_table("weight", rows[:, -1] if weights == 1 else rows[:, sizes:])


def _metis(file: BinaryIO, where: Path) -> tuple[list[int], int, int, int, int]:
    """What the first line of a METIS file states: the numbers of vertices and edges, whether vertices have sizes, how
    many weights they have, whether edges have weights; and the number of the line."""
    words, line = _next_line(file, where, 0)
    numbers = _header_numbers(where, words, line)
    flags = words[2].decode().zfill(3) if len(words) > 2 else "000"
    if not 2 <= len(words) <= 4 or re.fullmatch("[01]{3}", flags) is None:
        raise DataError(where, f"line {line}: wanted are the numbers of vertices and edges, and three digits 0 or 1")
    weights = numbers[3] if len(numbers) > 3 else 1
    if weights > 1 and flags[1] == "0":
        raise DataError(where, f"line {line}: {weights} weights for each vertex, but the format {flags} has none")
    return numbers[:2], int(flags[0]), weights * int(flags[1]), int(flags[2]), line


def _vertex_lines(where: Path, lines: NumberLines, vertices: int, first: int, before: int, step: int) -> int:  # noqa: PLR0917
    """How many of the ``lines`` are those of vertices, from row ``first`` on: blank ones may follow the last."""
    kept = min(len(lines.counts), vertices - first)
    if len(more := np.flatnonzero(lines.counts[kept:])):
        raise DataError(where, f"line {lines.places[kept + more[0]]}: there are only {vertices} vertices")
    counts = lines.counts[:kept] - before
    wrong = (counts < 0) | (counts % step != 0)
    if wrong.any():
        bad = int(np.argmax(wrong))
        wanted = f"{before} numbers, then {'pairs of a neighbour and a weight' if step > 1 else 'neighbours'}"
        raise DataError(where, f"line {lines.places[bad]}: {lines.counts[bad]} numbers; wanted are {wanted}")
    return kept
