"""A killed consumer or daemon, or a lack of memory, leaves nothing that grows, and other clients are still served.
Consumers of a killed daemon read which one, and by what, at once and wherever they are."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
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


def slots_of(pid: int) -> dict[int, int]:
    """Memory of the files with slots that a process has open, in bytes by inode, as the kernel counts it."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if "atta-slot" in os.readlink(entry):
            status = entry.stat()
            found[status.st_ino] = 512 * status.st_blocks
    return found


def mapped_slots(pid: int) -> set[int]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if "atta-slot" in line}


def epoch(cluster: atta.Cluster) -> list[list[int]]:
    return [b.n_id().tolist() for b in atta.NeighborLoader(cluster, [4, 4], batch_size=20, seed=1)]


def test_slots_of_killed_consumers_are_used_again(small_graph: SmallGraph) -> None:
    """Consumers are killed while they hold batches: others reuse their slots, and no further slots are made."""
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=("--lease", "1s")) as cluster:
        daemon = cluster.pids[0]
        for _ in range(2):
            holder = subprocess.Popen([sys.executable, "-c", HOLDER, cluster.addresses[0]], stdout=subprocess.PIPE)
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"
            assert eventually(lambda: cluster.stats()[0]["batches"] % BATCHES == 0)  # all are made ahead
            assert cluster.stats()[0]["slots_created"] == BATCHES
            assert mapped_slots(holder.pid) == set(slots_of(daemon))
            time.sleep(1.5)  # longer than the lease: an idle client that is alive keeps its session
            assert cluster.stats()[0]["sessions"] == 1
            holder.kill()
            holder.communicate()
            assert eventually(lambda: cluster.stats()[0]["sessions"] == 0)
            assert eventually(lambda: cluster.stats()[0]["sessions_lingering"] == 0)
            assert cluster.stats()[0]["lent_bytes"] == 0
            assert cluster.stats()[0]["buffer_bytes"] == sum(slots_of(daemon).values())
        assert len(epoch(cluster)) == BATCHES
        assert cluster.stats()[0]["slots_created"] == BATCHES


@contextmanager
def daemon(data: Path, port: int, tmp: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of partition 0 in its own process group, with its own folder for temporary files."""
    command = [sys.executable, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", "0", "--threads", "1"]
    tmp.mkdir(exist_ok=True)
    words, env = [*command, "--listen", f"127.0.0.1:{port}"], {**os.environ, "TMPDIR": str(tmp)}
    started = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def test_a_killed_daemon_leaves_nothing(small_graph: SmallGraph, tmp_path: Path) -> None:
    """No file is left, and a consumer's batch stays whole. The next daemon at the address serves the same client."""
    data, port, tmp = small_graph.dataset(1, "random"), held_port(), tmp_path / "tmp"

    def work(cluster: atta.Cluster) -> tuple[list[list[int]], list[list[float]]]:
        table = atta.DistTensor(cluster, (50, 2), name="counts")
        table.add([3, 3, 7], np.ones((3, 2), np.float32))
        return epoch(cluster), table[[3, 7]].tolist()

    with daemon(data, port, tmp) as first, atta.connect(f"127.0.0.1:{port}", wait=True) as cluster:
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
        with daemon(data, port, tmp) as second:
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
        assert 40 << 20 < cluster.stats()[0]["buffer_bytes"] <= 64 << 20
        # The failed session left room, so a batch may be made between two looks.
        assert eventually(lambda: cluster.stats()[0]["buffer_bytes"] == sum(slots_of(cluster.pids[0]).values()))
        assert [batch.batch_size for batch in kept] == [200] * len(kept)
        kept.clear()
        assert [sum(1 for _ in batches) for batches in opened] == [2] * len(opened)  # nothing is lost
        assert sum(1 for _ in loader) == 3
        assert cluster.stats()[0]["buffer_bytes"] <= 64 << 20


# -- what is read of a killed daemon -----------------------------------------------------------------------------------


KILLED = r"{address}: the daemon of partition {part} was killed by SIGKILL; out of memory\?"
WAITS = {"reconnect": 60.0}
"""How long a loader would wait for a daemon that may come back."""
SOON_S = 15.0
"""Far less than that, also on a busy machine."""


def ended(cluster: atta.LocalCluster, part: int) -> str:
    """What a consumer reads after this partition's daemon was killed."""
    return KILLED.format(address=cluster.addresses[part], part=part)


@pytest.mark.parametrize(("killed", "taken"), [(0, 0), pytest.param(0, 1, marks=pytest.mark.slow), (0, 2), (1, 1)])
def test_loaders_and_tables_read_it_at_once(small_graph: SmallGraph, killed: int, taken: int) -> None:
    """Be it that a loader's home was killed, or a daemon that its home needs."""
    with atta.local(small_graph.dataset(2, "random"), threads=1, options=("--cache", "0")) as cluster:
        loader = atta.NeighborLoader(cluster, [5, 5], batch_size=8, rank=0, world_size=2, **WAITS)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        os.kill(cluster.pids[killed], signal.SIGKILL)
        began = time.monotonic()
        for ask in (lambda: [*batches], lambda: [*loader], cluster.stats):
            with pytest.raises(atta.DaemonEndedError, match=ended(cluster, killed)):
                ask()
        assert time.monotonic() - began < SOON_S
        assert cluster.lost is not None
        assert str(cluster.lost).endswith("was killed by SIGKILL; out of memory?")


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
    words = ["--num-neighbors", "5,5", "--batch-size", "8", "--epochs", "100000", "--device", "cpu"]
    data = small_graph.dataset(2, "random")
    command = [sys.executable, "-m", "atta.cli.main", "train", "--data", str(data), *words]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert job.stderr is not None
        said = [job.stderr.readline() for _ in range(3)]
        assert said[:2] == [f"atta: starting 1 trainer and daemons for {data}\n", "training begins\n"]
        assert said[2].startswith("epoch")
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
