"""Every cell of the table in ``docs/guide/importing.md``: imported parts are found again, and the rest is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from atta.errors import DataError
from atta.partition import Graph
from atta.partition.importers import IMPORTERS, import_graph
from tests.unit.partition import carried as c
from tests.unit.partition.oracles import ends_of

ETYPE = "node__to__node"
PAGE = Path(__file__).parents[3] / "docs/guide/importing.md"


def document() -> tuple[list[str], dict[str, list[str]]]:
    """The parts that a format may carry, and the cells of each format.

    The page has several tables, each with a column FORMAT.
    """
    things: list[str] = []
    cells: dict[str, list[str]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        (first, *heads), _, *rows = (
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        )
        if first != "FORMAT":
            continue
        things += heads
        for name, *row in rows:
            cells.setdefault(name, []).extend(row)
    return things, cells


THINGS, ROWS = document()
CELLS = [(row, thing, cell) for row, cells in ROWS.items() for thing, cell in zip(THINGS, cells, strict=True)]
# The name in the error message when a part is refused.
NAMES = {
    "`npz`": {"other node tables": r"'age\.npy'", "edge ids": "'e_id'"},
    "`pyg`": {"edge ids": "'e_id'"},
    "`dgl`: file": {"edge ids": "'_ID'"},
    "`table`": {"edge ids": "'number'"},
    "`networkx`": {"edge ids": "'keys'", "types": "'kind'"},
    "`edges`": {"edge features": "'colour'", "edge ids": "'number'"},
}  # fmt: skip
AGES = {"`ogb`": "node_age"}  # other names of the table ``age``


def test_the_document_has_every_format() -> None:
    assert ROWS.keys() == c.FORMATS.keys()
    assert {fmt for fmt, *_ in c.FORMATS.values()} == set(IMPORTERS)
    assert {cell for _, _, cell in CELLS} == {"yes", "refused", "\u2013", "merged"}
    assert {(row, thing) for row, thing, cell in CELLS if cell == "refused"} == {
        (r, t) for r, n in NAMES.items() for t in n
    }


def imported(row: str, things: set[str], tmp_path: Path) -> Graph:
    fmt, write, package = c.FORMATS[row]
    if package:
        pytest.importorskip(package)
    (tmp_path / "source").mkdir()
    import_graph(fmt, write(tmp_path / "source", things), tmp_path / "g")
    return Graph.open(tmp_path / "g")


def assert_carried(graph: Graph, thing: str, row: str) -> None:
    edges = graph.edges(ETYPE)
    match thing:
        case "features":
            assert np.array_equal(graph.table("node", "x"), c.X)
        case "labels":
            assert np.array_equal(graph.table("node", "y"), c.Y)
            assert graph.schema.num_classes == 3
        case "splits":
            found = {name: graph.split("node", name).tolist() for name in graph.schema.splits["node"]}
            public = {"train": [0, 1], "val": [2, 3], "test": [4, 5]}  # Planetoid's files tell no more
            assert found == (public if "test" in found else {"train": [0, 3], "val": [1]})
        case "other node tables":
            assert np.array_equal(graph.table("node", AGES.get(row, "age")), c.AGE)
        case "user ids":
            ids = graph.user_ids("node")
            assert np.array_equal(ids, c.IDS) or np.array_equal(ids, np.sort(c.IDS))
            assert np.array_equal(ids[edges.src], c.IDS[c.SRC])
        case "edge features":
            assert np.array_equal(edges.tables["edge_attr"], c.ATTR)
        case "weights":
            assert np.array_equal(edges.tables["weight"], c.WEIGHT)
        case "times":
            assert np.array_equal(edges.tables["time"], c.TIME)
        case "types":
            assert graph.schema.node_counts == {"node": c.N, "item": 4}
            assert np.array_equal(ends_of(graph, "node__buys__item"), c.BUYS)


@pytest.mark.parametrize("row", [row for row, thing, cell in CELLS if (thing, cell) == ("types", "yes")])
def test_types_come_along(row: str, tmp_path: Path) -> None:
    graph = imported(row, {"types", "features"}, tmp_path)
    assert np.array_equal(ends_of(graph, ETYPE), np.stack([c.SRC, c.DST]))
    for thing in ("types", "features"):
        assert_carried(graph, thing, row)


@pytest.mark.parametrize("row", [row for row, thing, cell in CELLS if (thing, cell) == ("edge ids", "yes")])
def test_edges_are_in_the_order_of_their_ids(row: str, tmp_path: Path) -> None:
    """The edge with id ORDER[i] was written as the i-th. pyg-parts keeps its edges under their numbers."""
    edges = imported(row, {"edge ids", "features"}, tmp_path).edges(ETYPE)
    place = np.argsort(c.ORDER) if row == "`dgl`: partitions" else slice(None)
    assert np.array_equal(np.stack([edges.src, edges.dst]), np.stack([c.SRC, c.DST])[:, place])


@pytest.mark.parametrize(("row", "thing"), [(row, thing) for row, thing, cell in CELLS if cell == "refused"])
def test_it_is_refused_by_name(row: str, thing: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=NAMES[row][thing]):
        imported(row, {thing, "features"}, tmp_path)
    assert not list(tmp_path.glob("g*"))


def test_planetoid_merges_edges(tmp_path: Path) -> None:
    edges = imported("`planetoid`", set(), tmp_path).edges(ETYPE)
    pairs = {frozenset(p) for p in zip(c.SRC.tolist(), c.DST.tolist(), strict=True) if p[0] != p[1]}
    assert sorted(zip(edges.src.tolist(), edges.dst.tolist(), strict=True)) == sorted(
        (u, v) for p in pairs for u, v in (sorted(p), sorted(p, reverse=True))
    )


@pytest.mark.parametrize("row", ROWS)
def test_everything_together(row: str, tmp_path: Path) -> None:
    """Each part comes along with all others, and nothing else appears."""
    things = {t for r, t, cell in CELLS if r == row and cell == "yes" and t not in ("types", "edge ids")}
    graph = imported(row, things, tmp_path)
    edges = graph.edges(ETYPE)
    if row not in ("`planetoid`", "`edges`", "`tgb`"):  # the last two have vertices in the order of ids
        assert np.array_equal(np.stack([edges.src, edges.dst]), np.stack([c.SRC, c.DST]))
    for thing in things:
        assert_carried(graph, thing, row)
    named = {"features": "x", "labels": "y", "other node tables": AGES.get(row, "age")}
    assert set(graph.schema.node_tables["node"]) - {"part"} == {named[t] for t in named.keys() & things}
    named = {"edge features": "edge_attr", "weights": "weight", "times": "time"}
    assert set(graph.schema.edge_tables[ETYPE]) - {"state_label"} == {named[t] for t in named.keys() & things}
