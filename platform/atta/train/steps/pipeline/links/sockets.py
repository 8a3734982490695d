"""Connections between a trainer, its workers and other trainers: both ends prove that they know the job's key."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from atta.errors import ConfigError, DeadlineError, RemoteError, UnavailableError
from atta.train.steps.pipeline.frames import MAX_FRAME_BYTES, Arrays, packed, unpacked

__all__ = ["PROTOCOL", "FrameSocket", "call", "listen"]

PROTOCOL = 1
"""Changes whenever messages do. Both ends must have the same."""
MEETING_S = 20.0
"""How long the two ends of a connection may take to meet."""
MESSAGE_S = 60.0
"""How long a message may take once it has begun."""
_NONCE_BYTES = 32


class FrameSocket:
    """A connection that carries ``frames``. Its methods raise RemoteError if the other end goes away or is too slow.

    Attributes:
        name: of the other end, for messages.
        setting: what the end that was called has told once; set by ``call``.
    """

    def __init__(self, connected: socket.socket, name: str) -> None:
        self._socket, self.name = connected, name
        self.setting: dict[str, Any] = {}
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, about: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """Send a message."""
        self.send_raw(packed(about, arrays or {}))

    def send_raw(self, raw: bytes) -> None:
        """Send a message that is packed already."""
        try:
            self._socket.settimeout(MESSAGE_S)
            self._socket.sendall(len(raw).to_bytes(8, "little"))
            self._socket.sendall(raw)
        except OSError as error:
            raise RemoteError(self.name, f"a message could not be sent: {error}") from error

    def receive(self, within_s: float | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The next message; None: however long it takes to come.

        Raises:
            DeadlineError: none came in time.
            ConfigError: it is no message, or too large.
        """
        size = int.from_bytes(self._bytes(8, within_s), "little")
        if size > MAX_FRAME_BYTES:
            raise ConfigError(f"{self.name}: a message of {size} bytes; at most {MAX_FRAME_BYTES} are possible")
        return unpacked(self._bytes(size, MESSAGE_S))

    def prove(self, key: bytes, *, calls: bool) -> None:
        """Prove to each other that both ends know ``key``; ``calls``: this end has opened the connection.

        Raises:
            RemoteError: the other end does not know it.
        """
        mine = secrets.token_bytes(_NONCE_BYTES)
        self._send_bytes(mine)
        theirs = self._bytes(_NONCE_BYTES, MEETING_S)
        self._send_bytes(_proof(key, theirs, calls=calls))
        if not hmac.compare_digest(self._bytes(_NONCE_BYTES, MEETING_S), _proof(key, mine, calls=not calls)):
            raise RemoteError(self.name, "does not know the key of this job")

    def close(self) -> None:
        """Close the connection; who waits for a message here or there gets a RemoteError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send_bytes(self, raw: bytes) -> None:
        try:
            self._socket.settimeout(MEETING_S)
            self._socket.sendall(raw)
        except OSError as error:
            raise RemoteError(self.name, f"went away: {error}") from error

    def _bytes(self, count: int, within_s: float | None) -> bytes:
        raw = bytearray(count)
        view, got = memoryview(raw), 0
        try:
            self._socket.settimeout(within_s)
            while got < count:
                new = self._socket.recv_into(view[got:])
                if not new:
                    raise RemoteError(self.name, "has closed the connection")
                got += new
        except TimeoutError as error:
            raise DeadlineError(self.name, f"sent nothing for {within_s:g} s") from error
        except OSError as error:
            raise RemoteError(self.name, f"went away: {error}") from error
        return bytes(raw)


def listen(host: str) -> socket.socket:
    """A socket that accepts connections at a free port of ``host``."""
    return socket.create_server((host, 0), backlog=128)


def call(address: str, key: bytes, hello: Mapping[str, Any]) -> FrameSocket:
    """Open a connection, as ``role`` of ``hello``.

    Raises:
        ConfigError: the other end refuses this one, or ``address`` is none.
        RemoteError, UnavailableError: nobody answers, or it does not know the key.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{address!r} is no address; give HOST:PORT")
    try:
        connected = socket.create_connection((host, int(port)), MEETING_S)
    except OSError as error:
        raise UnavailableError(address, str(error)) from error
    found = FrameSocket(connected, address)
    try:
        found.prove(key, calls=True)
        found.send({**hello, "protocol": PROTOCOL})
        found.setting, _ = found.receive(MEETING_S)
        if "refused" in found.setting:
            raise ConfigError(f"{address}: {found.setting['refused']}")
    except BaseException:
        found.close()
        raise
    return found


def _proof(key: bytes, nonce: bytes, *, calls: bool) -> bytes:
    return hmac.new(key, (b"calls" if calls else b"listens") + nonce, hashlib.sha256).digest()
