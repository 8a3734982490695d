"""Everyday columns of tables come in as pandas means them, from CSV and Parquet alike, and as ``atta schema`` guesses."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import io
import json
import re
import shlex
import uuid
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.cli.graphs.data import COMMANDS as GRAPHS
from atta.cli.graphs.tables import COMMANDS
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Dataset, Graph, partition_graph
from atta.partition.graph.exact import inexact
from atta.partition.graph.strings import to_strings
from atta.partition.importers import import_graph
from atta.partition.importers.table.columns import plain
from atta.partition.importers.table.guess import guess_schema
from tests.unit.partition.oracles import graph_of, refuses, taken_in

pa = pytest.importorskip("pyarrow", reason="needs pyarrow (atta[table])")
pd = pytest.importorskip("pandas", reason="needs pandas")
from pyarrow import parquet  # noqa: E402

WAYS = ("n.parquet", "n.csv", "n.csv.gz", "n.tsv", "n.csv;")


def write(frame: Any, folder: Path, way: str) -> str:
    """Write a frame as pandas does by itself, and return the name of the file."""
    name = way.rstrip(";")
    if name.endswith("parquet"):
        frame.to_parquet(folder / name, index=False)
    else:
        mark = ";" if way.endswith(";") else "\t" if "tsv" in name else ","
        frame.to_csv(folder / name, sep=mark, index=False)
    return name


def node_graph(folder: Path, frame: Any, way: str, tables: Any, **entry: Any) -> Graph:
    name = write(frame, folder, way)
    more = {"time_unit": entry.pop("time_unit")} if "time_unit" in entry else {}
    return graph_of(folder, {}, {"n": {"files": name, "id": "id", "tables": tables, **entry}}, {}, **more)


SECONDS = st.integers(-(2**31), 2**32)
COLUMNS: dict[str, Any] = {
    "whole": st.integers(-(2**53), 2**53),
    "fraction": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "truth": st.booleans(),
    "price": st.decimals(-1000, 1000, places=2, allow_nan=False),
    "instant": SECONDS.map(lambda s: pd.Timestamp(s, unit="s")),
    "abroad": st.integers(0, 2**32).map(lambda s: pd.Timestamp(s, unit="s", tz="UTC").tz_convert("Asia/Kolkata")),
    "day": st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1)),
    "word": st.text("abc é\"';,\t", min_size=1, max_size=4).filter(lambda s: s == s.strip() and s),
}


def some(values: list[Any]) -> bool:
    return any(v is not None for v in values)


def expected(kind: str, values: list[Any]) -> list[Any]:
    """The numbers of a column, by Python; None where a cell is empty."""
    if kind == "word":
        names = sorted({v for v in values if v is not None})
        return [None if v is None else names.index(v) for v in values]
    epoch = {"instant": pd.Timestamp(0), "abroad": pd.Timestamp(0, tz="UTC"), "day": dt.date(1970, 1, 1)}
    if kind in epoch:
        return [None if v is None else int((v - epoch[kind]).total_seconds()) for v in values]
    return [None if v is None else float(v) for v in values]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), way=st.sampled_from(WAYS), kinds=st.sets(st.sampled_from(sorted(COLUMNS)), min_size=1))
def test_round_trip(data: Any, way: str, kinds: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    n = data.draw(st.integers(1, 5))
    columns = {kind: st.lists(COLUMNS[kind] | st.none(), min_size=n, max_size=n).filter(some) for kind in sorted(kinds)}
    values = {kind: data.draw(column) for kind, column in columns.items()}
    series = {k: pd.Series(v, dtype=object if k == "word" else None) for k, v in values.items()}
    frame = pd.DataFrame({"id": range(n), **series})
    rules: dict[str, Any] = {kind: {"column": kind, "fill": 7} for kind in kinds}
    if "word" in kinds:
        rules["word"] = {"column": "word", "fill": "c", "classes": True}
    graph = node_graph(tmp_path_factory.mktemp("t"), frame, way, rules)
    for kind, given_ in values.items():
        want = expected(kind, given_)
        if kind == "word":
            names = sorted({v for v in given_ if v is not None})
            names += [] if "c" in names else ["c"]
            assert graph.schema.classes["n"][kind] == names
            fill: float = names.index("c")
        else:
            fill = 7
        np.testing.assert_array_equal(graph.table("n", kind), [fill if v is None else v for v in want])


@pytest.mark.parametrize("way", WAYS)
def test_labels_by_name_with_empty_cells(tmp_path: Path, way: str) -> None:
    frame = pd.DataFrame({"id": range(5), "kind": ["dog", None, "cat", "dog", "NA"], "train": [True] * 3 + [False] * 2})
    graph = node_graph(tmp_path, frame, way, {"y": "kind"}, splits={"train": "train"})
    assert graph.table("n", "y").tolist() == [2, -1, 1, 2, 0]
    assert graph.schema.classes == {"n": {"y": ["NA", "cat", "dog"]}}
    assert graph.schema.num_classes == 3
    assert graph.split("n", "train").tolist() == [0, 2]
    partition_graph(tmp_path / "out" / "g", tmp_path / "d", parts=2, method="random")
    assert Dataset.open(tmp_path / "d").schema.classes == graph.schema.classes
    assert Dataset.open(tmp_path / "d").schema.columns == graph.schema.columns


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("labels", "rule", "want"),
    [
        ([1, None, 0], "y", np.array([1, -1, 0])),  # pandas writes 1.0
        ([True, None, False], "y", np.array([1, -1, 0])),
        ([0.5, None, 2], "y", np.array([0.5, np.nan, 2])),
        ([1, None, 0], {"column": "y", "dtype": "float64"}, np.array([1, np.nan, 0])),
        ([1, None, 0], {"column": "y", "fill": 2}, np.array([1, 2, 0.0])),
        (["b", None, "a"], {"column": "y", "classes": ["b", "a", "z"]}, np.array([0, -1, 1])),
        (["b", None, "a"], {"column": "y", "fill": "a"}, np.array([1, 0, 0])),
        ([30, 10, 20], {"column": "y", "classes": True}, np.array([2, 0, 1])),
        ([2, 0, 1], {"column": "y", "classes": ["p", "q", "r"]}, np.array([2, 0, 1])),
    ],
)
def test_labels(tmp_path: Path, way: str, labels: list[Any], rule: Any, want: np.ndarray) -> None:
    frame = pd.DataFrame({"id": range(3), "y": labels, "t": [1, 1, 1]})
    graph = node_graph(tmp_path, frame, way, {"y": rule}, splits={"train": "t"})
    y = graph.table("n", "y")
    np.testing.assert_array_equal(y, want)
    assert y.dtype == want.dtype or rule == {"column": "y", "fill": 2}
    empty = labels[1] is None and not (isinstance(rule, dict) and "fill" in rule)
    assert graph.split("n", "train").tolist() == ([0, 2] if empty else [0, 1, 2])


@pytest.mark.parametrize("way", WAYS)
def test_empty_features(tmp_path: Path, way: str) -> None:
    frame = pd.DataFrame({"id": range(4), "a": [1, None, 3, 8], "b": [0.5, 1, None, 2]})
    rule = {"columns": ["a", {"column": "b", "fill": -1}], "fill": "mean", "known": True}
    x = node_graph(tmp_path, frame, way, {"x": rule}).table("n", "x")
    assert x.tolist() == [[1, 1, 0.5, 1], [4, 0, 1, 1], [3, 1, -1, 0], [8, 1, 2, 1]]
    assert x.dtype == np.float32


@pytest.mark.parametrize("unit", ["d", "h", "min", "s", "ms", "us", "ns"])
@pytest.mark.parametrize("way", WAYS)
def test_units_of_times(tmp_path: Path, way: str, unit: str) -> None:
    whole = pd.Timestamp("2024-02-29") + pd.to_timedelta([0, 1, 3], unit=unit.upper() if unit == "d" else unit)
    frame = pd.DataFrame({"id": range(3), "at": whole.tz_localize("UTC").as_unit("ns")})
    graph = node_graph(tmp_path, frame, way, {"time": "at"}, time_unit=unit)
    want = (frame["at"] - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(1, unit=unit.upper() if unit == "d" else unit)
    assert graph.table("n", "time").tolist() == want.tolist()
    if unit == "ms":
        says = r'no whole s \(row 2, row 3\)|no whole s \(2 rows: 2, 3\); "time_unit": "ms" keeps'
        refuses(DataError, says, node_graph, tmp_path, frame, way, {"time": {"column": "at", "time_unit": "s"}})


def test_times_in_text(tmp_path: Path) -> None:
    at = ["2024-02-29", "2024-02-29T01:00:00", "", "2500-01-01 00:00:00.25"]
    parquet.write_table(pa.table({"id": [1, 2, 3, 4], "at": at}), tmp_path / "n.parquet")
    rule = {"column": "at", "time_unit": "ms", "fill": 0}
    graph = graph_of(tmp_path, {}, {"n": {"files": "n.parquet", "id": "id", "tables": {"at": rule}}}, {})
    want = [0 if not t else int(np.datetime64(t, "ms").astype(np.int64)) for t in at]
    assert graph.table("n", "at").tolist() == want
    with pytest.raises(DataError, match=r"holds string, wanted are numbers.*time_format"):
        graph_of(tmp_path, {}, {"n": {"files": "n.parquet", "id": "id", "tables": {"at": "at"}}}, {})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("form", "unit", "cells", "want"),
    [
        ("%d/%m/%Y", "s", ["31/12/2024", "1/2/2024"], [1735603200, 1706745600]),
        ("%b %d %Y", "d", ["Dec 31 2024", "Feb 1 2024"], [20088, 19754]),
        ("%d.%m.%y %H:%M", "min", ["31.12.24 23:59", "01.02.24 00:00"], [28928159, 28445760]),
        (
            "%Y-%m-%dT%H:%M:%S.%f%z",
            "ms",
            ["2024-02-01T01:00:00.250+01:00", "1970-01-01T00:00:00.0Z"],
            [1706745600250, 0],
        ),
        ("s", "s", ["1706745600", "-5"], [1706745600, -5]),
        ("ms", "s", ["1706745600000", "0"], [1706745600, 0]),
    ],
)
def test_times_in_a_format(tmp_path: Path, way: str, form: str, unit: str, cells: list[str], want: list[int]) -> None:
    frame = pd.DataFrame({"id": range(3), "at": [*cells, None]})
    rule = {"column": "at", "time_format": form, "time_unit": unit, "fill": 7}
    assert node_graph(tmp_path, frame, way, {"time": rule}).table("n", "time").tolist() == [*want, 7]


@pytest.mark.parametrize("way", ["n.csv", "n.parquet"])
def test_texts_that_are_no_times_by_the_format(tmp_path: Path, way: str) -> None:
    frame = pd.DataFrame({"id": range(3), "at": ["31/12/2024", "30/02/2024", "12/31/2024"]})
    words = r"'at' has '30/02/2024', which is no time by 'time_format': '%d/%m/%Y' \(2 rows: 2: .*, 3: '12/31/2024'\)"
    refuses(DataError, words, node_graph, tmp_path, frame, way, {"t": {"column": "at", "time_format": "%d/%m/%Y"}})
    refuses(
        DataError, '"time_format", such as', node_graph, tmp_path, frame, way, {"t": {"column": "at", "time_unit": "s"}}
    )
    refuses(
        DataError,
        r"'31/12/2024', which is .*: 'ms' \(3 rows[^;]*$",
        node_graph,
        tmp_path,
        frame,
        way,
        {"t": {"column": "at", "time_format": "ms"}},
    )


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (["31/12/2024", "01/02/2024"], {"time_format": "%d/%m/%Y"}),
        (["12/31/2024 10:00 PM", "01/02/2024 1:30 AM"], {"time_format": "%m/%d/%Y %I:%M %p"}),
        (["May 3, 2024", "Dec 31, 2024"], {"time_format": "%b %d, %Y"}),
        (["2024-12", "2025-01"], {"time_format": "%Y-%m"}),
        (["1600000000123", "1700000000000"], {"time_format": "ms", "time_unit": "ms"}),
        (["1600000000", "1700000000"], {"time_format": "s"}),
        (["2024-12-31T10:00:00Z", "2024-12-31T10:00:00+02:00"], {"time_format": "%Y-%m-%dT%H:%M:%S%z"}),
        (
            ["2024-12-31 10:00:00.5", "2024-12-31 10:00:00.0"],
            {"time_format": "%Y-%m-%d %H:%M:%S.%f", "time_unit": "ms"},
        ),
        (["01/02/2024", "03/04/2024"], '"time_format": "%d/%m/%Y" or "time_format": "%m/%d/%Y" reads them'),
        (["1st of Jan 2024", "3rd of Mar 2024"], None),
        (["Jan 1 2024, noon", "Mar 3 2024, noon"], '"time_format": "%d/%m/%Y" or the like reads them'),
        (["1,234.50", "$5"], '"decimal": "," reads 1,5; take other signs away before'),
        (["Toy Story (1995)", "Heat (1995)"], None),
        (["4915123456", "4930123456"], None),
    ],
)
def test_a_guess_reads_dates_that_leave_no_doubt(
    tmp_path: Path, cells: list[str], rule: dict[str, str] | str | None
) -> None:
    parquet.write_table(pa.table({"id": ["a", "b"] * 3 + ["c", "d"], "at": cells * 4}).slice(4), tmp_path / "n.parquet")
    said = " ".join(run("schema", tmp_path).output.split())
    entry = json.loads((tmp_path / "schema.json").read_text())["nodes"]["n"]
    if isinstance(rule, dict):
        assert entry["tables"] == {"time": {"column": "at", **rule}}
        assert f"read as {rule['time_format']}" in said
        assert taken_in("table", tmp_path, tmp_path / "out" / "g").table("n", "time").dtype == np.int64
    else:
        kind = "numbers" if "$5" in cells else "dates"
        assert (f"'at' looks like {kind}, as {cells[0]!r}: {rule}" in said) if rule else "looks like" not in said
        assert ("x" in entry.get("tables", {})) == (rule is None)


def arrow_ids(kind: str) -> tuple[Any, list[Any]]:
    """Ids of three vertices in one of Arrow's types, and what the user means."""
    names, numbers = ["b", "é", "a"], [7, -3, 5]
    if kind == "uuid":
        found = [uuid.UUID(int=i) for i in (1, 2**127, 3)]
        return pa.array([u.bytes for u in found], pa.uuid()), list(map(str, found))
    if kind == "decimal":
        return pa.array(list(map(decimal.Decimal, numbers)), pa.decimal128(20, 0)), numbers
    if kind == "double":
        return pa.array(numbers, pa.float64()), numbers
    if kind == "categorical numbers":
        return pa.array(numbers).dictionary_encode(), numbers
    if kind == "categorical":
        return pa.array(names).dictionary_encode(), names
    text = names if "binary" not in kind else [name.encode() for name in names]
    return pa.array(text, getattr(pa, kind)()), names


