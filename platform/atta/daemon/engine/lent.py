"""Memory that clients on this machine lend for answers and pushes: mapped once, while they use it, and bounded.

A client names a descriptor of its own process and the secret with which the file begins. So a caller from afar, who
cannot read the file, can have nothing written anywhere, and a file that was not made to be lent is refused
(``atta.wire.memfiles.open_lent``). Of a file that is lent for an answer nothing but the secret is read. A client may
write to it at any time; it then spoils its own answer or push only.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import mmap
import os
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from atta.wire import memfiles

__all__ = ["LentFiles", "UnusableError"]

MAX_FILES = 32
"""At most this many files are mapped. Each takes a descriptor."""
MAX_FILE_BYTES = 1 << 30
"""Largest file that is mapped."""
IN_ALL_BYTES = 1 << 30
"""At most this many bytes are lent at a time."""
PER_CLIENT_BYTES = 256 << 20
"""At most this many of them by one connection."""
IDLE_S = 30.0
"""How long a file stays mapped that is not used: its client may have died, and its memory with it if not for this."""
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class UnusableError(Exception):
    """What a client lends cannot be used here, now or later."""


class _LentFile:
    """One mapped file."""

    def __init__(self, pid: int, number: int, inode: int) -> None:
        fd = memfiles.open_lent(pid, number, inode)
        try:
            size = os.fstat(fd).st_size
            if size > MAX_FILE_BYTES:
                raise ValueError(f"{size} bytes")
            self.bytes = np.frombuffer(mmap.mmap(fd, size, flags=mmap.MAP_SHARED), dtype=np.uint8)
        finally:
            os.close(fd)
        self.users, self.used = 0, 0.0

    def knows(self, secret: bytes) -> bool:
        """Whether the caller knows what the file begins with."""
        return hmac.compare_digest(self.bytes[: memfiles.SECRET_BYTES].tobytes(), secret)


class LentFiles:
    """The files that clients lend, by process, descriptor and inode. Used on the event loop."""

    def __init__(self, in_all: int = IN_ALL_BYTES, per_client: int = PER_CLIENT_BYTES) -> None:
        self._in_all, self._per_client = in_all, per_client
        self._files: OrderedDict[tuple[int, int, int], _LentFile] = OrderedDict()  # the latest used last
        self._lent: Counter[str] = Counter()  # bytes in use by connection; positive

    def __len__(self) -> int:
        """Number of mapped files."""
        return len(self._files)

    @property
    def lent_bytes(self) -> int:
        """Bytes that are lent now."""
        return self._lent.total()

    @contextlib.contextmanager
    def taken(self, lent: Any, nbytes: int, client: str, now: float) -> Iterator[np.ndarray | None]:
        """The range that a message (``LentMemory``) names, uint8 [nbytes]; None where too much is lent already.

        ``client``: names the connection; ``now``: in seconds.

        Raises:
            UnusableError: it is not there, too small, not made to be lent, or the secret is wrong.
        """
        if self._lent[client] + nbytes > self._per_client or self.lent_bytes + nbytes > self._in_all:
            yield None
            return
        file = self._file(lent)
        if file is None:
            yield None
            return
        start = lent.offset
        if not file.knows(lent.secret) or lent.nbytes != nbytes or start < memfiles.PAGE or start % memfiles.PAGE:
            raise UnusableError
        view = file.bytes[start : start + nbytes]
        if len(view) != nbytes:
            raise UnusableError
        file.users, file.used = file.users + 1, now
        self._lent[client] += nbytes
        try:
            yield view
        finally:
            file.users -= 1
            self._lent[client] -= nbytes
            self._lent += Counter()  # without zeros

    def _file(self, lent: Any) -> _LentFile | None:
        """The mapped file; None where no more can be mapped now."""
        key = lent.pid, lent.descriptor, lent.inode
        if key not in self._files:
            if len(self._files) >= MAX_FILES and not self._drop_one():
                return None
            try:
                self._files[key] = _LentFile(*key)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in _SCARCE:
                    return None
                raise UnusableError from error
        self._files.move_to_end(key)
        return self._files[key]

    def _drop_one(self) -> bool:
        """Let go of the file that has not been used for longest; False: all are in use."""
        idle = next((key for key, file in self._files.items() if not file.users), None)
        if idle is None:
            return False
        del self._files[idle]
        return True

    def expire(self, now: float) -> None:
        """Let go of files that have not been used for a while."""
        for key, file in list(self._files.items()):
            if not file.users and now - file.used > IDLE_S:
                del self._files[key]
