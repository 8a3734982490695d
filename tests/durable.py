"""A daemon of its own process that keeps its tables, is killed, and is started again at the same address."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import atta
from atta.observe.machine.held import HeldAddresses


class Durable:
    def __init__(self, data: Path, folder: Path | None, *options: str) -> None:
        self._held, self.folder = HeldAddresses(), folder
        self.address = self._held.addresses[0]
        kept = () if folder is None else ("--tables-dir", str(folder))
        self._options = ["--data", str(data), "--part", "0", "--listen", self.address, "--no-verify",
                         "--buffer", "64MiB", "--cache", "0", *kept, *options]  # fmt: skip
        self._threads = itertools.cycle((1, 2, 4))
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, each time with another number of threads: its tables have the same bits. It answers soon."""
        serve = [sys.executable, "-m", "atta.cli.main", "serve", "--threads", str(next(self._threads))]
        self._child = subprocess.Popen([*serve, *self._options], stderr=subprocess.DEVNULL)

    def connect(self) -> atta.Cluster:
        """Wait until it answers. Requests are repeated for two minutes while nobody does."""
        cluster = atta.connect([self.address], deadline_s=120, wait=True)
        for connection in cluster._connections:
            connection._patience_s = 120
        return cluster

    @property
    def pid(self) -> int:
        assert self._child is not None, "it was not started"
        return self._child.pid

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def close(self) -> None:
        self.kill()
        self._held.close()


@contextlib.contextmanager
def durable(data: Path, folder: Path | None, *options: str) -> Iterator[Durable]:
    """A daemon that has been started; it is killed at the end. ``folder``: of its log, or None."""
    daemon = Durable(data, folder, *options)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.close()
