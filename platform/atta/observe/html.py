"""What notebooks show: small tables, and the drawing of a sampled subgraph as SVG.

Functions return text. All that they are given is escaped: names, ids and paths are the users'. Colours are the page's
own, or readable on white and on black."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

import numpy as np
import numpy.typing as npt

MOST_ROWS = 20
"""At most this many rows of a table are shown."""
MOST_CHARACTERS = 200
"""Longest text of a cell."""
SEEDS_DRAWN, DRAWN = 6, 18
"""At most this many seeds are drawn, and vertices of each later hop."""
HOPS_DRAWN, EDGES_DRAWN = 5, 400

_COLOURS = "#2f80d0", "#d9730d", "#3a9d62", "#a05fd0", "#c94f6d", "#8a7a1f", "#1f9aa0", "#808080"
_TABLE = '<table style="border-collapse:collapse;margin:.3em 0">'
_COLUMN, _ROW, _TOP, _LETTER = 150, 22, 24, 7

Ints = npt.NDArray[np.int64]
_Place = tuple[float, float]


def table(title: str, rows: Iterable[Sequence[object]], heads: Sequence[str] = (), *, count: int | None = None) -> str:
    """The first ``rows`` below a title. ``count``: how many there are; None: as many as are given."""
    if count is None:
        rows = list(rows)
        count = len(rows)
    shown = [_line(heads, "th")] if heads else []
    shown += [_line(row, "td") for row in islice(rows, MOST_ROWS)]
    if count > MOST_ROWS:
        shown.append(_line([f"… {count - MOST_ROWS:,} more"], "td"))
    body = f"{_TABLE}{''.join(shown)}</table>" if shown else ""
    return f"<div><b>{_text(title)}</b>{body}</div>"


def lines(text: str) -> str:
    """Text with columns of its own."""
    return f"<pre>{escape(text)}</pre>"


def row_text(row: npt.ArrayLike) -> str:
    """Numbers or texts of one row of an array: four digits of each, and of many the first and the last ones."""
    found = np.asarray(row)
    return str(found) if found.ndim == 0 else np.array2string(found, precision=4, threshold=8, edgeitems=3)


def bars(stages: Iterable[tuple[str, int, int | None, float]]) -> str:
    """Stages of work: name, what is done, of how much (None: unknown), seconds."""
    shown = []
    for name, done, total, seconds in stages:
        bar = "" if total is None else f'<progress value="{done}" max="{max(1, total)}"></progress>'
        of = "" if total is None else f"{done:,} of {total:,}"
        shown.append(f"<tr>{_cell(name, 'td')}<td>{bar}</td>{_cell(of, 'td')}{_cell(f'{seconds:.1f} s', 'td')}</tr>")
    return f"{_TABLE}{''.join(shown)}</table>"


def _line(row: Iterable[object], tag: str) -> str:
    return f"<tr>{''.join(_cell(value, tag) for value in row)}</tr>"


def _cell(value: object, tag: str) -> str:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    align = "right" if number else "left"
    return f'<{tag} style="padding:.1em .8em;text-align:{align}">{_text(value)}</{tag}>'


def _text(value: object) -> str:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        text = f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.4g}"
    return escape(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…")


def subgraph(ids: Ints, hops: Ints, kinds: Ints, names: Sequence[str], edges: Ints) -> str:
    """Draw a sampled subgraph: seeds on the left, each hop in a column. Some vertices are drawn with the edges among
    them; how many are left out stands below.

    Args:
        ids, hops, kinds: int64 [n]: of each vertex its user id, its hop (0: seeds), and its type's place in ``names``.
        edges: int64 [2, m]: positions of sources and targets among the vertices."""
    columns = drawn_vertices(hops, edges)
    side = max([58, *(16 + _LETTER * len(str(ids[v])) for v in (*columns[0], *columns[-1]))])
    place = _places(columns, side)
    inner = edges[:, np.isin(edges[0], [*place]) & np.isin(edges[1], [*place])].T.tolist()
    pairs = [*islice(dict.fromkeys((s, t) for s, t in inner), EDGES_DRAWN)]
    parts = [_edge(place[s], place[t], f"{ids[s]} → {ids[t]}", back=place[s][0] <= place[t][0]) for s, t in pairs]
    for hop, column in enumerate(columns):
        title = f"{f'hop {hop}' if hop else 'seeds'}: {len(column):,} of {np.count_nonzero(hops == hop):,}"
        parts.append(_label(side + _COLUMN * hop, 14, title, "middle"))
        for v in column:
            (x, y), kind = place[v], int(kinds[v])
            parts.append(_vertex(x, y, kind, f"{names[kind]} {ids[v]}", seed=not hop))
            if hop in (0, len(columns) - 1):
                parts.append(_label(x + (12 if hop else -12), y + 4, str(ids[v]), "start" if hop else "end"))
    height = _TOP + _ROW * max(map(len, columns)) + 8
    for kind in sorted({int(kinds[v]) for v in place}) if len(names) > 1 else ():
        parts += [_vertex(side, height + 4, kind, names[kind]), _label(side + 12, height + 8, names[kind], "start")]
        height += 18
    width, rest = 2 * side + _COLUMN * (len(columns) - 1), (len(ids) - len(place), len(edges[0]) - len(inner))
    notes = ["Edges lead to the left, dashed ones do not."] if pairs else []
    notes += [f"{rest[0]:,} vertices and {rest[1]:,} edges are left out."] if any(rest) else []
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'style="max-width:100%;height:auto">{"".join(parts)}</svg><div>{" ".join(notes)}</div>'
    )


def _places(columns: Sequence[Sequence[int]], side: float) -> dict[int, _Place]:
    """Where each vertex is drawn: a hop's in one column, spread over the height."""
    height = _ROW * max(map(len, columns))
    return {
        v: (side + _COLUMN * hop, _TOP + height * (row + 0.5) / len(column))
        for hop, column in enumerate(columns)
        for row, v in enumerate(column)
    }


