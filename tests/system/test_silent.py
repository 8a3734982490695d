"""Daemons that are stopped and links that are half open: a replica takes over, though no connection has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import atta
from atta.client.sessions import resuming
from atta.wire.clusterfile import write_cluster
from tests.addresses import held_addresses
from tests.soak.proxy import Proxy
from tests.system.conftest import SmallGraph
from tests.system.running import daemons
from tests.system.test_failover import OWN, digest


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def loader_of(cluster: atta.Cluster) -> Any:
    return atta.NeighborLoader(cluster, [5, 5], "train", batch_size=8, **OWN)


@pytest.mark.parametrize("transport", ["--links", "--no-links"])
def test_the_daemon_of_the_other_part_and_then_the_own_one_are_stopped(transport: str, small_graph: SmallGraph) -> None:
    # Few batches ahead: else a fast machine has made all of them before a daemon is stopped.
    options = ("--cache", "0", "--policy", "prefetch", "--prefetch", "2", transport)
    with atta.local(small_graph.dataset(2, "random"), threads=1, replicas=2, options=options) as cluster:
        loader, first = loader_of(cluster), cluster.addresses[0]
        whole = [digest(batch) for batch in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        found = [digest(next(batches))]
        with stopped(cluster.pids[2]):
            found += [digest(next(batches)) for _ in range(6)]
            assert cluster._connections[0].stats()["replica_changes_total"] >= 1.0
            assert cluster.addresses[0] == first
        with stopped(cluster.pids[0]):
            found += [digest(batch) for batch in batches]
            assert cluster.addresses[0] != first
        assert found == whole


@pytest.mark.parametrize("when", ["within an epoch", "between two"])
def test_the_link_to_the_daemon_is_half_open(
    small_graph: SmallGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # Requests have no end of their own here: without a question nobody would ever learn of it.
    monkeypatch.setattr(resuming, "FIRST_OPEN_S", 600.0)
    (far, near), data, file = held_addresses(2), small_graph.dataset(1, "random"), tmp_path / "cluster.toml"
    with daemons() as running:
        for address in (far, near):
            running.start(data, 0, address, {}, links=False)  # a socket would lead past the proxy
        proxy = Proxy(far)
        try:
            write_cluster(file, [(proxy.address, near)])
            with atta.connect(file, deadline_s=600) as cluster:
                loader = loader_of(cluster)
                whole = [digest(batch) for batch in loader]
                loader.set_epoch(0)
                batches = iter(loader)
                found = [digest(next(batches)) for _ in range(1 if when == "within an epoch" else len(whole))]
                proxy.freeze()
                found += [digest(batch) for batch in batches]
                if when == "between two":
                    assert found == whole
                    loader.set_epoch(0)
                    found = [digest(batch) for batch in loader]
                assert found == whole
                assert cluster.addresses == [near]
        finally:
            proxy.close()
