"""Parquet and CSV tables with a schema: reading gives back what was written, and errors name the fault."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from atta.errors import AttaError, DataError
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.graph.strings import to_strings
from atta.partition.importers import import_graph
from tests.unit.partition.oracles import graph_of, labels, refused, taken_in

pa = pytest.importorskip("pyarrow", reason="needs pyarrow (atta[table])")
from pyarrow import csv, parquet  # noqa: E402

SCHEMA: dict[str, Any] = {
    "nodes": {
        "user": {
            "files": "users.parquet", "id": "user_id",
            "tables": {"x": ["age", "income"], "y": "label", "taste": "taste"}, "splits": {"train": "is_train"},
        },
        "item": {"files": "items.csv", "id": "sku", "ignore": ["price"]},
    },
    "edges": {
        "user__buys__item": {"files": "buys-*.csv", "src": "user", "dst": "item", "tables": {"weight": "amount"}},
        "user__knows__user": {"files": "knows.parquet", "src": "a", "dst": "b"},
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shop"
    path.mkdir()
    users = {
        "user_id": [700, 5, 42], "age": [30.5, 41.0, 19.0], "income": [1, 2, 3], "label": [1, 0, 1],
        "taste": [[1, 2], [3, 4], [5, 6]], "is_train": [True, False, True],
    }  # fmt: skip
    parquet.write_table(pa.table(users), path / "users.parquet")
    csv.write_csv(pa.table({"sku": ["apple", "pear", "äpfel"], "price": [1, 2, 3]}), path / "items.csv")
    csv.write_csv(pa.table({"user": [5, 42], "item": ["pear", "apple"], "amount": [2.5, 1.0]}), path / "buys-0.csv")
    csv.write_csv(pa.table({"user": [700], "item": ["äpfel"], "amount": [9.0]}), path / "buys-1.csv")
    parquet.write_table(pa.table({"a": [5, 5], "b": [42, 700]}), path / "knows.parquet")
    (path / "schema.json").write_text(json.dumps(SCHEMA))
    return path


def test_round_trip(folder: Path, tmp_path: Path) -> None:
    graph = taken_in("table", folder, tmp_path / "g")
    assert graph.user_ids("user").tolist() == [700, 5, 42]
    assert graph.user_ids("item") is None
    assert graph.table("user", "x").tolist() == [[30.5, 1.0], [41.0, 2.0], [19.0, 3.0]]
    assert graph.table("user", "y").tolist() == [1, 0, 1]
    assert graph.table("user", "taste").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert graph.split("user", "train").tolist() == [0, 2]
    assert labels(graph, "item") == ["apple", "pear", "äpfel"]
    buys = graph.edges("user__buys__item")
    assert list(zip(buys.src.tolist(), buys.dst.tolist(), buys.tables["weight"].tolist(), strict=True)) == [
        (1, 1, 2.5), (2, 0, 1.0), (0, 2, 9.0),
    ]  # fmt: skip
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    assert sorted(Dataset.open(tmp_path / "d").ids("user").tolist()) == [5, 42, 700]
    both = taken_in("table", folder / "schema.json", tmp_path / "both", undirected=True)
    assert len(both.edges("user__knows__user")) == 4
    assert both.edges("item__rev_buys__user").src.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(colours={}), "'nodes' and 'edges'"),
        (lambda s: s["nodes"]["user"].pop("id"), "needs"),
        (lambda s: s["nodes"].pop("item"), "item is no node type"),
        (lambda s: s["nodes"]["user"].update(files="nobody.parquet"), "no such file"),
        (lambda s: s["nodes"]["user"].update(files="schema.json"), "is neither .parquet nor .csv"),
        *(
            (lambda s, p=pattern: s["nodes"]["user"].update(files=p), f"'files' is '{re.escape(pattern)}': ")
            for pattern in ("", ".", "n**.csv", "**x/[.csv", "a" * 5000, "/proc/self/comm")
        ),
        (lambda s: s["nodes"]["user"].update(id="uid"), "no column 'uid'"),
        (lambda s: s["nodes"]["user"].update(id="age", ignore=["user_id"]), "integers or strings"),
        (lambda s: s["nodes"]["item"].update(tables={"x": "sku"}), "wanted are numbers"),
        (lambda s: s["edges"]["user__buys__item"].update(dst="amount", ignore=["item"]), "names the vertex '2.5'"),
        (lambda s: s.update(edges=[]), "'edges' is not an object"),
        *(
            (lambda s, n=number: s.update(num_classes=n), f"json: 'num_classes' is {number!r}, wanted is a number")
            for number in (2**70, -5, float("nan"), "7", True, 2.0)
        ),
        (lambda s: s["nodes"]["user"].update(files=[]), "'files' is .*, wanted is a pattern, or a list of patterns"),
        *(
            (lambda s, t=tables: s["nodes"]["user"].update(tables=t), "'tables' is .*, wanted is an object")
            for tables in (["age"], {"x": []}, {"x": 3})
        ),
        (lambda s: s["nodes"]["user"].update(splits=["is_train"]), "'splits' is .*, wanted is an object"),
        (lambda s: s["nodes"]["item"].update(ignore="the price"), "'ignore' is .*, wanted is a list"),
    ],
)
def test_wrong_schemas(folder: Path, tmp_path: Path, change: Any, words: str) -> None:
    refused("table", changed(folder, change), tmp_path, words, AttaError)


@pytest.mark.parametrize(
    ("name", "columns", "words"),
    [
        ("users.parquet", {"user_id": [1, 1]}, "no column 'age'"),
        ("knows.parquet", {"a": [5.5], "b": [42]}, "double, the ids of vertices are int64: 5.5 is no whole number"),
        ("buys-1.csv", {"user": [7], "item": ["pear"], "amount": [1], "colour": [3]}, r"buys-1\.csv: 'colour' is not"),
        ("buys-1.csv", {"user": [7], "item": ["pear"]}, r"buys-1\.csv: has no column 'amount'"),
        ("items.csv", {"sku": ["a", "a"]}, "'a' occurs twice"),
        ("items.csv", {"sku": ["a" * 300, "b"]}, "300 bytes"),
    ],
)
def test_wrong_values(folder: Path, tmp_path: Path, name: str, columns: dict[str, Any], words: str) -> None:
    write = csv.write_csv if name.endswith("csv") else parquet.write_table
    write(pa.table(columns), folder / name)
    refused("table", folder, tmp_path, words)


def test_damaged_and_empty_files(folder: Path, tmp_path: Path) -> None:
    empty = pa.array([], pa.int64())
    parquet.write_table(pa.table({"a": empty, "b": empty}), folder / "knows.parquet")
    assert len(taken_in("table", folder, tmp_path / "g").edges("user__knows__user")) == 0
    (folder / "knows.parquet").write_bytes(b"PAR1 nothing else")
    refused("table", folder, tmp_path, "not readable")
    parquet.write_table(pa.table({"a": [5], "b": [42]}), folder / "knows.parquet")
    content = bytearray((folder / "knows.parquet").read_bytes())
    content[4:8] = b"\xff" * 4  # the heading of a page, of which Arrow complains in several lines
    (folder / "knows.parquet").write_bytes(content)
    refused("table", folder, tmp_path, r"knows\.parquet: not readable: Couldn't deserialize thrift.*\Z")


def test_absolute_paths(folder: Path, tmp_path: Path) -> None:
    (warehouse := tmp_path / "warehouse").mkdir()
    (folder / "buys-1.csv").rename(warehouse / "buys-1.csv")
    (warehouse / "other.csv").write_text("of another graph\n")
    users, buys = str(folder / "users.parquet"), f"{tmp_path}/*/buys-*.csv"
    of_buys = "user__buys__item"
    changed(folder, lambda s: (s["nodes"]["user"].update(files=users), s["edges"][of_buys].update(files=buys)))
    import_graph("table", folder, tmp_path / "g")
    assert Graph.open(tmp_path / "g").edges("user__buys__item").tables["weight"].tolist() == [2.5, 1.0, 9.0]


def csv_graph(tmp_path: Path, nodes: str, edges: str, **tables: Any) -> Graph:
    entry = {"files": "e.csv", "src": "s", "dst": "d"}
    of_nodes = {"u": {"files": "n.csv", "id": "id", "tables": tables}}
    return graph_of(tmp_path / "s", {"n.csv": nodes, "e.csv": edges}, of_nodes, {"u__r__u": entry})


def changed(folder: Path, change: Any) -> Path:
    schema = json.loads(json.dumps(SCHEMA))
    change(schema)
    (folder / "schema.json").write_text(json.dumps(schema))
    return folder


ITEM = {"files": "items.csv", "id": "sku", "tables": {"price": "price", "code": "code"}, "ignore": ["text"]}


@pytest.mark.parametrize(
    ("ids", "edge", "rows"),
    [
        (["12:30", "12:30:00", "foo"], "12:30,foo", (0, 2)),
        (["2020-01-01T00:00:00", "2020-01-01 00:00:00", "foo"], "2020-01-01T00:00:00,foo", (0, 2)),
        (["A1", "22", "7"], "22,7", (1, 2)),
        (["A1", "007", "7"], "007,7", (1, 2)),
        (["007", "7"], "7,007", (1, 0)),
        (["12e4", "1200e2", "77"], "12e4,77", (0, 2)),
        (["1.5", "2"], "2,1.5", (1, 0)),
        (["0x1F", "31"], "31,0x1F", (1, 0)),
        (["true", "false"], "false,true", (1, 0)),
        (["2020-01-01", "2020-01-02"], "2020-01-02,2020-01-01", (1, 0)),
    ],
)
def test_names_in_csv_are_what_is_written(tmp_path: Path, ids: list[str], edge: str, rows: tuple[int, int]) -> None:
    graph = csv_graph(tmp_path, "\n".join(["id", *ids, ""]), f"s,d\n{edge}\n")
    assert to_strings(graph.table("u", "name")).tolist() == ids
    edges = graph.edges("u__r__u")
    assert (edges.src.tolist(), edges.dst.tolist()) == ([rows[0]], [rows[1]])


def test_integers_in_csv_stay_ids_and_may_be_a_table(tmp_path: Path) -> None:
    graph = csv_graph(tmp_path, "id\n -5\n0\n9223372036854775807\n", "s,d\n0,-5\n", number="id")
    assert graph.user_ids("u").tolist() == graph.table("u", "number").tolist() == [-5, 0, 2**63 - 1]
    assert graph.edges("u__r__u").src.tolist() == [1]


@pytest.mark.parametrize("ids", ["1\n2\n", "a\nb\n", ""])
def test_a_heading_alone_is_a_type_without_edges_or_vertices(tmp_path: Path, ids: str) -> None:
    graph = csv_graph(tmp_path, f"id\n{ids}", "s,d\n")
    assert (graph.schema.node_counts, graph.schema.edge_counts) == ({"u": ids.count("\n")}, {"u__r__u": 0})


@pytest.mark.parametrize("ids", ['1\n""\n3\n', "1.5\nNaN\n", "1\n9223372036854775808\n"])
def test_csv_ids_that_are_empty_or_too_large(tmp_path: Path, ids: str) -> None:
    with pytest.raises(DataError, match=r"n\.csv: the column 'id' has (empty ids|an id that does not fit)"):
        csv_graph(tmp_path, f"id\n{ids}", "s,d\n")


def test_fractions_behind_whole_numbers(folder: Path, tmp_path: Path) -> None:
    exact, pad, many = 2**53 + 1, "-" * 300, 4000  # more than the 1 MiB that Arrow guesses types from
    items = [f"{name},1,{exact},{pad}" for name in ("apple", "pear", "äpfel", *range(many))]
    (folder / "items.csv").write_text("\n".join(["sku,price,code,text", *items, f"last,0.5,{exact},", ""]))
    (folder / "buys-0.csv").write_text("user,item,amount\n5,pear,2\n")
    (folder / "buys-1.csv").write_text("user,item,amount\n700,äpfel,0.25\n")
    parquet.write_table(pa.table({"a": [5], "b": [42], "years": [3]}), folder / "knows-0.parquet")
    years = pa.array([0.5], pa.float32())
    parquet.write_table(pa.table({"a": [5], "b": [700], "years": years}), folder / "knows-1.parquet")
    (folder / "knows.parquet").unlink()
    knows = {"files": "knows-*.parquet", "src": "a", "dst": "b", "tables": {"years": "years"}}
    changed(folder, lambda s: (s["nodes"].update(item=ITEM), s["edges"].update(user__knows__user=knows)))
    graph = taken_in("table", folder, tmp_path / "g")
    assert graph.table("item", "price").tolist() == [1] * (many + 3) + [0.5]
    assert graph.table("item", "code").tolist() == [exact] * (many + 4)
    assert graph.edges("user__buys__item").tables["weight"].tolist() == [2, 0.25]
    assert graph.edges("user__knows__user").tables["years"].tolist() == [3, 0.5]


def test_whole_numbers_beyond_int64_are_not_rounded(folder: Path, tmp_path: Path) -> None:
    """They come behind the block from which Arrow guesses the type."""
    items = [f"{name},1,{2**53 + 1},{'-' * 300}" for name in ("apple", "pear", "äpfel", *range(4000))]
    (folder / "items.csv").write_text("\n".join(["sku,price,code,text", *items, f"last,1,{2**63},", ""]))
    changed(folder, lambda s: s["nodes"].update(item=ITEM))
    refused("table", folder, tmp_path, str(2**63))


def test_a_first_file_with_a_heading_alone(folder: Path, tmp_path: Path) -> None:
    (folder / "buys-.csv").write_text("user,item,amount\n")
    import_graph("table", folder, tmp_path / "g")
    assert Graph.open(tmp_path / "g").edges("user__buys__item").tables["weight"].tolist() == [2.5, 1.0, 9.0]


def test_lists_of_lists(folder: Path, tmp_path: Path) -> None:
    users = parquet.read_table(folder / "users.parquet")
    place = users.schema.get_field_index("taste")
    parquet.write_table(users.set_column(place, "taste", pa.array([[[1, 2]]] * 3)), folder / "users.parquet")
    refused("table", folder, tmp_path, r"users\.parquet: the column 'taste' holds list<.*>, wanted are numbers")
