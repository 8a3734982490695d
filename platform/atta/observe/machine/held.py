"""What a process holds of this machine: addresses that nobody else is given, and folders that go with it."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import time
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO


class HeldAddresses(AbstractContextManager["HeldAddresses"]):
    """Addresses whose ports the kernel gives to nobody else until ``close``.

    A socket that is bound and does not listen holds each port at all addresses of this machine, for a server may listen
    at all of them, as the store of torch does. Callers are refused, until a server listens there, and again when it has
    ended. A server may listen there if it binds its socket with SO_REUSEADDR, as gRPC, that store and the servers of
    Python do.

    Attributes:
        ports: of each address.
        addresses: each as ``host:port``.
    """

    def __init__(self, count: int = 1, host: str = "127.0.0.1") -> None:
        """Hold ``count`` ports; ``host``: where callers reach this machine. Raises OSError if no port is free."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                self._sockets.append(socket.socket(family))
                self._sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._sockets[-1].bind(("", 0))
        except OSError:
            self.close()
            raise
        self.ports: list[int] = [held.getsockname()[1] for held in self._sockets]
        self.addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for port in self.ports]

    def close(self) -> None:
        """Let go of the addresses. A server that listens at one of them still has it."""
        for held in self._sockets:
            held.close()

    def __exit__(self, *_: object) -> None:
        self.close()


LOCK = "lock"
YOUNG_S = 60.0
"""How old a folder must be before it counts as abandoned: a younger one may not be locked yet."""


class OwnFolder:
    """Like ``tempfile.TemporaryDirectory``. A locked file in it shows that its process lives. Forked children of that
    process leave the folder where it is."""

    def __init__(self, prefix: str) -> None:
        """Make a folder; also remove folders of this prefix whose processes were killed."""
        _remove_abandoned(prefix)
        self.name = tempfile.mkdtemp(prefix=prefix)
        lock = (Path(self.name) / LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._finalizer = weakref.finalize(self, _remove, self.name, lock, os.getpid())

    def cleanup(self) -> None:
        """Remove the folder; repeating it does nothing."""
        self._finalizer()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _remove(folder: str, lock: BinaryIO, process: int) -> None:
    lock.close()
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if time.time() - folder.stat().st_mtime < YOUNG_S:
                continue
            with (folder / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, another user's, or gone already
