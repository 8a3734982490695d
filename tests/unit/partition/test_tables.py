"""Parquet and CSV tables with a schema: reading gives back what was written, and errors name the fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atta.errors import ConfigError, DataError
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.importers import import_graph

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
    import_graph("table", folder, tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    assert graph.user_ids("user").tolist() == [700, 5, 42]
    assert graph.user_ids("item") is None
    assert graph.table("user", "x").tolist() == [[30.5, 1.0], [41.0, 2.0], [19.0, 3.0]]
    assert graph.table("user", "y").tolist() == [1, 0, 1]
    assert graph.table("user", "taste").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert graph.split("user", "train").tolist() == [0, 2]
    names = [bytes(row).rstrip(b"\0").decode() for row in graph.table("item", "name")]
    assert names == ["apple", "pear", "äpfel"]
    buys = graph.edges("user__buys__item")
    assert list(zip(buys.src.tolist(), buys.dst.tolist(), buys.tables["weight"].tolist(), strict=True)) == [
        (1, 1, 2.5), (2, 0, 1.0), (0, 2, 9.0),
    ]  # fmt: skip
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    assert sorted(Dataset.open(tmp_path / "d").ids("user").tolist()) == [5, 42, 700]
    import_graph("table", folder / "schema.json", tmp_path / "both", undirected=True)
    both = Graph.open(tmp_path / "both")
    assert len(both.edges("user__knows__user")) == 4
    assert both.edges("item__rev_buys__user").src.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(colours={}), "'nodes' and 'edges'"),
        (lambda s: s["nodes"]["user"].pop("id"), "needs"),
        (lambda s: s["nodes"].pop("item"), "item is not a node type"),
        (lambda s: s["nodes"]["user"].update(files="nobody.parquet"), "no such file"),
        (lambda s: s["nodes"]["user"].update(files="schema.json"), "wanted is .parquet or .csv"),
        (lambda s: s["nodes"]["user"].update(id="uid"), "no column 'uid'"),
        (lambda s: s["nodes"]["user"].update(id="age", ignore=["user_id"]), "integers or strings"),
        (lambda s: s["nodes"]["item"].update(tables={"x": "sku"}), "wanted are numbers"),
        (lambda s: s["edges"]["user__buys__item"].update(dst="amount", ignore=["item"]), "holds double, the ids"),
    ],
)
def test_wrong_schemas(folder: Path, tmp_path: Path, change: Any, words: str) -> None:
    schema = json.loads(json.dumps(SCHEMA))
    change(schema)
    (folder / "schema.json").write_text(json.dumps(schema))
    with pytest.raises((DataError, ConfigError), match=words):
        import_graph("table", folder, tmp_path / "g")
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("name", "columns", "words"),
    [
        ("knows.parquet", {"a": [5, 6], "b": [42, 700]}, "names the vertex 6"),
        ("knows.parquet", {"a": [5, None], "b": [42, 700]}, "empty ids"),
        ("users.parquet", {"user_id": [1, 1]}, "no column 'age'"),
        ("items.csv", {"sku": ["a", "a"]}, "'a' occurs twice"),
        ("items.csv", {"sku": ["a" * 300, "b"]}, "300 bytes"),
    ],
)
def test_wrong_values(folder: Path, tmp_path: Path, name: str, columns: dict[str, Any], words: str) -> None:
    write = csv.write_csv if name.endswith("csv") else parquet.write_table
    write(pa.table(columns), folder / name)
    with pytest.raises(DataError, match=words):
        import_graph("table", folder, tmp_path / "g")


def test_damaged_and_empty_files(folder: Path, tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())}), folder / "knows.parquet"
    )
    import_graph("table", folder, tmp_path / "g")
    assert len(Graph.open(tmp_path / "g").edges("user__knows__user")) == 0
    (folder / "knows.parquet").write_bytes(b"PAR1 nothing else")
    with pytest.raises(DataError, match="not readable"):
        import_graph("table", folder, tmp_path / "h")
