"""Daemons of several partitions: every division gives the same batches, and what does not fit together is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.errors import ConfigError, WrongDatasetError
from tests.system.conftest import SmallGraph, ran
from tests.system.test_failover import digest

DIVISIONS = (4, 2, 1)


@pytest.fixture(scope="module")
def clusters(small_graph: SmallGraph) -> Iterator[list[atta.LocalCluster]]:
    """They send each other messages. ``test_batches_stay.py`` looks at daemons with links."""
    data, options = small_graph.dataset(4, "random"), ("--no-links", "--cache", "0")
    with ExitStack() as stack:
        yield [stack.enter_context(atta.local(data, threads=1, daemons=d, options=options)) for d in DIVISIONS]


def same(clusters: list[atta.LocalCluster], make: Callable[..., Any]) -> list[str]:
    """Digests of the batches of three ranks, which are equal bit for bit in all clusters."""
    first, *others = [
        [digest(batch) for rank in range(3) for batch in make(cluster, rank=rank, world_size=3)] for cluster in clusters
    ]
    assert all(other == first for other in others)
    return first


def test_partitions_are_spread_evenly_and_in_order(clusters: list[atta.LocalCluster]) -> None:
    assert [[len(parts) for parts in cluster.parts] for cluster in clusters] == [[1] * 4, [2, 2], [4]]
    for cluster, daemons in zip(clusters, DIVISIONS, strict=True):
        assert cluster.num_parts == len(cluster.addresses) == 4
        assert len({*cluster.addresses}) == len(cluster.pids) == daemons
        assert [found["parts"] for found in cluster.stats()] == [len(parts) for parts in cluster.parts]


def loaders(graph: SmallGraph) -> dict[str, Callable[..., Any]]:
    plain = partial(atta.NeighborLoader, num_neighbors=[4, 3], batch_size=16)
    train = partial(plain, input_nodes="train", seed=5)
    ids, edges = graph.train_ids[:40], np.stack([graph.src_ids[:40], graph.dst_ids[:40]])
    links = partial(atta.LinkNeighborLoader, num_neighbors=[4, 3], edge_label_index=edges, neg_sampling="binary")
    times = {"time_attr": "time", "input_time": np.arange(40), "disjoint": True}
    return {
        "local": partial(train, seed_policy="local"),
        "global": partial(train, seed_policy="global"),
        "labor": partial(train, method="labor"),
        "weights": partial(train, weight_attr="weight"),
        "edge tables": partial(plain, input_nodes=ids, edge_tables={"node__to__node": ["note"]}),
        "times": partial(plain, input_nodes=ids, **times),
        "links": partial(links, batch_size=16),
        "links, redrawn": partial(links, batch_size=16, frontier="all"),
    }


def test_batches_are_the_same(clusters: list[atta.LocalCluster], small_graph: SmallGraph) -> None:
    for name, make in loaders(small_graph).items():
        assert len(same(clusters, make)) >= 3, name


def test_partitions_of_one_daemon_ask_nobody(clusters: list[atta.LocalCluster]) -> None:
    alone = clusters[DIVISIONS.index(1)]
    assert len(list(atta.NeighborLoader(alone, [4, 3], "train", batch_size=16))) == 8
    (found,) = alone.stats()
    assert found.get("remote_rows", 0) == found.get("cache_rows_asked", 0) == 0
    apart = clusters[0]
    list(atta.NeighborLoader(apart, [4, 3], "train", batch_size=16))
    asked = sum(found.get("remote_rows", 0) + found.get("cache_rows_asked", 0) for found in apart.stats())
    assert asked > 0


def test_mutable_tables(small_graph: SmallGraph) -> None:
    for daemons in (2, 1):
        with atta.local(small_graph.dataset(4, "random"), threads=1, daemons=daemons) as cluster:
            for policy, rows in {"range": 37, "nodes:node": 300, "edges:node__to__node": 3000}.items():
                table = atta.DistTensor(cluster, (rows, 3), name=f"t{rows}", policy=policy)
                ids = np.arange(rows) if policy != "nodes:node" else small_graph.ids
                values = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
                table[ids] = values
                assert np.array_equal(np.asarray(table[ids]), values)


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
    for command in ("status", "top --once"):
        said = ran(command, "--interval 100ms --cluster", cluster.cluster_file)
        assert "0-1" in said
        assert "2-3" in said
    assert [recording.part for recording in cluster.trace()] == [0, 2]
    with atta.connect(cluster.addresses) as again:
        assert again.parts == cluster.parts
    with pytest.raises(WrongDatasetError, match="serves partition 2-3, not 1; a list names a daemon once for each"):
        atta.connect(list(dict.fromkeys(cluster.addresses)))
    with atta.connect(clusters[DIVISIONS.index(1)].addresses[0]) as alone:
        assert alone.parts == [range(4)]


def test_numbers_of_daemons_out_of_range(small_graph: SmallGraph) -> None:
    for daemons in (0, 5):
        with pytest.raises(ConfigError, match="must be 1 to 4"):
            atta.local(small_graph.dataset(4, "random"), daemons=daemons)
