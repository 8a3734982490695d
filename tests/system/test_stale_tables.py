"""Stale rows on real daemons: synchronisations are seen whole, jobs that die leave nothing, full daemons name the bytes."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch

import atta
from atta.daemon.services.tables import LEASE_LOOK_S
from atta.train.stale import rules
from atta.train.stale.daemons import DaemonTable
from atta.train.stale.replicas import ReplicaTable
from atta.train.stale.table import Direction, TableShape
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

WIDTHS: dict[tuple[int, Direction], int] = {(1, "forward"): 5, (2, "forward"): 3, (1, "backward"): 5}


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph) -> Iterator[atta.LocalCluster]:
    with atta.local(small_graph.dataset(3, "random"), threads=1, options=("--tables", "4MiB")) as cluster:
        yield cluster


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_trainers_read_what_replicas_would_hold(
    small_graph: SmallGraph, cluster: atta.LocalCluster, dtype: torch.dtype
) -> None:
    """Half of the vertices belong to each trainer. Epochs without a synchronisation, and late pulls, change nothing."""
    n, generator = len(small_graph.ids), torch.Generator().manual_seed(3)
    shape = TableShape(n, WIDTHS, history=2, dtype=dtype)
    replica = ReplicaTable(shape, torch.zeros(n, dtype=torch.int64))
    with ExitStack() as stack:
        clusters = [stack.enter_context(atta.connect(cluster.cluster_file)) for _ in range(2)]
        trainers = [
            DaemonTable(one.tables, shape, job=f"twins{dtype.itemsize}", node_type="node", trainer=rank)
            for rank, one in enumerate(clusters)
        ]
        stack.callback(trainers[0].close, delete=True)
        stack.callback(trainers[1].close)
        where = trainers[0].locate(small_graph.ids)
        assert sorted(where.tolist()) == list(range(n))
        halves, synced = [where[: n // 2], where[n // 2 :]], []
        for epoch in range(9):
            late = None
            if epoch in (0, 2, 3, 5, 8):
                if synced:
                    late = trainers[1].fetch_later(2, "forward", where, rules.snapshot(synced[-1]))
                    expected = replica.fetch(2, "forward", where, rules.snapshot(synced[-1]))
                for key, width in WIDTHS.items():
                    for trainer, rows in zip(trainers, halves, strict=True):
                        values = torch.randn(len(rows), width, generator=generator, dtype=dtype)
                        trainer.publish(*key, rows, values, epoch)
                        replica.publish(*key, rows, values, epoch)
                synced.append(epoch)
            for trainer in trainers:
                trainer.flush()
            if late is not None:
                assert all(torch.equal(a, b) for a, b in zip(late.result(60), expected, strict=True))
            if synced[-1] == epoch:  # pushed, but not committed
                with pytest.raises(atta.StaleRowError, match=f"the reader may use {epoch} to {epoch - 1}"):
                    trainers[0].fetch(1, "forward", where, rules.snapshot(epoch))
            for table in (*trainers, replica):
                table.commit(epoch)
            for key in WIDTHS:
                asked = where[torch.randint(0, n, (40,), generator=generator)]
                for rule in (rules.snapshot(synced[-1]), rules.latest(), rules.window(epoch, 2)):
                    wanted = replica.fetch(*key, asked, rule)
                    for trainer in trainers:
                        got = trainer.fetch(*key, asked, rule)
                        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
        assert [v.tolist() for v in trainers[1].fetch(1, "forward", where[:1], rules.window(8, 2)).versions] == [
            [5],
            [8],
        ]


def test_rows_that_were_not_part_of_a_synchronisation_are_noticed(
    small_graph: SmallGraph, cluster: atta.LocalCluster
) -> None:
    table = DaemonTable(cluster.tables, TableShape(300, WIDTHS), job="partly", node_type="node", trainer=4)
    rows = table.locate(small_graph.ids)
    table.publish(1, "forward", rows[:10], torch.ones(10, 5), 7)
    with pytest.raises(atta.ConfigError, match="rows are under way"):
        table.commit(7)
    table.flush()
    table.commit(7)
    assert table.fetch(1, "forward", rows[:10], rules.snapshot(7)).values.sum() == 50
    with pytest.raises(
        atta.StaleRowError, match=f"row {int(rows[10])} was never written with a version; the reader may use 7"
    ):
        table.fetch(1, "forward", rows[:11], rules.snapshot(7))
    with pytest.raises(atta.StaleRowError, match="the reader may use 8 to 7"):
        table.fetch(1, "forward", rows[:10], rules.snapshot(8))
    with pytest.raises(atta.NonFiniteError, match="trainer 4, epoch 8, layer 1: gradients of rows"):
        table.publish(1, "backward", rows[:1], torch.full((1, 5), math.nan), 8)
    table.close(delete=True)
    assert not [name for name in cluster.tables.specs() if name.startswith("partly.")]


def test_rows_in_fewer_bytes(small_graph: SmallGraph, cluster: atta.LocalCluster) -> None:
    table = DaemonTable(cluster.tables, TableShape(300, WIDTHS), job="bytes", node_type="node", codec="bf16")
    rows, values = table.locate(small_graph.ids), torch.randn(300, 5)
    table.publish(1, "forward", rows, values, 0)
    table.flush()
    table.commit(0)
    assert torch.equal(table.fetch(1, "forward", rows, rules.latest()).values, values.bfloat16().float())
    table.fetch(1, "forward", rows[:7], rules.latest())
    assert dict(table.pushed) == {(1, "forward"): 300 * 5 * 2}
    assert dict(table.pulled) == {(1, "forward"): 307 * 5 * 2}
    table.close(delete=True)
    with pytest.raises(atta.ConfigError, match="float64"):
        DaemonTable(
            cluster.tables, TableShape(300, WIDTHS, dtype=torch.float64), job="x", node_type="node", codec="bf16"
        )


def test_daemons_without_room_name_the_bytes_and_keep_nothing(cluster: atta.LocalCluster) -> None:
    before = set(cluster.tables.specs())
    shape = TableShape(300, {(1, "forward"): 2000, (2, "forward"): 8000})
    with pytest.raises(atta.QuotaExceededError, match=f"stale rows need {shape.nbytes} bytes on the daemons together"):
        DaemonTable(cluster.tables, shape, job="large", node_type="node")
    assert set(cluster.tables.specs()) == before


@pytest.mark.slow
def test_a_job_that_is_killed_leaves_nothing(small_graph: SmallGraph, cluster: atta.LocalCluster) -> None:
    """Its tables go when their lease is over. Those of another job, which neither pushes nor pulls meanwhile, stay."""
    began, lease_s = time.monotonic(), 10.0
    shape = TableShape(300, {(1, "forward"): 5})
    other = DaemonTable(cluster.tables, shape, job="alive", node_type="node", lease_s=lease_s)
    program = textwrap.dedent("""
        import sys, time, atta
        from atta.train.stale.daemons import DaemonTable
        from atta.train.stale.table import TableShape
        cluster = atta.connect(sys.argv[1])
        DaemonTable(cluster.tables, TableShape(300, {(1, "forward"): 5}), job="dead", node_type="node", lease_s=2.0)
        print("made", flush=True)
        time.sleep(600)
    """)
    command = [sys.executable, "-c", program, str(cluster.cluster_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "made\n"
        assert {"dead.1.forward.0", "dead.1.forward.1"} <= set(cluster.tables.specs())
        job.send_signal(signal.SIGKILL)
    assert eventually(lambda: not [name for name in cluster.tables.specs() if name.startswith("dead.")], seconds=60)
    time.sleep(max(0.0, began + lease_s + 2 * LEASE_LOOK_S - time.monotonic()))
    rows = other.locate(small_graph.ids[:2])
    other.publish(1, "forward", rows, torch.ones(2, 5), 0)
    other.flush()
    other.commit(0)
    assert np.array_equal(other.fetch(1, "forward", rows, rules.latest()).values.numpy(), np.ones((2, 5)))
    other.close(delete=True)
