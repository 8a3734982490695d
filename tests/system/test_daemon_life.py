"""A daemon's life: logs that nobody takes, background tasks that die, and what it says of itself."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import atta
from atta.client.control import Connection
from atta.protos.v1 import kv_pb2
from tests.system.conftest import SmallGraph, free_port

MAIN = "from atta.cli.main import main; main()"
DYING = """
from atta.daemon.session_service import SessionService
async def expire(self):
    raise ZeroDivisionError("no leases today")
SessionService.expire = expire
"""
SLOW = """
import time
from atta.partition.dataset import Dataset
def check(self, parts, verify):
    print("loading", flush=True)
    time.sleep(60)
Dataset._check_files = check
"""


@contextlib.contextmanager
def daemon(
    data: Path, *options: str, before: str = "", shell: str = "", stderr: int = subprocess.PIPE
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A daemon of partition 0, and its address; ``before``: Python that runs first, ``shell``: redirections."""
    address = f"127.0.0.1:{free_port()}"
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-c", f"{before}\n{MAIN}", "serve", *options]
    command += ["--data", str(data), "--part", "0", "--listen", address, "--threads", "1"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        yield child, address
    finally:
        child.kill()
        child.communicate()


def refused(address: str, times: int) -> int:
    """Have ``times`` requests refused: each is logged. Returns how many log lines the daemon has dropped."""
    connection = Connection(address, 20.0)
    request = kv_pb2.PullRequest(dataset_id="beef" * 100)
    try:
        connection.describe(wait=True)
        for _ in range(times):
            with pytest.raises(grpc.RpcError) as caught:
                list(connection.start("KvService.Pull", request))
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        return int(connection.stats()["log_lines_dropped"])
    finally:
        connection.close()


def test_a_pipe_that_nobody_reads_stops_nobody(small_graph: SmallGraph) -> None:
    with daemon(small_graph.dataset(1, "random")) as (child, address):
        assert child.stderr is not None
        fcntl.fcntl(child.stderr.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        assert refused(address, 30) == 0  # they wait in the queue
        with atta.connect(address) as cluster:
            assert len(list(atta.NeighborLoader(cluster, [2], batch_size=60))) == 2
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


@pytest.mark.parametrize("shell", ["2>&-", "2>/dev/full"])
def test_without_a_standard_error(small_graph: SmallGraph, shell: str) -> None:
    with daemon(small_graph.dataset(1, "random"), shell=shell) as (child, address):
        dropped = refused(address, 3)
        assert (dropped >= 3) == ("full" in shell)
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
    assert errors.splitlines()[-1] == (
        "atta: error: the daemon's task expire_sessions died: ZeroDivisionError: no leases today"
    )


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


def test_ctrl_c_while_a_command_waits(small_graph: SmallGraph, tmp_path: Path) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        words = ["trace", "--cluster", cluster.addresses[0], "--seconds", "100", "--out", str(tmp_path / "t.json")]
        program = "import time; sleep = time.sleep\ndef told(s): print(s, flush=True); sleep(s)\ntime.sleep = told\n"
        child = subprocess.Popen(
            [sys.executable, "-c", program + MAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "100.0\n"
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=30)
    assert (child.returncode, out, errors.strip()) == (130, "", "atta: interrupted")
    assert list(tmp_path.iterdir()) == []
