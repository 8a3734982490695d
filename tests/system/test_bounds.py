"""Clients that do not read their answers: the daemon's memory stays bounded, and other clients are served."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

import atta
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

STREAMS = 60
ANSWER_BYTES = 100 << 20
PER_STREAM = 12 << 20  # three chunks of 4 MiB: one made ahead, one passed on, one in gRPC's buffers
PER_CONNECTION = 128 << 20  # an eighth of --answer-memory


@pytest.mark.usefixtures("own_interpreters")
def test_streams_that_nobody_reads(small_graph: SmallGraph, tmp_path: Path) -> None:
    """A client asks for 60 answers of 100 MiB and reads none: the daemon makes a few chunks of ten of them."""
    with atta.local(small_graph.dataset(1, "random"), threads=2) as cluster:
        daemon = psutil.Process(cluster.pids[0])
        spec = MutableSpec("wide", 1000, row_shape=(1024,))
        table = cluster.tables.create(spec)
        rows = np.arange(ANSWER_BYTES // spec.row_bytes) % 1000
        table.pull(rows[:2000])
        before = daemon.memory_info().rss
        with atta.connect(cluster.addresses, deadline_s=60) as idle:
            request = table_pb2.PullRowsRequest(name="wide", rows=rows.astype(np.int64).tobytes())
            calls = [idle._connections[0].start("TableService.Pull", request) for _ in range(STREAMS)]
            at_once = PER_CONNECTION // PER_STREAM
            assert eventually(lambda: cluster.stats()[0]["answer_bytes"] == at_once * PER_STREAM)
            for _ in range(20):  # another client works on and gets correct rows
                values = table.pull(rows[:3000]).values
                assert values.shape == (3000, 1024)
            held = daemon.memory_info().rss - before
            assert held < 2 * PER_CONNECTION
            for call in calls:
                call.cancel()


def test_a_consumer_that_stops_reading_holds_its_queue_only(small_graph: SmallGraph) -> None:
    """One session stays within the queue's bound while another session of the same daemon runs through epochs."""
    options = ("--queue", "1MiB", "--buffer", "64MiB")
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=options) as cluster:
        stalled = iter(atta.NeighborLoader(cluster, [5, 5], "train", batch_size=4))
        next(stalled)
        counted = 0
        loader = atta.NeighborLoader(cluster, [5, 5], "train", batch_size=4)
        done = threading.Event()

        def consume() -> None:
            nonlocal counted
            for _ in range(5):
                counted += sum(1 for _ in loader)
            done.set()

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        assert done.wait(60)
        assert counted == 5 * len(loader)
        stats = cluster.stats()[0]
        assert stats["buffer_bytes"] < 64 << 20
        left = sum(1 for _ in stalled)
        assert left == len(loader) - 1
