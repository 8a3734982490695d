"""Memory that this process lends to daemons on its machine: ranges of one sealed memory file, which both sides keep
mapped. A loan that does not end well is never used again, and its file neither, because the daemon may still use it."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import threading
import weakref

import numpy as np

from atta.protos.v1 import table_pb2
from atta.wire import memfiles
from atta.wire.memfiles import Gaps

LENT_BYTES = 64 << 20
"""At most this many bytes are lent at a time. Pages that a loan has touched are kept for the next one."""
LEAST_LENT_BYTES = 256 << 10
"""Fewer bytes of values travel in messages."""


class _LoanFile:
    """A sealed memory file of which ranges are lent."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd = memfiles.create(memfiles.LENT_NAME, memfiles.PAGE + LENT_BYTES)
        weakref.finalize(self, os.close, self.fd).atexit = False
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0)
        self.bytes = np.frombuffer(mmap.mmap(self.fd, memfiles.PAGE + LENT_BYTES, flags=flags), dtype=np.uint8)
        self.secret = secrets.token_bytes(memfiles.SECRET_BYTES)
        self.bytes[: memfiles.SECRET_BYTES] = np.frombuffer(self.secret, dtype=np.uint8)
        self.inode = os.fstat(self.fd).st_ino
        self.gaps = Gaps(LENT_BYTES)
        self._touched = 0  # ranges up to here have their pages

    def touch(self, start: int, nbytes: int) -> bool:
        """Have pages made for a range; False: there is no memory for them. They are of this process's control group
        then, and not of the daemon's, which is the first to write to them."""
        first = max(start, self._touched)
        if first >= start + nbytes:
            return True
        address = self.bytes.ctypes.data + memfiles.PAGE + first
        if not memfiles.populate(address, start + nbytes - first):
            return False
        if start <= self._touched:
            self._touched = start + _pages(nbytes)
        return True


class Loan:
    """A range that is lent: ``memory`` uint8 [nbytes], and the ``message`` that tells a daemon of it."""

    def __init__(self, lender: Lender, file: _LoanFile, start: int, nbytes: int) -> None:
        offset = memfiles.PAGE + start
        self.memory = file.bytes[offset : offset + nbytes]
        self.message = table_pb2.LentMemory(
            pid=os.getpid(), descriptor=file.fd, inode=file.inode, secret=file.secret, offset=offset, nbytes=nbytes
        )
        self._lender, self._file, self._start = lender, file, start

    def end(self, *, over: bool) -> None:
        """Take the memory back. ``over``: the daemon uses it no more, so it may be lent again."""
        self._lender._end(self._file, self._start, len(self.memory), over=over)


class Lender:
    """The memory that a client lends. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: _LoanFile | None = None

    def lend(self, nbytes: int) -> Loan | None:
        """Memory for an answer; None: so much is lent already, or the system gives none."""
        with self._lock, contextlib.suppress(OSError):
            if self._file is None:
                self._file = _LoanFile()
            start = self._file.gaps.take(_pages(nbytes))
            if start is None:
                return None
            loan = Loan(self, self._file, start, nbytes)
            if self._file.touch(start, nbytes):
                return loan
            self._file.gaps.give(start, _pages(nbytes))
        return None

    def close(self) -> None:
        """Let go of the memory, once nothing is lent."""
        with self._lock:
            self._file = None

    def _end(self, file: _LoanFile, start: int, nbytes: int, *, over: bool) -> None:
        with self._lock:
            if not over and self._file is file:
                self._file = None
            if self._file is not file:
                return  # it goes when its last loan is forgotten
            file.gaps.give(start, _pages(nbytes))


def _pages(nbytes: int) -> int:
    return -(-nbytes // memfiles.PAGE) * memfiles.PAGE
