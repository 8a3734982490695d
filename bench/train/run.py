"""Runs ``atta train`` on several hosts as its users do: a daemon and a launcher on each host, one report in the end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from atta.errors import AttaError, ConfigError
from atta.train.reports.display import TRAINING_BEGINS
from atta.wire.clusterfile import write_cluster
from atta_bench.lab.netlab import Host, addresses_on
from atta_bench.lab.processes import SystemProcesses, sent_bytes
from atta_bench.lab.rounds import PORT, serve_command

JITTER = 1 / 9
"""By what share each stop, and each time between two, is shorter or longer: 8 to 10 where 9 is asked for."""
_PATTERN = re.compile(r"([0-9]{1,6}):([0-9.]{1,12})/([0-9.]{1,12})")
_MOST_S = 3600.0
_LOOK_S = 0.05
_TRAINER = "atta.train.launching.worker"


@dataclass(frozen=True)
class StopPattern:
    """``TRAINER:STOPPED/EVERY``: this trainer is stopped for so many seconds, once in so many seconds.

    >>> StopPattern.parse("3:0.5/2")
    StopPattern(trainer=3, stopped_s=0.5, every_s=2.0)
    """

    trainer: int
    stopped_s: float
    every_s: float

    @classmethod
    def parse(cls, text: str) -> StopPattern:
        """Read a pattern; raises ConfigError if it is none, or makes no sense."""
        found = _PATTERN.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            pattern = cls(int(found[1]), float(found[2]), float(found[3]))
        except ValueError:
            raise ConfigError(
                f"--stop {text}: write TRAINER:STOPPED/EVERY in seconds, such as 3:0.5/2.0 for half a second in every two"
            ) from None
        if not 0 < pattern.stopped_s < pattern.every_s <= _MOST_S:
            raise ConfigError(
                f"--stop {text}: STOPPED must be more than 0 and less than EVERY, which is at most an hour"
            )
        return pattern

    def turns(self, seed: int) -> Iterator[tuple[float, float]]:
        """Seconds in which the trainer runs and in which it is stopped after that, for ever; one seed, one sequence."""
        draw = random.Random(f"{seed}/{self.trainer}")

        def about(seconds: float) -> float:
            return seconds * draw.uniform(1 - JITTER, 1 + JITTER)

        while True:
            yield about(self.every_s - self.stopped_s), about(self.stopped_s)


class Straggler:
    """A context manager: the process that ``find`` finds is stopped by a pattern, and continued when the block ends.

    Attributes:
        stops: how often it was stopped.
    """

    def __init__(self, pattern: StopPattern, seed: int, find: Callable[[], psutil.Process | None]) -> None:
        """``find`` is asked until it finds the process. A process that ends is left alone."""
        self._turns, self._find = pattern.turns(seed), find
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="atta-straggler", daemon=True)
        self.stops = 0

    def __enter__(self) -> Straggler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        process = None
        while process is None:
            if self._end.wait(_LOOK_S):
                return
            process = self._find()
        with contextlib.suppress(psutil.Error):  # it has ended
            for running_s, stopped_s in self._turns:
                if self._end.wait(running_s):
                    return
                process.suspend()
                self.stops += 1
                try:
                    self._end.wait(stopped_s)
                finally:
                    process.resume()


def trainer_process(launchers: list[int], rank: int) -> psutil.Process | None:
    """The process of the trainer with this rank, below one of the launchers; None: it is not there (yet)."""
    for pid in launchers:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if _TRAINER in process.cmdline() and process.environ().get("RANK") == str(rank):
                        return process
    return None


_MEETING_PORT = 29400
_POLL_S = 0.5
_SOON_S = 0.01
_END_S = 30.0


@dataclass(frozen=True)
class Trained:
    """The report of a run, and the traffic of its hosts.

    Attributes:
        epochs: the epochs in the document of ``atta train --json``.
        sent_bytes: by epoch and host: bytes that left the host between the report of the epoch before and that of this
            epoch; in the first epoch, since the launchers were started.
    """

    epochs: list[dict[str, Any]]
    sent_bytes: list[list[int]]


def run_training(
    data: Path,
    options: Sequence[str],
    hosts: Sequence[Host],
    folder: Path,
    *,
    trainers: int,
    timeout_s: float,
    stop: StopPattern | None = None,
    seed: int = 0,
    env: Mapping[str, str] | None = None,
) -> Trained:
    """Start daemons and launchers, and wait for the end. Partition i is on ``hosts[i]``; logs go to ``folder``.

    Args:
        data: partitioned dataset, one partition per host.
        options: options of ``atta train``, without those for the cluster and the number of trainers.
        hosts: one per server.
        folder: for logs, the cluster file and the report.
        trainers: number of trainers of each host.
        timeout_s: a run that takes longer has failed.
        stop: when a trainer is stopped from outside, as soon as training has begun.
        seed: of the stops.
        env: added to the environment of launchers, which trainers and their workers inherit.

    Raises:
        AttaError: a process failed, or the run takes longer than ``timeout_s``.
    """
    alone = all(host.interface is None for host in hosts)
    cluster, report = folder / "cluster.toml", folder / "report.json"
    command = [
        *(sys.executable, "-m", "atta.cli.main", "train", "--cluster", str(cluster), "--device", "cpu"),
        *("--trainers", str(len(hosts) * trainers), *options),
    ]
    # On one machine a single launcher starts all trainers.
    nodes = 1 if alone else len(hosts)
    if nodes > 1:
        command += ["--nnodes", str(nodes), "--rdzv-endpoint", f"{hosts[0].address}:{_MEETING_PORT}"]
    # Hosts share the cores of this machine, which no launcher knows.
    threads = max(1, len(os.sched_getaffinity(0)) // (len(hosts) * trainers))
    places = [(host, PORT) for host in hosts]
    with addresses_on(places) as addresses, SystemProcesses("atta", folder) as daemons:
        write_cluster(cluster, addresses)
        for part, host in enumerate(hosts):
            serve = serve_command(data, part, addresses[part], cluster, "--threads", "1")
            daemons.start_support(f"daemon{part}", host, serve)
        launchers = [
            _start(
                [*command, "--node-rank", str(rank)],
                host,
                folder / f"node{rank}.log",
                report if rank == 0 else None,
                {"OMP_NUM_THREADS": str(threads), **(env or {})},
            )
            for rank, host in enumerate(hosts[:nodes])
        ]
        try:
            begun = threading.Event()
            with _straggling(stop, seed, launchers, begun):
                sent = _follow(launchers, hosts, folder, time.monotonic() + timeout_s, begun)
        finally:
            _end(launchers)
    epochs = json.loads(report.read_text(encoding="utf-8"))["epochs"]
    return Trained(epochs, sent)


def _straggling(
    stop: StopPattern | None, seed: int, launchers: Sequence[subprocess.Popen[bytes]], begun: threading.Event
) -> contextlib.AbstractContextManager[object]:
    """A block in which the trainer of ``stop`` is stopped now and then once training has ``begun``; at its end it goes on."""
    if stop is None:
        return contextlib.nullcontext()
    pids, rank = [launcher.pid for launcher in launchers], stop.trainer
    return Straggler(stop, seed, lambda: trainer_process(pids, rank) if begun.is_set() else None)


def _start(
    command: list[str], host: Host, log: Path, report: Path | None, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a launcher. The one that writes the report says on standard error when an epoch is over."""
    if report is None:
        with log.open("wb") as out:
            return host.popen([*command, "--quiet"], stdout=subprocess.DEVNULL, stderr=out, env=env)
    command = [*command, "--json", str(report)]
    return host.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)


