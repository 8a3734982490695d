"""Several hosts on one machine: network namespaces that a switch connects, each with its own /dev/shm.

    with NetLab(2, rate="1gbit") as lab:
        child = lab.hosts[0].popen([sys.executable, "-m", "http.server"])

A *holder* keeps every namespace alive: a process that waits for the end of its standard input. Namespaces, links and
switch have no names outside, so nothing is left behind. When this process ends, even by SIGKILL, the pipes close, the
holders exit, and the kernel removes it all. At the same moment the kernel kills the children that ``Host.popen``
started.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from atta.errors import AttaError, ConfigError
from atta.observe.machine.held import HeldAddresses

_TOOLS = ("ip", "tc", "nsenter", "setpriv", "unshare")
_RATE = re.compile(r"[1-9][0-9]*(\.[0-9]+)?[kmg]?bit")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SLOW = 2e8
"""Bits per second. On slower links a bucket of 256 kB would hold what they carry in 10 ms or more."""
_CONGESTION_CONTROL = "cubic"
"""Of TCP between hosts: the kernel's default, whatever the machine's is. Some machines have "bbr". It takes the shortest
round trip that it has seen for that of the link: here some microseconds, until a queue forms. So it sends too little
afterwards. Of three connections that shared a link of 200 Mbit/s, one had 18 Mbit/s."""
_SUBNET = "10.77.0"
_START_S = 10.0


@dataclass(frozen=True)
class Host:
    """A place where processes run.

    Attributes:
        address: IPv4 address at which other hosts reach it.
        interface: name of its network interface; None for this machine's loopback.
        prefix: words before a command that make it run there.
    """

    address: str
    interface: str | None = None
    prefix: tuple[str, ...] = ()

    def popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start ``command`` on the host, with ``env`` added to the environment.

        The process is exactly ``command``: it has the pid, and signals reach it. Ctrl-C in the terminal does not. The
        kernel kills it when the calling *thread* ends.
        """
        words = [*_die_with_parent(), *self.prefix, *command]
        full = {**os.environ, **(env or {})}
        return subprocess.Popen(words, env=full, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)


def bits_per_s(rate: str) -> float:
    """Bits per second of a rate such as ``"1gbit"``, as tc writes it; raises ConfigError for anything else.

    >>> bits_per_s("1.5gbit")
    1500000000.0
    """
    if not _RATE.fullmatch(rate):
        raise ConfigError(f"rate {rate!r}: write it like 1gbit or 200mbit")
    number = rate.removesuffix("bit")
    unit = _UNITS.get(number[-1], 1.0)
    return float(number.rstrip("kmg")) * unit


def loopback(count: int) -> list[Host]:
    """``count`` hosts that are all this machine; only their ports differ."""
    return [Host("127.0.0.1") for _ in range(count)]


@contextlib.contextmanager
def addresses_on(places: Sequence[tuple[Host, int]]) -> Iterator[list[str]]:
    """The address of each host and port; on loopback, which has one set of ports, addresses held within the block."""
    if any(host.interface is not None for host, _ in places):
        yield [f"{host.address}:{port}" for host, port in places]
        return
    with HeldAddresses(len(places)) as held:
        yield held.addresses


def no_namespaces() -> str | None:
    """Why a NetLab cannot be built here; None if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need the commands {', '.join(missing)} (iproute2, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"network namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else None


class NetLab:
    """``count`` hosts on one switch. A context manager: ``hosts`` exist inside the block."""

    def __init__(self, count: int, *, rate: str | None = None, shm_bytes: int | None = None) -> None:
        """Describe the lab.

        Args:
            count: number of hosts, 1 to 250.
            rate: rate of every link in both directions, as tc writes it (``"1gbit"``); None: unshaped.
            shm_bytes: size of /dev/shm of each host, which takes memory as it fills; default: a quarter of the
                machine's memory.

        Raises:
            ConfigError: a value makes no sense.
        """
        if not 1 <= count <= 250:
            raise ConfigError(f"{count} hosts: must be 1 to 250")
        if rate is not None:
            bits_per_s(rate)
        self._count, self._rate = count, rate
        self._shm = f"size={shm_bytes}" if shm_bytes else "size=25%"
        self._holders: list[_Holder] = []
        self.hosts: list[Host] = []

    def __enter__(self) -> NetLab:
        if reason := no_namespaces():
            raise AttaError(reason)
        try:
            self._build()
        except BaseException:
            self._destroy()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._destroy()

    def _build(self) -> None:
        switch = self._hold("true")
        switch.run("ip", "link", "add", "switch", "type", "bridge")
        switch.run("ip", "link", "set", "switch", "up")
        for index in range(self._count):
            host = self._hold(f"mount -t tmpfs -o {self._shm} tmpfs /dev/shm")
            self._connect(switch, host, index)
            prefix = (*host.enter, "--")
            self.hosts.append(Host(f"{_SUBNET}.{index + 1}", "eth0", prefix))

    def _connect(self, switch: _Holder, host: _Holder, index: int) -> None:
        port = f"port{index}"
        peer = ("peer", "name", "eth0", "netns", str(host.pid))
        switch.run("ip", "link", "add", port, "type", "veth", *peer)
        switch.run("ip", "link", "set", port, "master", "switch", "up")
        host.run("ip", "address", "add", f"{_SUBNET}.{index + 1}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            host.run("ip", "link", "set", device, "up")
        host.run("ip", "route", "add", "default", "dev", "eth0")  # some programs find their own address by it
        host.run("ip", "route", "replace", f"{_SUBNET}.0/24", "dev", "eth0", "congctl", _CONGESTION_CONTROL)
        if self._rate is not None:
            # One bucket per direction. The burst must hold what the kernel hands over at once (64 KiB with segmentation
            # offload).
            burst = "256kb" if bits_per_s(self._rate) > _SLOW else "64kb"
            shape = ("root", "tbf", "rate", self._rate, "burst", burst, "latency", "50ms")
            switch.run("tc", "qdisc", "add", "dev", port, *shape)
            host.run("tc", "qdisc", "add", "dev", "eth0", *shape)

    def _hold(self, prepare: str) -> _Holder:
        holder = _Holder(prepare)
        self._holders.append(holder)
        return holder

    def _destroy(self) -> None:
        for holder in reversed(self._holders):
            holder.close()
        self._holders.clear()
        self.hosts.clear()


class _Holder:
    """A process that keeps a network and a mount namespace alive until its standard input ends."""

    def __init__(self, prepare: str) -> None:
        script = f"{prepare} && echo ready && exec cat >/dev/null"
        command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline() != b"ready\n":
            reason = self._process.stderr.read().decode(errors="replace").strip()
            self.close()
            raise AttaError(f"cannot make a network namespace: {reason or 'no reason given'}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def enter(self) -> tuple[str, ...]:
        """Words before a command that make it run inside, in the current directory."""
        return ("nsenter", "--target", str(self.pid), "--net", "--mount", f"--wd={os.getcwd()}")

    def run(self, *command: str) -> None:
        done = subprocess.run(
            [*self.enter, "--", *command], capture_output=True, text=True, check=False, timeout=_START_S
        )
        if done.returncode:
            raise AttaError(f"cannot build the network: {' '.join(command)}: {done.stderr.strip()}")

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(timeout=_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _die_with_parent() -> tuple[str, ...]:
    return ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
