"""The channels of a client's connection, which are opened anew when the files of its credentials have changed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from atta.errors import DataError
from atta.wire import rpc
from atta.wire.messages.stubs import MethodStub
from atta.wire.security.credentials import LOOK_S, Credentials, open_channels

__all__ = ["ClientChannels"]

LONGEST_CALL_S = 3600.0
"""Channels of before are kept for so many seconds at least, for the calls that are under way on them."""


@dataclass(frozen=True)
class _Opened:
    """Two channels with one connection, see ``open_channels``, and the stubs of methods on them, by name."""

    usual: grpc.Channel
    read_by_callers: grpc.Channel
    stubs: dict[str, MethodStub] = field(default_factory=dict)

    def stub(self, name: str) -> MethodStub:
        if name not in self.stubs:
            self.stubs[name] = rpc.stub(self.read_by_callers if rpc.METHODS[name].streams else self.usual, name)
        return self.stubs[name]

    def close(self) -> None:
        self.read_by_callers.close()
        self.usual.close()


class ClientChannels:
    """Channels to one daemon. gRPC connects them again and again, and always with the certificate that they began with.

    So they are opened anew when a file of the certificate or the authority has changed. Files that have become
    unreadable, or do not fit together, change nothing.
    """

    def __init__(
        self, address: str, credentials: Credentials | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``credentials``: for a daemon with TLS. ``clock`` counts seconds. Raises DataError for bad files."""
        self._address, self._credentials, self._clock, self._looked = address, credentials, clock, clock()
        self._stamp = credentials.certificate_stamp() if credentials is not None else ()
        self._present = self._opened()
        self._former: list[tuple[float, _Opened]] = []
        self._lock = threading.Lock()
        self._closed = False

    def stub(self, name: str) -> MethodStub:
        """What begins a call of the method ``name`` with what the files held at most ``LOOK_S`` ago. Any thread may ask."""
        now = self._clock()
        if self._credentials is not None and now - self._looked >= LOOK_S:
            self._looked = now
            with self._lock, contextlib.suppress(DataError):
                self._renew(self._credentials, now)
        return self._present.stub(name)

    def close(self) -> None:
        """Close all channels."""
        with self._lock:
            self._closed = True
            for opened in (*(former for _, former in self._former), self._present):
                opened.close()

    def _opened(self) -> _Opened:
        return _Opened(*open_channels(self._address, self._credentials, rpc.client_options()))

    def _renew(self, credentials: Credentials, now: float) -> None:
        stamp = credentials.certificate_stamp()
        if stamp == self._stamp or self._closed:
            return
        fresh = self._opened()
        while self._former and now - self._former[0][0] >= LONGEST_CALL_S:
            self._former.pop(0)[1].close()
        self._former.append((now, self._present))
        self._present, self._stamp = fresh, stamp
