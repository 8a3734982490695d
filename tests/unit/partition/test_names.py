"""Free names of types and string ids: encodings that lose nothing, graph folders that hold them, renaming at import."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.daemon.services import data as strings
from atta.daemon.services.data import StringIndex
from atta.errors import ConfigError, UnknownNameError
from atta.partition import Graph, GraphWriter, partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph.strings import as_strings, string_width, to_rows, to_strings
from atta.partition.importers import import_graph
from atta.partition.names import (
    check_type_name,
    file_name,
    join_edge_type,
    module_name,
    name_of_file,
    split_edge_type,
    table_word,
)
from atta.partition.schema import Schema, TableSpec
from atta.train.models.typed import LayersByType
from tests.unit.partition.oracles import refuses, taken_in

SIGNS = st.one_of(st.sampled_from("_%/. #<>:~a"), st.characters()).filter(str.isprintable)
NAMES = st.text(SIGNS, min_size=1, max_size=100).filter(lambda name: name == name.strip())
TRIPLES = st.tuples(NAMES, NAMES, NAMES)


@given(TRIPLES)
def test_the_names_of_an_edge_type_come_back(names: tuple[str, str, str]) -> None:
    joined = join_edge_type(*names)
    assert split_edge_type(joined) == names
    assert joined.split("__") == [join_edge_type(name, "r", "r").removesuffix("__r__r") for name in names]


@given(st.one_of(NAMES, TRIPLES.map(lambda names: join_edge_type(*names))))
def test_file_names_are_safe_and_tell_what_they_stand_for(name: str) -> None:
    found = file_name(name, ".npy", prefix="x__")
    assert found.isascii()
    assert len(found) <= 255
    assert not set(found) & set('/\\\0:*?"<>| ')
    assert not file_name(name).startswith(".")
    if "%%" not in file_name(name):
        assert name_of_file(file_name(name)) == name


@given(st.lists(st.one_of(NAMES, TRIPLES.map(lambda names: join_edge_type(*names))), unique=True, max_size=8))
def test_different_names_have_different_files_and_words(names: list[str]) -> None:
    assert len({file_name(name) for name in names}) == len(names)
    assert len({table_word(name) for name in names}) == len(names)
    assert all(re.fullmatch("(?:[A-Za-z0-9.-]|_(?!_))+", table_word(name)) for name in names)


@given(st.lists(NAMES, unique=True, max_size=8))
def test_layers_of_a_model_are_found_by_any_name(names: list[str]) -> None:
    import torch

    layers = {name: torch.nn.Identity() for name in names}
    assert dict(LayersByType(layers).items()) == layers
    keys = [module_name(name) for name in names]
    assert "___".join(keys).split("___") == (keys or [""])


@pytest.mark.parametrize("edge_type", ["a__to__b", "my.type-1__r_2__x", "n" * 100 + "__r__" + "n" * 100])
def test_plain_names_are_their_own_files(edge_type: str) -> None:
    assert file_name(edge_type) == join_edge_type(*edge_type.split("__")) == edge_type


@pytest.mark.parametrize("name", ["", " a", "a\u00a0", "a\nb", "a\x1b[31m", "\u202eab", "a\0", "\ud800", "a" * 101, 7])
def test_names_that_a_terminal_or_a_file_would_not_bear_are_refused(name: str) -> None:
    refuses(ConfigError, "1 to 100 printable characters", check_type_name, "node type", name)


@pytest.mark.parametrize("edge_type", ["a%b__r__c", "a%41__r__c", "a%5Fb__r__c", "%25%5__r__c"])
def test_a_text_that_joining_never_gives_is_no_edge_type(edge_type: str) -> None:
    refuses(ConfigError, "is written %25", split_edge_type, edge_type)


def test_a_graph_folder_keeps_names_and_stays_within_itself(tmp_path: Path) -> None:
    names, joined = ("../up", "..", "/etc/a__b"), join_edge_type("../up", "..", "/etc/a__b")
    with GraphWriter(tmp_path / "in" / "g") as out:
        for name in {names[0], names[2]}:
            out.add_nodes(name, 2, tables={"x": np.eye(2)}, ids=[4, 7], splits={"train": [1]})
        out.add_edges(joined, [0], [1], tables={"weight": np.ones(1)})
    graph = Graph.open(tmp_path / "in" / "g")
    assert {*graph.schema.node_types} == {names[0], names[2]}
    assert [split_edge_type(e) for e in graph.schema.edge_types] == [names]
    assert graph.edges(joined).tables["weight"].tolist() == [1]
    assert graph.user_ids("../up").tolist() == [4, 7]
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert sorted(p.name for p in (tmp_path / "in" / "g").iterdir()) == ["edges", "graph.json", "nodes"]
    assert len([*(tmp_path / "in" / "g").rglob("*.npy")]) == len(graph.files) == 9


def test_an_edge_type_is_found_as_people_write_it(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "g") as out:
        for name in ("a__b", "a", "b__c", "c"):
            out.add_nodes(name, 1)
        for names in (("a__b", "100%", "c"), ("a", "r", "b__c"), ("a__b", "r", "c"), ("a", "b__r", "c")):
            out.add_edges(join_edge_type(*names), [0], [0])
    schema = Graph.open(tmp_path / "g").schema
    assert schema.find_edge_type("a__b__100%__c") == "a%5F%5Fb__100%25__c"
    assert schema.find_edge_type(("a", "r", "b__c")) == schema.find_edge_type("a__r__b__c") == "a__r__b%5F%5Fc"
    refuses(ConfigError, "may be a%5F%5Fb__r__c or a__b%5F%5Fr__c", schema.find_edge_type, "a__b__r__c")
    refuses(UnknownNameError, "unknown edge type 'a__r__b__d'", schema.find_edge_type, "a__r__b__d")
    names, says = ("a", "a__r__a"), "'a__r__a' is a node type and an edge type"
    refuses(ConfigError, says, Schema, names, names[1:], dict.fromkeys(names, 1), {"a__r__a": 1})


def source(folder: Path) -> Path:
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["gene/protein"].feat = torch.tensor([[1, 2], [3, 4]])
    data["gene/protein"].label = torch.tensor([0, 4])
    data["gene/protein"].y = torch.tensor([0.5, 0.25])
    data["drug"].feat = torch.ones(2, 2)
    for relation, target in (("targets", "gene/protein"), ("like", "drug")):
        data["drug", relation, target].edge_index = torch.tensor([[0], [1]])
        data["drug", relation, target].score = torch.tensor([0.5])
    torch.save(data, folder / "g.pt")
    return folder / "g.pt"


def test_renamed_types_relations_and_tables(tmp_path: Path) -> None:
    new = {"gene/protein": "gene", "targets": "hits", "drug__like__drug": "is like", "feat": "x", "label": "y"}
    new |= {"gene/protein/y": "dose", "score": "weight"}
    graph = taken_in("pyg", source(tmp_path), tmp_path / "g", reverse=True, rename=new)
    schema = graph.schema
    assert schema.node_types == ("drug", "gene")
    triples = {("drug", "hits", "gene"), ("gene", "rev_hits", "drug"), ("drug", "is like", "drug")}
    assert {split_edge_type(e) for e in schema.edge_types} == triples | {("drug", "rev_is like", "drug")}
    assert {t: sorted(schema.node_tables[t]) for t in schema.node_types} == {"drug": ["x"], "gene": ["dose", "x", "y"]}
    assert schema.node_tables["gene"]["x"].dtype == "<f4"
    assert graph.table("gene", "y").tolist() == [0, 4]
    assert schema.num_classes == 5
    assert graph.table("gene", "dose").tolist() == [0.5, 0.25]
    assert graph.edges("gene__rev_hits__drug").tables["weight"].tolist() == [0.5]
    assert graph.provenance["renamed"] == new


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({"drugs": "d"}, "unknown old name of --rename 'drugs'; did you mean 'drug'?"),
        ({"drug": "gene/protein"}, "node types 'drug' and 'gene/protein' would both be called 'gene/protein'"),
        ({"like": "a\nb"}, "relation 'a\\\\nb': names of types have 1 to 100"),
        ({"feat": "y"}, "tables of 'gene/protein', '.*' and '.*' would both be called 'y'"),
        ({"feat": "has feat"}, "table 'has feat': names consist of letters"),
    ],
)
def test_renames_that_are_refused(tmp_path: Path, new: dict[str, str], words: str) -> None:
    refuses(ConfigError, words, import_graph, "pyg", source(tmp_path), tmp_path / "g", rename=new)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint32])
def test_whole_numbers_that_become_features_are_not_rounded(tmp_path: Path, dtype: Any) -> None:
    says = "table 'feat' of 'node': holds the whole number 16777217, which float32 rounds"
    for value, end in ((2**24, contextlib.nullcontext()), (2**24 + 1, pytest.raises(ConfigError, match=says))):
        with end, GraphWriter(tmp_path / f"{value}", rename={"feat": "x"}) as out:
            out.add_nodes("node", 1, tables={"feat": np.array([value], dtype)})


def test_times_and_classes_of_types_with_free_names(tmp_path: Path) -> None:
    owner = "Straße/a b__c%"
    with GraphWriter(tmp_path / "g", rename={"thing": owner, "kind": "y", "y": "other"}) as out:
        out.add_nodes("thing", 4, tables={"time": np.array([3, 1, 4, 1]), "kind": np.array([0, 1, 0, 0])})
        out.note_classes("thing", "kind", ["old", "new", "rare"])
        out.note_classes("thing", "y", [*"abcdefgh"])
        out.add_table("y", np.zeros(4, np.int64), "thing")
    partition_graph(tmp_path / "g", tmp_path / "p", parts=2, method="random")
    dataset = Dataset.open(tmp_path / "p")
    assert all((dataset.path / name).is_file() for name in dataset.time_files(owner))
    assert len(dataset.time_files(owner)) == 2
    times = dataset.times(owner)
    assert times.times[dataset.sorted_internal(owner)].tolist() == [3, 1, 4, 1]
    assert dataset.schema.num_classes == 3
    assert dataset.schema.classes == {owner: {"y": ["old", "new", "rare"], "other": [*"abcdefgh"]}}


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(TEXT, max_size=30))
@settings(max_examples=60, deadline=None)
def test_rows_are_python_s_utf8_and_come_back(names: list[str]) -> None:
    array = np.array(names, dtype=np.str_)
    rows = to_rows(array)
    assert rows.dtype == np.uint8
    assert [bytes(row).rstrip(b"\0") for row in rows] == [name.encode() for name in names]
    assert to_strings(rows).tolist() == names


@given(st.lists(TEXT, unique=True, min_size=1, max_size=40), st.lists(TEXT, max_size=40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_an_index_finds_what_a_dict_finds(names: list[str], others: list[str], same_hashes: int) -> None:
    place, asked = {name: i for i, name in enumerate(names)}, others + names[::-1]
    with pytest.MonkeyPatch.context() as patch:
        if same_hashes:  # bytes decide where hashes are equal
            patch.setattr(strings, "_hashes", lambda rows: rows.sum(1).astype(np.uint64) % np.uint64(same_hashes))
        index = StringIndex(to_rows(np.array(names)))
        assert index.twice() is None
        found = index.find(to_rows(np.array(asked, np.str_)))
    assert found.tolist() == [place.get(name, -1) for name in asked]


def test_an_index_of_many_rows_and_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strings, "_CHUNK_ROWS", 1000)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (9700, 13)).astype(np.uint8)
    index = StringIndex(rows)
    some = rng.integers(0, len(rows), 500)
    assert (rows[index.find(rows[some])] == rows[some]).all()
    assert (index.find(rows[some] + 5) == -1).all()
    twice = index.twice()
    assert (twice is None) == (len(np.unique(rows, axis=0)) == len(rows))
    assert twice is None or (rows == rows[twice]).all(1).sum() > 1
    assert StringIndex(np.empty((0, 4), np.uint8)).find(rows[:3]).tolist() == [-1, -1, -1]


def test_a_string_that_two_rows_have() -> None:
    index = StringIndex(to_rows(np.array(["a", "b", "c", "b"])))
    assert index.twice() in (1, 3)
    assert index.find(to_rows(np.array(["b"]))).tolist() == [1]


def test_what_holds_strings() -> None:
    pa, pd, names = pytest.importorskip("pyarrow"), pytest.importorskip("pandas"), ["a", "ü"]
    for held in (
        names, tuple(names), *(np.array(names, dtype) for dtype in ("U", ">U3", object)), np.char.encode(names, "utf-8"),
        pa.array(names), pd.Series(names), pd.Series(names, dtype="string"),
    ):  # fmt: skip
        found = as_strings("ids", held)
        assert found.dtype.isnative
        assert found.tolist() == names


@pytest.mark.parametrize(
    "held", [None, "train", [], [1, 2], np.arange(3), np.zeros(3, bool), [1.5], [[1], [2, 3]], np.array([None, 3])]
)
def test_what_holds_no_strings(held: Any) -> None:
    assert as_strings("ids", held) is None


def test_nested_and_mixed_lists() -> None:
    found = as_strings("ids", [["a", "b"], ["c", "d"]])
    assert found.shape == (2, 2)
    for wrong, says in (
        (lambda: as_strings("ids", ["a", 3]), "ids: some ids are strings, others are int"),
        (lambda: as_strings("ids", np.array(["a", None], dtype=object)), "others are NoneType"),
        (lambda: as_strings("ids", np.array([b"\xff"])), "not UTF-8"),
        (lambda: to_strings(np.array([[0xFF, 0x20]], np.uint8)), "not UTF-8"),
        (lambda: to_rows(np.array(["\ud800"])), "cannot be written in UTF-8"),
    ):
        refuses(ConfigError, says, wrong)


def test_which_node_types_have_strings() -> None:
    tables = {"a": TableSpec("|u1", (7,)), "b": TableSpec("<f4", (7,)), "c": TableSpec("|u1", ())}
    of_types = {t: {"name": table} for t, table in tables.items()}
    schema = Schema(tuple(tables), (), dict.fromkeys(tables, 1), {}, of_types, splits={t: {} for t in tables})
    assert [string_width(schema, t) for t in tables] == [7, None, None]
    refuses(UnknownNameError, "", string_width, schema, "d")
