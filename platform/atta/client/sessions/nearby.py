"""Asks a daemon on this machine for batches over a Unix socket, see ``atta.wire.memfiles``."""

from __future__ import annotations

import contextlib
import socket
import threading

from google.protobuf.message import DecodeError

from atta.protos.v1 import session_pb2
from atta.wire import memfiles


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
        try:
            sock.connect(f"\0{reply.nearby}")
            if memfiles.other_end(sock)[0] == reply.pid:
                sock.send(reply.token)
                return cls(sock, timeout_s)
        except (OSError, ValueError):  # it does not listen there, or that is no name
            pass
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
