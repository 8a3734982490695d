"""Every cell of the table in ``docs/guide/importing.md``: imported parts are found again, and the rest is refused by name."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import AttaError, ConfigError, DataError
from atta.partition import Graph, GraphWriter
from atta.partition.importers import IMPORTERS, guess, import_graph
from tests.unit.partition import carried as c
from tests.unit.partition.oracles import edge_pairs, ends_of, refused, refuses, taken_in

ETYPE = "node__to__node"
PAGE = Path(__file__).parents[3] / "docs/guide/importing.md"


def document() -> tuple[list[str], dict[str, list[str]]]:
    """The parts that a format may carry, and the cells of each format, from all tables of the page."""
    things: list[str] = []
    cells: dict[str, list[str]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        (first, *heads), _, *rows = lines
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
    assert {cell[:2] for cell in CELLS if cell[2] == "refused"} == {(r, t) for r, n in NAMES.items() for t in n}


def imported(row: str, things: set[str], tmp_path: Path) -> Graph:
    fmt, write, package = c.FORMATS[row]
    if package:
        pytest.importorskip(package)
    (tmp_path / "source").mkdir()
    return taken_in(fmt, write(tmp_path / "source", things), tmp_path / "g")


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
    assert np.array_equal(ends_of(graph), EDGES)
    for thing in ("types", "features"):
        assert_carried(graph, thing, row)


@pytest.mark.parametrize("row", [row for row, thing, cell in CELLS if (thing, cell) == ("edge ids", "yes")])
def test_edges_are_in_the_order_of_their_ids(row: str, tmp_path: Path) -> None:
    """The edge with id ORDER[i] was written as the i-th. pyg-parts keeps its edges under their numbers."""
    place = np.argsort(c.ORDER) if row == "`dgl`: partitions" else slice(None)
    assert np.array_equal(ends_of(imported(row, {"edge ids", "features"}, tmp_path)), EDGES[:, place])


@pytest.mark.parametrize(("row", "thing"), [(row, thing) for row, thing, cell in CELLS if cell == "refused"])
def test_it_is_refused_by_name(row: str, thing: str, tmp_path: Path) -> None:
    refuses(DataError, NAMES[row][thing], imported, row, {thing, "features"}, tmp_path)
    assert not list(tmp_path.glob("g*"))


def test_planetoid_merges_edges(tmp_path: Path) -> None:
    pairs = {(u, v) for u, v in [*EDGES.T.tolist(), *EDGES[::-1].T.tolist()] if u != v}
    assert sorted(edge_pairs(imported("`planetoid`", set(), tmp_path))) == sorted(pairs)


@pytest.mark.parametrize("row", ROWS)
def test_everything_together(row: str, tmp_path: Path) -> None:
    things = {t for r, t, cell in CELLS if r == row and cell == "yes" and t not in ("types", "edge ids")}
    graph = imported(row, things, tmp_path)
    (tmp_path / "guessed").mkdir()
    assert guess(c.FORMATS[row][1](tmp_path / "guessed", {"features", "labels", "splits"})) == c.FORMATS[row][0]
    if row not in ("`planetoid`", "`edges`", "`tgb`"):  # the last two have vertices in the order of ids
        assert np.array_equal(ends_of(graph), EDGES)
    for thing in things:
        assert_carried(graph, thing, row)
    named = {"features": "x", "labels": "y", "other node tables": AGES.get(row, "age")}
    assert set(graph.schema.node_tables["node"]) - {"part"} == {named[t] for t in named.keys() & things}
    named = {"edge features": "edge_attr", "weights": "weight", "times": "time"}
    assert set(graph.schema.edge_tables[ETYPE]) - {"state_label"} == {named[t] for t in named.keys() & things}


BIG = 2**63 + 5
EDGES = np.stack([c.SRC, c.DST])


def wide_npz(folder: Path, mask: np.ndarray) -> None:
    np.savez(folder / "graph.npz", edge_index=EDGES)
    np.save(folder / "y.npy", np.arange(c.N))
    np.save(folder / "train_mask.npy", mask)


def wide_table(folder: Path, mask: np.ndarray) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": np.arange(c.N), "m": mask.tolist()}), folder / "n.parquet")
    nodes = {"node": {"files": "n.parquet", "id": "id", "splits": {"train": "m"}}}
    (folder / "schema.json").write_text(json.dumps({"nodes": nodes}))


def wide_networkx(folder: Path, mask: np.ndarray) -> None:
    nodes = [{"id": row, "train_mask": values} for row, values in enumerate(mask.tolist())]
    (folder / "g.json").write_text(json.dumps({"directed": True, "nodes": nodes, "links": []}))


WIDE = [("npz", wide_npz, "."), ("table", wide_table, "."), ("networkx", wide_networkx, "g.json")]


@pytest.mark.parametrize(("fmt", "write", "name"), WIDE)
def test_a_mask_with_columns_is_a_split_per_column(tmp_path: Path, fmt: str, write: Any, name: str) -> None:
    mask = np.zeros((c.N, 2), bool)
    mask[[0, 2], 0] = mask[1, 1] = True
    (tmp_path / "s").mkdir()
    write(tmp_path / "s", mask)
    graph = taken_in(fmt, tmp_path / "s" / name, tmp_path / "g")
    found = {s: graph.split("node", s).tolist() for s in graph.schema.splits["node"]}
    assert found == {"train_0": [0, 2], "train_1": [1]}


def test_a_mask_of_no_or_three_dimensions(tmp_path: Path) -> None:
    for number, mask in enumerate((np.array(True), np.ones((c.N, 2, 2), bool))):
        (source := tmp_path / f"s{number}").mkdir()
        wide_npz(source, mask)
        refused("npz", source, tmp_path, r"train_mask\.npy: train: \[.*\] is neither one value for each vertex")


@pytest.mark.parametrize(
    ("name", "rows", "says"),
    [
        ("mapping/nodeidx2id", [[0, 1], [1, BIG], [2, 3], [3, 4], [4, 5], [5, 6]], "nodeidx2id"),
        ("raw/edge", [[0, BIG]], r"edge\.csv\.gz"),
        ("raw/edge", [[0, 1.5]], r"edge\.csv\.gz"),
        ("raw/edge", [[0, "nan"]], r"edge\.csv\.gz"),
        ("raw/edge", [[0, -1]], "destination -1"),
        ("raw/edge-feat", [[1, 2]], r"edge-feat\.csv\.gz: ends before the edges: 1 rows"),
        ("raw/edge-feat", [[1, 2]] * 10, r"edge-feat\.csv\.gz: "),
        ("raw/num-edge-list", [8], r"states 8 edges, edge\.csv\.gz has 9"),
        ("split/time/holdout", [1], r"'holdout\.csv\.gz' is not imported"),
        ("raw/edge", b"not gzip", r"edge\.csv\.gz"),
        ("raw/node-feat", gzip.compress(b"1,2\nx,y\n", mtime=0), r"node-feat\.csv\.gz"),
        ("raw/num-node-list", gzip.compress(b"1,2\n" * 4000, mtime=0)[:-20], r"num-node-list\.csv\.gz"),
        (
            "raw/edge",
            gzip.compress(b"1,2\n", mtime=0)[:10] + b"\xff" * 20,
            r"edge\.csv\.gz: not readable as gzip: Error -3",
        ),
    ],
)
def test_ogb(tmp_path: Path, name: str, rows: Any, says: str) -> None:
    source = c.ogb(tmp_path / "s", {"features", "splits", "user ids"})
    if isinstance(rows, bytes):
        (source / f"{name}.csv.gz").write_bytes(rows)
    else:
        c._csv(source / f"{name}.csv.gz", np.array(rows, dtype=object), "heading\n" if "mapping" in name else "")
    refused("ogb", source, tmp_path, says, AttaError)


@pytest.mark.parametrize(
    ("ids", "says"), [([0.0, 1, 2, 3, 4, 5], r"0\.0 at position 0"), ([0, 0, 1, 2, 3, 4], "the id 0 occurs twice")]
)
def test_dgl(tmp_path: Path, ids: list, says: str) -> None:
    dgl, torch = pytest.importorskip("dgl"), pytest.importorskip("torch")
    graph = dgl.graph((torch.from_numpy(c.SRC), torch.from_numpy(c.DST)), num_nodes=c.N)
    graph.ndata["_ID"] = torch.tensor(ids)
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    refused("dgl", tmp_path / "g.bin", tmp_path, says)
    del graph.ndata["_ID"]
    graph.ndata["two words"] = torch.zeros(c.N)
    for tensors, dropped, says in (
        ({"of the graph": torch.zeros(1)}, [], "'two words' is not imported: tables cannot have this name"),
        ({"of the graph": torch.zeros(1)}, ["two words"], "'of the graph' is not imported: it is a tensor of the whole graph"),
        *(
            ({"num_classes": torch.tensor(n)}, ["two words"], r"g\.bin: 'num_classes' is .*, wanted is a number of classes")
            for n in ([2.5], [-1], [3, 3])
        ),
    ):  # fmt: skip
        dgl.save_graphs(str(tmp_path / "g.bin"), [graph], tensors)
        refused("dgl", tmp_path / "g.bin", tmp_path, says, drop=dropped)
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph], {"of the graph": torch.zeros(1)})
    import_graph("dgl", tmp_path / "g.bin", tmp_path / "g", drop=["two words", "of the graph"])


@pytest.mark.parametrize(
    ("file", "column", "values", "says"),
    [
        ("nodes", "id", np.array([1, 2, BIG, 4, 5, 6], np.uint64), f"column 'id': {BIG} at position 2 is too large"),
        ("edges", "a", np.array([*c.SRC[:-1], BIG], np.uint64), f"the column 'a': {BIG} at position 8 is too large"),
        ("edges", "b", [*map(str, c.DST)], "the column 'b' holds string, the ids of vertices are int64"),
        ("edges", "b", [*c.DST[:-1].tolist(), -1], "names the vertex -1, which is in no node file"),
        ("nodes", "train_mask", [0, 1, 2, 0, 0, 0], "the column 'train_mask': a mask holds truth values"),
        ("nodes", "wealth", [0.0] * 6, "'wealth' is not imported: schema.json does not name the column"),
    ],
)
def test_tables(tmp_path: Path, file: str, column: str, values: Any, says: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "s").mkdir()
    source = c.table(tmp_path / "s", {"splits"})
    whole = parquet.read_table(source / f"{file}.parquet").to_pydict()
    parquet.write_table(pa.table({**whole, column: values}), source / f"{file}.parquet")
    refused("table", source, tmp_path, says)


def test_a_narrow_id_column_knows_larger_numbers_as_strangers(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "s").mkdir()
    source = c.table(tmp_path / "s", set())
    parquet.write_table(pa.table({"id": np.arange(6, dtype=np.int8)}), source / "nodes.parquet")
    parquet.write_table(pa.table({"a": [300], "b": [0]}), source / "edges.parquet")
    refused("table", source, tmp_path, "the column 'a' names the vertex 300, which is in no node file")


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda out: out.add_nodes("a", 2, ids=np.array([1, BIG], np.uint64)), f"ids: {BIG} at position 1 does not fit"),
        (lambda out: out.add_nodes("a", 2, ids=[0.5, 1]), "ids are integers, not float64"),
        (lambda out: out.add_nodes("a", 2, ids=[True, False]), "ids are integers, not bool"),
        (lambda out: out.add_edges("n__to__n", [0.0], [1.0]), "an edge has the source 0.0: ids are integers"),
        (lambda out: out.add_edges("n__to__n", [0], np.array([BIG], np.uint64)), f"an edge has the destination {BIG}"),
        (lambda out: out.add_split("s", [0.5], "n"), "split 's': rows are integers, not float64"),
        (lambda out: out.add_split("s", np.array([BIG], np.uint64), "n"), f"rows: {BIG} at position 0"),
        (lambda out: [out.add_table("t", np.zeros(3), "n") for _ in "ab"], "table 't' of 'n' is given twice"),
        (lambda out: [out.add_split("s", [0], "n") for _ in "ab"], "split 's' of 'n' is given twice"),
    ],
)  # fmt: skip
def test_graph_writer(tmp_path: Path, use: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says), GraphWriter(tmp_path / "g") as out:  # noqa: PT012
        out.add_nodes("n", 3)
        use(out)
    assert not list(tmp_path.iterdir())
