"""``atta inspect --sample`` draws the vertices and edges of a batch, and says who owns them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import atta
from atta.cli.graphs.tree import MOST_LINES, DrawnTree, SampledVertex, draw_tree, sample_tree
from atta.cli.main import cli
from atta.errors import ConfigError, UnknownNameError
from atta.partition import Dataset, GraphWriter, partition_graph
from atta.partition.graph.strings import to_rows
from tests.system.conftest import SmallGraph


def text(drawn: DrawnTree) -> list[str]:
    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        console.print(draw_tree(drawn))
    return captured.get().splitlines()


def test_the_command_draws_a_batch(small_graph: SmallGraph, tmp_path: Path) -> None:
    path, vertex = small_graph.dataset(2, "random"), int(small_graph.train_ids[5])
    command = ["inspect", str(path), "--sample", str(vertex), "--num-neighbors", "3,2"]
    done = CliRunner().invoke(cli, [*command, "--json", str(tmp_path / "t.json")], catch_exceptions=False)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].startswith(f"{vertex}  part ")
    found: dict[str, Any] = json.loads((tmp_path / "t.json").read_text())
    with atta.local(path, threads=1) as cluster:
        (batch,) = atta.NeighborLoader(cluster, [3, 2], [vertex])
    ids = batch.n_id()
    assert [v["label"] for v in found["vertices"]] == [str(i) for i in ids]
    assert found["edges"] == batch.edge_index().T.tolist()
    dataset = Dataset.open(path, verify=False)
    owners = dataset.book.owner("node", dataset.to_internal("node", ids))
    assert [v["owner"] for v in found["vertices"]] == owners.tolist()
    hops = np.repeat(np.arange(3), batch.num_sampled_nodes())
    assert [v["hop"] for v in found["vertices"]] == hops.tolist()
    assert len(lines) == 1 + len(found["edges"])
    assert {f"part {owner}" for owner in owners} == {"part " + line.split("part ")[1].split()[0] for line in lines}


def test_typed_graphs_with_string_ids(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("paper", 3)
        out.add_nodes("author", 2, tables={"name": to_rows(np.array(["bob", "[al]"]))})
        out.add_edges("author__writes__paper", [0, 1], [2, 2])
        out.add_edges("paper__cites__author", [0], [0])
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=2, method="random")
    drawn = sample_tree(tmp_path / "data", "paper:2", [-1, -1])
    assert sorted(v.label for v in drawn.vertices) == ["author:[al]", "author:bob", "paper:0", "paper:2"]
    assert drawn.vertices[0].label == "paper:2"
    lines = text(drawn)
    assert len(lines) == 4
    assert any("author:[al]" in line for line in lines)
    assert sample_tree(tmp_path / "data", "author:bob", [-1]).vertices[1].label == "paper:0"
    for vertex, error, words in [
        ("2", ConfigError, "as in author:2; there are author, paper"),
        ("paper:x", ConfigError, "whole numbers"),
        ("author:eve", UnknownNameError, "'eve'"),
        ("paper:9", ConfigError, "9 is not a vertex"),
    ]:
        with pytest.raises(error, match=words):
            sample_tree(tmp_path / "data", vertex, [-1])


def test_a_vertex_that_two_have_drawn_is_expanded_once() -> None:
    vertices = [SampledVertex(name, hop, 0) for name, hop in [("a", 0), ("b", 1), ("c", 1), ("d", 2)]]
    lines = text(DrawnTree(vertices, [(1, 0), (2, 0), (2, 1), (3, 2), (0, 2)]))
    assert [line.split("part")[0].strip(" │├└─") for line in lines] == ["a", "b", "c", "c", "d", "a"]
    assert sum("see above" in line for line in lines) == 2


def test_a_large_tree_is_cut() -> None:
    vertices = [SampledVertex(str(i), min(i, 1), i % 3) for i in range(500)]
    lines = text(DrawnTree(vertices, [(i, 0) for i in range(1, 500)]))
    assert len(lines) == MOST_LINES + 1
    assert "500 vertices, 499 edges" in lines[-1]
