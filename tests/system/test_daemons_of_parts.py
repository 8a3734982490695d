"""Daemons of several partitions: every division gives the same batches, and what does not fit together is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.errors import ConfigError, WrongDatasetError
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta.wire.clusterfile import write_cluster
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph

Batches = list[dict[str, np.ndarray]]
DIVISIONS = (4, 2, 1)
NO_CACHE = ("--cache", "0")


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with two node types and three edge types, in four partitions."""
    folder, rng = tmp_path_factory.mktemp("typed"), np.random.default_rng(3)
    with GraphWriter(folder / "graph") as out:
        x = rng.random((150, 6)).astype(np.float32)
        out.add_nodes("a", 150, ids=rng.permutation(900)[:150], tables={"x": x}, splits={"train": np.arange(70)})
        out.add_nodes("b", 90, tables={"x": rng.random((90, 3)).astype(np.float32)})
        for edge_type, (rows, cols) in {"a__to__a": (150, 150), "b__of__a": (90, 150), "a__in__b": (150, 90)}.items():
            note = rng.random((1200, 2)).astype(np.float32)
            out.add_edges(edge_type, rng.integers(0, rows, 1200), rng.integers(0, cols, 1200), tables={"note": note})
    partition_graph(folder / "graph", folder / "parts", parts=4, method="random", seed=2)
    return folder / "parts"


@pytest.fixture(scope="module", params=[(), NO_CACHE, ("--no-links", *NO_CACHE)], ids=str)
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """With and without links and caches."""
    return tuple(request.param)


@pytest.fixture(scope="module")
def clusters(options: tuple[str, ...], small_graph: SmallGraph) -> Iterator[list[atta.LocalCluster]]:
    """The same four partitions on four, two daemons and one."""
    data = small_graph.dataset(4, "random")
    with ExitStack() as stack:
        yield [stack.enter_context(atta.local(data, threads=1, daemons=d, options=options)) for d in DIVISIONS]


def taken(cluster: atta.Cluster, make: Callable[..., Any], world: int) -> Batches:
    """All arrays of the batches of all ranks."""
    found: Batches = []
    for rank in range(world):
        for batch in make(cluster, rank=rank, world_size=world):
            found.append({name: np.array(array) for name, array in batch._raw.arrays.items()})
    return found


def same(clusters: list[atta.LocalCluster], make: Callable[..., Any], *, world: int = 3) -> Batches:
    """The batches, which are equal bit for bit in all clusters."""
    first, *others = [taken(cluster, make, world) for cluster in clusters]
    for other in others:
        assert len(other) == len(first)
        for mine, expected in zip(other, first, strict=True):
            assert mine.keys() == expected.keys()
            for name in expected:
                assert mine[name].dtype == expected[name].dtype, name
                assert np.array_equal(mine[name], expected[name]), name
    return first


def test_partitions_are_spread_evenly_and_in_order(clusters: list[atta.LocalCluster]) -> None:
    assert [[len(parts) for parts in cluster.parts] for cluster in clusters] == [[1] * 4, [2, 2], [4]]
    for cluster, daemons in zip(clusters, DIVISIONS, strict=True):
        assert cluster.num_parts == len(cluster.addresses) == 4
        assert len({*cluster.addresses}) == len(cluster.pids) == daemons
        assert [found["parts"] for found in cluster.stats()] == [len(parts) for parts in cluster.parts]


@pytest.mark.parametrize("how", [{}, {"method": "labor"}, {"weight_attr": "weight"}], ids=str)
@pytest.mark.parametrize("policy", ["local", "global"])
def test_neighbourhoods(clusters: list[atta.LocalCluster], how: dict[str, str], policy: str) -> None:
    make = partial(
        atta.NeighborLoader, num_neighbors=[4, 3], input_nodes="train", batch_size=16, seed=5, seed_policy=policy, **how
    )
    assert len(same(clusters, make)) == 9


def test_times_trees_and_edge_tables(clusters: list[atta.LocalCluster], small_graph: SmallGraph) -> None:
    ids = small_graph.train_ids[:40]
    notes = {"node__to__node": ["note"]}
    same(
        clusters, partial(atta.NeighborLoader, num_neighbors=[4, 3], input_nodes=ids, batch_size=16, edge_tables=notes)
    )
    make = partial(
        atta.NeighborLoader, num_neighbors=[4, 3], input_nodes=ids, batch_size=16, time_attr="time",
        input_time=np.arange(40), disjoint=True,
    )  # fmt: skip
    assert same(clusters, make)


@pytest.mark.parametrize("frontier", ["new", "all"])
def test_links_with_negatives(clusters: list[atta.LocalCluster], small_graph: SmallGraph, frontier: str) -> None:
    edges = np.stack([small_graph.src_ids[:40], small_graph.dst_ids[:40]])
    make = partial(
        atta.LinkNeighborLoader, num_neighbors=[4, 3], edge_label_index=edges, batch_size=16, neg_sampling="binary",
        frontier=frontier,
    )  # fmt: skip
    assert same(clusters, make)


def test_servers_are_partitions(clusters: list[atta.LocalCluster]) -> None:
    for part in range(4):
        first, *others = [atta.server_subgraph(cluster, part=part) for cluster in clusters]
        for other in others:
            assert np.array_equal(other.n_id, first.n_id)
            assert np.array_equal(other.row, first.row)
            assert np.array_equal(other.tables["x"], first.tables["x"])