def _follow(
    launchers: Sequence[subprocess.Popen[bytes]],
    hosts: Sequence[Host],
    folder: Path,
    deadline: float,
    begun: threading.Event,
) -> list[list[int]]:
    """Wait for the end of all launchers, and read the counters of the interfaces when an epoch is over.

    ``begun`` is set when training has begun; where strategies do not say so, when their first epoch is over.
    """
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_listen, args=(launchers[0], lines), daemon=True).start()

    def reading() -> list[int]:
        return [sent_bytes(p.pid, h.interface) for p, h in zip(launchers, hosts, strict=False)]

    for launcher, host in zip(launchers, hosts, strict=False):
        _wait_for_namespace(launcher.pid, host)
    said: list[str] = []
    readings = [reading()]
    while True:
        try:
            line = lines.get(timeout=_POLL_S)
        except queue.Empty:
            # When another node fails, the first one fails with it and gets some time to say so.
            if time.monotonic() > deadline:
                raise AttaError(f"atta train: not done in time; {_last(said)}") from None
            continue
        if line is None:
            break
        if line.startswith(("epoch ", TRAINING_BEGINS)):
            begun.set()
        if line.startswith("epoch "):
            readings.append(reading())
        else:
            said.append(line)
    for rank, launcher in enumerate(launchers):
        try:
            code = launcher.wait(max(_END_S, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AttaError(f"atta train: node {rank} does not end") from None
        if code:
            words = _last(said)
            for other in range(1, len(launchers)):
                words += "; " + _last((folder / f"node{other}.log").read_text(errors="replace").splitlines())
            raise AttaError(f"atta train failed on node {rank}: {words}")
    return [[b - a for a, b in zip(x, y, strict=True)] for x, y in itertools.pairwise(readings)]


def _wait_for_namespace(pid: int, host: Host) -> None:
    """Wait until a new process is on its host. Before that, its counters are those of this machine."""
    end = time.monotonic() + _END_S
    while host.interface is not None and time.monotonic() < end:
        with contextlib.suppress(OSError):  # the process has ended, which the caller finds out
            if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                return
        time.sleep(_SOON_S)


def _listen(launcher: subprocess.Popen[bytes], lines: queue.Queue[str | None]) -> None:
    assert launcher.stderr is not None
    for line in launcher.stderr:
        lines.put(line.decode(errors="replace").strip())
    lines.put(None)


def _last(lines: Sequence[str]) -> str:
    return " | ".join(line for line in lines[-6:] if line) or "said nothing"


def _end(launchers: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the launchers that still run; they end their trainers."""
    for launcher in launchers:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGTERM)
    for launcher in launchers:
        try:
            launcher.wait(_END_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
        if launcher.stderr is not None:
            launcher.stderr.close()
