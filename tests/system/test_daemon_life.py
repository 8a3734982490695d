"""A daemon's life: logs that nobody reads, background tasks that die, and what the daemon reports of itself."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

import atta
from atta.client.control import Connection
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import kv_pb2
from tests.addresses import held_addresses, held_port
from tests.forking import in_fork
from tests.system.conftest import SmallGraph

MAIN = "from atta.cli.main import main; main()"
DYING = """
from atta.daemon.services.sessions import SessionService
async def expire(self):
    raise ZeroDivisionError("no leases today")
SessionService.expire = expire
"""
FULL = """
from atta.errors import DataError
from atta.kvstore.tables import Tables
def snapshot(self, folder, **_):
    raise DataError(folder, "cannot be written: No space left on device")
Tables.snapshot = snapshot
"""
SLOW = """
import time
from atta.partition.dataset import Dataset
def check(self, parts, verify):
    if verify:
        print("loading", flush=True)
        time.sleep(60)
Dataset._check_files = check
"""


@contextlib.contextmanager
def daemon(
    data: Path, *options: str, before: str = "", shell: str = "", stderr: Any = subprocess.PIPE, stdin: Any = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A daemon of partition 0, and its address. ``before``: Python that runs first; ``shell``: redirections."""
    (address,) = held_addresses(1)
    command = [sys.executable, "-m", "atta.cli.main", "serve"]
    if before or shell:  # it needs an interpreter of its own
        command = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-c", f"{before}\n{MAIN}", "serve"]
    command += ["--part", "0", "--listen", address, *options]  # the last value of an option counts
    command += ["--data", str(data), "--threads", "1"]
    child = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        yield child, address
    finally:
        child.kill()
        child.communicate()


def refused(address: str, times: int) -> int:
    """Send ``times`` requests that are refused, and so logged. Return how many log lines the daemon has dropped."""
    connection, astray = Connection(address, 20.0), Connection(address, 20.0, part=7)
    connection.describe(wait=True)
    for _ in range(times):
        with pytest.raises(grpc.RpcError) as caught:
            list(astray.start("KvService.Pull", kv_pb2.PullRequest()))
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    dropped = int(connection.stats()["log_lines_dropped"])
    connection.close()
    astray.close()
    return dropped


