"""Vertices with string ids: loaders take them, batches and predictions give them back, as a dict would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch_geometric.nn import SAGEConv

import atta
from atta.cli.main import cli
from atta.daemon.services.queries import PointQuery
from atta.errors import ConfigError, DataError, RemoteError, UnknownNameError
from atta.partition import GraphWriter, partition_graph
from atta.partition.graph.strings import to_rows
from atta.train.launching.predictors import read_ids
from tests.system.test_inference import checkpoint
from tests.system.test_queries import answers_of

PAPERS, AUTHORS = 90, 40


@dataclass
class Named:
    """Two types of vertices with names of different length, some not ASCII."""

    folder: Path
    papers: list[str]
    authors: list[str]
    writes: np.ndarray
    cites: np.ndarray
    x: np.ndarray

    @property
    def number(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.papers)}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Named:
    rng, folder = np.random.default_rng(4), tmp_path_factory.mktemp("named")
    papers = [f"{'pß'[i % 2]}-{i * 7919 % 1000}{'x' * (i % 5)}" for i in range(PAPERS)]
    authors = [f"author/{i}" for i in range(AUTHORS)]
    writes = np.stack([rng.integers(0, AUTHORS, 200), rng.integers(0, PAPERS, 200)])
    cites = np.stack([rng.integers(0, PAPERS, 500), rng.integers(0, PAPERS, 500)])
    x = rng.random((PAPERS, 6), dtype=np.float32)
    for name, typed in (("typed", True), ("plain", False)):
        with GraphWriter(folder / name) as out:
            tables = {"x": x, "name": to_rows(np.array(papers)), "y": np.arange(PAPERS) % 3}
            out.add_nodes("paper", PAPERS, tables=tables, splits={"train": np.arange(0, PAPERS, 2)})
            if typed:
                out.add_nodes("author", AUTHORS, tables={"name": to_rows(np.array(authors))})
                out.add_nodes("venue", 5, tables={"x": np.ones((5, 2), np.float32)})
                out.add_edges("author__writes__paper", *writes)
                out.add_edges("venue__prints__paper", rng.integers(0, 5, 50), rng.integers(0, PAPERS, 50))
            out.add_edges("paper__cites__paper", *cites)
        partition_graph(folder / name, folder / f"{name}-2p", parts=2, method="random")
    return Named(folder, papers, authors, writes, cites, x)


@pytest.fixture(scope="module")
def typed(graph: Named) -> Iterator[atta.LocalCluster]:
    with atta.local(graph.folder / "typed-2p", threads=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plain(graph: Named) -> Iterator[atta.LocalCluster]:
    with atta.local(graph.folder / "plain-2p", threads=1) as cluster:
        yield cluster


def test_numbers_and_strings_equal_a_dict(graph: Named, typed: atta.LocalCluster, rng: np.random.Generator) -> None:
    names = np.array(graph.papers)
    asked = rng.integers(0, PAPERS, (50, 3))
    found = typed.ids.numbers(names[asked], "paper")
    assert found.dtype == np.int64
    assert found.tolist() == asked.tolist()
    assert typed.ids.strings(asked, "paper").tolist() == names[asked].tolist()
    assert typed.ids.numbers(graph.authors[::-1], "author").tolist() == list(range(AUTHORS))[::-1]
    assert typed.ids.numbers([5, 3], "author").tolist() == [5, 3]
    assert typed.ids.strings([], "paper").tolist() == typed.ids.numbers(np.array([], np.str_), "paper").tolist() == []
    assert [typed.ids.known(t) for t in ("paper", "author", "venue")] == [True, True, False]


def test_long_lists_are_asked_in_pieces(
    graph: Named, typed: atta.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atta.client.tables.string_ids.PIECE_BYTES", 100)
    assert typed.ids.numbers(graph.papers, "paper").tolist() == list(range(PAPERS))
    assert typed.ids.strings(np.arange(PAPERS), "paper").tolist() == graph.papers
    with pytest.raises(UnknownNameError, match=r"'z0', 'z1', 'z2' and 37 more \(of 130 asked for\)"):
        typed.ids.numbers([*graph.papers, *(f"z{i}" for i in range(40))], "paper")


def test_unknown_ids_and_types_without_strings_are_named(typed: atta.LocalCluster) -> None:
    with pytest.raises(UnknownNameError, match="no vertex of node type 'author' has the string id 'p-1' "):
        typed.ids.numbers(["author/3", "p-1"], "author")
    with pytest.raises(UnknownNameError, match="x" * 300):
        typed.ids.numbers(["x" * 300], "author")  # longer than any that is there
    for ask in (lambda: typed.ids.numbers(["a"], "venue"), lambda: typed.ids.strings([0], "venue")):
        with pytest.raises(ConfigError, match="'venue' have no string ids: their ids are integers"):
            ask()
    with pytest.raises(ConfigError, match="99 is not a vertex of node type 'author'"):
        typed.ids.strings([3, 99], "author")
    with pytest.raises(ConfigError, match="name a node type: author, paper, venue"):
        typed.ids.numbers(["a"])
    with pytest.raises(ConfigError, match="some ids are strings, others are int"):
        atta.NeighborLoader(typed, [2], ("paper", ["p-1", 3]))


def arrays(batch: atta.MiniBatch) -> dict[str, Any]:
    found = {f"n_id/{t}": batch.n_id(t).tolist() for t in batch.node_types}
    return found | {f"edges/{e}": batch.edge_index(e).tolist() for e in batch.edge_types}


def test_seeds_are_strings_and_batches_give_them_back(graph: Named, typed: atta.LocalCluster) -> None:
    seeds = graph.papers[10:40]
    hops = {"paper__cites__paper": [3, 2], "author__writes__paper": [2, 2], "venue__prints__paper": [1, 1]}
    by_name = atta.NeighborLoader(
        typed, hops, ("paper", seeds), batch_size=8, tables={"paper": "name", "author": "name"}
    )
    by_number = atta.NeighborLoader(typed, hops, ("paper", np.arange(10, 40)), batch_size=8)
    for named, numbered in zip(by_name, by_number, strict=True):
        assert arrays(named) == arrays(numbered)
        assert named.strings("paper").tolist() == [graph.papers[i] for i in named.n_id("paper")]
        assert named.strings("author").tolist() == [graph.authors[i] for i in named.n_id("author")]
        assert [seeds[i] for i in named.input_id] == named.strings("paper")[: named.batch_size].tolist()
        with pytest.raises(ConfigError, match="no string ids"):
            named.strings("venue")
    bare = next(iter(atta.NeighborLoader(typed, hops, ("paper", seeds), tables=[])))
    with pytest.raises(ConfigError, match="'name' was not fetched"):
        bare.strings("paper")


def test_edges_of_strings_as_seeds(graph: Named, typed: atta.LocalCluster) -> None:
    ends = graph.writes[:, :30]
    named = [[graph.authors[i] for i in ends[0]], np.array(graph.papers)[ends[1]]]
    hops = {"paper__cites__paper": [2], "author__writes__paper": [2], "venue__prints__paper": [0]}
    of = ("author", "writes", "paper")
    tables = {"paper": ["name"], "author": ["name"]}
    by_name, by_number = (
        atta.LinkNeighborLoader(typed, hops, (of, e), batch_size=7, tables=tables, neg_sampling="binary")
        for e in (named, ends)
    )
    for one, other in zip(by_name, by_number, strict=True):
        assert arrays(one) == arrays(other)
        links = one.links()["edge_label_index"][:, : one.batch_size]
        pairs = zip(one.strings("author")[links[0]], one.strings("paper")[links[1]], strict=True)
        assert [*pairs] == [(named[0][i], named[1][i]) for i in one.input_id]
    half = atta.LinkNeighborLoader(typed, hops, (of, [named[0], ends[1]]), batch_size=7, tables=tables)
    assert next(iter(half)).links()["edge_label_index"].shape == (2, 7)
    with pytest.raises(UnknownNameError, match="'paper' has the string id 'author/"):
        atta.LinkNeighborLoader(typed, hops, (of, named[::-1][1:] + named[:1]))
    with pytest.raises(ConfigError, match="2 sources for 1 targets"):
        atta.LinkNeighborLoader(typed, hops, (of, [named[0][:2], list(named[1][:1])]))


def test_batches_of_strings(graph: Named, plain: atta.LocalCluster) -> None:
    cut = [[5, 3], [], [8, 9, 1]]
    named = [[graph.papers[i] for i in batch] for batch in cut]
    one, other = (
        list(atta.BatchLoader(plain, "shadow", {"num_neighbors": 3, "depth": 1}, batches=b)) for b in (named, cut)
    )
    assert [arrays(batch) for batch in one] == [arrays(batch) for batch in other]
    with pytest.raises(ConfigError, match="some have string ids"):
        atta.BatchLoader(plain, "shadow", {}, batches=[named[0], cut[2]])
    of_names = atta.server_subgraph(plain, named[2])
    assert of_names.n_id.tolist() == atta.server_subgraph(plain, cut[2]).n_id.tolist()


@pytest.mark.parametrize(("part", "error"), [([0, 0, 1], RemoteError), ([0, 1, 1], ConfigError)])
def test_two_vertices_with_one_name_are_refused(tmp_path: Path, part: list[int], error: type[Exception]) -> None:
    """Both with one daemon, or one with each."""
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 3, tables={"name": to_rows(np.array(["same", "same", "x"])), "part": np.array(part)})
        out.add_edges("node__to__node", [0], [1])
    partition_graph(tmp_path / "graph", tmp_path / "2p", parts=2, method="given", options={"table": "part"})
    with atta.local(tmp_path / "2p", threads=1) as cluster:
        with pytest.raises(error, match="two vertices of node type 'node' have the string id 'same'"):
            cluster.ids.numbers(["same"])
        assert cluster.ids.strings([0, 1, 2]).tolist() == ["same", "same", "x"]


@pytest.mark.parametrize("sampled", [None, [-1]])
def test_predictions_have_the_users_strings(graph: Named, plain: atta.LocalCluster, sampled: list[int] | None) -> None:
    torch.manual_seed(1)
    layers = [SAGEConv(6, 5), torch.nn.ReLU(), SAGEConv(5, 2)]
    x, edges = torch.from_numpy(graph.x), torch.from_numpy(graph.cites)
    with torch.no_grad():
        whole = layers[2](layers[0](x, edges).relu(), edges).numpy()
    some = graph.papers[5:9]
    for asked, wanted in ((None, graph.papers), (some, some)):
        found = atta.predict(plain, layers, asked, num_neighbors=sampled)
        assert sorted(found.ids) == sorted(wanted)
        of = [graph.number[name] for name in found.ids]
        np.testing.assert_allclose(found.values, whole[of], rtol=1e-5, atol=1e-5)
    pairs = [[graph.papers[3], graph.papers[70]], [graph.papers[70], graph.papers[70]]]
    for numbers in ({"nodes": [5]}, {"links": [[5, 6]]}):
        with pytest.raises(
            ConfigError, match=f"^{next(iter(numbers))}: node type 'paper' has string ids: give strings$"
        ):
            atta.predict(plain, layers, **numbers)
    scored = atta.predict(plain, layers, links=pairs, num_neighbors=sampled)
    assert scored.ids.tolist() == pairs
    np.testing.assert_allclose(scored.values, [whole[3] @ whole[70], whole[70] @ whole[70]], rtol=1e-4, atol=1e-5)
    if sampled is None:
        atta.predict(plain, layers, "train", table="by-number")
        table = plain.tables.open("by-number")
        chosen = np.arange(0, PAPERS, 2)
        np.testing.assert_allclose(table.pull(table.locate(chosen)).values, whole[chosen], rtol=1e-5, atol=1e-5)
        plain.tables.delete("by-number")


@pytest.mark.parametrize("form", ["parquet", pytest.param("npy", marks=pytest.mark.slow)])
def test_the_command_reads_and_writes_strings(
    graph: Named, plain: atta.LocalCluster, tmp_path: Path, form: str
) -> None:
    folder, _ = checkpoint(tmp_path / "saved", "sage", channels=6)
    command = ["predict", "--cluster", ",".join(plain.addresses), "--checkpoint", str(folder), "--format", form]

    def run(option: str, lines: list[str]) -> Any:
        (tmp_path / "ids.txt").write_text("".join(f"{line}\n" for line in lines))
        words = ["--out", str(tmp_path / option), f"--{option}", str(tmp_path / "ids.txt")]
        done = CliRunner().invoke(cli, [*command, *words], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        paths = sorted((tmp_path / option).glob(f"part-*.{form}"))
        if form == "npy":
            found = np.concatenate([np.load(path) for path in paths])
            return {name: found[name].tolist() for name in found.dtype.names}
        tables = [pytest.importorskip("pyarrow.parquet").read_table(path) for path in paths]
        assert {str(table.schema.field(0).type) for table in tables} == {"string"}
        return {name: [v for table in tables for v in table[name].to_pylist()] for name in tables[0].column_names}

    chosen, whole = run("ids", graph.papers[20:60]), atta.predict(plain, folder)
    assert sorted(chosen["id"]) == sorted(graph.papers[20:60])
    place = {name: number for number, name in enumerate(whole.ids.tolist())}
    of = [place[name] for name in chosen["id"]]
    np.testing.assert_allclose(chosen["embedding"], whole.values[of], rtol=1e-5, atol=1e-5)
    scored = run("links", [f"{a}\t{b}" for a, b in zip(graph.papers, graph.papers[1:], strict=False)])
    assert scored["source"] == graph.papers[:-1]
    assert scored["target"] == graph.papers[1:]
    if form == "npy":
        with pytest.raises(UnknownNameError, match="'nobody', 'nowhere' "):
            run("ids", ["nobody", "nowhere"])


def test_point_queries_take_and_give_strings(graph: Named, plain: atta.LocalCluster, tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, "sage", channels=6)
    answers, names = answers_of(plain, graph.folder / "plain-2p", folder), np.array(graph.papers)
    whole = atta.predict(plain, folder)
    order = np.argsort([graph.number[name] for name in whole.ids])
    asked = [names[[7, 3, 7]], np.array(["p-1", "nobody"]), names[:9], np.array([5])]
    found = answers.answer([PointQuery("embeddings", one) for one in asked])
    for answer, numbers in ((found[0], [7, 3, 7]), (found[2], range(9))):
        np.testing.assert_allclose(answer.values, whole.values[order][list(numbers)], rtol=1e-5, atol=1e-5)
    with pytest.raises(UnknownNameError, match="'nobody'"):
        raise found[1]
    with pytest.raises(ConfigError, match='has string ids: give strings, such as "5"'):
        raise found[3]
    expected = atta.predict(plain, folder, names[:3], top=4)
    (best,) = answers.answer([PointQuery("targets", names[:3], 4)])
    of = {name: [t for s, t in expected.ids.tolist() if s == name] for name in names[:3].tolist()}
    assert best.targets.tolist() == [target for name in names[:3].tolist() for target in of[name]]


def test_an_explanation_names_vertices_by_strings(graph: Named, plain: atta.LocalCluster, tmp_path: Path) -> None:
    checkpoint(tmp_path, "sage", layers=1, channels=6)
    cited = graph.papers[graph.cites[1, 0]]
    found = atta.explain(plain, tmp_path, cited, epochs=2, out=tmp_path / "why.svg")
    assert found.vertex == cited
    wanted = {(graph.papers[s], cited) for s, t in graph.cites.T.tolist() if graph.papers[t] == cited}
    assert {(s, t) for s, t in found.edges.T.tolist() if t == cited} == wanted
    assert found.hops[cited] == 0
    assert cited in (tmp_path / "why.svg").read_text(encoding="utf-8")


def test_files_of_ids(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    for text, columns, expected in [
        ("a b\n\n c,d \n", 1, ["a b", "c,d"]),
        ("a b\tc\nd\te,f\n", 2, [["a b", "c"], ["d", "e,f"]]),
        ("a b,c\nd , e\n", 2, [["a b", "c"], ["d", "e"]]),
        ("a b\nc  d\n", 2, [["a", "b"], ["c", "d"]]),
        ("12\n", 1, ["12"]),
    ]:
        file.write_text(text)
        assert read_ids(file, columns, strings=True).tolist() == expected
    for name, array in [("s.npy", np.array(["a", "b"])), ("n.npy", np.array([4, 5]))]:
        np.save(tmp_path / name, array)
        assert read_ids(tmp_path / name, strings=True).tolist() == array.tolist()
    with pytest.raises(DataError, match="whole numbers"):
        read_ids(tmp_path / "s.npy")
    file.write_text("\ufeff12\n")  # as some editors begin a file
    assert read_ids(file).tolist() == [12]
    np.save(tmp_path / "large.npy", np.array([2**64 - 796], np.uint64))
    with pytest.raises(DataError, match="18446744073709550820"):
        read_ids(tmp_path / "large.npy")
    file.write_text("a b\nc\n")
    with pytest.raises(DataError, match="2 per line: a line has 1"):
        read_ids(file, 2, strings=True)


def test_string_ids_are_found_in_files_as_daemons_find_them(graph: Named, plain: atta.LocalCluster) -> None:
    from atta.partition import Dataset
    from atta.train.launching.predictors import _StoredIds

    stored, known = _StoredIds(Dataset.open(graph.folder / "plain-2p")), np.array(graph.papers)
    np.testing.assert_array_equal(stored.numbers(known, "paper"), plain.ids.numbers(known, "paper"))
    for unknown in (["nobody"], [known[0], "a name that is longer than all names that there are"]):
        with pytest.raises(UnknownNameError) as told:
            plain.ids.numbers(unknown, "paper")
        with pytest.raises(UnknownNameError, match=re.escape(str(told.value))):
            stored.numbers(unknown, "paper")
