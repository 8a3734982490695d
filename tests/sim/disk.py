"""A simulated disk below the log of tables: it fills up, and a power cut loses or tears what was not forced to it.

The files are real, and what a process has written stays there when it is killed, as in the page cache of a system that
goes on. A process may be killed within a write: the system has copied the beginning, and what was there stays behind it.
What was written is lost by a later power cut, unless a process has forced it meanwhile. What a failed attempt to force
has left behind is never forced, as in Linux. ``DiskModule`` stands for ``os`` in the modules that write the log,
checkpoints and votes, ``FoldersModule`` for ``shutil``. A thread that forces a file waits for the disk: it can be
killed there. Names of files are never lost: a file system that keeps a journal writes them in order. The files of a
checkpoint are on the disk at once.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.sim.loop import NODE, Node, VirtualLoop
from tests.sim.threads import waiting_thread

PIECE_BYTES = 64
"""A power cut leaves such pieces of a write, in any order. Those of a disk are larger, and would tear less."""

_Write = tuple[int, bytes | None]
"""Where, and what; None: the file ends there from now on."""


@dataclass
class _File:
    """A file that somebody has written: what is certainly on the disk, and what was written since."""

    fd: int
    """The simulation's own."""
    machine: str
    forced: bytes
    since: list[_Write] = field(default_factory=list)
    doubtful: list[_Write] = field(default_factory=list)
    """Could not be forced. Nothing forces it later."""


class Disk:
    def __init__(self, loop: VirtualLoop) -> None:
        self.loop, self.rng = loop, loop.rng
        self.full = self.failing = 0.0
        """How likely it is that a write finds no room, and that forcing it to the disk fails."""
        self.force_s = 0.02
        """Longest time that forcing a file takes a thread."""
        self.tearing: set[Node] = set()
        """Processes that will be killed within their next write."""
        self.kill: Callable[[Node], None] = lambda _: None
        self.open: dict[int, tuple[Node | None, _File]] = {}
        self._files: dict[int, _File] = {}

    def take(self, fd: int) -> None:
        node = NODE.get()
        for number in [number for number, file in self._files.items() if not os.fstat(file.fd).st_nlink]:
            os.close(self._files.pop(number).fd)
        number = os.fstat(fd).st_ino
        if number not in self._files:
            machine = node.machine if node is not None else ""
            own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)  # the process may have opened it for writing only
            self._files[number] = _File(own, machine, self._content(own))
        self.open[fd] = node, self._files[number]
        if node is not None and self._release not in node.ended:
            node.ended.append(lambda: self._release(node))

    def _content(self, fd: int) -> bytes:
        return os.pread(fd, os.fstat(fd).st_size, 0) if os.path.isfile(f"/proc/self/fd/{fd}") else b""

    def _release(self, node: Node) -> None:
        for fd in [fd for fd, (owner, _) in self.open.items() if owner is node]:
            del self.open[fd]
            os.close(fd)

    def end(self) -> None:
        self.open.clear()
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()

    def power_cut(self, node: Node) -> None:
        """Before the node is killed: of what was not forced to the disk, some is lost, and the last may be torn."""
        for file in [file for file in self._files.values() if file.machine == node.machine]:
            if not file.since and not file.doubtful:
                continue
            kept = [write for write in file.doubtful if self.rng.random() < 0.5]
            kept += file.since[: self.rng.randrange(len(file.since) + 1)]
            if kept and kept[-1][1] is not None:
                at, data = kept.pop()
                kept += self._torn(at, data)
            file.forced, file.since, file.doubtful = _applied(file.forced, kept), [], []
            path = os.readlink(f"/proc/self/fd/{file.fd}")
            if os.path.exists(path):
                with open(path, "r+b") as real:
                    real.write(file.forced)
                    real.truncate(len(file.forced))
            name = os.path.basename(path)
            self.loop.event(f"{node.name}: the power fails, {name} has {len(file.forced)} bytes")

    def _torn(self, at: int, data: bytes) -> list[_Write]:
        """What is left of a write: its beginning, or pieces of it."""
        if self.rng.random() < 0.5:
            return [(at, data[: self.rng.randrange(len(data) + 1)])]
        pieces = [(first, data[first : first + PIECE_BYTES]) for first in range(0, len(data), PIECE_BYTES)]
        return [(at + first, piece) for first, piece in pieces if self.rng.random() < 0.5]

    def flip(self, path: str, at: int) -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ (1 << self.rng.randrange(8))]))
        self.loop.event(f"bit {at} of {os.path.basename(path)} flips")