KINDS = "uuid,decimal,double,categorical numbers,categorical,string_view,large_string,binary,binary_view"


@pytest.mark.parametrize("kind", KINDS.split(","))
def test_ids_of_every_kind(tmp_path: Path, kind: str) -> None:
    ids, meant = arrow_ids(kind)
    parquet.write_table(pa.table({"id": ids}), tmp_path / "n.parquet")
    parquet.write_table(pa.table({"s": ids, "t": pa.concat_arrays([ids[1:], ids[:1]])}), tmp_path / "e.parquet")
    nodes = {"n": {"files": "n.parquet", "id": "id"}}
    graph = graph_of(tmp_path, {}, nodes, {"n__to__n": {"files": "e.parquet", "src": "s", "dst": "t"}})
    found = graph.user_ids("n")
    assert (to_strings(graph.table("n", "name")) if found is None else found).tolist() == meant
    edges = graph.edges("n__to__n")
    assert (edges.src.tolist(), edges.dst.tolist()) == ([0, 1, 2], [1, 2, 0])


def test_categories_are_the_codes_of_pandas(tmp_path: Path) -> None:
    grade = pd.Categorical(["mid", "low", None, "high", "mid"], categories=["low", "mid", "high", "none"], ordered=True)
    frame = pd.DataFrame({"id": range(5), "grade": grade})
    graph = node_graph(tmp_path, frame, "n.parquet", {"x": ["id", {"column": "grade", "fill": "none"}]})
    assert graph.table("n", "x")[:, 1].tolist() == [1, 0, 3, 2, 1]
    assert graph.table("n", "x")[[0, 1, 3, 4], 1].tolist() == grade.codes[[0, 1, 3, 4]].tolist()
    assert graph.schema.classes == {"n": {"x/grade": ["low", "mid", "high", "none"]}}
    assert graph.schema.columns == {"n": {"x": ["id", "grade"]}}


