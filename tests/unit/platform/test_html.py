"""Tables and drawings for notebooks: well-formed, escaped, bounded, and what is drawn is in the batch."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.observe import html, progress

EVIL = "<script>alert('a & b')</script>"


def parsed(text: str) -> ET.Element:
    """The elements; ends in an error if anything is not closed or not escaped."""
    return ET.fromstring(f"<all>{text}</all>")


def cells(text: str) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in parsed(text).iter("tr")]


def test_tables_escape_and_format() -> None:
    text = html.table(EVIL, [(EVIL, 1234567, 0.123456, None)], (EVIL, "b", "c", "d"))
    assert cells(text) == [[EVIL, "b", "c", "d"], [EVIL, "1,234,567", "0.1235", "None"]]
    assert parsed(text).findtext("div/b") == EVIL
    assert "<script" not in text
    assert "<script" not in html.lines(EVIL) + html.bars([(EVIL, 1, 2, 0.5)])


def test_long_tables_and_texts_are_cut() -> None:
    text = html.table("rows", ((n, "x" * 1000) for n in range(10**6)), count=10**6)
    rows = cells(text)
    assert [row[0] for row in rows] == [*map(str, range(html.MOST_ROWS)), f"… {10**6 - html.MOST_ROWS:,} more"]
    assert len(rows[0][1]) == html.MOST_CHARACTERS + 1
    assert html.row_text(np.arange(100) / 3) == "[ 0.      0.3333  0.6667 ... 32.3333 32.6667 33.    ]"


def random_batch(rng: np.random.Generator, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Hops of vertices, and edges as sampling makes them: from any vertex into one of an earlier hop, and no vertex without
    an edge to the hop before."""
    hops = np.repeat(np.arange(len(sizes)), sizes)
    ends = np.cumsum(sizes)
    tree = [
        (v, rng.integers(ends[hops[v] - 1] - sizes[hops[v] - 1], ends[hops[v] - 1])) for v in range(sizes[0], len(hops))
    ]
    more = [(rng.integers(len(hops)), rng.integers(ends[-2] if len(sizes) > 1 else ends[0])) for _ in range(50)]
    return hops, np.array([*tree, *more]).T


@pytest.mark.parametrize("sizes", [[3, 5, 7], [40, 300, 2000], [2, 30, 200, 900, 1500, 3000, 4000], [5]])
def test_a_drawing_is_a_part_of_the_batch_and_counts_the_rest(rng: np.random.Generator, sizes: list[int]) -> None:
    hops, edges = random_batch(rng, sizes)
    ids, kinds, names = rng.permutation(len(hops)) + 10**6, hops % 2, ["a", EVIL]
    columns = html.drawn_vertices(hops, edges)
    drawn = [v for column in columns for v in column]
    assert [len(column) for column in columns][:1] == [min(sizes[0], html.SEEDS_DRAWN)]
    assert len(set(drawn)) == len(drawn)
    assert len(columns) <= html.HOPS_DRAWN
    into = {(int(s), int(t)) for s, t in edges.T}
    for hop, column in enumerate(columns):
        assert len(column) <= html.DRAWN
        assert set(hops[column]) <= {hop}
        assert all(any((v, u) in into for u in drawn) for v in column if hop)  # each is a neighbour of what is drawn
    text = html.subgraph(ids, hops, kinds, names, edges)
    assert "<script" not in text
    svg = parsed(text).find("{*}svg")
    assert svg is not None
    pictured = [title.text for title in svg.findall("{*}circle/{*}title") if title.text not in names]
    assert sorted(pictured) == sorted(f"{names[kinds[v]]} {ids[v]}" for v in drawn)
    lines = {title.text for title in svg.findall("{*}path/{*}title")}
    assert lines == {f"{ids[s]} → {ids[t]}" for s, t in into if s in drawn and t in drawn}
    inner = sum(s in drawn and t in drawn for s, t in edges.T.tolist())
    rest = f" {len(hops) - len(drawn):,} vertices and {edges.shape[1] - inner:,} edges are left out."
    assert (parsed(text).findtext("div") or "").endswith(rest) == (inner < edges.shape[1] or len(drawn) < len(hops))
    heads = [label.text for label in svg.findall("{*}text") if re.fullmatch(r"(seeds|hop \d): .*", label.text or "")]
    assert heads == [f"{f'hop {h}' if h else 'seeds'}: {len(c):,} of {sizes[h]:,}" for h, c in enumerate(columns)]


