"""The processes of a chaos run, and what is done to them. Whoever is killed is started again."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from atta.errors import AttaError
from atta_bench.chaos.invariants import ProcessSample
from atta_bench.chaos.plan import Fault, FaultKind
from atta_bench.chaos.worker import WorkerSettings
from atta_bench.lab.netlab import Host

LEFT_BYTES = 8 << 20
"""Memory that a process may still take while it is starved."""
MEMORY_FILES = ("/memfd:", "/dev/shm/")
"""How the names of files in memory begin."""
FILLER = "/dev/shm/filler"  # of the host's own /dev/shm, which is small


@dataclass
class ChaosProcess:
    """One name, and the processes that bear it one after another.

    Attributes:
        name: for faults and logs.
        host: where it runs.
        command: what it runs.
        log: its standard error.
        starts: how often it was started.
        samples: of the present process.
    """

    name: str
    host: Host
    command: list[str]
    log: Path
    starts: int = 0
    samples: list[ProcessSample] = field(default_factory=list)
    child: subprocess.Popen[bytes] | None = None
    _log_start: int = 0

    def start(self) -> None:
        """Start it, again if it has ended."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as errors:
            self.child = self.host.popen(self.command, stderr=errors, stdout=errors)
        self.starts, self.samples = self.starts + 1, []

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self.child is not None and self.child.poll() is None

    @property
    def serving(self) -> bool:
        """Whether a daemon's present process has said that it serves."""
        if not self.alive:
            return False
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return b"serving" in log.read(65_536)

    @property
    def pid(self) -> int:
        """Of the present process."""
        assert self.child is not None
        return self.child.pid

    def begin(self, fault: Fault) -> Callable[[], None]:
        """Do it, and return what ends it. A process that has just died suffers nothing."""
        if not self.alive:
            return lambda: None
        match fault.kind:
            case FaultKind.KILL:
                self._send(signal.SIGKILL)
                return lambda: None
            case FaultKind.STOP:
                self._send(signal.SIGSTOP)
                return lambda: self._send(signal.SIGCONT)
            case FaultKind.CUT:
                self._there("ip", "link", "set", "eth0", "down")
                return lambda: self._there("ip", "link", "set", "eth0", "up")
            case FaultKind.DISK:
                self._there("sh", "-c", f"cat /dev/zero > {FILLER} 2>/dev/null || true")
                return lambda: self._there("rm", "-f", FILLER)
            case FaultKind.MEMORY:
                return self._starved()

    def _starved(self) -> Callable[[], None]:
        pid = self.pid
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            used = psutil.Process(pid).memory_info().vms
            before = resource.prlimit(pid, resource.RLIMIT_AS)
            resource.prlimit(pid, resource.RLIMIT_AS, (used + LEFT_BYTES, before[1]))

            def feed() -> None:
                with contextlib.suppress(ProcessLookupError):
                    if self.pid == pid:
                        resource.prlimit(pid, resource.RLIMIT_AS, before)

            return feed
        return lambda: None

    def _send(self, number: signal.Signals) -> None:
        if self.child is not None and self.alive:
            self.child.send_signal(number)

    def _there(self, *command: str) -> None:
        done = subprocess.run([*self.host.prefix, *command], capture_output=True, text=True, check=False, timeout=30)
        if done.returncode:
            raise AttaError(f"{self.name}: {' '.join(command)}: {done.stderr.strip()}")

    def end(self) -> None:
        """End it for good."""
        if self.child is not None:
            self._send(signal.SIGCONT)
            self._send(signal.SIGKILL)
            self.child.wait()


def daemon_process(
    name: str, host: Host, place: tuple[int, str], data: Path, folder: Path, *, options: Sequence[str] = ()
) -> ChaosProcess:
    """A daemon at ``place``: its partition and address. ``folder`` has the cluster file and gets the log. ``options``:
    further ones of ``atta serve``."""
    part, address = place
    words = [sys.executable, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", str(part)]
    words += ["--listen", address, "--peers", str(folder / "cluster.toml"), "--threads", "1", "--no-verify"]
    return ChaosProcess(name, host, [*words, "--insecure", *options], folder / f"{name}.log")


def worker_process(name: str, host: Host, settings: WorkerSettings, folder: Path) -> ChaosProcess:
    """A consumer, trainer or learner; the name begins with its role."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(asdict(settings)))
    words = [sys.executable, "-m", "atta_bench.chaos.worker", name.split("-", maxsplit=1)[0], str(file)]
    return ChaosProcess(name, host, words, folder / f"{name}.log")


def sample_of(process: ChaosProcess, at_s: float) -> ProcessSample | None:
    """What it has now; None if it has just ended."""
    with contextlib.suppress(psutil.Error, OSError):
        seen = psutil.Process(process.pid)
        numbers = (seen.num_fds(), seen.num_threads(), seen.memory_info().rss)
        return ProcessSample(at_s, *numbers, _memory_files(process.pid))
    return None


def _memory_files(pid: int) -> int:
    """Number of files in memory that a process has open or mapped."""
    place = Path(f"/proc/{pid}")
    found = set()
    for line in (place / "maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(MEMORY_FILES):
            found.add(int(fields[4]))  # the inode
    for file in (place / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(file.readlink()).startswith(MEMORY_FILES):
                found.add(file.stat().st_ino)
    return len(found)