def test_partitions_of_one_daemon_ask_nobody(clusters: list[atta.LocalCluster]) -> None:
    alone = clusters[DIVISIONS.index(1)]
    assert len(list(atta.NeighborLoader(alone, [4, 3], "train", batch_size=16))) == 8
    (found,) = alone.stats()
    assert found.get("remote_rows", 0) == found.get("cache_rows_asked", 0) == 0
    apart = clusters[0]
    list(atta.NeighborLoader(apart, [4, 3], "train", batch_size=16))
    asked = sum(found.get("remote_rows", 0) + found.get("cache_rows_asked", 0) for found in apart.stats())
    assert asked > 0


def test_types(typed: Path) -> None:
    notes = {e: ["note"] for e in ("a__to__a", "b__of__a", "a__in__b")}
    with ExitStack() as stack:
        clusters = [stack.enter_context(atta.local(typed, threads=1, daemons=d)) for d in DIVISIONS]
        same(clusters, partial(atta.NeighborLoader, num_neighbors=[3, 3], input_nodes=("a", "train"), batch_size=20))
        make = partial(atta.NeighborLoader, num_neighbors=[3, 3], input_nodes=("b", None), edge_tables=notes)
        assert same(clusters, partial(make, batch_size=20))


@pytest.mark.parametrize("policy", ["range", "nodes:node", "edges:node__to__node"])
def test_mutable_tables(small_graph: SmallGraph, policy: str) -> None:
    rows = {"range": 37, "nodes:node": 300, "edges:node__to__node": 3000}[policy]
    for daemons in (2, 1):
        with atta.local(small_graph.dataset(4, "random"), threads=1, daemons=daemons) as cluster:
            table = atta.DistTensor(cluster, (rows, 3), name="t", policy=policy)
            ids = np.arange(rows) if policy != "nodes:node" else small_graph.ids
            table[ids] = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
            assert np.array_equal(np.asarray(table[ids]), np.arange(3 * rows, dtype=np.float32).reshape(rows, 3))


def test_snapshots_of_another_division_are_refused(small_graph: SmallGraph, tmp_path: Path) -> None:
    data, keep = small_graph.dataset(4, "random"), ("--snapshots", str(tmp_path))
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    with atta.local(data, threads=1, options=keep) as cluster:
        table = atta.DistTensor(cluster, (20, 2), name="t")
        table[np.arange(20)] = values
        cluster.tables.save("four")
    with atta.local(data, threads=1, daemons=2, options=keep) as cluster:
        with pytest.raises(atta.AttaError, match="served other partitions than 0-1"):
            cluster.tables.load("four")
        assert cluster.tables.specs() == {}
        table = atta.DistTensor(cluster, (20, 2), name="t")
        table[np.arange(20)] = values
        cluster.tables.save("two")
    with atta.local(data, threads=1, daemons=2, options=keep) as cluster:
        cluster.tables.load("two")
        table = atta.DistTensor(cluster, (20, 2), name="t")
        assert np.array_equal(np.asarray(table[np.arange(20)]), values)


def test_what_people_see(clusters: list[atta.LocalCluster]) -> None:
    cluster = clusters[DIVISIONS.index(2)]
    list(atta.NeighborLoader(cluster, [2], "train", batch_size=64))
    for command in (["status", "--interval", "100ms"], ["top", "--once", "--interval", "100ms"]):
        done = CliRunner().invoke(cli, [*command, "--cluster", str(cluster.cluster_file)])
        assert done.exit_code == 0, done.output
        assert "0-1" in done.output
        assert "2-3" in done.output
    assert [recording.part for recording in cluster.trace()] == [0, 2]
    with atta.connect(cluster.addresses) as again:
        assert again.parts == cluster.parts
    with pytest.raises(WrongDatasetError, match="serves partition 2-3, not 1; a list names a daemon once for each"):
        atta.connect(list(dict.fromkeys(cluster.addresses)))
    with atta.connect(clusters[DIVISIONS.index(1)].addresses[0]) as alone:
        assert alone.parts == [range(4)]


def serve(data: Path, *words: str) -> str:
    command = [sys.executable, "-m", "atta.cli.main", "serve", "--data", str(data), "--log-level", "warning"]
    command += ["--listen", held_addresses(1)[0], *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_what_does_not_fit_together_is_refused_in_one_line(small_graph: SmallGraph, tmp_path: Path) -> None:
    data, file = small_graph.dataset(4, "random"), str(tmp_path / "cluster.toml")
    write_cluster(file, ["127.0.0.1:1"] * 2 + ["127.0.0.1:2"] * 2)
    assert "consecutive partitions" in serve(data, "--part", "0,2")
    assert "partition 4 does not exist" in serve(data, "--part", "3-4")
    assert "gives one daemon partition 0-1" in serve(data, "--part", "0", "--peers", file)
    assert "cannot be mapped one after another" in serve(data, "--part", "0-1", "--memory", "map")


def test_numbers_of_daemons_out_of_range(small_graph: SmallGraph) -> None:
    for daemons in (0, 5):
        with pytest.raises(ConfigError, match="must be 1 to 4"):
            atta.local(small_graph.dataset(4, "random"), daemons=daemons)
