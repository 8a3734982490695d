"""Local graphs: opened from datasets, and refused where their arrays contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import GraphWriter, partition_graph
from atta.samplers import LocalGraph

SRC, DST = np.array([1, 2, 0, 2]), np.array([0, 0, 2, 1])


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of two edge types, whole (``1``) and in two parts (``2``)."""
    folder = tmp_path_factory.mktemp("graphs")
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("user", 3, ids=[30, 10, 20])
        out.add_nodes("item", 2)
        out.add_edges("user__knows__user", SRC, DST)
        out.add_edges("item__of__user", np.array([1, 0]), np.array([2, 2]))
    for parts in (1, 2):
        partition_graph(folder / "graph", folder / str(parts), parts=parts, method="random", seed=0)
    return folder


def test_it_has_the_edges_of_the_dataset(datasets: Path) -> None:
    graph = LocalGraph.open(datasets / "1", "user__knows__user")
    sources = {
        int(graph.keys[v]): graph.keys[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]].tolist() for v in range(3)
    }
    assert sources == {30: [10, 20], 10: [20], 20: [30]}
    assert set(LocalGraph.open_all(datasets / "1")) == {"user__knows__user", "item__of__user"}


@pytest.mark.parametrize(
    ("where", "edge_type", "error", "words"),
    [
        ("1", None, ConfigError, "name one of the edge types"),
        ("1", "user__likes__user", UnknownNameError, "edge type 'user__likes__user'"),
        ("2", None, ConfigError, "2 partitions"),
    ],
)
def test_it_must_be_one_edge_type_of_one_partition(
    datasets: Path, where: str, edge_type: str | None, error: type[AttaError], words: str
) -> None:
    with pytest.raises(error, match=words):
        LocalGraph.open(datasets / where, edge_type)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dst": DST[:3]}, "must be"),
        ({"keys": [1, 2]}, "keys: 2 for 3 vertices"),
        ({"src": [1, 2, 0, 3]}, "src: ids lie in 0..3"),
        ({"weight": np.ones(3)}, "one per edge"),
    ],
)
def test_edges_that_contradict_each_other_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LocalGraph.from_edges(**{"src": SRC, "dst": DST, "num_nodes": 3, **changed})
