"""A simulated disk below the log of tables: it fills up, and a power cut loses or tears what was not forced to it.

The files are real, and what a process has written stays there when it is killed, as in the page cache of a system that
goes on. ``DiskModule`` stands for ``os`` in the modules that write the log. Names of files are never lost: a file
system that keeps a journal writes them in order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.sim.loop import NODE, Node, VirtualLoop

__all__ = ["Disk", "DiskModule"]


@dataclass
class _Open:
    """A file that a process has open: what is certainly on the disk, and what was written since."""

    node: Node | None
    path: str
    forced: bytes
    since: list[tuple[int, bytes]] = field(default_factory=list)


class Disk:
    """The disks of all machines."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop, self.rng = loop, loop.rng
        self.full = self.failing = 0.0
        """How likely it is that a write finds no room, and that forcing it to the disk fails."""
        self.open: dict[int, _Open] = {}

    def take(self, fd: int, path: str) -> None:
        """A process has opened a file."""
        node = NODE.get()
        self.open[fd] = _Open(node, path, self._content(fd))
        if node is not None and self._release not in node.ended:
            node.ended.append(lambda: self._release(node))

    def _content(self, fd: int) -> bytes:
        return os.pread(fd, os.fstat(fd).st_size, 0) if os.path.isfile(f"/proc/self/fd/{fd}") else b""

    def _release(self, node: Node) -> None:
        for fd in [fd for fd, found in self.open.items() if found.node is node]:
            del self.open[fd]
            os.close(fd)

    def power_cut(self, node: Node) -> None:
        """Before the node is killed: of what was not forced to the disk, some is lost, and the last may be torn."""
        for found in [found for found in self.open.values() if found.node is node and found.since]:
            kept = found.since[: self.rng.randrange(len(found.since) + 1)]
            content = bytearray(found.forced)
            for number, (at, data) in enumerate(kept):
                torn = self.rng.randrange(len(data)) if number == len(kept) - 1 else len(data)
                content[at : at + torn] = data[:torn]
            with open(found.path, "r+b") as file:
                file.write(content)
                file.truncate(len(content))
            self.loop.event(f"{node.name}: the power fails, {os.path.basename(found.path)} has {len(content)} bytes")

    def flip(self, path: str, at: int) -> None:
        """One bit of a file changes."""
        with open(path, "r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ (1 << self.rng.randrange(8))]))
        self.loop.event(f"bit {at} of {os.path.basename(path)} flips")


class DiskModule:
    """Stands for the module ``os``."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _check(self) -> None:
        node = NODE.get()
        if node is not None and not node.alive:
            raise OSError(errno.EBADF, "the process is gone")

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        """As ``os.open``."""
        self._check()
        fd = os.open(path, flags, mode)
        # A file is renamed once it has a header: this is the name that it will have.
        self._disk.take(fd, str(path).removesuffix(".begun"))
        return fd

    def close(self, fd: int) -> None:
        """As ``os.close``."""
        self._check()
        self._disk.open.pop(fd, None)
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Any], at: int) -> int:
        """As ``os.pwritev``; some writes find no room for all of it."""
        self._check()
        data = b"".join(bytes(buffer) for buffer in buffers)
        disk = self._disk
        if disk.full and disk.rng.random() < disk.full:
            some = data[: disk.rng.randrange(len(data))] if disk.rng.random() < 0.5 else b""
            if not some:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = some
        disk.open[fd].since.append((at, data))
        return os.pwrite(fd, data, at)

    def ftruncate(self, fd: int, size: int) -> None:
        """As ``os.ftruncate``."""
        self._check()
        os.ftruncate(fd, size)
        found = self._disk.open[fd]
        found.since = [(at, data[: max(0, size - at)]) for at, data in found.since if at < size]
        found.forced = found.forced[:size]

    def fsync(self, fd: int) -> None:
        """As ``os.fsync``, without waiting for a real disk."""
        self._check()
        disk = self._disk
        if disk.failing and disk.rng.random() < disk.failing:
            raise OSError(errno.EIO, "Input/output error")
        if (found := disk.open.get(fd)) is not None:
            found.forced, found.since = disk._content(fd), []

    def fdatasync(self, fd: int) -> None:
        """As ``os.fdatasync``."""
        self.fsync(fd)
