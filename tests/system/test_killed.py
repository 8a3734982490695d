"""Daemons of ``atta.local`` that are killed: consumers read which one, and by what, at once and wherever they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

import atta
from tests.system.conftest import SmallGraph

KILLED = r"{address}: the daemon of partition {part} was killed by SIGKILL; out of memory\?"
WAITS = {"reconnect": 60.0}
"""How long a loader would wait for a daemon that may come back."""
SOON_S = 15.0
"""Far less than that, also on a busy machine."""


def ended(cluster: atta.LocalCluster, part: int) -> str:
    """What a consumer reads after this partition's daemon was killed."""
    return KILLED.format(address=cluster.addresses[part], part=part)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_loader_reads_it_at_once(small_graph: SmallGraph, killed: int) -> None:
    """Be it that its home was killed, or a daemon that its home needs."""
    with atta.local(small_graph.dataset(2, "random"), threads=1, options=("--cache", "0")) as cluster:
        loader = atta.NeighborLoader(cluster, [5, 5], batch_size=8, rank=0, world_size=2, **WAITS)
        batches = iter(loader)
        next(batches)
        os.kill(cluster.pids[killed], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(atta.DaemonEndedError, match=ended(cluster, killed)):
            for _ in batches:
                pass
        with pytest.raises(atta.DaemonEndedError, match=ended(cluster, killed)):
            list(loader)
        assert time.monotonic() - began < SOON_S
        assert cluster.lost is not None
        assert str(cluster.lost).endswith("was killed by SIGKILL; out of memory?")


def test_tables_say_it_too(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        os.kill(cluster.pids[1], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(atta.DaemonEndedError, match=ended(cluster, 1)):
            cluster.stats()
        assert time.monotonic() - began < SOON_S


def test_another_process_reads_it_in_the_cluster_file(small_graph: SmallGraph) -> None:
    script = (
        "import atta, sys; c = atta.connect(sys.argv[1]);"
        "i = iter(atta.NeighborLoader(c, [5, 5], batch_size=8, rank=0, world_size=2, reconnect=60)); next(i);"
        "print('up', flush=True); sys.stdin.readline();\n"
        "try:\n    list(i)\nexcept atta.AttaError as error:\n    print(type(error).__name__, error)"
    )
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        command = [sys.executable, "-c", script, str(cluster.cluster_file)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as other:  # type: ignore[call-overload]
            assert other.stdout.readline() == "up\n"
            os.kill(cluster.pids[0], signal.SIGKILL)
            said, _ = other.communicate("go\n", timeout=SOON_S)
        assert said.startswith(
            f"DaemonEndedError {cluster.addresses[0]}: the daemon of partition 0 was killed by SIGKILL"
        )


def test_a_replica_goes_on_and_the_last_one_is_named(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(2, "random"), threads=1, replicas=2) as cluster:
        loader = atta.NeighborLoader(cluster, [5, 5], batch_size=8, rank=0, world_size=2, **WAITS)
        whole = len(list(loader))
        os.kill(cluster.pids[0], signal.SIGKILL)
        assert len(list(loader)) == whole
        assert cluster.lost is None
        os.kill(cluster.pids[1], signal.SIGKILL)
        with pytest.raises(atta.DaemonEndedError, match="the daemon of partition 0 was killed by SIGKILL"):
            list(loader)


@pytest.mark.usefixtures("preloaded_trainers")
def test_a_training_that_started_daemons_names_the_one_that_was_killed(small_graph: SmallGraph) -> None:
    """And it ends soon after, although loaders wait for daemons that may come back."""
    data = small_graph.dataset(2, "random")
    words = ["--num-neighbors", "5,5", "--batch-size", "8", "--epochs", "100000", "--device", "cpu"]
    job = subprocess.Popen(
        [sys.executable, "-m", "atta.cli.main", "train", "--data", str(data), *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert job.stderr is not None
        assert job.stderr.readline().startswith("epoch")
        daemons = [c for c in psutil.Process(job.pid).children() if "serve" in c.cmdline()]
        address = daemons[0].cmdline()[daemons[0].cmdline().index("--listen") + 1]
        daemons[0].kill()  # the other one is not needed where caches are full
        _, rest = job.communicate(timeout=2 * SOON_S)
    finally:
        job.kill()
        job.wait()
    assert [line for line in rest.splitlines() if not line.startswith("epoch")] == [
        f"atta: error: {address}: the daemon of partition 0 was killed by SIGKILL; out of memory?"
    ]