@pytest.mark.parametrize("way", ["e.csv", "e.parquet"])
def test_whole_ids_that_pandas_wrote_as_floats(tmp_path: Path, way: str) -> None:
    write(pd.DataFrame({"s": [10.0, 20.0], "t": [20.0, 10.0]}), tmp_path, way)
    nodes = {"n": {"files": "n.csv", "id": "id"}}
    edges = {"n__to__n": {"files": way, "src": "s", "dst": "t"}}
    graph = graph_of(tmp_path, {"n.csv": "id\n10\n20\n"}, nodes, edges)
    assert graph.edges("n__to__n").src.tolist() == [0, 1]
    write(pd.DataFrame({"s": [10.5, 20.0, 30, None], "t": [20.0, 10.0, 10, 10]}), tmp_path, way)
    refuses(DataError, r"'s' .*(10\.5|empty ids)", graph_of, tmp_path, {}, nodes, edges)


@pytest.mark.parametrize("way", ["e.csv", "e.parquet"])
@pytest.mark.parametrize("ids", [[1, 2, 3], ["a", "b", "c"]])
def test_edges_without_a_vertex_can_be_dropped(tmp_path: Path, way: str, ids: list[Any]) -> None:
    stranger = 9 if ids[0] == 1 else "z"
    sources, targets = [*ids, None, stranger, ids[0]], [ids[1], stranger, ids[0], ids[0], None, ids[2]]
    write(pd.DataFrame({"s": sources, "t": targets, "w": range(6)}), tmp_path, way)
    write(pd.DataFrame({"id": ids}), tmp_path, "n.csv")
    nodes = {"n": {"files": "n.csv", "id": "id"}}
    entry = {"files": way, "src": "s", "dst": "t", "tables": {"w": "w"}}
    with pytest.raises(DataError, match=r'row.*"unknown": "drop" in schema.json leaves such edges out'):
        graph_of(tmp_path, {}, nodes, {"n__to__n": entry})
    graph = graph_of(tmp_path, {}, nodes, {"n__to__n": entry | {"unknown": "drop"}})
    edges = graph.edges("n__to__n")
    assert (edges.src.tolist(), edges.dst.tolist(), edges.tables["w"].tolist()) == ([0, 2, 0], [1, 0, 2], [0, 2, 5])
    assert graph.provenance["notes"] == ["n__to__n: 3 edges left out: an end is empty, or in no node file"]


@pytest.mark.parametrize("way", ["e.csv", "e.parquet"])
@pytest.mark.parametrize("kind", [None, "kind"])
def test_edges_with_low_numbers_can_be_left_out(tmp_path: Path, way: str, kind: str | None) -> None:
    frame = {"s": [1, 2, 3, 9, 1, 3], "t": [2, 3, 1, 1, 3, 2], "stars": [4, 3.5, 5, 5, None, 1], "kind": list("aabbab")}
    write(pd.DataFrame(frame), tmp_path, way)
    write(pd.DataFrame({"id": [1, 2, 3]}), tmp_path, "n.csv")
    entry = {
        "files": [way],
        "src": "s",
        "dst": "t",
        "tables": {"stars": {"column": "stars", "fill": 0}},
        "unknown": "drop",
    }
    entry |= {"at_least": {"stars": 4}, **({"type": "kind"} if kind else {"ignore": ["kind"]})}
    graph = graph_of(tmp_path, {}, {"n": {"files": "n.csv", "id": "id"}}, {f"n__{'*' if kind else 'rates'}__n": entry})
    found = {one: graph.edges(one) for one in graph.schema.edge_types}
    ends = {one: (e.src.tolist(), e.dst.tolist(), e.tables["stars"].tolist()) for one, e in found.items()}
    if kind:
        assert ends == {"n__a__n": ([0], [1], [4.0]), "n__b__n": ([2], [0], [5.0])}
    else:
        assert ends == {"n__rates__n": ([0, 2], [1, 0], [4.0, 5.0])}
        notes = ["1 edge left out: an end is empty, or in no node file", "3 edges left out: 'stars' is not at least 4"]
        told = [note for note in graph.provenance["notes"] if "are filled" not in note]
        assert told == [f"n__rates__n: {note}" for note in notes]
    entry["at_least"] = {"stars": "4"}
    refuses(
        DataError, "'at_least' is .*, wanted is an object with a number", graph_of, tmp_path, {}, {}, {"n__x__n": entry}
    )


@pytest.mark.parametrize("way", ["e.csv", "e.parquet"])
def test_a_column_names_the_relation(tmp_path: Path, way: str) -> None:
    rng = np.random.default_rng(5)
    names = [f"r{i}" for i in range(300)]  # more than are written at a time
    ends = {end: rng.integers(0, 9, 900) for end in "st"}
    frame = pd.DataFrame({**ends, "w": rng.random(900), "rel": rng.permutation(names * 3)})
    write(frame, tmp_path, way)
    entry = {"files": way, "src": "s", "dst": "t", "type": "rel", "tables": {"weight": "w"}}
    rows = "id\n" + "".join(f"{i}\n" for i in range(9))
    graph = graph_of(tmp_path, {"n.csv": rows}, {"n": {"files": "n.csv", "id": "id"}}, {"n__*__n": entry})
    assert graph.schema.edge_types == tuple(sorted(f"n__{name}__n" for name in names))
    for name, rows_ in frame.groupby("rel"):
        edges = graph.edges(f"n__{name}__n")
        assert edges.src.tolist() == rows_["s"].tolist()
        assert edges.dst.tolist() == rows_["t"].tolist()
        assert edges.tables["weight"].tolist() == rows_["w"].tolist()


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_folder_of_spark(tmp_path: Path, ending: str) -> None:
    (folder := tmp_path / f"n.{ending}").mkdir()
    for part, ids in enumerate([[3, 1], [], [2]]):
        frame = pd.DataFrame({"id": np.array(ids, np.int64), "a": np.array(ids, float)})
        write(frame, folder, f"part-0000{part}.{ending}")
    (folder / "_SUCCESS").touch()
    (folder / f".part-00000.{ending}.crc").write_bytes(b"crc")
    (folder / f"part-00003.{ending}").touch()
    graph = graph_of(tmp_path, {}, {"n": {"files": f"n.{ending}", "id": "id", "tables": {"x": ["a"]}}}, {})
    assert graph.user_ids("n").tolist() == [3, 1, 2]
    (folder / "year=2024").mkdir()
    with pytest.raises(DataError, match="year=2024: columns in names of folders are not read"):
        graph_of(tmp_path, {}, {"n": {"files": f"n.{ending}", "id": "id"}}, {})


