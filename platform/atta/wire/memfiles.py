"""What processes of one machine share: sealed memory files (memfd) that a daemon and its consumers map, locks on ranges
of them, and the socket over which a consumer asks for batches, each message one packet.

A seal keeps a file from shrinking, so that reading a mapping of it cannot end in SIGBUS. The kernel drops a lock when
its holder dies, so a range without a lock has no readers.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import fcntl
import os
import re
import socket
import struct

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Seals of every memory file: its size never changes."""
LENT_NAME = "atta-lent"
"""Name of the files that processes lend to a daemon, and of no others: a daemon writes into no file of another name."""
SECRET_BYTES = 32
"""A file that is lent begins with a random secret of this many bytes. Whoever names it can read the file."""
PAGE = 4096
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_POPULATE_WRITE = 23  # Linux 5.14
_TMPFS = 0x01021994  # of statfs(2)
_PATH = re.compile(r"/proc/[1-9][0-9]*/fd/[0-9]+")
_LIBC = ctypes.CDLL(None, use_errno=True)
_STATFS = ctypes.c_long * 32  # longer than the structure
_LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_LIBC.fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def create(name: str, nbytes: int) -> int:
    """A descriptor of a new sealed file of ``nbytes``. It takes memory only where it is written. Raises OSError."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_sealed(path: str, pid: int, stop: int) -> int:
    """Open the memory file at ``path``, a descriptor of process ``pid``; it must have at least ``stop`` bytes.

    Raises:
        FileNotFoundError: the process or its descriptor is gone.
        ValueError: the path is not a descriptor of that process, or it does not lead to a sealed memory file.
        OSError: it cannot be opened.
    """
    if not _PATH.fullmatch(path) or not path.startswith(f"/proc/{pid}/"):
        raise ValueError(f"not a descriptor of process {pid}")
    if not os.readlink(path).startswith("/memfd:"):
        raise ValueError("not a memory file")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        # The descriptor at ``path`` may have been reused since the check; our own cannot be.
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):
            raise ValueError("not a memory file")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("not sealed: it could shrink while it is read")
        if (size := os.fstat(fd).st_size) < stop:
            raise ValueError(f"{size} bytes, {stop} are wanted")
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_lent(pid: int, number: int, inode: int) -> int:
    """Open the memory file that process ``pid`` lends as its descriptor ``number``.

    Raises:
        FileNotFoundError: the process or its descriptor is gone, or leads to another file by now.
        ValueError: it is no sealed memory file of this user that was made to be lent.
        OSError: it cannot be opened.
    """
    fd = open_sealed(f"/proc/{pid}/fd/{number}", pid, PAGE)
    try:
        status = os.fstat(fd)
        if status.st_ino != inode:
            raise FileNotFoundError("another file")
        if os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)") != f"/memfd:{LENT_NAME}":
            raise ValueError("not a file that is lent")
        if status.st_uid != os.geteuid():
            raise ValueError(f"a file of user {status.st_uid}")
        # Writing to a mapping of huge pages ends in SIGBUS where the machine has none left.
        if _kind_of(fd) != _TMPFS:
            raise ValueError("a file of huge pages")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _kind_of(fd: int) -> int:
    """The type of the file system (``f_type`` of statfs(2)). Raises OSError."""
    status = _STATFS()
    if _LIBC.fstatfs(fd, status):
        raise OSError(ctypes.get_errno(), "fstatfs")
    return int(status[0])


def share(fd: int, start: int, nbytes: int) -> bool:
    """Lock the range for reading; False while somebody excludes readers."""
    return _lock(fd, fcntl.F_RDLCK, start, nbytes)


def exclude(fd: int, start: int, nbytes: int) -> bool:
    """Keep others from reading the range; False while somebody reads it."""
    return _lock(fd, fcntl.F_WRLCK, start, nbytes)


def unlock(fd: int, start: int, nbytes: int) -> None:
    """Undo ``share`` or ``exclude``."""
    _lock(fd, fcntl.F_UNLCK, start, nbytes)


def _lock(fd: int, kind: int, start: int, nbytes: int) -> bool:
    request = struct.pack("@hhqqi0q", kind, os.SEEK_SET, start, nbytes, 0)  # struct flock
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def punch(fd: int, start: int, nbytes: int) -> None:
    """Give the pages of a range back. It reads as zeros from then on. Raises OSError."""
    if _LIBC.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, nbytes):
        raise OSError(ctypes.get_errno(), "fallocate")


def populate(address: int, nbytes: int) -> bool:
    """Have the kernel make the pages of a mapped range, as writing to them would. What they hold stays as it is. False:
    the kernel is too old, or it has no memory for them."""
    start = address // PAGE * PAGE
    return not _LIBC.madvise(start, address - start + nbytes, _POPULATE_WRITE)


TOKEN_BYTES = 16
REQUEST_BYTES = 16 << 10
"""Largest request."""
HEADER_BYTES = 64 << 10
"""Largest answer."""
_CREDENTIALS = struct.Struct("3i")


def packets() -> socket.socket:
    """A Unix socket that keeps the limits of packets. It does not block."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def other_end(sock: socket.socket) -> tuple[int, int]:
    """The process id and the user id behind the other end, as the kernel has noted them."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


class Gaps:
    """The free ranges of ``nbytes`` bytes, by first fit. Pure."""

    def __init__(self, nbytes: int) -> None:
        self._gaps = [(0, nbytes)]  # (start, stop), ascending; no two overlap or touch
        self._nbytes = nbytes

    @property
    def whole(self) -> bool:
        """Whether nothing is taken."""
        return self._gaps == [(0, self._nbytes)]

    def take(self, nbytes: int) -> int | None:
        """Where ``nbytes`` now taken begin; None: no gap is long enough."""
        for index, (start, stop) in enumerate(self._gaps):
            if stop - start >= nbytes:
                left = (start + nbytes, stop)
                self._gaps[index : index + 1] = [left] if left[0] < stop else []
                return start
        return None

    def give(self, start: int, nbytes: int) -> None:
        """Free a range that ``take`` has taken."""
        stop = start + nbytes
        index = bisect.bisect(self._gaps, (start, stop))
        first = last = index
        if index and self._gaps[index - 1][1] == start:
            first, start = index - 1, self._gaps[index - 1][0]
        if index < len(self._gaps) and self._gaps[index][0] == stop:
            last, stop = index + 1, self._gaps[index][1]
        self._gaps[first:last] = [(start, stop)]