def _applied(content: bytes, writes: Sequence[_Write]) -> bytes:
    found = bytearray(content)
    for at, data in writes:
        if data is None:
            del found[at:]
        else:
            found += bytes(max(0, at - len(found)))
            found[at : at + len(data)] = data
    return bytes(found)


class DiskModule:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _check(self) -> None:
        node = NODE.get()
        if node is not None and not node.alive:
            raise OSError(errno.EBADF, "the process is gone")

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        self._check()
        fd = os.open(path, flags, mode)
        self._disk.take(fd)
        if flags & os.O_TRUNC:
            self._disk.open[fd][1].since.append((0, None))
        return fd

    def close(self, fd: int) -> None:
        self._check()
        self._disk.open.pop(fd, None)
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Any], at: int) -> int:
        """As ``os.pwritev``; some writes find no room for all of it. What is written over has its room."""
        self._check()
        data = b"".join(bytes(buffer) for buffer in buffers)
        disk, node = self._disk, NODE.get()
        if node in disk.tearing:
            data = data[: disk.rng.randrange(len(data) + 1)]
            disk.open[fd][1].since.append((at, data))
            os.pwrite(fd, data, at)
            disk.tearing.discard(node)
            disk.loop.event(f"{node.name}: is killed within a write, after {len(data)} bytes")
            disk.kill(node)
            self._check()
        has = min(len(data), max(0, os.fstat(fd).st_size - at))
        if has < len(data) and disk.full and disk.rng.random() < disk.full:
            some = data[: disk.rng.randrange(has, len(data))] if disk.rng.random() < 0.5 else data[:has]
            if not some:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = some
        disk.open[fd][1].since.append((at, data))
        return os.pwrite(fd, data, at)

    def pwrite(self, fd: int, data: Any, at: int) -> int:
        return self.pwritev(fd, [data], at)

    def ftruncate(self, fd: int, size: int) -> None:
        self._check()
        os.ftruncate(fd, size)
        self._disk.open[fd][1].since.append((size, None))

    def fsync(self, fd: int) -> None:
        self._check()
        disk = self._disk
        if (thread := waiting_thread()) is not None:
            thread.park(disk.force_s * disk.rng.random())
        _, file = disk.open.get(fd, (None, None))
        if disk.failing and disk.rng.random() < disk.failing:
            if file is not None:
                file.doubtful += [write for write in file.since if write[1] is not None]
                file.since = [
                    write for write in file.since if write[1] is None
                ]  # the journal of the file system has it
            raise OSError(errno.EIO, "Input/output error")
        if file is not None:
            for size in [at for at, data in file.since if data is None]:
                file.doubtful = [
                    (at, data[: size - at]) for at, data in file.doubtful if data is not None and at < size
                ]
            file.forced, file.since = _applied(file.forced, file.since), []

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)


class FilesModule:
    """Stands for ``os`` where files are opened in other ways: forcing them is simulated, and may fail."""

    def __init__(self, disk: Disk) -> None:
        self.fsync = DiskModule(disk).fsync

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class FoldersModule:
    """Stands for the module ``shutil``: a process that was killed removes nothing more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)

    def rmtree(self, path: Any, ignore_errors: bool = False) -> None:
        node = NODE.get()
        if node is None or node.alive:
            shutil.rmtree(path, ignore_errors=ignore_errors)