def test_commas_in_numbers(tmp_path: Path) -> None:
    pd.DataFrame({"id": [1, 2], "a": [0.5, 2.25]}).to_csv(tmp_path / "n.csv", sep=";", decimal=",")
    entry = {"files": "n.csv", "id": "id", "tables": {"a": "a"}, "ignore": [""], "decimal": ","}
    assert graph_of(tmp_path, {}, {"n": entry}, {}).table("n", "a").tolist() == [0.5, 2.25]


def test_types_change_behind_the_beginning_of_a_csv_file(tmp_path: Path) -> None:
    """Arrow guesses types from the first MiB."""
    n, pad = 4000, "-" * 300
    values = {
        "fraction": ["1"] * n + ["0.5"], "late": [""] * n + ["7"], "day": ["2024-01-01"] * n + ["2024-01-01 00:00:01"],
        "at": ["2024-01-01 00:00:00"] * n + ["2024-01-01 00:00:00.5"], "word": ["1"] * n + ["one"],
    }  # fmt: skip
    frame = pd.DataFrame({"id": range(n + 1), **values, "pad": pad})
    frame.to_csv(tmp_path / "n.csv", index=False)
    rules = {
        "fraction": "fraction", "late": {"column": "late", "fill": 0}, "day": "day", "at": {"column": "at", "time_unit": "ms"},
        "word": {"column": "word", "classes": True},
    }  # fmt: skip
    graph = graph_of(tmp_path, {}, {"n": {"files": "n.csv", "id": "id", "tables": rules, "ignore": ["pad"]}}, {})
    first = int(pd.Timestamp("2024-01-01").timestamp())
    want = {"fraction": (1, 0.5), "late": (0, 7), "day": (first, first + 1), "word": (0, 1)}
    want["at"] = (first * 1000, first * 1000 + 500)
    assert {name: (graph.table("n", name)[0], graph.table("n", name)[-1]) for name in rules} == want


def test_words_for_empty_cells(tmp_path: Path) -> None:
    text = {"n.csv": "id,a,y\n1,5,cat\n2,?,?\n3,6,dog\n"}
    entry = {"files": "n.csv", "id": "id", "tables": {"x": [{"column": "a", "fill": "mean"}], "y": "y"}}
    with pytest.raises(DataError, match=r"'a' holds string, wanted are numbers or lists of numbers \('\?' in row 2\)"):
        graph_of(tmp_path, text, {"n": entry}, {})
    graph = graph_of(tmp_path, text, {"n": entry | {"empty": ["?"]}}, {})
    assert (graph.table("n", "x").tolist(), graph.table("n", "y").tolist()) == ([[5], [5.5], [6]], [0, -1, 1])
    assert graph.provenance["notes"] == [
        "n: empty cells are filled: 1 of 'a'",
        "n: the labels y are 2 classes: 'cat', 'dog'",
        "n: 1 of 3 vertices have no label, so they are in no split",
    ]


def test_one_column_names_the_split(tmp_path: Path) -> None:
    text = "id,set\n1,train\n2,test\n3,\n4,train\n"
    graph = graph_of(tmp_path, {"n.csv": text}, {"n": {"files": "n.csv", "id": "id", "splits": "set"}}, {})
    found = {name: graph.split("n", name).tolist() for name in graph.schema.splits["n"]}
    assert found == {"train": [0, 3], "test": [1]}


@pytest.mark.parametrize(
    ("values", "rule", "words"),
    [
        ("1\n\n3", "a", r"'a' has empty values \(row 2\); \"fill\" in schema.json accepts them"),
        ("16777217\n1\n2", ["a"], r"'a' has the number 16777217, which float32 cannot hold \(row 1\); \"dtype\""),
        ("red\n1\n2", ["a"], r"\"classes\": true in schema.json numbers its values"),
        ("red\nblue\n2", {"column": "a", "classes": ["red", "blue"]}, r"value '2', which is not in 'classes' \(row 3"),
        ("300\n1\n2", {"column": "a", "dtype": "int8"}, "has the number 300, which int8 cannot hold"),
        ("1.5\n1\n2", {"column": "a", "dtype": "int64"}, "has the number 1.5, which int64 cannot hold"),
        ("1\n2\n3", {"column": "a", "fil": 0}, "unknown key 'fil'; did you mean 'fill'?"),
        ("1\n2\n3", {"column": "a", "dtype": "float"}, "'dtype' is 'float', wanted is one of float32"),
        ("1\n2\n3", {"column": "a", "time_unit": "fortnight"}, "'time_unit' is 'fortnight', wanted is one of"),
        ("1\n2\n3", {"column": "a", "fill": "x"}, "'fill' is 'x', wanted is a number or 'mean'"),
        ("2024-01-01\n\n2024-01-02", {"column": "a", "fill": "mean"}, "'fill' is 'mean', and only numbers have one"),
        ("1\n2\n3", {"fill": 0}, "needs either 'column' or 'columns'"),
        ("1.5\n2\n3", {"column": "a", "classes": True}, "classes are text, whole numbers or truth values"),
    ],
)
@pytest.mark.parametrize("way", ["n.csv", "n.parquet"])
def test_what_is_refused_says_which_key_accepts_it(tmp_path, way, values, rule, words):
    text = "\n".join(["id,a", *(f"{i},{v}" for i, v in enumerate(values.split("\n")))])
    frame = pd.read_csv(io.StringIO(text), parse_dates=["a"] if "2024" in values else None)
    refuses((DataError, ConfigError), words, node_graph, tmp_path, frame, way, {"x": rule})
    assert not (tmp_path / "out" / "g").exists()


def test_one_run_names_all_that_is_refused(tmp_path: Path) -> None:
    files = {"n.csv": "id,a,b,c\n1,,red,2024-01-01\n2,4,blue,2024-01-01 00:00:00.5\n", "e.csv": "s,t\n1,9\n8,2\n,1\n"}
    nodes = {"n": {"files": "n.csv", "id": "id", "tables": {"x": ["a", "b"], "time": "c"}}}
    edges = {"n__to__n": {"files": "e.csv", "src": "s", "dst": "t"}}
    with pytest.raises(DataError) as caught:
        graph_of(tmp_path, files, nodes, edges)
    text = str(caught.value)
    for part in (
        "refused are 5 things", "'a' has empty values (row 1)", "'b' holds string", "'c' has times that are no whole s (row 2)",
        "'s' has empty ids (row 3)", "'t' names the vertex 9, which is in no node file (row 1)",
    ):  # fmt: skip
        assert part in text
    assert "\n" not in text
    alone = nodes | {"n": {"files": "n.csv", "id": "id"}}
    many = "id," + ",".join(f"c{i}" for i in range(50)) + "\n1" + ",1" * 50 + "\n"
    far = "s,t\n" + "".join(f"{i},{i}\n" for i in range(100))
    strangers = r"the vertex 0, which is in no node file \(99 rows: 1: 0, 3: 2, 4: 3, 5: 4, 6: 5, \.\.\.\)"
    for text, of_edges, says in (
        (many, files["e.csv"], r"n\.csv: 50 columns are not imported: 'c0', .*'c19', \.\.\.: .*\"ignore\" there"),
        ("id,c\n1,1\n", far, r"n\.csv: 'c' is not imported.*--drop c"),
        ("id\n1\n", far, strangers),
    ):
        refuses(DataError, says, graph_of, tmp_path, {"n.csv": text, "e.csv": of_edges}, alone, edges)


NEAR = st.sampled_from([2**24 + 1, 2**53 + 1, 2**63 - 1])
WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**25), 2**25) | NEAR


@given(st.lists(WHOLE, min_size=1, max_size=5), st.sampled_from(["f2", "f4", "f8", "i1", "i4", "u8"]))
def test_integers_that_a_dtype_cannot_hold(values: list[int], dtype: str) -> None:
    def held(value: int) -> bool:
        if dtype[0] == "f":
            with np.errstate(over="ignore"):
                near = float(np.array(value).astype(dtype))
            return np.isfinite(near) and Fraction(near) == value
        return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max

    assert inexact(np.array(values, np.int64), np.dtype(dtype)).tolist() == [not held(value) for value in values]


