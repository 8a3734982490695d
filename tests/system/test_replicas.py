"""Several daemons for each partition: one is killed in the middle of an epoch, and the same batches follow."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import atta
from atta.client.control import Connection
from atta.client.every import ask_all, check_together
from atta.wire.clusterfile import resolve_target, write_cluster
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import daemons
from tests.system.test_failover import OWN, digest


def loader_of(cluster: atta.Cluster) -> Any:
    return atta.NeighborLoader(cluster, [5, 5], "train", batch_size=8, **OWN)


def test_the_daemon_in_use_and_then_a_peer_are_killed(small_graph: SmallGraph) -> None:
    """Two partitions with two daemons each. The trainer's own daemon and the owner of the other part die."""
    with atta.local(small_graph.dataset(2, "random"), threads=1, replicas=2, options=("--cache", "0")) as cluster:
        assert [len(replicas) for replicas in cluster.replicas] == [2, 2]
        known = check_together(ask_all(resolve_target(cluster.cluster_file), Connection.describe, deadline_s=10))
        assert [(answer.part, answer.error) for answer in known] == [(0, None), (0, None), (1, None), (1, None)]
        loader, first = loader_of(cluster), cluster.addresses[0]
        whole = [digest(batch) for batch in loader]
        loader.set_epoch(0)
        found = []
        for batch in loader:
            found.append(digest(batch))
            if len(found) == 3:  # the other one of the trainer's daemons then needs the other one of the owner's
                os.kill(cluster.pids[2], signal.SIGKILL)
                os.kill(cluster.pids[0], signal.SIGKILL)
        assert found == whole
        assert cluster.addresses[0] != first
        assert cluster._connections[0].stats()["replica_changes_total"] >= 1.0
        loader.set_epoch(0)
        assert [digest(batch) for batch in loader] == whole


def test_one_replica_of_a_file_is_down_at_first(small_graph: SmallGraph, tmp_path: Path) -> None:
    """The second one is taken; it comes to no harm that the first is another daemon later."""
    (down, up), data, file = held_addresses(2), small_graph.dataset(1, "random"), tmp_path / "cluster.toml"
    write_cluster(file, [(down, up)])
    with daemons() as running:
        running.start(data, 0, up, {})
        with atta.connect(file) as cluster:
            assert (cluster.addresses, cluster.replicas) == ([up], [(down, up)])
            loader = loader_of(cluster)
            whole = [digest(batch) for batch in loader]
            batches = loader.resume(0, 0)
            found = [digest(next(batches))]
            running.start(small_graph.dataset(2, "random"), 0, down, {1: up})
            running.kill(up)
            with pytest.raises(atta.WrongDatasetError, match=f"{down}: serves partition 0 of dataset"):
                list(batches)
            running.kill(down)
            running.start(data, 0, down, {})
            assert found + [digest(batch) for batch in loader.resume(0, 1)] == whole
            assert cluster.addresses == [down]
