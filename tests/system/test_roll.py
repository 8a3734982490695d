"""Daemons that are restarted under load: their consumers go on, and get the same batches."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.client.control import Connection
from atta.errors import UnavailableError
from atta.wire.clusterfile import write_cluster
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import daemons
from tests.system.test_failover import digest
from tests.system.test_replicas import loader_of
from tests.waiting import eventually


def is_draining(address: str) -> bool:
    """Whether the daemon is stopping, or has stopped."""
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


@pytest.mark.slow
@pytest.mark.usefixtures("own_interpreters")
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_roll_under_load_loses_no_batch(small_graph: SmallGraph, replicas: int, tmp_path: Path) -> None:
    """Two daemons: of two parts, or of one. Two consumers; with a replica none of them waits for a daemon."""
    options = ("--drain", "1s" if replicas == 1 else "600s")
    data, report = small_graph.dataset(2 // replicas, "random"), tmp_path / "roll.json"
    with atta.local(data, threads=1, replicas=replicas, options=options) as cluster:
        before = [loader_of(cluster) for _ in range(2)]
        whole = {epoch: [digest(batch) for batch in before[0].resume(epoch, 0)] for epoch in range(3)}
        over = threading.Event()

        def consume(number: int) -> tuple[int, int]:
            """Numbers of epochs, and of those that differ."""
            loader, epochs, wrong = before[number], 0, 0
            while not over.is_set() or not epochs:
                for epoch in range(3):
                    found = []
                    for batch in loader.resume(epoch, 0):
                        found.append(digest(batch))
                        over.wait(0.02)
                    epochs, wrong = epochs + 1, wrong + (found != whole[epoch])
            return epochs, wrong

        with ThreadPoolExecutor(2) as pool:
            consumers = [pool.submit(consume, number) for number in range(2)]
            words = ["roll", str(cluster.cluster_file), "--local", "--json", str(report), "--timeout", "60s"]
            try:
                if replicas == 1:
                    refused = CliRunner().invoke(cli, words)
                    assert "--allow-pause" in str(refused.exception)
                    words.append("--allow-pause")
                result = CliRunner().invoke(cli, words, catch_exceptions=False)
            finally:
                over.set()
            assert [consumer.result(60)[1] for consumer in consumers] == [0, 0]
        assert result.exit_code == 0
        done = json.loads(report.read_text())["daemons"]
        assert len({one["incarnation"] for one in done}) == len({one["address"] for one in done}) == 2