def test_dtype_keeps_large_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [1, 2], "a": [2**53 + 1, 5]})
    for dtype in ("int64", "uint64"):
        rule = {"columns": ["a"], "dtype": dtype}
        assert node_graph(tmp_path, frame, "n.parquet", {"x": rule}).table("n", "x")[0, 0] == 2**53 + 1
    with pytest.raises(DataError, match="9007199254740993, which float64 cannot hold"):
        node_graph(tmp_path, frame, "n.parquet", {"x": {"columns": ["a"], "dtype": "float64"}})


def test_a_semicolon_is_said(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_bytes("\ufeffid;a\n1;2\n".encode())
    (tmp_path / "more.csv.gz").write_bytes(gzip.compress(b"id|a\n1|2\n"))
    files = {"n": "n.csv", "m": "more.csv.gz"}
    nodes = {name: {"files": file, "id": "id", "tables": {"a": "a"}} for name, file in files.items()}
    (tmp_path / "schema.json").write_text(json.dumps({"nodes": nodes}))
    notes = import_graph("table", tmp_path, tmp_path / "out")
    assert notes[:2] == ["n.csv: columns are separated by ';'", "more.csv.gz: columns are separated by '|'"]


def test_decimals_become_the_nearest_numbers() -> None:
    cents = [decimal.Decimal(n).scaleb(-2) for n in range(10_000)]
    found = plain("price", pa.array([*cents, None], pa.decimal128(6, 2)))
    assert found.to_pylist() == [*(float(str(price)) for price in cents), None]


pytest.importorskip("pyarrow", reason="needs pyarrow (atta[table])")

RNG = np.random.default_rng(7)


def social(folder: Path) -> dict[str, Any]:
    names = [f"user-{i}" for i in RNG.permutation(90)]
    people = {"user_id": names, "age": RNG.normal(size=90), "segment": RNG.integers(0, 3, 90), "is_train": [1, 0, 0] * 30,
              "validation": [False, True, False] * 30}  # fmt: skip
    pd.DataFrame(people).to_csv(folder / "people.csv", index=False)
    follows = pd.DataFrame({"who": RNG.choice(names, 200), "whom": RNG.choice(names, 200)})
    follows.to_csv(folder / "follows.csv", index=False)
    tables = {"x": ["age", "segment"]}
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
    ends = {"user": RNG.integers(0, 50, 100), "item": RNG.choice(items["sku"], 100)}
    orders = pd.DataFrame({"order_id": range(100), **ends, "at": at})
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
    heads = {"head": [f"e{i}" for i in range(30)], "relation": ["likes", "has"] * 15}
    heads["tail"] = [f"e{i}" for i in RNG.permutation(30)]
    pd.DataFrame(heads).to_csv(folder / "triples.tsv", sep="\t", index=False)
    return {
        "nodes": {"entities": {"files": "entities.tsv", "id": "entity"}},
        "edges": {"entities__*__entities": {"files": "triples.tsv", "src": "head", "dst": "tail", "type": "relation"}},
    }


def papers(folder: Path) -> dict[str, Any]:
    paper = {"id": range(100), "year": RNG.integers(1990, 2020, 100), "pages": RNG.integers(1, 90, 100)}
    paper["label"] = RNG.choice(["cs", "bio"], 100)
    pd.DataFrame(paper).to_parquet(folder / "paper.parquet")
    cites = {"source": RNG.integers(0, 100, 300), "target": RNG.integers(0, 100, 300), "weight": RNG.random(300)}
    pd.DataFrame(cites).to_parquet(folder / "cites.parquet")
    x = [{"column": "year", "scale": True}, {"column": "pages", "scale": True}]
    labelled = {"tables": {"y": "label", "x": x}, "splits": {"train": 0.8, "val": 0.1, "test": 0.1}}
    cites = {"files": "cites.parquet", "src": "source", "dst": "target", "tables": {"weight": "weight"}}
    return {
        "nodes": {"paper": {"files": "paper.parquet", "id": "id", **labelled}},
        "edges": {"paper__cites__paper": cites},
    }


def firms(folder: Path, labels: str) -> Any:
    """Firms with everyday columns, and payments between them; returns the frame of the firms."""
    n = 300
    firm = pd.DataFrame({
        "vat": [f"DE{i:04d}" for i in RNG.permutation(n)], "motto": [f"we do {i}" for i in range(n)],
        "sector": RNG.choice(["Energy", "Retail"], n), "country": RNG.choice(["AT", "DE", None], n),
        "revenue": np.where(RNG.random(n) < 0.2, np.nan, RNG.lognormal(12, 2, n)), "listed": RNG.integers(0, 2, n),
        "founded": RNG.integers(1900, 2020, n),
    })  # fmt: skip
    firm.to_csv(folder / "firms.csv", index=False)
    ends = {"payer": RNG.choice(firm.vat, 900), "payee": RNG.choice(firm.vat, 900)}
    pd.DataFrame(ends).to_csv(folder / "payments.csv", index=False)
    run("schema", folder, "--labels", labels)
    return firm


@pytest.mark.parametrize("labels", ["sector", "firms/sector"])
def test_a_guessed_schema_makes_features_that_a_model_can_learn_from(tmp_path: Path, labels: str) -> None:
    firm = firms(tmp_path, labels)
    graph = taken_in("table", tmp_path, tmp_path / "out" / "g")
    x, known = graph.table("firms", "x"), firm.revenue.notna()
    wanted = [(firm.revenue.fillna(firm.revenue.mean()) - firm.revenue.mean()) / firm.revenue.std(ddof=0), known]
    wanted += [firm.listed, (firm.founded - firm.founded.mean()) / firm.founded.std(ddof=0)]
    wanted += [firm.country.fillna("none") == name for name in ("AT", "DE", "none")]
    np.testing.assert_allclose(x, np.stack([np.asarray(one, np.float64) for one in wanted], 1), rtol=1e-5, atol=1e-5)
    assert graph.schema.classes["firms"]["x/country"] == ["AT", "DE", "none"]
    assert list(graph.table("firms", "y")) == list(firm.sector == "Retail")


@pytest.mark.parametrize("columns", [["a"], ["a", "b"], ["a", "v", "b"]])
def test_classes_in_columns_of_their_own_stand_side_by_side(tmp_path: Path, columns: list[str]) -> None:
    frame = pd.DataFrame({"id": range(6), "a": list("xyzxyz"), "b": list("rqqrqp"), "v": np.arange(6.0)})
    x = [{"column": name, "onehot": True} if name != "v" else name for name in columns]
    rest = sorted({"a", "b", "v"} - set(columns))
    graph = node_graph(tmp_path, frame, "n.csv", {"x": x}, ignore=rest)
    wanted = pd.get_dummies(frame[columns], columns=[name for name in columns if name != "v"], dtype=float)
    order = [column for name in columns for column in wanted.columns if column.partition("_")[0] == name]
    np.testing.assert_array_equal(graph.table("n", "x"), wanted[order].to_numpy(np.float32))


def test_shares_of_splits_are_drawn_once_for_all(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": range(4000), "y": RNG.choice(["a", "b", None], 4000)})
    shares = {"train": 0.5, "val": 0.2, "test": 0.1}
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    splits = [node_graph(folder, frame, "n.csv", {"y": "y"}, splits=shares) for folder in folders]
    drawn = [{name: set(graph.split("n", name).tolist()) for name in shares} for graph in splits]
    assert drawn[0] == drawn[1]
    labelled = set(np.flatnonzero(frame.y.notna()))
    assert set.union(*drawn[0].values()) <= labelled
    assert sum(map(len, drawn[0].values())) == len(set.union(*drawn[0].values()))
    for name, share in shares.items():
        assert abs(len(drawn[0][name]) / len(labelled) - share) < 0.05, name


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"splits": {"train": 0.8, "val": 0.3}}, "'splits' is .*, wanted is an object with a column, or a share"),
        ({"splits": {"train": 0.8, "val": "t"}}, "'splits' is .*, wanted is an object with a column, or a share"),
        ({"splits": {"train": 0}}, "'splits' is .*, wanted is an object with a column, or a share"),
        (
            {"tables": {"x": {"column": "t", "onehot": True, "scale": True}}},
            "column 't': 'scale' is true, and only numbers have a mean",
        ),
        ({"tables": {"x": {"column": "t", "onehot": 1}}}, "'onehot' is 1, wanted is true or false"),
        ({"tables": {"x": {"column": "v", "scale": True}}}, r"'v' has empty values \(row 2\); .fill. in schema.json"),
    ],
)
def test_shares_and_ways_of_features_that_are_refused(tmp_path: Path, entry: Any, words: str) -> None:
    frame = pd.DataFrame({"id": range(3), "t": list("aab"), "v": [1.0, None, 2.0]})
    tables = entry.get("tables", {})
    rest = {"splits": entry["splits"]} if "splits" in entry else {}
    ignore = sorted({"t", "v"} - {rule["column"] for rule in tables.values()})
    refuses(DataError, words, node_graph, tmp_path, frame, "n.parquet", tables, ignore=ignore, **rest)


