"""A killed consumer or daemon, or a lack of memory, leaves nothing that grows, and other clients are still served."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import psutil
import pytest

import atta
from atta.partition import GraphWriter, partition_graph
from tests.addresses import held_port
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

BATCHES = 6  # of 20 seeds, an epoch

HOLDER = """
import atta, sys, time
cluster = atta.connect(sys.argv[1])
batches = iter(atta.NeighborLoader(cluster, [4, 4], batch_size=20))
held = [next(batches) for _ in range(3)]
print("up", flush=True)
time.sleep(600)
"""

# A daemon that reads the available memory from a file.
SHORT_OF_MEMORY = """
import pathlib, psutil, sys, types
told = pathlib.Path(sys.argv.pop(1))
psutil.virtual_memory = lambda: types.SimpleNamespace(available=int(told.read_text()), total=1 << 34)
from atta.cli.main import main
main()
"""


def slots_of(pid: int) -> dict[int, int]:
    """Memory of the files with slots that a process has open, in bytes by inode, as the kernel counts it."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if "atta-slot" in os.readlink(entry):
            status = entry.stat()
            found[status.st_ino] = 512 * status.st_blocks
    return found


def mapped_slots(pid: int) -> set[int]:
    """Inodes of the files with slots that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if "atta-slot" in line}


def epoch(cluster: atta.Cluster) -> list[list[int]]:
    return [b.n_id().tolist() for b in atta.NeighborLoader(cluster, [4, 4], batch_size=20, seed=1)]


def test_slots_of_killed_consumers_are_used_again(small_graph: SmallGraph) -> None:
    """Three consumers are killed while they hold batches: others reuse their slots, and no further slots are made."""
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=("--lease", "1s")) as cluster:
        daemon = cluster.pids[0]
        for _ in range(3):
            holder = subprocess.Popen([sys.executable, "-c", HOLDER, cluster.addresses[0]], stdout=subprocess.PIPE)
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"
            assert eventually(lambda: cluster.stats()[0]["batches"] % BATCHES == 0)  # all are made ahead
            assert cluster.stats()[0]["slots_created"] == BATCHES
            assert mapped_slots(holder.pid) == set(slots_of(daemon))
            holder.kill()
            holder.communicate()
            assert eventually(lambda: cluster.stats()[0]["sessions"] == 0)
            assert eventually(lambda: cluster.stats()[0]["sessions_lingering"] == 0)
            assert cluster.stats()[0]["lent_bytes"] == 0
            assert cluster.stats()[0]["buffer_bytes"] == sum(slots_of(daemon).values())
        assert len(epoch(cluster)) == BATCHES
        assert cluster.stats()[0]["slots_created"] == BATCHES


@contextmanager
def daemon(
    data: Path, port: int, *options: str, program: tuple[str, ...], tmp: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of partition 0 in its own process group, with its own folder for temporary files."""
    command = [sys.executable, *program, "serve", "--data", str(data), "--part", "0", "--listen", f"127.0.0.1:{port}"]
    tmp.mkdir(exist_ok=True)
    started = subprocess.Popen(
        [*command, "--threads", "1", *options], env={**os.environ, "TMPDIR": str(tmp)}, stderr=subprocess.DEVNULL
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def test_a_killed_daemon_leaves_nothing(small_graph: SmallGraph, tmp_path: Path) -> None:
    """No file is left, and a consumer's batch stays whole. The next daemon at the address serves the same client."""
    data, port, tmp = small_graph.dataset(1, "random"), held_port(), tmp_path / "tmp"
    program = ("-m", "atta.cli.main")

    def work(cluster: atta.Cluster) -> tuple[list[list[int]], list[list[float]]]:
        table = atta.DistTensor(cluster, (50, 2), name="counts")
        table.add([3, 3, 7], np.ones((3, 2), np.float32))
        return epoch(cluster), table[[3, 7]].tolist()

    with daemon(data, port, program=program, tmp=tmp) as first, atta.connect(f"127.0.0.1:{port}", wait=True) as cluster:
        before = work(cluster)
        held = next(iter(atta.NeighborLoader(cluster, [4, 4], batch_size=20)))
        content = held.table("x").copy()
        process = psutil.Process(first.pid)
        named = [m.path for m in process.memory_maps()] + [f.path for f in process.open_files()]
        assert not [path for path in named if path.startswith(("/dev/shm", str(tmp)))]
        old = set(slots_of(first.pid))
        assert old & mapped_slots(os.getpid())
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert not list(tmp.iterdir())
        with daemon(data, port, program=program, tmp=tmp) as second:
            with atta.connect(f"127.0.0.1:{port}", wait=True) as fresh:
                assert work(fresh) == before
                assert fresh.tables.delete("counts")
            assert work(cluster) == before  # the client from before, which was told nothing
            assert np.array_equal(held.table("x"), content)
            del held
            gc.collect()
            epoch(cluster)
            assert not old & mapped_slots(os.getpid())  # no memory of the dead daemon is kept
            assert second.poll() is None


@pytest.mark.parametrize("machine", ["", "another machine"], ids=["shared memory", "from afar"])
def test_epochs_that_are_left_early_keep_no_connection(
    small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    """However a loop ends, a closed cluster has let go of its connections: gRPC keeps those of calls that are not read
    to their ends."""
    if machine:
        monkeypatch.setattr("atta.client.cluster.machine_id", lambda: machine)
    this = psutil.Process()
    with atta.local(small_graph.dataset(2, "random"), threads=1) as running:
        ports = {int(address.rpartition(":")[2]) for address in running.addresses}

        def connections() -> int:
            return sum(bool(one.raddr) and one.raddr[1] in ports for one in this.net_connections("tcp"))

        before = connections()
        for read, end in product(range(4), ("close", "forget", "keep", "read on")):
            with atta.connect(str(running.cluster_file)) as cluster:
                loader = atta.NeighborLoader(cluster, [4, 4], batch_size=20, rank=0, world_size=1)
                batches = iter(loader)
                for _ in range(read):
                    next(batches)
                if end == "close":
                    batches.close()
                elif end == "forget":
                    del batches
                elif end == "read on":
                    assert len(list(batches)) == len(loader) - read
            assert eventually(lambda: connections() == before), f"{read} batches read, then {end}"
            assert eventually(lambda: sum(one["sessions"] for one in running.stats()) == 0)


def test_too_little_memory(small_graph: SmallGraph, tmp_path: Path) -> None:
    """A session that needs a new buffer ends with the reason.

    Sessions that can reuse buffers and later ones are served.
    """
    data, port, told = small_graph.dataset(1, "random"), held_port(), tmp_path / "available"
    told.write_text(str(1 << 30))
    program = ("-c", SHORT_OF_MEMORY, str(told))
    with (
        daemon(data, port, program=program, tmp=tmp_path / "tmp"),
        atta.connect(f"127.0.0.1:{port}", wait=True) as cluster,
    ):
        whole = epoch(cluster)
        slots = cluster.stats()[0]["slots_created"]
        told.write_text(str(5 << 20))
        with pytest.raises(atta.QuotaExceededError, match="no memory left for another batch buffer: 5 MiB available"):
            list(atta.NeighborLoader(cluster, [7, 7], batch_size=30))
        assert cluster.stats()[0]["slots_created"] == slots
        one = next(iter(atta.NeighborLoader(cluster, [4, 4], small_graph.ids[:20], batch_size=20)))
        assert one.num_nodes > 20
        told.write_text(str(1 << 30))
        assert len(list(atta.NeighborLoader(cluster, [7, 7], batch_size=30))) == 4
        assert epoch(cluster) == whole


def test_buffers_of_all_sessions_stay_within_the_quota(tmp_path: Path) -> None:
    """Consumers keep batches of 10 MiB. Once 64 MiB are full, the next request is refused with the reason."""
    rng, n = np.random.default_rng(0), 600
    with GraphWriter(tmp_path / "graph") as graph:
        graph.add_nodes("node", n, tables={"x": rng.random((n, 4096), np.float32)}, splits={"train": np.arange(n)})
        graph.add_edges("node__to__node", rng.integers(0, n, 20_000), rng.integers(0, n, 20_000))
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=1, method="random")
    with atta.local(tmp_path / "data", threads=1, options=("--buffer", "64MiB", "--lease", "1s")) as cluster:
        loader = atta.NeighborLoader(cluster, [30], batch_size=200)
        opened: list[Iterator[atta.MiniBatch]] = []
        kept: list[atta.MiniBatch] = []

        def fill() -> None:
            for _ in range(10):
                batches = iter(atta.NeighborLoader(cluster, [30], batch_size=200))
                kept.append(next(batches))
                opened.append(batches)

        with pytest.raises(atta.QuotaExceededError, match="raise --buffer"):
            fill()
        assert len(opened) >= 2
        # A look at several files is not one moment: between two of them a slot may go and another one come.
        looks = [slots_of(cluster.pids[0])]
        assert eventually(lambda: looks.append(slots_of(cluster.pids[0])) or looks[-1] == looks[-2])
        occupied = sum(looks[-1].values())
        assert 40 << 20 < occupied <= 64 << 20
        # The failed session left room, so a batch may be made between two looks.
        assert eventually(lambda: cluster.stats()[0]["buffer_bytes"] == sum(slots_of(cluster.pids[0]).values()))
        assert [batch.batch_size for batch in kept] == [200] * len(kept)
        kept.clear()
        assert [sum(1 for _ in batches) for batches in opened] == [2] * len(opened)  # nothing is lost
        assert sum(1 for _ in loader) == 3
        assert cluster.stats()[0]["buffer_bytes"] <= 64 << 20
