"""Adjacency matrices as text, compressed with gzip or not: MatrixMarket and METIS.

**MatrixMarket** (``*.mtx``), ``coordinate``: the entry ``i j`` is the edge from vertex i to vertex j. The values of
``real`` (float64) and ``integer`` (int64) matrices are the edge table ``weight``. ``symmetric`` and ``skew-symmetric``
matrices hold one triangle: the entries of the other follow all given ones, in their order, those of a skew-symmetric
matrix with the opposite sign. The rows and columns of a matrix that is not square are the node types ``left`` and
``right``. Dense and complex matrices are refused.

**METIS** (``*.graph``): line i after the first lists the neighbours of vertex i. Each edge is in the lists of both its
ends, and is stored in both directions. Weights of edges are the edge table ``weight``, weights and sizes of vertices
the node tables ``weight`` ([n], or [n, k] if there are k for each vertex) and ``size``; all int64.

Both count from 1, and these numbers are the user ids. The file is read in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.edges import EdgeStream
from atta.partition.importers.reading.head import open_content
from atta.partition.importers.reading.numbers import NumberLines, check_count, number_lines, quoted
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.schema import TableSpec

__all__ = ["read", "recognises"]

Array = npt.NDArray[Any]
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
    """Declare vertices whose ids count from 1."""
    check_count(where, count)
    out.add_nodes(node_type, count, ids=np.arange(1, count + 1))


def _next_line(file: BinaryIO, where: Path, line: int) -> tuple[list[bytes], int]:
    """The words of the next line that is neither blank nor a comment, and its number. ``line``: that of the last one."""
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


@dataclass(frozen=True)
class _Market:
    """What the first lines of a MatrixMarket file state. ``line``: the last of them."""

    shape: tuple[int, int]
    entries: int
    field: str
    symmetry: str
    line: int


def _read_market(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    with open_content(source) as file:
        stated = _market(file, source)
    square = stated.shape[0] == stated.shape[1]
    for node_type, count in zip((NODE_TYPE,) if square else ("left", "right"), stated.shape, strict=False):
        _add_numbered(out, source, node_type, count)
    kind, factors = _KINDS[stated.field], (1, *_MIRRORED[stated.symmetry])
    tables = {} if stated.field == "pattern" else {"weight": TableSpec(np.dtype(kind).newbyteorder("<").str, ())}
    edge_type = EDGE_TYPE if square else "left__to__right"
    with EdgeStream(out, edge_type, options, tables, total=stated.entries * len(factors)) as stream:
        for place, factor in enumerate(factors):
            for src, dst, values in _entries(source, stated):
                if place:
                    src, dst, values = (rows[src != dst] for rows in (dst, src, values * factor))  # noqa: PLW2901
                stream.append(src, dst, **dict.fromkeys(tables, values))


def _market(file: BinaryIO, where: Path) -> _Market:
    words = file.readline(_LONGEST_LINE).decode("latin-1").lower().split()
    for place, what, known in (
        (1, "object", ("matrix",)),
        (2, "layout", ("coordinate",)),
        (3, "field", _KINDS),
        (4, "symmetry", _MIRRORED),
    ):
        if len(words) <= place or words[place] not in known:
            found = repr(words[place]) if len(words) > place else "nothing"
            raise DataError(
                where, f"line 1: the {what} of this MatrixMarket file is {found}; Atta reads {', '.join(known)}"
            )
    size, line = _next_line(file, where, 1)
    numbers = _header_numbers(where, size, line)
    if len(numbers) != 3:
        raise DataError(where, f"line {line}: wanted are the numbers of rows, columns and entries")
    rows, columns, entries = numbers
    if words[4] != "general" and rows != columns:
        raise DataError(where, f"line {line}: a {words[4]} matrix of {rows} rows and {columns} columns")
    return _Market((rows, columns), entries, words[3], words[4], line)


def _entries(where: Path, stated: _Market) -> Iterator[tuple[Array, Array, Array]]:
    """Sources, destinations and values of the entries of a file, in pieces. Values of patterns are empty."""
    width, left = (2 if stated.field == "pattern" else 3), stated.entries
    with open_content(where) as file:
        for _ in range(stated.line):
            file.readline(_LONGEST_LINE)
        for lines in number_lines(file, where, _KINDS[stated.field], line=stated.line + 1):
            full = np.flatnonzero(lines.counts)
            if len(strange := full[lines.counts[full] != width]):
                place, count = lines.places[strange[0]], lines.counts[strange[0]]
                raise DataError(where, f"line {place}: {count} numbers, an entry of this matrix has {width}")
            left -= len(full)
            if left < 0:
                raise DataError(
                    where, f"line {lines.places[full[left]]}: more entries than the {stated.entries} stated"
                )
            entries, places = lines.values.reshape(-1, width), lines.places[full]
            ends = [_rows(where, entries[:, side], stated.shape[side], places) for side in (0, 1)]
            yield ends[0], ends[1], entries[:, 2] if width == 3 else entries[:, :0].sum(axis=1)
    if left:
        raise DataError(where, f"ends after {stated.entries - left} of {stated.entries} entries")


def _rows(where: Path, numbers: Array, count: int, places: Array) -> npt.NDArray[np.int64]:
    """Numbers that count from 1 as row numbers; raises DataError. ``places``: the line of each."""
    rows = numbers.astype(np.int64) - 1
    wrong = (rows < 0) | (rows >= count) | (rows + 1 != numbers)
    if wrong.any():
        first = int(np.argmax(wrong))
        number = str(numbers[first]).removesuffix(".0")
        raise DataError(where, f"line {places[first]}: {number} is no vertex, they are numbered from 1 to {count}")
    return rows


@dataclass(frozen=True)
class _Metis:
    """What the first line of a METIS file states. ``line``: its number."""

    vertices: int
    edges: int
    sizes: bool
    weights: int
    weighted_edges: bool
    line: int

    @property
    def before(self) -> int:
        """How many numbers each line has before the neighbours."""
        return self.sizes + self.weights


def _read_metis(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    with open_content(source) as file:
        stated = _metis(file, source)
        _add_numbered(out, source, NODE_TYPE, stated.vertices)
        tables = {"weight": TableSpec("<i8", ())} if stated.weighted_edges else {}
        with (
            _vertex_table(out, stated) as add_rows,
            EdgeStream(out, EDGE_TYPE, options, tables, total=2 * stated.edges) as stream,
        ):
            first = 0
            for lines in number_lines(file, source, np.int64, line=stated.line + 1):
                lines = _vertex_lines(source, lines, stated, first)  # noqa: PLW2901
                add_rows(lines.values[_within(lines) < stated.before].reshape(len(lines.counts), stated.before))
                _append_lists(stream, source, lines, stated, first)
                first += len(lines.counts)
            _check_complete(source, stream, stated, first)


def _metis(file: BinaryIO, where: Path) -> _Metis:
    words, line = _next_line(file, where, 0)
    numbers = _header_numbers(where, words, line)
    flags = words[2].decode().zfill(3) if len(words) > 2 else "000"
    if not 2 <= len(words) <= 4 or re.fullmatch("[01]{3}", flags) is None:
        raise DataError(where, f"line {line}: wanted are the numbers of vertices and edges, and three digits 0 or 1")
    weights = numbers[3] if len(numbers) > 3 else 1
    if weights > 1 and flags[1] == "0":
        raise DataError(where, f"line {line}: {weights} weights for each vertex, but the format {flags} has none")
    return _Metis(numbers[0], numbers[1], flags[0] == "1", weights * (flags[1] == "1"), flags[2] == "1", line)


@contextmanager
def _vertex_table(out: GraphWriter, stated: _Metis) -> Iterator[Any]:
    """A function that takes the numbers [n, k] before the neighbours of some vertices, and writes them as tables."""
    size = out.open_table("size", np.int64, (), NODE_TYPE) if stated.sizes else None
    shape = () if stated.weights == 1 else (stated.weights,)
    weight = out.open_table("weight", np.int64, shape, NODE_TYPE) if stated.weights else None

    def add(rows: Array) -> None:
        if size is not None:
            size.append(rows[:, 0])
        if weight is not None:
            weight.append(rows[:, stated.sizes :].reshape(-1, *shape))

    yield add


def _vertex_lines(where: Path, lines: NumberLines, stated: _Metis, first: int) -> NumberLines:
    """The lines of vertices among ``lines``: blank ones may follow the last. ``first``: row of the first vertex."""
    kept = min(len(lines.counts), stated.vertices - first)
    if len(more := np.flatnonzero(lines.counts[kept:])):
        raise DataError(where, f"line {lines.places[kept + more[0]]}: there are only {stated.vertices} vertices")
    counts = lines.counts[:kept] - stated.before
    wrong = (counts < 0) | (counts % (1 + stated.weighted_edges) != 0)
    if wrong.any():
        bad = int(np.argmax(wrong))
        wanted = f"{stated.before} numbers, then {'pairs of a neighbour and a weight' if stated.weighted_edges else 'neighbours'}"
        raise DataError(where, f"line {lines.places[bad]}: {lines.counts[bad]} numbers; wanted are {wanted}")
    return NumberLines(lines.values, lines.counts[:kept], lines.places[:kept])


def _within(lines: NumberLines) -> Array:
    """The place of each number in its line, from 0."""
    return np.arange(len(lines.values)) - np.repeat(np.cumsum(lines.counts) - lines.counts, lines.counts)


def _append_lists(stream: EdgeStream, where: Path, lines: NumberLines, stated: _Metis, first: int) -> None:
    """Append the edges of some vertices. ``first``: row of the first."""
    within = _within(lines) - stated.before
    step = 1 + stated.weighted_edges
    line = np.repeat(np.arange(len(lines.counts)), (lines.counts - stated.before) // step)
    neighbours = lines.values[(within >= 0) & (within % step == 0)]
    dst = _rows(where, neighbours, stated.vertices, lines.places[line])
    tables = {"weight": lines.values[(within >= 0) & (within % step == 1)]} if stated.weighted_edges else {}
    stream.append(line + first, dst, **tables)


def _check_complete(where: Path, stream: EdgeStream, stated: _Metis, found: int) -> None:
    if found < stated.vertices:
        raise DataError(where, f"ends after the lines of {found} of {stated.vertices} vertices")
    if stream.count != 2 * stated.edges:
        raise DataError(
            where, f"states {stated.edges} edges, each in two lists; the lists hold {stream.count} neighbours"
        )
    if (pair := stream.one_way()) is not None:
        raise DataError(where, f"vertex {pair[0] + 1} has the neighbour {pair[1] + 1}, which does not list it")