def test_a_slip_in_the_schema_is_shown_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"nodes": {"n": {"files": "n.csv", "id": "id",}},\n "edges": {}}')
    refuses(DataError, r"not valid JSON: .*line 1 column 4\d", taken_in, "table", tmp_path, tmp_path / "out" / "g")


def test_labels_that_are_no_column(tmp_path: Path) -> None:
    for slip in ("sectors", "firms/sectors", "SECTOR"):
        near = "firms/sector" if "/" in slip else "sector"
        with pytest.raises(ConfigError, match=rf"--labels {slip}: no column of vertices; did you mean '{near}'\?$"):
            firms(tmp_path, slip)
    with pytest.raises(ConfigError, match=r"--labels q: no column of vertices; there are: .*motto.*vat"):
        firms(tmp_path, "q")


def ratings(folder: Path) -> dict[str, Any]:
    """Users have no file of their own, ids are numbers of any type, and times seconds."""
    pd.DataFrame({"movieId": range(1, 41), "minutes": range(40)}).to_csv(folder / "movies.csv", index=False)
    frame = {
        "userId": RNG.integers(1, 30, 90),
        "movieId": RNG.integers(1, 41, 90),
        "rating": RNG.integers(1, 9, 90) / 2,
    }
    pd.DataFrame({**frame, "timestamp": 978300760 + np.arange(90)}).to_csv(folder / "ratings.csv", index=False)
    user = {"files": "ratings.csv", "id": "userId", "ignore": ["movieId", "rating", "timestamp"], "distinct": True}
    tables = {"rating": "rating", "time": "timestamp"}
    return {
        "nodes": {
            "movies": {"files": "movies.csv", "id": "movieId", "tables": {"x": [{"column": "minutes", "scale": True}]}},
            "user": user,
        },
        "edges": {
            "user__ratings__movies": {"files": "ratings.csv", "src": "userId", "dst": "movieId", "tables": tables}
        },
    }


def test_vertices_that_only_edges_name(tmp_path: Path) -> None:
    ratings(tmp_path)
    run("schema", tmp_path, "-q")
    graph, frame = taken_in("table", tmp_path, tmp_path / "out" / "g"), pd.read_csv(tmp_path / "ratings.csv")
    assert sorted(graph.user_ids("user")) == sorted(frame.userId.unique())
    edges = graph.edges("user__ratings__movies")
    np.testing.assert_array_equal(np.asarray(graph.user_ids("user"))[edges.src], frame.userId)
    np.testing.assert_array_equal(np.asarray(graph.user_ids("movies"))[edges.dst], frame.movieId)
    refuses(UnknownNameError, "unknown split 'train': 'user' has none; tables get some", graph.split, "user", "train")
    said = json.loads((tmp_path / "schema.json").read_text())
    said["nodes"]["user"]["tables"] = {"rating": "rating"}
    (tmp_path / "schema.json").write_text(json.dumps(said))
    refuses(DataError, "'distinct' have neither", taken_in, "table", tmp_path, tmp_path / "out" / "h")


USERS = [f"u{number},1" for number in range(20)]


@pytest.mark.parametrize(
    ("users", "rated", "words"),
    [
        (
            [*USERS, "u5,1"],
            ["u1,i1", "u1,i2"],
            "'user_id' would be ids, but has 'u5' twice: row 6 of users.csv and row 21 of",
        ),
        (USERS, ["u1,i1", "v1,i1", "v2,i2", "v2,i1"], "r.csv: not in .*: 33% of 'user_id' are ids of 'users'"),
        ([], ["u1,i1", "u1,i2"], "users.csv: not in schema.json: it has no rows"),
    ],
)
def test_a_file_that_is_left_out_says_what_it_lacks(
    tmp_path: Path, users: list[str], rated: list[str], words: str
) -> None:
    items = ["item_id,p", *(f"i{number},{number}" for number in range(20))]
    files = {"users": ["user_id,t", *users], "items": items, "r": ["user_id,item_id", *rated]}
    for name, lines in files.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    assert re.search(words, " ".join(run("schema", tmp_path).output.split()))


def test_what_a_guess_leaves_out_comes_with_what_takes_it_in(tmp_path: Path) -> None:
    cells = ["1.5", "abc", *(str(number) for number in range(18))]
    lines = {
        "users": ["id,income", *(f"{number},{cell}" for number, cell in enumerate(cells))],
        "knows": ["weight,from,to", *(f"0.5,{number},{number + 12}" for number in range(20))],
    }
    for name, text in lines.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(text) + "\n")
    said = " ".join(run("schema", tmp_path).output.split())
    assert """'income' has numbers but for "abc" (row 2 of users.csv): "empty": ["abc"] beside "files" makes""" in said
    assert """such cells empty; then name it in a table, not in "ignore" """ in said
    (entry,) = re.findall(r'knows.csv: not in .*; add to its "edges": ("users__knows__users": {.*?})', said)
    schema = json.loads((tmp_path / "schema.json").read_text())
    schema["edges"] = json.loads(f"{{{entry}}}")
    schema["nodes"]["users"] |= {"empty": ["abc"], "tables": {"x": [{"column": "income", "fill": 0}]}, "ignore": []}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    graph = taken_in("table", tmp_path, tmp_path / "out" / "g")
    assert len(graph.edges("users__knows__users").src) == 8
    assert graph.table("users", "x").ravel()[:3].tolist() == [1.5, 0.0, 0.0]


