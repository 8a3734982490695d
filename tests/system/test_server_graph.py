"""Servers' subgraphs from real daemons equal the local ones in every placement, with rows and splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import atta
from atta.client.loaders.seeds import part_seeds
from atta.errors import ConfigError, UnknownNameError
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.samplers.dag.spec import Hops, batch_spec, neighbor_spec
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.server import Rule, ServerGraph
from atta.samplers.local.server import server_subgraph as extracted_locally
from atta.samplers.operators import Closure, ExpansionAware
from tests.system.conftest import SmallGraph

RULES: list[Rule] = [
    Closure(0),
    Closure(2),
    ExpansionAware(1, 2),
    ExpansionAware(2, 3, resample=4),
    ExpansionAware(2, 2, "degree"),
    ExpansionAware(3, -1),
]


@pytest.fixture(scope="module")
def local_graph(small_graph: SmallGraph) -> LocalGraph:
    return LocalGraph.from_edges(small_graph.src, small_graph.dst, len(small_graph.ids), keys=small_graph.ids)


def position(graph: SmallGraph, ids: np.ndarray) -> np.ndarray:
    return np.argsort(graph.ids)[np.searchsorted(np.sort(graph.ids), ids)]


def check(found: ServerGraph, expected: ServerGraph, graph: SmallGraph) -> None:
    for name in ("n_id", "hop", "row", "col", "e_id", "degree"):
        mine, other = getattr(found, name), getattr(expected, name)
        assert mine.dtype == other.dtype, name
        assert np.array_equal(mine, other), name
    at = position(graph, found.n_id)
    assert found.tables.keys() == {"x", "y"}
    assert np.array_equal(found.tables["x"], graph.x[at])
    assert np.array_equal(found.tables["y"], graph.y[at])


@pytest.mark.parametrize("rule", RULES)
def test_every_placement_gives_the_local_subgraph(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, local_graph: LocalGraph, rule: Rule
) -> None:
    inner = np.random.default_rng(4).permutation(300)[:60]
    expected = extracted_locally(local_graph, inner, rule, seed=5)
    for cluster in placements.values():
        for part in {0, cluster.num_parts - 1}:
            found = atta.server_subgraph(cluster, small_graph.ids[inner], rule, part=part, seed=5)
            check(found, expected, small_graph)
            at = position(small_graph, found.n_id)
            assert found.splits.keys() == {"train", "val"}
            assert np.array_equal(found.splits["train"], np.isin(at, small_graph.train))


def test_servers_are_partitions(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, local_graph: LocalGraph
) -> None:
    for cluster in placements.values():
        owned = []
        for part in range(cluster.num_parts):
            found = atta.server_subgraph(cluster, part=part, splits=())
            mine = found.n_id[found.inner]
            assert (np.diff(mine) > 0).all()
            check(found, extracted_locally(local_graph, position(small_graph, mine)), small_graph)
            assert found.splits == {}
            owned.append(mine)
        assert np.array_equal(np.sort(np.concatenate(owned)), np.sort(small_graph.ids))


def test_several_subgraphs_one_after_another(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, local_graph: LocalGraph
) -> None:
    chunks = [np.arange(0, 50), np.arange(50, 50), np.arange(50, 53)]
    for cluster in placements.values():
        part = cluster.num_parts - 1
        ids = [small_graph.ids[chunk] for chunk in chunks]
        loader = atta.ServerLoader(cluster, ids, Closure(1), part=part)
        sizes = list(atta.ServerLoader(cluster, ids, Closure(0), part=part, transform=lambda found: found.num_nodes))
        assert sizes == [50, 0, 3]
        for _ in range(2):
            made = list(loader)
            assert len(made) == 3
            for chunk, found in zip(chunks, made, strict=True):
                check(found, extracted_locally(local_graph, chunk, Closure(1)), small_graph)


def test_repeated_ids_and_chosen_tables(placements: dict[str, atta.LocalCluster], small_graph: SmallGraph) -> None:
    for cluster in placements.values():
        found = atta.server_subgraph(cluster, small_graph.ids[[7, 3, 7]], tables=["y"], splits=["val"], edge_ids=False)
        assert found.n_id[:2].tolist() == small_graph.ids[[7, 3]].tolist()
        assert found.num_inner == 2
        assert set(found.tables) == {"y"}
        assert set(found.splits) == {"val"}
        assert found.e_id is None
        assert found.co_batch([0], 1).e_id is None


def test_a_split_without_members(tmp_path: Path) -> None:
    options = GenerateOptions(nodes=60, edges=300, features=4, classes=2, train=0.5, val=0.0, test=0.0)
    generate("sbm", tmp_path / "graph", options)
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=1, method="random")
    with atta.local(tmp_path / "parts", threads=1) as cluster:
        found = atta.server_subgraph(cluster, part=0)
    assert {name: int(mask.sum()) for name, mask in found.splits.items()} == {"train": 30, "val": 0, "test": 0}


def test_what_is_wrong_is_named(placements: dict[str, atta.LocalCluster], small_graph: SmallGraph) -> None:
    cluster = next(iter(placements.values()))
    with pytest.raises(ConfigError, match="part 1"):
        atta.server_subgraph(cluster, part=1)
    with pytest.raises(ConfigError, match="123456"):
        atta.server_subgraph(cluster, [123456])
    with pytest.raises(ConfigError, match="mask"):
        atta.server_subgraph(cluster, np.ones(300, dtype=bool))
    with pytest.raises(UnknownNameError, match="edges"):
        atta.server_subgraph(cluster, small_graph.ids[:3], edge_type="edges")
    with pytest.raises(UnknownNameError, match="z"):
        atta.server_subgraph(cluster, small_graph.ids[:3], tables=["z"])
    with pytest.raises(UnknownNameError, match="tests"):
        atta.server_subgraph(cluster, small_graph.ids[:3], splits=["tests"])


def test_daemons_check_for_themselves(placements: dict[str, atta.LocalCluster]) -> None:
    cluster = next(iter(placements.values()))
    whole = batch_spec(cluster.schema, "closure", {"hops": 1})
    with pytest.raises(ConfigError, match="partition 1 of 1"):
        next(iter(atta.DagLoader(cluster, whole, input_nodes=part_seeds("node", 1))))
    hops = neighbor_spec(cluster.schema, Hops([2]), seed_type="node")
    with pytest.raises(ConfigError, match="only a batch operator"):
        next(iter(atta.DagLoader(cluster, hops, input_nodes=part_seeds("node", 0))))
