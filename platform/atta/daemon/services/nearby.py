"""Answers consumers on this machine over a Unix socket, see ``atta.wire.memfiles``: a call of gRPC costs either end
several times the processor time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from typing import BinaryIO

import structlog
from google.protobuf.message import DecodeError

from atta.daemon.engine.session import Session
from atta.errors import AttaError
from atta.protos.v1 import session_pb2
from atta.wire import memfiles

log = structlog.get_logger("atta.nearby")
GREETING_S = 5.0
"""How long a new connection may take to send its token, in seconds."""
FULL_S = 0.1
"""How long no connections are accepted after one could not be, in seconds."""
MOST_GREETINGS = 16
"""Most connections that have not sent their token. Further ones are closed."""
PENDING_S = 20.0
"""How long a request waits for its batch before its answer is "pending", in seconds."""
PENDING = session_pb2.BatchHeader(pending=True)


Answer = Callable[[Session, session_pb2.NextRequest], session_pb2.BatchHeader | None]
"""Gives the header of the batch asked for, which lies in shared memory; None: it is not finished. Raises AttaError: the
request has another answer."""


class NearbyConsumers:
    """The socket, and its connections: at most one for each session. All of it runs on the event loop.

    Attributes:
        name: of the socket; empty: the daemon does not listen.
    """

    def __init__(self, answer: Answer) -> None:
        self.name = ""
        self.requests = 0
        self.answer = answer
        self._sessions: dict[bytes, Session] = {}  # by token
        self._strangers: set[_Consumer] = set()  # whose token has not come
        self._known: dict[Session, _Consumer] = {}
        self._socket: socket.socket | None = None
        self._spare: BinaryIO | None = None  # an open file, whose descriptor is for connections to be ended

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def listen(self) -> None:
        """Open the socket. Its name is abstract: no file is left behind."""
        self.name = f"atta-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = memfiles.packets()
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(128)
        self._begin_to_accept()

    def close(self) -> None:
        """End all connections and accept no more."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if self._spare is not None:
            self._spare.close()
        self._socket, self.name = None, ""
        for consumer in (*self._strangers, *self._known.values()):
            consumer.close()

    def begin(self, session: Session) -> None:
        """The session's consumer may connect from now on, with ``session.token``."""
        self._sessions[session.token] = session

    def end(self, session: Session) -> None:
        """The session has ended, and its connection with it."""
        self._sessions.pop(session.token, None)
        if (consumer := self._known.get(session)) is not None:
            consumer.close()

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            log.warning("consumer not accepted", error=str(error))
            self._turn_away()
            return
        if len(self._strangers) >= MOST_GREETINGS or memfiles.other_end(connection)[1] != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        self._strangers.add(_Consumer(connection, self))

    def _turn_away(self) -> None:
        """Too many files are open. End the connections that have come, one by one with the descriptor that is kept for
        this, so that nobody waits. Accept none for a moment."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.call_later(FULL_S, self._begin_to_accept)
        if self._spare is not None:
            self._spare.close()
        with contextlib.suppress(OSError):  # there are no more
            while True:
                self._socket.accept()[0].close()

    def _begin_to_accept(self) -> None:
        if self._socket is None:  # closed in the meantime
            return
        if self._spare is None or self._spare.closed:
            with contextlib.suppress(OSError):  # there may be one later
                self._spare = open(os.devnull, "rb")  # noqa: SIM115 (it stays open)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def greeted(self, consumer: _Consumer, token: bytes) -> Session | None:
        """The session with this token, whose connection is now that of ``consumer``; None: there is none."""
        session = self._sessions.get(token)
        if session is None:
            log.info("consumer refused", reason="unknown token")
            return None
        if (before := self._known.get(session)) is not None:
            before.close()
        self._strangers.discard(consumer)
        self._known[session] = consumer
        return session

    def gone(self, consumer: _Consumer, session: Session | None) -> None:
        """The connection of ``consumer`` has ended."""
        self._strangers.discard(consumer)
        if session is not None and self._known.get(session) is consumer:
            del self._known[session]


class _Consumer:
    """One connection, and the request that has come by it and has no answer yet."""

    def __init__(self, sock: socket.socket, home: NearbyConsumers) -> None:
        self._sock, self._home = sock, home
        self._session: Session | None = None
        self._request: session_pb2.NextRequest | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)
        self._timer = self._loop.call_later(GREETING_S, self.close)

    def _read(self) -> None:
        try:
            packet = self._sock.recv(memfiles.REQUEST_BYTES + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            packet = b""
        if not packet or len(packet) > memfiles.REQUEST_BYTES or self._request is not None:
            self.close()  # it has hung up, or does not wait for its answer
        elif self._session is None:
            self._timer.cancel()
            self._session = self._home.greeted(self, packet)
            if self._session is None:
                self.close()
        else:
            self._asked(self._session, packet)

    def _asked(self, session: Session, packet: bytes) -> None:
        try:
            self._request = session_pb2.NextRequest.FromString(packet)
        except DecodeError:
            self.close()
            return
        self._home.requests += 1
        session.begin_answer()
        self._timer = self._loop.call_later(PENDING_S, self._send, PENDING)
        self._answer()

    def _answer(self) -> None:
        """Send the batch if it is finished. If not, come again when it may be."""
        session, request = self._session, self._request
        if session is None or request is None:  # answered, or given up, before it came again
            return
        try:
            header = self._home.answer(session, request)
        except AttaError:
            self.close()  # the consumer hears by gRPC what the matter is
        except Exception as error:
            log.error("request failed", session=session.id, exc_info=error)
            self.close()
        else:
            if header is None:
                session.when_changed(self._answer)
            else:
                self._send(header)

    def _send(self, header: session_pb2.BatchHeader) -> None:
        packet = header.SerializeToString()
        self._over()
        try:
            if len(packet) > memfiles.HEADER_BYTES:
                raise OSError
            self._sock.send(packet)
        except OSError:
            self.close()

    def _over(self) -> None:
        """The request, if there is one, is not waited for any more."""
        self._timer.cancel()
        if self._request is not None and self._session is not None:
            self._request = None
            self._session.end_answer()

    def close(self) -> None:
        """End the connection; repeating it does nothing. The session remains."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._over()
        self._home.gone(self, self._session)
