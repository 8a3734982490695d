"""Starts the measured processes of one system together and reads what they report (see ``reporter``)."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from atta.errors import AttaError
from atta_bench.lab.netlab import Host

_POLL_S = 0.5
_END_S = 20.0
_SPARE = 1.1
"""Epochs to fill a time are so many times as many as would just fill it: some are faster than others."""
_GRACE_S = 2.0
"""How long to wait for the other processes to end when one has failed: those that depend on each other end together."""


@dataclass(frozen=True)
class Usage:
    """What a system used in a stretch of time.

    Attributes:
        seconds: length of the stretch.
        cpu_s: processor seconds of all processes of the system.
        rank_cpu_s: processor seconds of the ranks.
        sent_bytes: by rank, bytes that left its host through the network interface; 0 on loopback.
    """

    seconds: float
    cpu_s: float
    rank_cpu_s: float
    sent_bytes: tuple[int, ...]

    def since(self, earlier: Usage) -> Usage:
        """What was used since the reading ``earlier``."""
        sent = tuple(now - then for now, then in zip(self.sent_bytes, earlier.sent_bytes, strict=True))
        return Usage(
            self.seconds - earlier.seconds, self.cpu_s - earlier.cpu_s, self.rank_cpu_s - earlier.rank_cpu_s, sent
        )


@dataclass(frozen=True)
class Measured:
    """One measured stretch of one system.

    Attributes:
        warm_ups: the last epoch of each rank before measuring, see ``reporter.Epoch``.
        epochs: the measured epochs of all ranks.
        whole: usage from "go" to the last "done".
        together: usage while all ranks work: from the end of the slowest first epoch (of "go", if there is only one
            epoch) to the first "done".
    """

    warm_ups: list[dict[str, Any]]
    epochs: list[dict[str, Any]]
    whole: Usage
    together: Usage

    def total(self, name: str) -> float:
        """Sum of one figure over ranks and epochs; an absent figure counts 0."""
        return float(sum(e.get(name) or 0 for e in self.epochs))

    def per_seed(self, name: str) -> float | None:
        """A figure per seed. It comes from the warm-up if only that counted it; None: it was not counted."""
        for reports in (self.epochs, self.warm_ups):
            values = [e.get(name) for e in reports]
            if None not in values:
                return float(sum(v or 0 for v in values) / sum(e["seeds"] for e in reports))
        return None

    @property
    def window_s(self) -> float:
        """Seconds from the start of the first epoch to the end of the last one, over all ranks."""
        return float(max(e["stop"] for e in self.epochs) - min(e["start"] for e in self.epochs))


@dataclass(frozen=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    interface: str | None = None

    def end_of_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-12:]
        return " | ".join(line.strip() for line in lines if line.strip())[-900:]

    def lost_others(self) -> bool:
        """Whether its log ends with the loss of a connection: another process has ended first."""
        end = self.end_of_log().rpartition(" | ")[2].lower()
        return "connection" in end or "gloo" in end

    def how_it_ended(self) -> str:
        code = self.process.poll() or 0
        if code >= 0:
            return "ended early"
        return f"was killed by {signal.Signals(-code).name}" + ("; out of memory?" if -code == signal.SIGKILL else "")


class SystemProcesses:
    """The processes of one system. A context manager: leaving it ends them all.

    Ranks talk with the benchmark. Supporting processes, such as daemons, only have to live.
    """

    def __init__(self, name: str, logs: Path) -> None:
        """``logs`` is an existing folder for the standard error of every process."""
        self.name = name
        self._logs = logs
        self._supports: list[_Child] = []
        self._ranks: list[_Child] = []
        self._measured = False
        self._events: queue.Queue[tuple[_Child, dict[str, Any] | None]] = queue.Queue()

    def start_support(
        self, name: str, host: Host, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        """Start a process that the ranks need. Its standard input stays open until the block ends."""
        with (log := self._logs / f"{name}.log").open("wb") as out:
            process = host.popen(command, env=env, stdin=subprocess.PIPE, stdout=out, stderr=out)
        self._supports.append(_Child(name, process, log))

    def start_rank(self, host: Host, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start the next rank."""
        name = f"rank{len(self._ranks)}"
        with (log := self._logs / f"{name}.log").open("wb") as out:
            process = host.popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out)
        child = _Child(name, process, log, host.interface)
        self._ranks.append(child)
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()

    @property
    def supports(self) -> list[int]:
        """Process ids of the supporting processes, in the order in which they were started."""
        return [child.process.pid for child in self._supports]

    @property
    def ranks(self) -> list[int]:
        """Process ids of the ranks."""
        return [child.process.pid for child in self._ranks]

    def ask(self, words: str | None, *, timeout_s: float) -> list[dict[str, Any]]:
        """Send a line to all ranks (None: send nothing), and return the next report of each, by rank.

        Raises AttaError: a process ended early, or the ranks had not all reported after ``timeout_s``.
        """
        deadline, reports = time.monotonic() + timeout_s, dict[str, dict[str, Any]]()
        self._measured = False
        for child in self._ranks if words is not None else ():
            self._send(child, f"{words}\n")
        while len(reports) < len(self._ranks):
            child, event = self._next(deadline)
            reports[child.name] = event
        self._measured = True
        return [reports[child.name] for child in self._ranks]

    def measure(self, *, epochs: int, seconds: float, timeout_s: float) -> Measured:
        """Wait for all ranks to be ready, let them run, and collect their reports.

        Every rank runs ``epochs`` epochs. If these do not fill ``seconds``, they only tell how many would, which are
        then measured instead. Raises AttaError: a process ended early, or the ranks were not done after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        warm_ups = [self._next(deadline)[1] for _ in self._ranks]
        measured = self._stretch(epochs, warm_ups, deadline)
        while measured.window_s < seconds:
            epochs = max(epochs + 1, math.ceil(_SPARE * seconds * epochs / max(1e-3, measured.window_s)))
            measured = self._stretch(epochs, warm_ups, deadline)
        self._measured = True
        return measured

    def _stretch(self, count: int, warm_ups: list[dict[str, Any]], deadline: float) -> Measured:
        """Let all ranks run ``count`` epochs."""
        start = self._reading()
        for child in self._ranks:
            self._send(child, f"go {count}\n")
        reports: list[dict[str, Any]] = []
        steady, begun, ended = start, set[str](), list[Usage]()
        while len(ended) < len(self._ranks):
            child, event = self._next(deadline)
            if event["event"] == "done":
                ended.append(self._reading())
                continue
            reports.append(event)
            if child.name not in begun and len(begun) == len(self._ranks) - 1 and not ended and count > 1:
                steady = self._reading()
            begun.add(child.name)
        return Measured(warm_ups, reports, ended[-1].since(start), ended[0].since(steady))

    def _reading(self) -> Usage:
        ranks = _cpu_seconds(self._ranks)
        sent = tuple(sent_bytes(child.process.pid, child.interface) for child in self._ranks)
        return Usage(time.monotonic(), _cpu_seconds(self._supports) + ranks, ranks, sent)

    def _next(self, deadline: float) -> tuple[_Child, dict[str, Any]]:
        """The next report of any rank."""
        while True:
            try:
                child, event = self._events.get(timeout=_POLL_S)
            except queue.Empty:
                self._check_alive(deadline)
                continue
            if event is None:
                raise self._cause(child)
            return child, event

    def _cause(self, first: _Child) -> AttaError:
        """The error of the process that failed first.

        Trainers that exchange gradients end together. All but the first only report a lost connection.
        """
        _wait([first, *self._ranks], _GRACE_S)
        supports = [c for c in self._supports if c.process.poll()]
        ranks = [c for c in (first, *self._ranks) if c.process.poll() is not None]
        broken = [
            *supports,
            *(c for c in ranks if c.process.returncode < 0),
            *(c for c in ranks if not c.lost_others()),
            first,
        ]
        return AttaError(f"{self.name}: {broken[0].name} {broken[0].how_it_ended()}: {broken[0].end_of_log()}")

    def _check_alive(self, deadline: float) -> None:
        for child in self._supports:
            if child.process.poll() is not None:
                raise self._cause(child)
        if time.monotonic() > deadline:
            logs = "; ".join(f"{c.name}: {c.end_of_log()}" for c in self._ranks)
            raise AttaError(f"{self.name}: not done in time; {logs}")

    def _listen(self, child: _Child) -> None:
        assert child.process.stdout is not None
        for line in child.process.stdout:
            with contextlib.suppress(ValueError):
                self._events.put((child, json.loads(line)))
        self._events.put((child, None))

    @staticmethod
    def _send(child: _Child, text: str) -> None:
        assert child.process.stdin is not None
        child.process.stdin.write(text.encode())
        child.process.stdin.flush()

    def __enter__(self) -> SystemProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        # Ranks end when their input ends, and DistDGL's servers end with the last rank. Processes that linger get
        # SIGTERM, then SIGKILL. After a failure nothing waits for them to end by themselves.
        for group in (self._ranks, self._supports):
            for child in group:
                _close(child.process)
            if self._measured:
                _wait(group, _END_S if group is self._ranks else 2.0)
        children = [*self._ranks, *self._supports]
        for child in children:
            if child.process.poll() is None:
                child.process.terminate()
        _wait(children, _END_S)
        for child in children:
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()
            if child.process.stdout is not None:
                child.process.stdout.close()


def _cpu_seconds(children: Sequence[_Child]) -> float:
    """Processor seconds so far of the processes and their descendants."""
    total = 0.0
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(child.process.pid)
            for member in (process, *process.children(recursive=True)):
                times = member.cpu_times()
                total += times.user + times.system
    return total


def sent_bytes(pid: int, interface: str | None) -> int:
    """Bytes that have left the host of a process through ``interface`` so far; 0 if that is None."""
    return sent(pid, interface)[0]


def sent(pid: int, interface: str | None) -> tuple[int, int]:
    """Bytes and packets that have left the host of a process through ``interface`` so far; 0 if that is None.

    A packet is what a process or the kernel hands over at once: up to 64 KiB between network namespaces.
    """
    if interface is None:
        return 0, 0
    for line in Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == interface:
            count, packets = figures.split()[8:10]  # after eight columns of received traffic
            return int(count), int(packets)
    return 0, 0


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _wait(children: Sequence[_Child], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, deadline - time.monotonic()))
