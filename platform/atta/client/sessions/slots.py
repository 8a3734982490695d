"""What a daemon on this machine shares with a consumer: a Unix socket that is asked for batches (``atta.wire.memfiles``), and
the memory that they lie in. A memory file is mapped once, and a batch is kept while it is read."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from atta.errors import RemoteError, UnavailableError
from atta.protos.v1 import session_pb2
from atta.wire import memfiles


class _GoneError(Exception):
    """The slot does not hold the batch any more."""


class _File:
    """A mapped memory file of a daemon. Leases keep it alive. When the last one dies, the kernel drops its locks."""

    def __init__(self, path: str, pid: int, slot: Any) -> None:
        self._fd = memfiles.open_sealed(path, pid, slot.offset + slot.capacity)
        weakref.finalize(self, os.close, self._fd).atexit = False
        status = os.fstat(self._fd)
        if status.st_ino != slot.inode:
            raise FileNotFoundError("the daemon has closed it")
        self.identity = status.st_dev, status.st_ino
        self._process = os.getpid()
        # Writable, because torch wants writable memory. A slot is ours until we release it.
        self.mapping = np.frombuffer(mmap.mmap(self._fd, status.st_size, flags=mmap.MAP_SHARED), dtype=np.uint8)

    def lock(self, start: int, nbytes: int, nonce: int) -> np.ndarray:
        """Keep the daemon from writing the slot; raises _GoneError unless the slot holds the batch with this nonce.
        Raises ValueError: there is no such range of the file."""
        if nbytes < 8 or start + nbytes > len(self.mapping):
            raise ValueError(f"bytes {start} to {start + nbytes} of a file of {len(self.mapping)}")
        view = self.mapping[start : start + nbytes]
        if not memfiles.share(self._fd, start, nbytes):
            raise _GoneError("another batch is put there: the session has ended")
        if int(view[:8].view(np.uint64)[0]) != nonce:
            self.unlock(start, nbytes)
            raise _GoneError(
                "another batch is there (its nonce differs): the session has ended, or the file is not the daemon's"
            )
        return view

    def unlock(self, start: int, nbytes: int) -> None:
        """Let the daemon write the slot again. In a forked child, which shares the lock, nothing happens."""
        if os.getpid() == self._process:
            memfiles.unlock(self._fd, start, nbytes)


class SlotLease:
    """Memory of one delivered batch. The lease ends when the last array that was made from it dies.

    Attributes:
        mapping: the daemon's memory file, uint8 [bytes]. It lives as long as it is mapped, and its address stays.
        offset, nbytes: where the slot lies in it.
        made: number of the slot. While it is the same, the slot has the same pages. 0: the daemon does not say.
    """

    def __init__(self, file: _File, view: np.ndarray, slot: Any) -> None:
        self._file, self._view = file, view
        self.mapping, self.offset, self.nbytes, self.made = file.mapping, slot.offset, slot.capacity, slot.made
        self.__array_interface__ = view.__array_interface__


def lease_of(array: np.ndarray) -> SlotLease | None:
    """The lease that an array was made from; None: its memory is no daemon's."""
    at: Any = array
    while isinstance(at, np.ndarray):
        at = at.base
    return at if isinstance(at, SlotLease) else None


class SlotMaps:
    """Mapped memory files of the daemons on this machine, by path and inode."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, int], _File] = {}

    def lease(self, slot: Any, pid: int, ended: Callable[[], None] = lambda: None) -> np.ndarray:
        """View ``slot`` (a ``SharedSlot``) of the daemon with process id ``pid``: uint8 [capacity]. ``ended`` is called
        when the last array made from it has died, perhaps by the garbage collector. Raises UnavailableError if the
        daemon or the session has ended meanwhile, RemoteError if that is no sealed memory file of the process."""
        key = slot.path, slot.inode
        try:
            if key not in self._files:
                self._forget_closed()
                self._files[key] = _File(slot.path, pid, slot)
            file = self._files[key]
            view = file.lock(slot.offset, slot.capacity, slot.nonce)
        except FileNotFoundError as error:
            raise UnavailableError(slot.path, "no daemon answers: it has gone, and its memory with it") from error
        except _GoneError as error:
            raise UnavailableError(slot.path, f"shared memory of a batch cannot be taken: {error}") from error
        except (OSError, ValueError) as error:
            raise RemoteError(slot.path, f"shared memory of a batch cannot be taken: {error}") from error
        lease = SlotLease(file, view, slot)
        weakref.finalize(lease, _end, file, slot.offset, slot.capacity, ended).atexit = False
        return np.asarray(lease)

    def _forget_closed(self) -> None:
        """Drop files that their daemon has closed, also by dying. Otherwise their contents would stay in memory."""
        for (path, inode), file in list(self._files.items()):
            try:
                status = os.stat(path)
                closed = (status.st_dev, status.st_ino) != file.identity
            except OSError:
                closed = True
            if closed:
                del self._files[path, inode]


def _end(file: _File, start: int, nbytes: int, ended: Callable[[], None]) -> None:
    file.unlock(start, nbytes)  # before the daemon hears of it
    ended()


class NearbyDaemon:
    """The connection of one session. One thread reads it; any thread may ``cancel`` or ``end`` it."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock, self._reads = sock, threading.Lock()
        sock.settimeout(timeout_s)

    @classmethod
    def of(cls, reply: session_pb2.OpenReply, timeout_s: float) -> NearbyDaemon | None:
        """Connect for the session that ``reply`` has opened. ``timeout_s``: how long an answer may take.

        None: the daemon must be asked by gRPC.
        """
        if not reply.nearby:
            return None
        try:
            sock = memfiles.packets()
        except OSError:  # too many files are open
            return None
        with contextlib.suppress(OSError, ValueError):  # it does not listen there, or that is no name
            sock.connect(f"\0{reply.nearby}")
            if memfiles.other_end(sock)[0] == reply.pid:
                sock.send(reply.token)
                return cls(sock, timeout_s)
        sock.close()
        return None

    def ask(self, request: session_pb2.NextRequest) -> bool:
        """Send a request, whose answer ``header`` is to read next. False: the daemon must be asked by gRPC."""
        packet = request.SerializeToString()
        if len(packet) > memfiles.REQUEST_BYTES:
            return False
        try:
            self._sock.send(packet)
        except OSError:
            return False
        return True

    def header(self) -> session_pb2.BatchHeader | None:
        """Wait for the answer to a request. None: the daemon must be asked by gRPC, as it has hung up, or ``cancel``
        was called. Raises TimeoutError: there was no answer in time."""
        with self._reads:
            try:
                packet = self._sock.recv(memfiles.HEADER_BYTES + 1)
            except TimeoutError:
                raise
            except OSError:
                return None
        if not 0 < len(packet) <= memfiles.HEADER_BYTES:
            return None
        try:
            return session_pb2.BatchHeader.FromString(packet)
        except DecodeError:
            return None

    def cancel(self) -> None:
        """Have the thread that waits for an answer stop waiting. The connection is of no more use."""
        with contextlib.suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Close the connection; repeating it does nothing."""
        self.cancel()
        with self._reads:  # a descriptor that a thread waits on must not become that of another file
            self._sock.close()
