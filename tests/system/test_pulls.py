"""Pulls by memory from real daemons: whole rows, also of a daemon that is killed meanwhile; messages where need be."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

import atta
from atta.client.tables import lending
from atta.kvstore.spec import MutableSpec, Normal
from tests.durable import durable
from tests.system.conftest import SmallGraph

ROWS, COLUMNS = 2000, 50


def lent_rows(cluster: atta.Cluster) -> float:
    return sum(stats["table_rows_lent"] for stats in cluster.stats())


def test_rows_are_whole_and_the_latest_although_the_daemon_is_killed(small_graph: SmallGraph, tmp_path: Path) -> None:
    """A writer writes the same number everywhere, then the next one. A reader pulls meanwhile."""
    all_rows, written, errors = np.arange(ROWS), [0], list[BaseException]()
    spec = MutableSpec("whole", ROWS, row_shape=(COLUMNS,))
    assert spec.row_bytes * ROWS > lending.LEAST_LENT_BYTES
    with (
        durable(small_graph.dataset(1, "random"), tmp_path, "--durability", "process") as daemon,
        daemon.connect() as cluster,
        daemon.connect() as other,
    ):
        table, more = cluster.tables.create(spec), other.tables.create(spec)
        stopped = threading.Event()

        def write() -> None:
            try:
                while not stopped.is_set():
                    number = written[0] + 1
                    more.push(all_rows, np.full((ROWS, COLUMNS), number, np.float32), "write").wait()
                    written[0] = number
            except BaseException as error:
                errors.append(error)

        def read(count: int) -> None:
            for _ in range(count):
                least = written[0]
                values = table.pull(all_rows).values
                assert (values == values[:, :1]).all()
                assert values.min() >= least

        writer = threading.Thread(target=write)
        writer.start()
        try:
            read(10)
            assert lent_rows(cluster) == 10 * ROWS
            killer = threading.Thread(target=lambda: (daemon.kill(), daemon.start()))
            killer.start()
            read(20)
            killer.join()
            read(10)
            assert lent_rows(cluster) >= 10 * ROWS  # the new daemon is lent memory, too
        finally:
            stopped.set()
            writer.join()
        assert not errors


def test_a_daemon_that_is_elsewhere_is_lent_nothing(small_graph: SmallGraph) -> None:
    rows = np.random.default_rng(0).integers(0, ROWS, 4 * ROWS)
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        table = atta.DistTensor(cluster, (ROWS, COLUMNS), name="near", init=Normal(0, 1, seed=1))
        wanted = table[rows]
        assert lent_rows(cluster) == len(rows)
        for connection, found in zip(cluster._connections, cluster._descriptions, strict=True):
            connection.meet(replace(found, machine="another"))
        assert np.array_equal(table[rows], wanted)
        assert lent_rows(cluster) == len(rows)
