"""``atta schema``: what it guesses of everyday folders imports, and comes in as meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from atta.cli.graphs.tables import COMMANDS
from atta.errors import ConfigError, DataError
from atta.partition import Graph
from atta.partition.importers import import_graph
from atta.partition.importers.table.guess import guess_schema

pytest.importorskip("pyarrow", reason="needs pyarrow (atta[table])")
pd = pytest.importorskip("pandas", reason="needs pandas")

RNG = np.random.default_rng(7)


def social(folder: Path) -> dict[str, Any]:
    names = [f"user-{i}" for i in RNG.permutation(90)]
    people = {"user_id": names, "age": RNG.normal(size=90), "segment": RNG.integers(0, 3, 90), "is_train": [1, 0, 0] * 30,
              "validation": [False, True, False] * 30}  # fmt: skip
    pd.DataFrame(people).to_csv(folder / "people.csv", index=False)
    pd.DataFrame({"who": RNG.choice(names, 200), "whom": RNG.choice(names, 200)}).to_csv(
        folder / "follows.csv", index=False
    )
    tables = {"y": "segment", "x": ["age"]}
    splits = {"train": "is_train", "val": "validation"}
    return {
        "nodes": {"people": {"files": "people.csv", "id": "user_id", "tables": tables, "splits": splits}},
        "edges": {"people__follows__people": {"files": "follows.csv", "src": "who", "dst": "whom"}},
    }


def shop(folder: Path) -> dict[str, Any]:
    users = {"user_id": range(50), "born": pd.date_range("1990", periods=50), "income": [1.5, None] * 25}
    pd.DataFrame(users).to_csv(folder / "users.csv", sep=";")  # with the numbers of rows
    items = {"sku": [f"a{i}" for i in range(40)], "price": RNG.normal(size=40), "brand_id": RNG.integers(0, 5, 40)}
    pd.DataFrame(items).to_parquet(folder / "items.parquet")
    pd.DataFrame({"id": range(5), "motto": list("abcde")}).to_parquet(folder / "brands.parquet")
    at = pd.date_range("2024", periods=100, freq="500ms", tz="UTC")
    orders = pd.DataFrame(
        {"order_id": range(100), "user": RNG.integers(0, 50, 100), "item": RNG.choice(items["sku"], 100), "at": at}
    )
    orders[:50].to_csv(folder / "orders-1.csv.gz", index=False)
    orders[50:].to_csv(folder / "orders-2.csv.gz", index=False)
    income = {"column": "income", "fill": "mean", "known": True}
    told = {"tables": {"time": "born", "x": [income]}, "ignore": [""], "delimiter": ";"}
    return {
        "nodes": {
            "brands": {"files": "brands.parquet", "id": "id", "ignore": ["motto"]},
            "items": {"files": "items.parquet", "id": "sku", "tables": {"x": ["price"]}, "ignore": ["brand_id"]},
            "users": {"files": "users.csv", "id": "user_id", **told},
        },
        "edges": {
            "items__brand_id__brands": {"files": "items.parquet", "src": "sku", "dst": "brand_id", "ignore": ["price"]},
            "users__orders__items": {
                "files": "orders-*.csv.gz", "src": "user", "dst": "item",
                "tables": {"time": {"column": "at", "time_unit": "ms"}}, "ignore": ["order_id"],
            },
        },
    }  # fmt: skip


def knowledge(folder: Path) -> dict[str, Any]:
    pd.DataFrame({"entity": [f"e{i}" for i in range(30)]}).to_csv(folder / "entities.tsv", sep="\t", index=False)
    heads = {
        "head": [f"e{i}" for i in range(30)],
        "relation": ["likes", "has"] * 15,
        "tail": [f"e{i}" for i in RNG.permutation(30)],
    }
    pd.DataFrame(heads).to_csv(folder / "triples.tsv", sep="\t", index=False)
    return {
        "nodes": {"entities": {"files": "entities.tsv", "id": "entity"}},
        "edges": {"entities__*__entities": {"files": "triples.tsv", "src": "head", "dst": "tail", "type": "relation"}},
    }


def papers(folder: Path) -> dict[str, Any]:
    """Ids are numbers, and so are other columns whose values happen to be ids."""
    paper = {
        "id": range(100),
        "year": RNG.integers(1990, 2020, 100),
        "pages": RNG.integers(1, 90, 100),
        "label": RNG.choice(["cs", "bio"], 100),
    }
    pd.DataFrame(paper).to_parquet(folder / "paper.parquet")
    pd.DataFrame(
        {"source": RNG.integers(0, 100, 300), "target": RNG.integers(0, 100, 300), "weight": RNG.random(300)}
    ).to_parquet(folder / "cites.parquet")
    tables = {"y": "label", "x": ["year", "pages"]}
    cites = {"files": "cites.parquet", "src": "source", "dst": "target", "tables": {"weight": "weight"}}
    return {
        "nodes": {"paper": {"files": "paper.parquet", "id": "id", "tables": tables}},
        "edges": {"paper__cites__paper": cites},
    }


def run(*words: object) -> Result:
    group = click.Group(commands={c.name: c for c in COMMANDS})
    result = CliRunner().invoke(group, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result


@pytest.mark.parametrize("make", [social, shop, knowledge, papers])
def test_guesses(tmp_path: Path, make: Callable[[Path], dict[str, Any]]) -> None:
    want = make(tmp_path)
    said = run("schema", tmp_path).output
    path = tmp_path / "schema.json"
    assert json.loads(path.read_text()) == want
    assert f"{path}: written; tried: atta import table {tmp_path} GRAPH works" in " ".join(said.split())
    for files in (entry["files"] for kind in want.values() for entry in kind.values()):
        assert files in said
    import_graph("table", tmp_path, tmp_path / "out" / "g")
    assert set(Graph.open(tmp_path / "out" / "g").schema.node_types) == set(want["nodes"])


def test_a_schema_is_not_overwritten(tmp_path: Path) -> None:
    social(tmp_path)
    (tmp_path / "schema.json").write_text("mine")
    with pytest.raises(ConfigError, match=r"schema\.json exists; --overwrite replaces it"):
        run("schema", tmp_path)
    assert (tmp_path / "schema.json").read_text() == "mine"
    assert run("schema", tmp_path, "--overwrite", "-q").output == ""
    assert (tmp_path / "schema.json").read_text() != "mine"


def test_what_has_no_ids(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no Parquet or CSV files"):
        guess_schema(tmp_path)
    (tmp_path / "e.csv").write_text("a,b\n1,1\n1,2\n2,1\n2,1\n")
    with pytest.raises(DataError, match="no file has a column of different ids, so none lists vertices"):
        guess_schema(tmp_path)
    (tmp_path / "n.csv").write_text("id,t\n1,3\n2,4\n3,5\n")
    (tmp_path / "other.csv").write_text("p,q\n7.5,x\n7.5,x\n")
    guess = guess_schema(tmp_path)
    assert guess.schema["edges"] == {"n__e__n": {"files": "e.csv", "src": "a", "dst": "b"}}
    assert any("other.csv: not in schema.json" in line for line in guess.lines)
    said = " ".join(run("schema", tmp_path).output.split())
    assert "edit it, for this is refused" in said
    assert "'other.csv' is not imported: schema.json does not name it" in said