@pytest.mark.parametrize("labels", ["none", "stars"])
def test_a_number_that_is_none_makes_a_category_and_that_is_said(tmp_path: Path, labels: str) -> None:
    for number, cells in (("1", "1,2,3,1,2,3,1,2,3,1"), ("2", "4,5,ten,1,2,3,4,5,ten,1")):
        rows = [f"{number}{place},{cell}" for place, cell in enumerate(cells.split(","))]
        (tmp_path / f"users-{number}.csv").write_text("\n".join(["id,stars", *rows]) + "\n")
    said = " ".join(run("schema", tmp_path, "--labels", labels).output.split())
    (table,) = re.findall(
        r"""'stars' is a category: it has numbers but for "ten" \(row 3 of users-2.csv\): "empty": \["ten"\] beside """
        r""""files" makes such cells empty, and {"column": "stars", "fill": "mean"} in place of its rule in (.) takes numbers""",
        said,
    )
    schema = json.loads((tmp_path / "schema.json").read_text())
    schema["nodes"]["users"] |= {"empty": ["ten"], "tables": {table: [{"column": "stars", "fill": "mean"}]}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    graph = taken_in("table", tmp_path, tmp_path / "out" / "g")
    assert graph.table("users", table).ravel()[[0, 10, 11]].tolist() == [1.0, 4.0, 5.0]


def run(*words: object) -> Result:
    group = click.Group(commands={c.name: c for c in COMMANDS})
    result = CliRunner().invoke(group, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result


@pytest.mark.parametrize("make", [social, shop, knowledge, papers, ratings])
def test_guesses(tmp_path: Path, make: Callable[[Path], dict[str, Any]]) -> None:
    folder = tmp_path / "my tables"
    folder.mkdir()
    want = make(folder)
    said = run("schema", folder).output
    path = folder / "schema.json"
    assert json.loads(path.read_text()) == want
    assert f"{path}: written; tried: atta import table '{folder}' GRAPH works" in " ".join(said.split())
    assert ("an edge counts whatever its 'rating' (0.5 to 4)" in said) == (make is ratings)
    for files in (entry["files"] for kind in want.values() for entry in kind.values()):
        assert files in said
    assert set(taken_in("table", folder, tmp_path / "out" / "g").schema.node_types) == set(want["nodes"])


def gconstruct(folder: Path) -> dict[str, Any]:
    """Tables, and what GraphStorm's documentation has one write about them."""
    paper = {
        "pid": range(20),
        "venue": list("abcd") * 5,
        "pages": range(20),
        "year": range(1990, 2010),
        "title": ["t"] * 20,
    }
    paper["topic"] = [None, "ml", "db", "ml"] * 5
    pd.DataFrame(paper).to_csv(folder / "paper.csv", sep="|", index=False)
    for number in range(2):
        pd.DataFrame({"aid": [f"a{number}", f"b{number}"], "vector": [[0.5, 1.0]] * 2}).to_parquet(
            folder / f"a{number}.parquet"
        )
    wrote = {"author": ["a0", "b1"], "paper": [3, 4], "weight": [0.5, 1.5], "role": [0, 1]}
    pd.DataFrame(wrote).to_parquet(folder / "wrote.parquet")
    scaled = {"feature_col": ["pages", "year"], "feature_name": "n", "transform": {"name": "max_min_norm"}}
    label = {"label_col": "topic", "task_type": "classification", "split_pct": [0.75, 0.25, 0.0]}
    ends = {"source_id_col": "author", "dest_id_col": "paper", "relation": ["author", "writes", "paper"]}
    role = {"label_col": "role", "task_type": "classification", "split_pct": [0.8, 0.2, 0]}
    return {
        "version": "gconstruct-v0.1",
        "nodes": [
            {"node_type": "paper", "format": {"name": "csv", "separator": "|"}, "files": str(folder / "paper.csv"),
             "node_id_col": "pid", "labels": [label],
             "features": [scaled, {"feature_col": "venue", "transform": {"name": "to_categorical"}}]},
            {"node_type": "author", "format": {"name": "parquet"}, "node_id_col": "aid", "features": [{"feature_col": "vector"}],
             "files": [str(folder / f"a{number}.parquet") for number in (1, 0)]},
        ],
        "edges": [{**ends, "format": {"name": "parquet"}, "files": str(folder / "wrote.parquet"), "labels": [role],
                   "features": [{"feature_col": "weight"}]}],
    }  # fmt: skip


def test_the_schema_of_graphstorms_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = gconstruct(tmp_path)
    (tmp_path / "g.json").write_text(json.dumps(said))
    output = " ".join(run("schema", tmp_path, "--from", tmp_path / "g.json").output.split())
    assert "pages, year: scaled to mean 0 and deviation 1, where max_min_norm gives 0 to 1" in output
    assert "train with --task edge-classes --edge-type author__writes__paper --edge-split 0.8,0.2,0" in output
    graph = taken_in("table", tmp_path, tmp_path / "out" / "g")
    x, venue = graph.table("paper", "x"), np.eye(4)[np.arange(20) % 4]
    scaled = (np.arange(20) - 9.5) / np.arange(20).std()
    np.testing.assert_allclose(x, np.column_stack([scaled, scaled, venue]), rtol=1e-5, atol=1e-6)
    assert graph.table("paper", "y").tolist() == [-1, 1, 0, 1] * 5
    assert set(graph.schema.splits["paper"]) == {"train", "val"}
    assert list(to_strings(graph.table("author", "name"))) == ["a1", "b1", "a0", "b0"]
    assert graph.table("author", "x").tolist() == [[0.5, 1.0]] * 4
    edges = graph.edges("author__writes__paper")
    assert (edges.src.tolist(), edges.dst.tolist()) == ([2, 1], [3, 4])
    assert (edges.tables["weight"].tolist(), edges.tables["y"].tolist()) == ([0.5, 1.5], [0, 1])
    monkeypatch.chdir(tmp_path)  # relative paths: to the current folder, not to that of the schema
    (tmp_path / "s").mkdir()
    said["edges"] = []
    said["nodes"] = [said["nodes"][0] | {"files": "paper.csv"}]
    (tmp_path / "g.json").write_text(json.dumps(said))
    run("schema", "s", "--from", "g.json")
    assert json.loads(Path("s/schema.json").read_text())["nodes"]["paper"]["files"] == "../paper.csv"
    refuses(
        ConfigError, "--labels: not with --from", run, "schema", "s", "--from", "g.json", "--labels", "y", "--overwrite"
    )


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("nodes", {"format": {"name": "hdf5"}}, "paper: format 'hdf5': tables are Parquet or CSV"),
        ("nodes", {"node_type": "author"}, "author: has two blocks"),
        ("nodes", {"files": 5}, r"nodes\[0\]: is not as GraphStorm takes it: 'int' object"),
        ("nodes", {"extra": 5}, r"nodes\[0\]: a schema has nothing for extra"),
        ("nodes", {"labels": [{"task_type": "reconstruct_node_feat"}]}, "task_type 'reconstruct_node_feat'"),
        (
            "nodes",
            {"labels": [{"task_type": "regression", "custom_split_filenames": {}}]},
            "nothing for custom_split_f",
        ),
        (
            "nodes",
            {"features": [{"feature_col": "title", "transform": {"name": "bert_hf", "max_seq_length": 9}}]},
            'paper: title: a schema has nothing for the transform {"name": "bert_hf", "max_seq_length": 9}: store',
        ),
        ("edges", {"relation": ["author", "paper"]}, "expected a source type, a relation and a destination type"),
        (
            "edges",
            {"labels": [{"task_type": "regression", "label_col": "weight"}]},
            "a label of task_type 'regression'",
        ),
    ],
)
def test_what_no_schema_says_of_graphstorms_configuration(tmp_path: Path, kind: str, change: Any, words: str) -> None:
    said = gconstruct(tmp_path)
    said[kind][0] |= change
    (tmp_path / "g.json").write_text(json.dumps(said))
    refuses(DataError, words, run, "schema", tmp_path, "--from", tmp_path / "g.json")
    assert not (tmp_path / "schema.json").exists()


def test_a_schema_is_not_overwritten(tmp_path: Path) -> None:
    social(tmp_path)
    (tmp_path / "schema.json").write_text("mine")
    refuses(ConfigError, r"schema\.json exists; --overwrite replaces it", run, "schema", tmp_path)
    assert (tmp_path / "schema.json").read_text() == "mine"
    assert run("schema", tmp_path, "--overwrite", "-q").output == ""
    assert "DST" not in run("schema", "--help").output
    assert (tmp_path / "schema.json").read_text() != "mine"