def test_every_vertex_of_a_small_batch_is_drawn() -> None:
    edges = np.array([[1, 2, 3, 0, 2, 2], [0, 0, 1, 1, 2, 0]])  # one leads back, one is a loop, one comes twice
    hops = np.array([0, 1, 1, 2])
    text = html.subgraph(np.arange(4) + 10, hops, np.zeros(4, np.int64), ["node"], edges)
    assert html.drawn_vertices(hops, edges) == [[0], [1, 2], [3]]
    paths = parsed(text).findall("{*}svg/{*}path")
    dashed = {path.findtext("{*}title") for path in paths if path.get("stroke-dasharray")}
    assert (len(paths), dashed) == (5, {"10 → 11", "12 → 12"})
    assert "left out" not in text


def brightness(colour: str) -> float:
    """Relative luminance, after WCAG 2."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_colours_are_the_page_s_or_stand_out_on_white_and_black() -> None:
    n = 20
    names, edges = [f"type {kind}" for kind in range(n)], np.array([range(2, n), [0, 1] * 9])
    text = html.subgraph(np.arange(n), np.repeat([0, 1], [2, n - 2]), np.arange(n), names, edges)
    colours = set(re.findall(r'(?:fill|stroke)="(.+?)"', text))
    own = colours - {"none", "currentColor"}
    assert len(own) == 8
    assert min(min(1.05 / (brightness(c) + 0.05), (brightness(c) + 0.05) / 0.05) for c in own) > 3
    assert "color:" not in text


class Pages:
    """What IPython displays."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def __call__(self, data: dict[str, str], **_: object) -> Pages:
        self.shown.append(data)
        return self

    update = __call__


def test_bars_are_shown_in_a_kernel_only(monkeypatch: pytest.MonkeyPatch) -> None:
    given = progress.Silent()
    assert progress.shown(given) is given
    terminal, kernel = SimpleNamespace(), SimpleNamespace(kernel=1)
    kinds = (None, progress.Silent), (terminal, progress.Silent), (kernel, progress.NotebookProgress)
    for shell, kind in kinds:
        fake: Any = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", fake)
        assert type(progress.shown(None)) is kind
    monkeypatch.delitem(sys.modules, "IPython")
    assert type(progress.shown(None)) is progress.Silent


def test_bars_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    pages, now = Pages(), [0.0]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=pages))
    bars = progress.NotebookProgress(lambda: now[0])
    bars.stage("read", 1000)
    for _ in range(999):
        now[0] += 0.001
        bars.advance(1)
    assert 4 <= len(pages.shown) <= 6  # every 0.2 s
    bars.advance(1)
    assert cells(pages.shown[-1]["text/html"])[0] == ["read", "", "1,000 of 1,000", "1.0 s"]
    bars.stage(EVIL, None)
    now[0] += 2
    bars.advance(3)
    assert cells(pages.shown[-1]["text/html"])[1] == [EVIL, "", "", "2.0 s"]
    assert pages.shown[-1]["text/plain"] == f"read: 1,000\n{EVIL}: 3"
    for number in range(100):
        bars.stage(str(number), 9)
    assert cells(pages.shown[-1]["text/html"])[-2][2] == "9 of 9"  # it ended early
    assert len(cells(pages.shown[-1]["text/html"])) == progress.STAGES_SHOWN
