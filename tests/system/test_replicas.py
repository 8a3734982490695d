"""Several daemons for each partition: one is killed, stopped, cut off or restarted in an epoch, and the same batches
follow."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

import atta
from atta.client.control import Connection
from atta.client.every import ask_all, check_together
from atta.client.sessions import resuming
from atta.errors import UnavailableError
from atta.wire.clusterfile import resolve_target, write_cluster
from tests.addresses import held_addresses
from tests.soak.outages import Outage, OutageTest, lane, make_dataset
from tests.soak.proxy import Proxy
from tests.system.conftest import SmallGraph
from tests.system.running import daemons
from tests.system.test_failover import OWN, digest
from tests.waiting import eventually


def loader_of(cluster: atta.Cluster) -> Any:
    return atta.NeighborLoader(cluster, [5, 5], "train", batch_size=8, **OWN)


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


@pytest.mark.parametrize(
    ("how", "transport"), [(signal.SIGKILL, "--links"), (signal.SIGSTOP, "--links"), (signal.SIGSTOP, "--no-links")]
)
def test_the_daemon_of_the_other_part_and_then_the_own_one_are_lost(
    how: signal.Signals, transport: str, small_graph: SmallGraph
) -> None:
    """Two partitions with two daemons each. Of a stopped daemon, no connection ends."""
    # Few batches ahead: else a fast machine has made all of them before a daemon is lost.
    options = ("--cache", "0", "--policy", "prefetch", "--prefetch", "2", transport)
    with atta.local(small_graph.dataset(2, "random"), threads=1, replicas=2, options=options) as cluster:
        assert [len(replicas) for replicas in cluster.replicas] == [2, 2]
        known = check_together(ask_all(resolve_target(cluster.cluster_file), Connection.describe, deadline_s=10))
        assert [(answer.part, answer.error) for answer in known] == [(0, None), (0, None), (1, None), (1, None)]
        loader, first = loader_of(cluster), cluster.addresses[0]
        whole = [digest(batch) for batch in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        found = [digest(next(batches))]
        lost = [cluster.pids[part] for part in (2, 0)]
        try:
            os.kill(lost[0], how)
            found += [digest(next(batches)) for _ in range(6)]
            assert cluster._connections[0].stats()["replica_changes_total"] >= 1.0
            assert cluster.addresses[0] == first
            os.kill(lost[1], how)
            found += [digest(batch) for batch in batches]
            assert cluster.addresses[0] != first
            assert found == whole
        finally:
            for pid in lost:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def test_the_link_to_the_daemon_is_half_open_between_two_epochs(
    small_graph: SmallGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Requests have no end of their own here: without a question nobody would ever learn of it.
    monkeypatch.setattr(resuming, "FIRST_OPEN_S", 600.0)
    (far, near), data, file = held_addresses(2), small_graph.dataset(1, "random"), tmp_path / "cluster.toml"
    with daemons() as running, ExitStack() as stack:
        for address in (far, near):
            running.start(data, 0, address, {}, links=False)  # a socket would lead past the proxy
        proxy = stack.enter_context(closing(Proxy(far)))
        write_cluster(file, [(proxy.address, near)])
        cluster = stack.enter_context(atta.connect(file, deadline_s=600))
        loader = loader_of(cluster)
        whole = [digest(batch) for batch in loader]
        loader.set_epoch(0)
        proxy.freeze()
        assert [digest(batch) for batch in loader] == whole
        assert cluster.addresses == [near]


# -- a daemon that is away for a while, in each possible way; ``tests.soak.outages`` runs longer ones -------------------


@pytest.fixture(scope="module")
def outage_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutageTest]:
    folder = tmp_path_factory.mktemp("outages")
    with lane(make_dataset(folder), folder / "lane", through_proxy=True) as found:
        yield found


@pytest.mark.parametrize("kind", ["stop", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("drop", "kill"))])
def test_batches_are_those_of_an_undisturbed_run(outage_test: OutageTest, kind: str) -> None:
    result = outage_test.run_round(Outage(kind, 1.5))
    assert result.good, result
    assert result.batches > 50
    assert result.acknowledged > 0


# -- daemons that are restarted ----------------------------------------------------------------------------------------


def is_draining(address: str) -> bool:
    connection = Connection(address, 5.0)
    try:
        return connection.describe().draining
    except UnavailableError:
        return True
    finally:
        connection.close()


def test_a_draining_daemon_hands_its_consumers_over(small_graph: SmallGraph, tmp_path: Path) -> None:
    """At the next batch the consumer goes on at the replica, so the daemon does not need its long --drain."""
    (one, two), data, file = held_addresses(2), small_graph.dataset(1, "random"), tmp_path / "cluster.toml"
    write_cluster(file, [(one, two)])
    with daemons() as running, ThreadPoolExecutor(1) as pool:
        for address in (one, two):
            running.start(data, 0, address, {}, drain_s=600.0)
        with atta.connect(file) as cluster:
            loader = loader_of(cluster)
            whole = [digest(batch) for batch in loader]
            batches = loader.resume(0, 0)
            found = [digest(next(batches))]
            ended = pool.submit(running.end, one)
            assert eventually(lambda: is_draining(one))
            found += [digest(next(batches)) for _ in range(3)]  # one was asked for before, one tells to move
            ended.result(60)
            assert cluster.addresses == [two]
            found += [digest(batch) for batch in batches]
            assert found == whole
            assert cluster._connections[0].stats()["sessions_opened"] == 1.0


def test_without_a_replica_it_serves_its_sessions_to_the_end(small_graph: SmallGraph, tmp_path: Path) -> None:
    """A new session waits until the daemon is back. None of them sees an error."""
    (one,), data, file = held_addresses(1), small_graph.dataset(1, "random"), tmp_path / "cluster.toml"
    write_cluster(file, [one])
    with daemons() as running, ThreadPoolExecutor(2) as pool:
        running.start(data, 0, one, {}, drain_s=600.0)
        with atta.connect(file) as cluster:
            loader = loader_of(cluster)
            whole = [digest(batch) for batch in loader]
            batches = loader.resume(0, 0)
            found = [digest(next(batches))]
            ended = pool.submit(running.end, one)
            assert eventually(lambda: is_draining(one))
            other = pool.submit(lambda: [digest(batch) for batch in loader_of(cluster)])
            found += [digest(batch) for batch in batches]
            assert found == whole
            ended.result(60)
            running.start(data, 0, one, {})
            assert other.result(60) == whole