@pytest.mark.parametrize("shell", ["", "2>&-", "2>/dev/full"])
def test_without_a_standard_error_or_a_reader_of_it(small_graph: SmallGraph, shell: str) -> None:
    with daemon(small_graph.dataset(1, "random"), shell=shell) as (child, address):
        assert child.stderr is not None
        fcntl.fcntl(child.stderr.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        assert (refused(address, 30) >= 3) == ("full" in shell)  # others stay in the queue
        with atta.connect(address) as cluster:
            assert len(list(atta.NeighborLoader(cluster, [2], batch_size=60))) == 2
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
        assert child.stdout is not None
        assert child.stdout.read() == ""


def test_a_background_task_that_dies_ends_the_daemon(small_graph: SmallGraph) -> None:
    with daemon(small_graph.dataset(1, "random"), "--drain", "0s", before=DYING) as (child, _):
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert (
        errors.splitlines()[-1]
        == "atta: error: the daemon's task expire_sessions died: ZeroDivisionError: no leases today"
    )


def test_tables_that_are_not_saved_are_a_failure(small_graph: SmallGraph, tmp_path: Path) -> None:
    options = ("--snapshots", str(tmp_path))
    with daemon(small_graph.dataset(1, "random"), *options, before=FULL) as (child, address):
        with atta.connect(address, wait=True) as cluster:
            cluster.tables.create(MutableSpec("rows", 10))
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert errors.splitlines()[-1].startswith(f"atta: error: the tables of part 0 are not saved: {tmp_path}/shutdown/")
    assert errors.splitlines()[-1].endswith("No space left on device")


def test_an_error_of_a_local_daemon_keeps_its_type(small_graph: SmallGraph, tmp_path: Path) -> None:
    whole = small_graph.dataset(1, "random")
    with pytest.raises(atta.ConfigError, match=r"--buffer.*64MiB") as wrong:
        atta.local(whole, options=("--buffer", "1KiB"))
    assert not isinstance(wrong.value, atta.DataError)
    (tmp_path / "odd.toml").write_text('[[daemon]]\npart2 = 0\naddress = "127.0.0.1:7070"\n')
    with pytest.raises(atta.UnknownNameError, match=r"part2.*'part'"):
        atta.local(whole, options=("--peers", str(tmp_path / "odd.toml")))
    damaged = shutil.copytree(whole, tmp_path / "odd: name")
    with (damaged / "part-0000/nodes/node/x.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(atta.DataError, match="checksum") as found:
        atta.local(damaged)
    assert found.value.path == str(damaged / "part-0000/nodes/node/x.npy")
    assert found.value.cause == "altered: its checksum differs from the manifest's"


def test_ctrl_c_while_a_daemon_loads_or_serves(small_graph: SmallGraph) -> None:
    data = small_graph.dataset(1, "random")
    with daemon(data, before=SLOW) as (child, _):
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        assert (child.returncode, errors.splitlines()[-1]) == (130, "atta: interrupted")
        assert "Traceback" not in errors
    with daemon(data, "--log-level", "warning") as (child, address):
        with atta.connect(address, wait=True):
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=30)
        assert (child.returncode, errors.strip()) == (130, "atta: interrupted")


def test_a_daemon_ends_with_its_parent_while_it_loads_or_serves(small_graph: SmallGraph) -> None:
    data, options = small_graph.dataset(1, "random"), ("--exit-with-parent", "--log-level", "warning")
    with daemon(data, *options, before=SLOW, stdin=subprocess.PIPE) as (child, _):
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        _, errors = child.communicate(timeout=30)  # closes standard input; loading takes longer
        assert (child.returncode, errors) == (-signal.SIGIO, "")
    with daemon(data, *options, stdin=subprocess.PIPE) as (child, address):
        with atta.connect(address, wait=True):
            _, errors = child.communicate(timeout=30)
        assert (child.returncode, errors) == (0, "")


def test_ctrl_c_while_a_command_waits(small_graph: SmallGraph, tmp_path: Path) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        words = ["trace", "--cluster", cluster.addresses[0], "--seconds", "100", "--out", str(tmp_path / "t.json")]
        program = "import time; sleep = time.sleep\ndef told(s): print(s, flush=True); sleep(s)\ntime.sleep = told\n"
        child = subprocess.Popen(
            [sys.executable, "-c", program + MAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "100.0\n"
        time.sleep(0.5)  # a signal between Python's look for signals and the system call would not end the sleep
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=30)
    assert (child.returncode, out, errors.strip()) == (130, "", "atta: interrupted")
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_says_what_it_loads_and_where_its_metrics_are(small_graph: SmallGraph) -> None:
    data, port = small_graph.dataset(1, "random"), held_port()
    options = ("--metrics", f"127.0.0.1:{port}", "--log-format", "json")
    with daemon(data, *options) as (child, address):
        assert child.stderr is not None
        lines = [json.loads(child.stderr.readline()) for _ in range(3)]
        assert [line["event"] for line in lines] == ["loading", "metrics", "serving"]
        loading, metrics, serving = lines
        assert (loading["data"], loading["part"], serving["address"]) == (str(data), "0 of 1", address)
        assert metrics["address"] == f"127.0.0.1:{port}"
        bound = {c.laddr for c in psutil.Process(child.pid).net_connections() if c.status == psutil.CONN_LISTEN}
        assert ("127.0.0.1", port) in bound
        assert not {host for host, number in bound if number == port} - {"127.0.0.1"}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            assert b"atta_log_lines_dropped_total" in page.read()


def test_who_uses_a_closed_cluster_is_told_so(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        loader = atta.NeighborLoader(cluster, [4, 4], batch_size=16)
        table = atta.DistTensor(cluster, (10, 2), name="rows")
        batches = iter(loader)
        next(batches)
    uses = [lambda: next(batches), lambda: iter(loader), cluster.stats, cluster.trace, lambda: table[[1]]]
    for use in uses:
        with pytest.raises(atta.ConfigError, match="the cluster has been closed"):
            use()
    with pytest.raises(atta.ConfigError, match="the cluster has been closed"):
        table[[1]] = np.ones((1, 2), np.float32)


def test_a_forked_child_leaves_the_daemons_alone(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        batches = iter(atta.NeighborLoader(cluster, [4, 4], batch_size=16))
        next(batches)
        assert in_fork(cluster.close)
        assert cluster.cluster_file.exists()
        assert list(batches)
        assert cluster.stats()[0]["sessions_opened"] == 1


def test_a_forked_child_that_lives_on_does_not_keep_the_daemons(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        try:
            began = time.monotonic()
            cluster.close()
            assert time.monotonic() - began < 15, "daemons that do not end are killed after 20 s"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_daemons_end_with_a_cluster_that_nobody_holds(small_graph: SmallGraph) -> None:
    cluster = atta.local(small_graph.dataset(1, "random"), threads=1)
    table = atta.DistTensor(cluster, (10, 2), name="rows")
    file, pids = cluster.cluster_file, cluster.pids
    batches = iter(atta.NeighborLoader(cluster, [4, 4], batch_size=16))
    del cluster
    gc.collect()
    assert next(batches).batch_id == 0
    assert file.exists(), "the table and the iterator hold the cluster"
    del table, batches
    gc.collect()
    assert not file.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
