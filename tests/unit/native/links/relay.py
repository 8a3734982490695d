"""A relay between both ends of a link that ends it, or damages a byte, at a given place."""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import threading
from typing import Any

from atta import _native
from tests.unit.native.links.ends import Owner, encrypted, pairs


class Relay:
    """Carries bytes between a daemon and an owner. ``flip`` and ``end`` are positions in the requests (``back`` is
    False) or in the answers, counted from the end of the handshake where the link is encrypted (``tls``)."""

    def __init__(
        self,
        owner: Owner,
        me: _native.Links,
        *,
        back: bool = True,
        end: int | None = None,
        flip: int | None = None,
        tls: bool = False,
    ) -> None:
        near, self._near = pairs("unix")
        self._far, far = pairs("unix")
        self._back = back
        self._end: int | None = None
        self._flip: int | None = None
        self.carried = {False: 0, True: 0}
        """Bytes of requests (False) and of answers (True)."""
        self._stop, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        asks, serves = encrypted(near, far) if tls else (None, None)
        shaken = self.carried[back]
        self._end = None if end is None else shaken + end
        self._flip = None if flip is None else shaken + flip
        owner.links.serve(far.detach(), -1, serves)
        me.attach(1, near.detach(), asks)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join()
        self._stop.close()

    def _run(self) -> None:
        with self._near, self._far:
            while True:
                readable = self._readable()
                if self._stop in readable:
                    return
                for source in readable:
                    if not self._carry(source, back=source is self._far):
                        return

    def _readable(self) -> list[Any]:
        """Which ends have something to read, or have gone. select() takes no descriptor beyond 1,023."""
        with selectors.PollSelector() as ends:
            for end in (self._near, self._far, self._stop):
                ends.register(end, selectors.EVENT_READ)
            return [key.fileobj for key, _ in ends.select()]

    def _carry(self, source: socket.socket, *, back: bool) -> bool:
        try:
            data = bytearray(source.recv(1 << 16))
        except OSError:
            return False
        begin = self.carried[back]
        going = bool(data)
        if back == self._back:
            if self._flip is not None and begin <= self._flip < begin + len(data):
                data[self._flip - begin] ^= 1 << self._flip % 8
            if self._end is not None and begin + len(data) >= self._end:
                del data[self._end - begin :]
                going = False
        self.carried[back] += len(data)
        to = self._near if back else self._far
        writable = select.poll()  # unlike select, it tells of a socket that was shut down with unread bytes
        writable.register(to, select.POLLOUT)
        with contextlib.suppress(ConnectionError):
            while data:
                writable.poll()
                with contextlib.suppress(BlockingIOError):
                    del data[: to.send(data)]
        return going
