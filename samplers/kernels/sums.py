"""Sums of table rows that do not depend on who adds which rows, nor on the order. Numbers of a column are counted in
units of ``2**-shift``, and whole numbers add up exactly. The column's largest number is less than 2**34 units, so an
addend is rounded by at most 2**-34 of it; float32 itself rounds that number by 2**-25."""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp, prod
from typing import NamedTuple

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.samplers.kernels.arrays import as_bytes, ids_of

_UNITS = 34
NARROW, WIDE = 5, 8
"""Bytes of a column of a sum on the way. A narrow one holds 32 addends of its largest number."""
NARROW_ADDENDS = 32
PRICE = 1.25
"""What a narrow sum costs, in rows of float32: its bytes."""
_BLOCK = 1 << 16
# A weight, and those of all edges to a vertex together, are below two to the power of these: 64 bits hold their sums.
_WEIGHT_BITS, _TOTAL_BITS = 17, 28


class Sums(NamedTuple):
    """Sums that owners have sent: ``bytes`` uint8 [sums, width x columns] for the vertices ``targets`` int64 [sums]."""

    bytes: np.ndarray
    targets: np.ndarray
    width: int


class LastEdges(NamedTuple):
    """Edges of a last hop that do not join the batch. ``starts`` int64 [targets + 1]: bounds of the edges into the targets
    ``first``, ``first`` + 1, ...; ``rows`` int64 [edges]: local ids of their sources, or -1 - row for the partition's own;
    ``ends``: local ids int32 of sources and targets of the edges of the first kind."""

    first: int
    starts: np.ndarray
    rows: np.ndarray
    ends: tuple[np.ndarray, np.ndarray]


class SumPlan(NamedTuple):
    """Which rows of other owners come as they are, and which in sums.

    Attributes:
        raw: bool [vertices]: comes as it is.
        starts: int64 [parts + 1], the bounds of each owner's sums.
        targets: int64 [sums], the vertex that a sum is for.
        counts: int32 [sums], its addends.
        edges: int64 [addends], positions of their edges, sum after sum."""

    raw: np.ndarray
    starts: np.ndarray
    targets: np.ndarray
    counts: np.ndarray
    edges: np.ndarray


def plan_sums(row: np.ndarray, col: np.ndarray, *, first: int, targets: int, owners: np.ndarray, parts: int) -> SumPlan:
    """Choose by bytes how the rows of the sources come that other owners have.

    ``row``, ``col`` [edges]: local ids of both ends; targets are below ``targets``. ``owners`` int32 [vertices]: who has
    the row of the vertex ``first + i``; -1: it is at home, as are those of the vertices below ``first``."""
    raw, starts, of, counts, edges = _native.plan_sums(row, col, first, targets, owners, parts, PRICE)
    return SumPlan(raw.view(np.bool_), starts, of, counts, edges)


def reduce_rows(
    row: np.ndarray, col: np.ndarray, weights: np.ndarray | None, *, known: np.ndarray, vertices: int,
    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], sums: Sequence[Sums], shifts: np.ndarray, reduce: int,
    out: np.ndarray, threads: int = 1, last: LastEdges | None = None, own: np.ndarray | None = None,
) -> None:  # fmt: skip
    """``out[v]`` float32 = what ``reduce`` (``dag.plan.Reduce``) makes of the rows of the sources of the edges into v.

    ``known`` float32 [first, *row shape]: the rows of the first vertices of the batch. ``vertices``: how many follow.
    ``parts``: tables, rows in them, and which of these vertices (int64, local ids) have them. A vertex that is in none
    must be in ``sums``, for each target that it has an edge to. ``shifts`` int16 [columns]. ``last``: the edges of the
    targets from ``last.first`` on; ``own``: the table whose rows its negative numbers name."""
    given = [(as_bytes(table), ids_of(rows), np.ascontiguousarray(at, np.int64)) for table, rows, at in parts]
    _native.reduce_rows(
        row, col, weights, as_bytes(known), len(known), vertices, given, [tuple(some) for some in sums], shifts, reduce,
        as_bytes(out), threads, None if last is None else (last.first, last.starts, last.rows),
        None if own is None else as_bytes(own),
    )  # fmt: skip


def pack_sums(
    prefix: bytes, tables: Sequence[np.ndarray], rows: np.ndarray, counts: np.ndarray, weights: np.ndarray | None, *,
    shifts: np.ndarray, width: int,
) -> bytes:  # fmt: skip
    """``prefix``, then the sums of groups of ``rows`` of each table (float32), ``width`` bytes per column. Group after group
    has ``counts`` int32 rows, each times its weight (float32 [rows]; None: 1). ``shifts`` int16: of all tables' columns.
    Raises ValueError: a number is not finite, or a sum is too large."""
    given = [as_bytes(table) for table in tables]
    return _native.pack_sums(prefix, given, ids_of(rows), counts, weights, shifts, width)


def edges_in_order(
    groups: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], count: int, own: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The edges into ``count`` vertices, vertex by vertex, of answers (positions int64 [m] of vertices, counts int32 [m] of
    their edges, internal ids of these' sources). Returns ``starts`` int64 [count + 1]; ``rows`` int64 [edges]: -1 - row for
    sources in the range ``own``; of the other edges, int64: their positions, the positions of their targets, the ids of
    their sources. Raises ValueError: a vertex is answered twice."""
    given = [
        (np.ascontiguousarray(p, np.int64), np.ascontiguousarray(c, np.int32), ids_of(ids)) for p, c, ids in groups
    ]
    return _native.last_edges(given, count, *own)


def width_of(counts: np.ndarray, weights: np.ndarray | None) -> int:
    """How many bytes a column of sums of so many addends with such weights needs."""
    most = int(counts.max(initial=0)) * (1.0 if weights is None else float(np.abs(weights).max(initial=0)))
    return NARROW if most <= NARROW_ADDENDS else WIDE


def largest(table: np.ndarray) -> np.ndarray:
    """float32 [columns]: the largest absolute value in each column of a float32 table; inf or nan if one is not finite."""
    rows = table.reshape(len(table), prod(table.shape[1:]))
    found = np.zeros(rows.shape[1], np.float32)
    for at in range(0, len(rows), _BLOCK):
        np.maximum(found, np.abs(rows[at : at + _BLOCK]).max(axis=0), out=found)
    return found


def shifts_of(largest: np.ndarray, name: str) -> np.ndarray:
    """The shifts int16 [columns] for sums of a table with such largest numbers. Raises ConfigError: one is not finite."""
    if not np.isfinite(largest).all():
        raise ConfigError(
            f"aggregate: table {name!r} has numbers that are not finite, so it has no sums; leave it out of tables, or "
            "let its rows come as they are (aggregate=None, --aggregate off)"
        )
    return np.asarray(_UNITS - np.frexp(largest)[1], np.int16)


def shifts_for(shifts: np.ndarray, col: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """``shifts`` for edges to the vertices ``col`` that weigh ``weights``: large weights are counted in larger units."""
    if weights is None or not len(weights):
        return shifts
    sizes = np.abs(weights)
    most = frexp(float(sizes.max()))[1] - _WEIGHT_BITS, frexp(float(np.bincount(col, sizes).max()))[1] - _TOTAL_BITS
    return shifts - np.int16(max(0, *most))
