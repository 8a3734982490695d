"""Signs of life: every trainer gives them, and the launcher ends a trainer that gives none.

A thread of the trainer counts in a file, also while the trainer computes or waits. A trainer that is stopped (SIGSTOP)
does not count. The others would wait for it until ``--rank-timeout`` ends their collective, and a single trainer would
have nobody who notices.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

START_S = 120.0
"""How long a trainer may take from its start to its first sign of life: it imports modules meanwhile."""
PULSES = 10
"""Signs of life within the limit."""
LONGEST_PAUSE_S = 1.0
_FORMAT = struct.Struct("=qqq")
ENDED = -1


@dataclass(frozen=True)
class Pulse:
    """What a trainer's file says.

    Attributes:
        count: signs of life so far; ``ENDED``: there will be no more.
        pid, born: the process, and when it was created (``born``): numbers of processes come again.
    """

    count: int
    pid: int
    born: int


@dataclass
class Silence:
    """How long each trainer has been silent. Pure.

    Attributes:
        limit_s: a trainer is given up after so many seconds.
        start_s: the same, for one that has given no sign yet.
        pause_s: between two looks. Time in which nobody looked counts as one pause: the launcher was stopped itself.
    """

    limit_s: float
    start_s: float
    pause_s: float
    _looked: float | None = None
    _counts: dict[int, int] = field(default_factory=dict)
    _silent_s: dict[int, float] = field(default_factory=dict)

    def look(self, now: float, counts: Mapping[int, int | None]) -> dict[int, float]:
        """Seconds of silence of the trainers that are given up. ``counts``: of all trainers by rank; None: no sign yet."""
        passed = 0.0 if self._looked is None else min(now - self._looked, 2 * self.pause_s)
        self._looked = now
        for rank, count in counts.items():
            known = -2 if count is None else count
            changed = self._counts.get(rank) != known
            self._counts[rank] = known
            self._silent_s[rank] = 0.0 if changed or known == ENDED else self._silent_s[rank] + passed
        limits = {rank: self.start_s if count is None else self.limit_s for rank, count in counts.items()}
        return {rank: s for rank, s in self._silent_s.items() if rank in limits and s >= limits[rank]}


def born(pid: int) -> int:
    """When a process was created, in the kernel's ticks since this machine started: no setting of the clock changes it.

    Raises:
        OSError: there is no such process.
    """
    # The name of the command is in parentheses, and may hold some itself.
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def _pause_s(limit_s: float) -> float:
    return min(LONGEST_PAUSE_S, limit_s / PULSES)


@contextlib.contextmanager
def signs_of_life(folder: Path, rank: int, limit_s: float) -> Iterator[None]:
    """Give signs of life within the block, from a thread."""
    ended, path, pid = threading.Event(), _file(folder, rank), os.getpid()
    created = born(pid)

    def write(count: int) -> None:
        with contextlib.suppress(OSError):  # the launcher has gone, and the folder with it
            partial = path.with_suffix(".new")
            partial.write_bytes(_FORMAT.pack(count, pid, created))
            partial.replace(path)

    def run() -> None:
        count = 0
        while not ended.is_set():
            write(count)
            count += 1
            ended.wait(_pause_s(limit_s))

    thread = threading.Thread(target=run, name="atta-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        write(ENDED)


def read_pulse(folder: Path, rank: int) -> Pulse | None:
    """The latest sign of life; None if there was none."""
    try:
        return Pulse(*_FORMAT.unpack(_file(folder, rank).read_bytes()))
    except (OSError, struct.error):
        return None


@contextlib.contextmanager
def watched(folder: Path, ranks: Sequence[int], limit_s: float, start_s: float = START_S) -> Iterator[dict[int, float]]:
    """Watch the trainers within the block, and kill those that are silent for ``limit_s`` seconds.

    Yields those by rank, with the seconds of their silence; it fills in the course of time.
    """
    silent: dict[int, float] = {}
    ended, pause_s = threading.Event(), _pause_s(limit_s)
    silence = Silence(limit_s, start_s, pause_s)

    def run() -> None:
        while not ended.wait(pause_s):
            pulses = {rank: read_pulse(folder, rank) for rank in ranks}
            counts = {rank: None if pulse is None else pulse.count for rank, pulse in pulses.items()}
            for rank, seconds in silence.look(time.monotonic(), counts).items():
                if rank not in silent:
                    silent[rank] = seconds
                    _kill(rank, pulses[rank])

    thread = threading.Thread(target=run, name="atta-watch", daemon=True)
    thread.start()
    try:
        yield silent
    finally:
        ended.set()
        thread.join()


def _kill(rank: int, pulse: Pulse | None) -> None:
    """SIGKILL, which a stopped process gets too. One that never gave a sign is found among this one's children."""
    with contextlib.suppress(psutil.Error, OSError):
        if pulse is not None:
            process = psutil.Process(pulse.pid)
            if born(pulse.pid) == pulse.born:
                process.kill()
            return
        for child in psutil.Process(os.getpid()).children(recursive=True):
            if "atta.train.launching.worker" in child.cmdline() and child.environ().get("RANK") == str(rank):
                child.kill()


def _file(folder: Path, rank: int) -> Path:
    return folder / f"pulse-{rank}"
