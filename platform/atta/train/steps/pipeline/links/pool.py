"""The worker processes of a trainer: as many as ``PoolSize`` says. Those that die or hang are replaced."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from atta.errors import AttaError
from atta.train.steps.pipeline.decisions.pool import PoolSize
from atta.train.steps.pipeline.decisions.stages import Work
from atta.train.steps.pipeline.engine import Broken, Happening
from atta.train.steps.pipeline.frames import Arrays
from atta.train.steps.pipeline.links.desk import TaskDesk

__all__ = ["ProcessPool", "started"]

_CHECK_S = 1.0
_END_S = 5.0
_FAILED_STARTS = 5


class ProcessPool:
    """See ``Tasks``. Workers are processes ``atta worker`` on this machine.

    Attributes:
        started: how many processes have been started.
    """

    def __init__(
        self,
        desk: TaskDesk,
        size: PoolSize,
        key: bytes,
        happenings: queue.SimpleQueue[Happening],
        *,
        start: Callable[[str, bytes, int], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        """``start``: starts a worker, given the desk's address, the key and a number; by default ``atta worker``."""
        self._desk, self._size, self._key, self._happenings = desk, size, key, happenings
        self._start = start or started
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by number
        self._met: set[int] = set()
        self._failed = self.started = 0
        self._checked = time.monotonic()
        self._fill()

    @property
    def size(self) -> int:
        """How many workers there should be."""
        return self._size.size

    def give(self, work: Work, about: Mapping[str, Any], arrays: Arrays) -> None:
        self._desk.give(work, about, arrays)

    def tick(self, queue: int) -> None:
        """Raises AttaError if a task was relaunched too often, or workers end before they connect."""
        for number in self._desk.look():
            if number in self._processes:
                self._processes[number].kill()
        now = time.monotonic()
        if now - self._checked >= _CHECK_S:
            self._checked = now
            self._size.check(queue)
        self._fill()

    def close(self) -> None:
        """End all workers."""
        self._desk.close()
        until = time.monotonic() + _END_S
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _fill(self) -> None:
        """Replace workers that have ended; start more, or let some go."""
        connected = set(self._desk.connected)
        self._met |= connected
        for number in [one for one, process in self._processes.items() if process.poll() is not None]:
            process = self._processes.pop(number)
            self._failed = 0 if number in self._met else self._failed + 1
            self._met.discard(number)
            if self._failed >= _FAILED_STARTS:
                text = f"{self._failed} workers in a row ended before they connected, the last with code"
                self._happenings.put(Broken(AttaError(f"{text} {process.returncode}")))
                return
        self._desk.let_go(max(0, len(connected) - self._size.size))
        for _ in range(self._size.size - len(self._processes)):
            self._processes[self.started] = self._start(self._desk.address, self._key, self.started)
            self.started += 1


def started(address: str, key: bytes, number: int) -> subprocess.Popen[bytes]:
    """A process ``atta worker``. It reads the key from its standard input: nobody else sees it there."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "atta.cli.main", "worker", address, "--number", str(number)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin:  # it has ended already: that is seen elsewhere
        process.stdin.write(key.hex().encode() + b"\n")
    return process
