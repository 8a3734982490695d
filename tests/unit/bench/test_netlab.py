"""Hosts on one machine: reachable, shaped and private. They vanish without a trace, however their owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atta.errors import AttaError, ConfigError
from atta_bench.lab.flow import flow_bytes_per_s
from atta_bench.lab.netlab import Host, NetLab

netns = pytest.mark.netns


def namespaces() -> set[str]:
    """Identities of a process's network namespaces."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns/net"))
            except OSError:
                continue
    return found


def output(host: object, *command: str) -> str:
    process = host.popen(command, stdout=subprocess.PIPE)  # type: ignore[attr-defined]
    return process.communicate(timeout=30)[0].decode()


def test_counts_and_rates_out_of_range_and_missing_rights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (0, 251):
        with pytest.raises(ConfigError, match="hosts"):
            NetLab(count)
    for rate in ("fast", "-1gbit", "1gbit; reboot", "0mbit"):
        with pytest.raises(ConfigError, match="rate"):
            NetLab(2, rate=rate)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(AttaError, match=r"root|need the commands"), NetLab(2):
        pass


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_a_sender_that_cannot_listen_says_why(kind: str) -> None:
    nowhere = Host("192.0.2.1")
    with pytest.raises(AttaError, match=rf"measuring {kind}: the sender at 192\.0\.2\.1 ended: .*Error: .*") as caught:
        flow_bytes_per_s(nowhere, nowhere, kind)
    assert "\n" not in str(caught.value)


@netns
def test_hosts_have_their_own_network_and_shared_memory() -> None:
    with NetLab(2, shm_bytes=1 << 24) as lab:
        one, two = lab.hosts
        assert one.address != two.address
        networks = {output(h, "readlink", "/proc/self/ns/net") for h in lab.hosts}
        assert len(networks) == 2
        assert os.readlink("/proc/self/ns/net") + "\n" not in networks
        output(one, "sh", "-c", "echo here > /dev/shm/probe")
        assert output(one, "cat", "/dev/shm/probe") == "here\n"  # processes of one host share it
        assert output(two, "ls", "/dev/shm") == ""
        assert not Path("/dev/shm/probe").exists()
        assert output(one, "sh", "-c", "df -k /dev/shm | tail -1 | awk '{print $2}'") == "16384\n"


@netns
@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_bytes_flow_and_a_rate_bounds_them(kind: str) -> None:
    with NetLab(2, rate="80mbit") as lab:
        speed = flow_bytes_per_s(lab.hosts[0], lab.hosts[1], kind, seconds=1.0)
    assert 0 < speed < 2 * 80e6 / 8  # unshaped links of this kind carry hundreds of megabytes per second


TELL = 'print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())\n'
LISTENER = f"""
import socket
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    {TELL}"""
CALLER = f"import socket, sys\nwith socket.create_connection((sys.argv[1], 7000)) as connection:\n    {TELL}"


@netns
def test_connections_between_hosts_do_not_depend_on_the_machines_congestion_control() -> None:
    with NetLab(2) as lab:
        one, two = lab.hosts
        listener = one.popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE)
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"listening\n"
        assert output(two, sys.executable, "-c", CALLER, one.address) == "cubic\n"
        assert listener.communicate(timeout=10)[0] == b"cubic\n"


@netns
def test_several_labs_live_side_by_side() -> None:
    with NetLab(1) as one, NetLab(1) as two:
        assert one.hosts[0].address == two.hosts[0].address
        assert output(one.hosts[0], "readlink", "/proc/self/ns/net") != output(
            two.hosts[0], "readlink", "/proc/self/ns/net"
        )


@netns
def test_nothing_is_left_after_leaving_or_failing() -> None:
    def fail() -> None:
        with NetLab(2):
            raise RuntimeError("the benchmark broke")

    before = namespaces()
    with NetLab(2):
        assert len(namespaces() - before) == 3  # two hosts and the switch
    with pytest.raises(RuntimeError):
        fail()
    assert namespaces() <= before | {os.readlink("/proc/self/ns/net")}


@netns
def test_nothing_is_left_when_the_owner_is_killed() -> None:
    code = """
import sys, time
from atta_bench.lab.netlab import NetLab
with NetLab(1) as lab:
    lab.hosts[0].popen(["sh", "-c", "echo $$; exec sleep 300"])
    time.sleep(300)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    namespace = os.readlink(f"/proc/{child}/ns/net")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 20
    while namespace in namespaces() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert namespace not in namespaces()