def test_labels_are_called_so_or_named(tmp_path: Path) -> None:
    rows = "".join(f"a{n},{'xy'[n % 2]},{n % 3}\n" for n in range(12))
    (tmp_path / "n.csv").write_text("id,kind,label\n" + rows)
    guesses = {one: guess_schema(tmp_path, one) for one in (None, "kind", "none")}
    labels = {one: guess.schema["nodes"]["n"]["tables"].get("y") for one, guess in guesses.items()}
    assert labels == {None: "label", "kind": "kind", "none": None}
    told = "  table y, the labels: 'label' (3 different values; no feature: move it to x to make it one)"
    assert told in guesses[None].lines
    assert not any("labels" in line for line in guesses["none"].lines)
    assert run("schema", tmp_path, "--labels", "none").exit_code == 0
    graph = taken_in("table", tmp_path, tmp_path / "out" / "g")
    assert set(graph.schema.node_tables["n"]) == {"x", "name"}
    assert graph.table("n", "x")[:3].tolist() == [[0, 1, 0], [1, 0, 1], [2, 1, 0]]
    (tmp_path / "n.csv").write_text("id,kind,v\n" + rows)
    lines = guess_schema(tmp_path).lines
    assert lines[-1].startswith("no labels: --labels COLUMN (with --overwrite) names what is to be predicted; --task")
    (tmp_path / "n.csv").write_text("id,kind,shop_category\n" + rows)
    told = "its name says so, and as a feature it would give the answer away"
    assert guess_schema(tmp_path).lines[-1] == f"  it may be 'shop_category': {told}"
    (tmp_path / "n.csv").write_text(
        "id,joined,kind\n" + "".join(f"a{n},{'2024-01-02' * (n > 2)},{'xy'[n % 2] * (n > 6)}\n" for n in range(12))
    )
    lines = guess_schema(tmp_path).lines
    assert "    empty cells become 1970-01-01: joined (is empty: row 1 of n.csv and row 2 of n.csv)" in lines
    assert lines[-1] == "  it may be 'kind': 58% of its cells are empty"
    (tmp_path / "people.csv").write_text("user_id,segment\n" + "".join(f"{max(n, 1)},a\n" for n in range(20)))
    told = "people.csv has it, but lists no vertices: .* 'user_id' would be ids, but has 1 twice: row 1 of"
    with pytest.raises(ConfigError, match=f"--labels segment: no column of vertices; there are: .*; {told}"):
        guess_schema(tmp_path, "segment")


@pytest.mark.parametrize("text", ["id,größe\n1,2\n2,3\n", "id,name\n1,Größe\n2,b\n"])
def test_files_that_are_no_utf_8(tmp_path: Path, text: str) -> None:
    (tmp_path / "n.csv").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match="save the file as UTF-8, as iconv -f latin1 -t utf8 does") as caught:
        guess_schema(tmp_path)
    assert caught.value.path == str(tmp_path / "n.csv")


def test_what_has_no_ids(tmp_path: Path) -> None:
    refuses(DataError, "holds no Parquet or CSV files", guess_schema, tmp_path)
    (tmp_path / "e.csv").write_text("a,b\n1,1\n1,2\n2,1\n2,1\n")
    refuses(DataError, 'so none lists vertices .*"distinct": true takes', guess_schema, tmp_path)
    (tmp_path / "n.csv").write_text("id,t\n1,3\n2,4\n3,5\n")
    (tmp_path / "other.csv").write_text("p,q\n7.5,x\n7.5,x\n")
    guess = guess_schema(tmp_path)
    assert guess.schema["edges"] == {"n__e__n": {"files": "e.csv", "src": "a", "dst": "b"}}
    assert any("other.csv: not in schema.json" in line for line in guess.lines)
    said = " ".join(run("schema", tmp_path).output.split())
    assert "edit it, for this is refused" in said
    assert "'other.csv' is not imported: schema.json does not name it" in said


PAPERS = [f"p{number}" for number in range(60)]


def chains(folder: Path, ids: list[str], dates: list[str], columns: str = "source,target,date") -> str:
    """Papers, each of which cites the next one; returns what a guess says."""
    rows = [f"{paper},{'ab'[number % 2]}" for number, paper in enumerate(ids)]
    cites = [f"{PAPERS[n]},{PAPERS[n - 1]},{date}" for n, date in enumerate(dates)]
    for name, lines in {"papers": ["paper,label", *rows], "cites": [columns, *cites]}.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return " ".join(run("schema", folder, "--overwrite").output.split())


@pytest.mark.parametrize("dates", [["2024-01-02"] * 60, [f"2024-{n % 12 + 1:02}-{n // 12 + 1:02}" for n in range(60)]])
def test_edges_whose_sources_occur_once_are_edges(tmp_path: Path, dates: list[str]) -> None:
    chains(tmp_path, PAPERS, dates)
    schema = json.loads((tmp_path / "schema.json").read_text())
    assert (list(schema["nodes"]), list(schema["edges"])) == (["papers"], ["papers__cites__papers"])
    assert schema["edges"]["papers__cites__papers"].keys() == {"files", "src", "dst", "tables"}
    chains(tmp_path, [*PAPERS[:-1], "stranger"], dates)  # a source that is in no other file
    edges = json.loads((tmp_path / "schema.json").read_text())["edges"]
    assert edges["papers__cites__papers"]["unknown"] == "drop"


@pytest.mark.parametrize("key", ["cites_id", "id", "member"])
def test_vertices_that_name_others_stay_vertices(tmp_path: Path, key: str) -> None:
    """By the name of their ids; or because these are not all ids of another file."""
    said = chains(tmp_path, [*PAPERS[:-1], "stranger"], ["2024-01-02"] * 60, f"{key},target,date")
    assert f"cites.csv: vertices 'cites', ids '{key}' (60 different)" in said
    assert "no edges begin or end at papers, so a model sees no neighbours there" in said
    notes = import_graph("table", tmp_path, tmp_path / "out")
    assert notes[-1] == "no edges begin or end at papers, so a model sees no neighbours there"


@pytest.mark.parametrize(
    ("cell", "words"), [("p5", "has 'p5' twice: row 6 of papers.csv and row 60"), ("", "is empty: row 60")]
)
def test_an_id_that_is_none_is_named(tmp_path: Path, cell: str, words: str) -> None:
    said = chains(tmp_path, [*PAPERS[:-1], cell], ["2024-01-02"] * 60)
    slip = f"'paper' would be ids, but {words} of papers.csv"
    assert re.search(f"papers.csv: not in schema.json: .*{slip}", said)
    (tmp_path / "cites.csv").unlink()
    refuses(DataError, rf"none lists vertices \(papers.csv: {slip}\); atta import edges takes", guess_schema, tmp_path)


def test_a_lapse_in_dates_is_named_and_what_is_filled_is_counted(tmp_path: Path) -> None:
    dates = ["2024-01-02", "2024-03-04"] * 30
    assert "1970-01-01: date (is empty: row 17 of cites.csv)" in chains(
        tmp_path, PAPERS, [*dates[:16], "", *dates[17:]]
    )
    notes = import_graph("table", tmp_path, tmp_path / "out")
    assert "papers__cites__papers: empty cells are filled: 1 of 'date'" in notes
    said = chains(tmp_path, PAPERS, [*dates[:16], "31.12.2024", *(f"2024-01-{n}" for n in range(10, 30))])
    assert '\'date\' has dates such as %Y-%m-%d but for "31.12.2024" (row 17 of cites.csv): "empty": ["31.12' in said


@pytest.mark.parametrize("heading", ["user,item,rating,date,remark", "source,target,w,time,remark"])
def test_edges_alone_come_in_by_the_command_that_is_told(tmp_path: Path, heading: str) -> None:
    rows = [f"{n % 7},{n % 5},{n % 3},2024-01-0{n % 8 + 1},ok" for n in range(70)]
    (tmp_path / "r.csv").write_text("\n".join([heading, *rows]) + "\n")
    with pytest.raises(DataError) as caught:
        guess_schema(tmp_path)
    (command,) = re.findall(r"atta import (edges .*?) takes a file of edges alone", str(caught.value))
    group = click.Group(commands={c.name: c for c in GRAPHS})
    words = shlex.split(command.replace("DST", str(tmp_path / "g")))
    assert CliRunner().invoke(group, ["import", *words]).exit_code == 0
    types = Graph.open(tmp_path / "g").schema
    both = ["left__to__right", "right__rev_to__left"] if "user" in heading else ["node__to__node"]
    assert sorted(types.edge_types) == both
    assert set(types.edge_tables[both[0]]) == {"time", "weight"}