def drawn_vertices(hops: Ints, edges: Ints) -> list[list[int]]:
    """The vertices that are drawn, by hop: the first seeds, then sources of edges into what is drawn, one of each target
    in turn. Each hop follows the order of its targets."""
    columns = [np.flatnonzero(hops == 0)[:SEEDS_DRAWN].tolist()]
    for hop in range(1, min(HOPS_DRAWN, int(hops.max(initial=0)) + 1)):
        order = {v: place for place, v in enumerate(v for column in columns for v in column)}
        sources, targets = edges[:, np.isin(edges[1], [*order]) & (hops[edges[0]] == hop)]
        by_target = np.argsort(targets, kind="stable")
        sources, targets = sources[by_target], targets[by_target]
        turn = np.arange(len(targets)) - np.searchsorted(targets, targets)
        parent: dict[int, int] = {}
        for at in np.argsort(turn, kind="stable").tolist():
            if len(parent) == DRAWN:
                break
            parent.setdefault(int(sources[at]), order[int(targets[at])])
        columns.append(sorted(parent, key=parent.__getitem__))
    return columns if columns[-1] or len(columns) == 1 else columns[:-1]


def _edge(start: _Place, end: _Place, told: str, *, back: bool) -> str:
    (x, y), (u, v) = start, end
    bend = x + 34 if x == u else (x + u) / 2
    lift = 20 if start == end else 0
    path = f"M{x:.0f} {y:.0f}C{bend:.0f} {y - lift:.0f} {bend:.0f} {v + lift:.0f} {u:.0f} {v:.0f}"
    dashes = ' stroke-dasharray="3 3"' if back else ""
    return (
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".4"{dashes}>'
        f"<title>{escape(told)}</title></path>"
    )


def _vertex(x: float, y: float, kind: int, told: str, *, seed: bool = False) -> str:
    ring = ' stroke="currentColor" stroke-width="2"' if seed else ""
    fill = _COLOURS[kind % len(_COLOURS)]
    return f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" fill="{fill}"{ring}><title>{escape(told)}</title></circle>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    style = f'font-size="12" font-family="sans-serif" fill="currentColor" text-anchor="{anchor}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{_text(text)}</text>'
