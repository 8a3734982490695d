"""Edges with times as CSV of JODIE, TGN and TGB, against the arrays that they were written from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.partition import Graph
from atta.partition.importers import guess, import_graph
from tests.unit.partition.oracles import labels, refused

RNG = np.random.default_rng(3)
N = 300
USER, ITEM = RNG.integers(0, 20, N), RNG.integers(0, 9, N)
TIME, STATE = np.sort(RNG.integers(0, 1000, N)), RNG.integers(0, 2, N)
FEATS = RNG.random((N, 5)).astype(np.float32)
HEADING = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"


def jodie(path: Path, heading: str = HEADING, time: np.ndarray = TIME, feats: np.ndarray = FEATS) -> Path:
    columns = zip(USER.tolist(), ITEM.tolist(), time.tolist(), STATE.tolist(), feats.tolist(), strict=True)
    lines = [",".join(map(str, (u, i, float(t), s, *f))) for u, i, t, s, f in columns]
    path.write_text("\n".join([heading, *lines]) + "\n")
    return path


def ends(graph: Graph, edge_type: str) -> list[np.ndarray]:
    """The users' ids of the ends of all edges."""
    source, _, target = edge_type.split("__")
    edges = graph.edges(edge_type)
    return [np.array(labels(graph, source))[edges.src], np.array(labels(graph, target))[edges.dst]]


@pytest.mark.parametrize("name", ["wikipedia.csv", "tgbl-wiki_edgelist_v2.csv"])
def test_jodie(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.partition.importers.reading.rows._LINES", 64)  # several pieces
    source = jodie(tmp_path / name)
    assert guess(source) == "tgb"
    import_graph("tgb", source, tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    assert graph.schema.node_counts == {"user": len(np.unique(USER)), "item": len(np.unique(ITEM))}
    src, dst = ends(graph, "user__to__item")
    tables = graph.edges("user__to__item").tables
    assert np.array_equal([src, dst], [USER, ITEM])
    assert np.array_equal(tables["time"], TIME)
    assert np.array_equal(tables["state_label"], STATE)
    assert (tables["time"].dtype, tables["state_label"].dtype) == (np.int64, np.int64)
    assert np.array_equal(tables["edge_attr"], FEATS)


def test_jodie_of_one_node_type_with_fractions_of_seconds(tmp_path: Path) -> None:
    heading = "source,destination,timestamp,state_label,comma_separated_list_of_features"
    import_graph("tgb", jodie(tmp_path / "uci.csv", heading, TIME + 0.25, FEATS[:, :0]), tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    src, dst = ends(graph, "node__to__node")
    assert np.array_equal([src, dst], [USER, ITEM])
    assert np.array_equal(graph.edges("node__to__node").tables["time"], TIME + 0.25)
    assert set(graph.edges("node__to__node").tables) == {"time", "state_label"}


@pytest.mark.parametrize("bipartite", [True, False])
def test_what_tgn_makes_of_it(tmp_path: Path, bipartite: bool) -> None:
    u, i = USER + 1, ITEM + 1 + (20 if bipartite else 0)
    rows = zip(u.tolist(), i.tolist(), TIME.tolist(), STATE.tolist(), strict=True)
    lines = [f"{n},{a},{b},{float(t)},{float(s)},{n + 1}" for n, (a, b, t, s) in enumerate(rows)]
    (tmp_path / "ml_wiki.csv").write_text("\n".join([",u,i,ts,label,idx", *lines]) + "\n")
    nodes = RNG.random((30, 4))
    np.save(tmp_path / "ml_wiki.npy", np.concatenate([np.zeros((1, 5)), FEATS]))
    np.save(tmp_path / "ml_wiki_node.npy", nodes)
    assert guess(tmp_path / "ml_wiki.csv") == "tgb"
    import_graph("tgb", tmp_path / "ml_wiki.csv", tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    edge_type = "user__to__item" if bipartite else "node__to__node"
    src, dst = ends(graph, edge_type)
    assert np.array_equal([src, dst], [u, i])
    assert np.array_equal(graph.edges(edge_type).tables["edge_attr"], FEATS)
    assert np.array_equal(graph.edges(edge_type).tables["time"], TIME)
    for node_type in graph.schema.node_types:
        ids = graph.user_ids(node_type)
        assert ids is not None
        assert np.array_equal(graph.table(node_type, "x"), nodes[ids].astype(np.float32))


def test_edge_list_of_tgb(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source = tmp_path / "tkgl-tiny_edgelist.csv"
    source.write_text("timestamp,head,tail,relation_type\n3,10,12,7\n1,12,11,7\n2,10,11,8\n")
    assert guess(source) == "tgb"
    import_graph("tgb", source, tmp_path / "g")
    graph = Graph.open(tmp_path / "g")
    assert [e.tolist() for e in ends(graph, "node__7__node")] == [[10, 12], [12, 11]]
    assert graph.edges("node__7__node").tables["time"].tolist() == [3, 1]
    source = tmp_path / "tgbl-comment_edgelist.csv"
    source.write_text("ts,src,dst,subreddit,num_words,score\n3,ann,bob,news,12,-4\n5,bob,cid,news,7,2\n")
    refused("tgb", source, tmp_path, "'subreddit' is not imported")
    import_graph("tgb", source, tmp_path / "h", drop=["subreddit"])
    tables = Graph.open(tmp_path / "h").edges("node__to__node").tables
    assert {name: rows.tolist() for name, rows in tables.items()} == {
        "time": [3, 5],
        "num_words": [12, 7],
        "score": [-4, 2],
    }


@pytest.mark.parametrize(
    ("dates", "seconds"),
    [
        (["2019-01-01", "1969-12-31"], [1546300800, -86400]),
        (["2005-02-14 00:00:03", "2005-02-14T00:01"], [1108339203, 1108339260]),
    ],
)
def test_dates_become_seconds(tmp_path: Path, dates: list[str], seconds: list[int]) -> None:
    pytest.importorskip("pyarrow")
    source = tmp_path / "tgbn-tiny_edgelist.csv"
    source.write_text(f"time,user_id,genre,weight\n{dates[0]},u1,rock,0.5\n{dates[1]},u2,rock,1\n")
    (note,) = import_graph("tgb", source, tmp_path / "g")
    assert "seconds since 1970" in note
    assert Graph.open(tmp_path / "g").edges("node__to__node").tables["time"].tolist() == seconds
    source.write_text(source.read_text() + "2019-13-01,u2,pop,1\n" + "soon,u2,pop,1\n")
    refused("tgb", source, tmp_path, r"edgelist\.csv: line")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: lines.append("0.5,1,2,0,1,2,3,4,5"), r"vertices are whole numbers up to 2\*\*53, not 0\.5"),
        (lambda lines: lines.append("1,1,2,0,1,2"), "not a readable csv file"),
        (lambda lines: lines.append("ann,1,2,0,1,2,3,4,5"), "not a readable csv file"),
    ],
)
def test_refused(tmp_path: Path, change: Any, says: str) -> None:
    source = jodie(tmp_path / "wikipedia.csv")
    lines = source.read_text().splitlines()
    change(lines)
    source.write_text("\n".join(lines))
    refused("tgb", source, tmp_path, says)
