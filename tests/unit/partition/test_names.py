"""Free names of types: encodings that lose nothing, graph folders that hold them, and renaming at import."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, UnknownNameError
from atta.partition import Graph, GraphWriter, Schema
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
from atta.train.models.typed import LayersByType

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


@pytest.mark.parametrize(
    ("edge_type", "file"),
    [("a__to__b", "a__to__b"), ("my.type-1__r_2__x", "my.type-1__r_2__x"), ("n" * 100 + "__r__" + "n" * 100, None)],
)
def test_plain_names_are_their_own_files(edge_type: str, file: str | None) -> None:
    assert file_name(edge_type) == (file or edge_type)
    assert join_edge_type(*edge_type.split("__")) == edge_type


@pytest.mark.parametrize("name", ["", " a", "a\u00a0", "a\nb", "a\x1b[31m", "\u202eab", "a\0", "\ud800", "a" * 101, 7])
def test_names_that_a_terminal_or_a_file_would_not_bear_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 100 printable characters"):
        check_type_name("node type", name)


@pytest.mark.parametrize("edge_type", ["a%b__r__c", "a%41__r__c", "a%5Fb__r__c", "%25%5__r__c"])
def test_a_text_that_joining_never_gives_is_no_edge_type(edge_type: str) -> None:
    with pytest.raises(ConfigError, match="is written %25"):
        split_edge_type(edge_type)


def test_a_graph_folder_keeps_names_and_stays_within_itself(tmp_path: Path) -> None:
    names, joined = ("../up", "..", "/etc/a__b"), join_edge_type("../up", "..", "/etc/a__b")
    with GraphWriter(tmp_path / "in" / "g") as out:
        for name in {names[0], names[2]}:
            out.add_nodes(name, 2, tables={"x": np.eye(2)}, ids=[4, 7], splits={"train": [1]})
        out.add_edges(joined, [0], [1], weight=np.ones(1))
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
    with pytest.raises(ConfigError, match="may be a%5F%5Fb__r__c or a__b%5F%5Fr__c"):
        schema.find_edge_type("a__b__r__c")
    with pytest.raises(UnknownNameError, match="unknown edge type 'a__r__b__d'"):
        schema.find_edge_type("a__r__b__d")


def test_a_type_is_not_both_of_vertices_and_of_edges() -> None:
    names = ("a", "a__r__a")
    with pytest.raises(ConfigError, match="'a__r__a' is a node type and an edge type"):
        Schema(names, names[1:], dict.fromkeys(names, 1), {"a__r__a": 1})


def source(folder: Path) -> Path:
    """A graph of two types as a file of PyG."""
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
    import_graph("pyg", source(tmp_path), tmp_path / "g", reverse=True, rename=new)
    graph = Graph.open(tmp_path / "g")
    schema = graph.schema
    assert schema.node_types == ("drug", "gene")
    assert {split_edge_type(e) for e in schema.edge_types} == {
        ("drug", "hits", "gene"),
        ("gene", "rev_hits", "drug"),
        ("drug", "is like", "drug"),
        ("drug", "rev_is like", "drug"),
    }
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
        ({"drugs": "d"}, "unknown --rename: name in the source 'drugs'; did you mean 'drug'?"),
        ({"drug": "gene/protein"}, "node types 'drug' and 'gene/protein' would both be called 'gene/protein'"),
        ({"like": "a\nb"}, "relation 'a\\\\nb': names of types have 1 to 100"),
        ({"feat": "y"}, "tables of 'gene/protein', '.*' and '.*' would both be called 'y'"),
        ({"feat": "has feat"}, "table 'has feat': names consist of letters"),
    ],
)
def test_renames_that_are_refused(tmp_path: Path, new: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        import_graph("pyg", source(tmp_path), tmp_path / "g", rename=new)
    assert not (tmp_path / "g").exists()


def test_whole_numbers_that_become_features_are_not_rounded(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="table 'feat' of 'node': has whole numbers beyond 16777216"),
        GraphWriter(tmp_path / "g", rename={"feat": "x"}) as out,
    ):
        out.add_nodes("node", 1, tables={"feat": np.array([2**24 + 1])})
