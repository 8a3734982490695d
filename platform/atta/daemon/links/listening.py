"""The end of links that serves: it gives out tokens, and accepts the connections that bring one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time

import structlog

from atta import _native
from atta.daemon.links.tokens import TOKEN_BYTES, Tokens
from atta.daemon.services.handling import Context, Handler
from atta.errors import ConfigError
from atta.protos.v1 import link_pb2

__all__ = ["ACCEPTED", "VERSION", "LinkService", "tuned"]

VERSION = 1
"""Of the frames. Daemons of different versions talk by gRPC alone."""
ACCEPTED = b"ATTA"
"""What the serving end sends when it has accepted a token. Frames follow."""
GREETING_S = 5.0
"""How long a new connection may take to send its token, in seconds."""
MOST_GREETINGS = 64
"""Most connections that have not sent their token yet. Further ones wait in the kernel's queue."""

log = structlog.get_logger("atta.links")


def tuned(sock: socket.socket) -> None:
    """Prepare a connected socket for frames."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class LinkService:
    """``LinkService`` of a daemon, and the sockets on which it accepts links."""

    def __init__(self, links: _native.Links, listen: str, port: int) -> None:
        """``listen``: the daemon's address. ``port``: of the links there; 0: any free one."""
        self._links, self._tokens, self._port = links, Tokens(), port
        self._host = listen.rpartition(":")[0].strip("[]")
        self._name = f"atta-{os.getpid()}-{secrets.token_hex(8)}"
        self._tcp = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM)
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def listen(self) -> None:
        """Open the sockets.

        Raises:
            ConfigError: the port is in use.
        """
        if self._port:
            self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a daemon that restarts has its port again
        try:
            self._tcp.bind((self._host, self._port))
        except OSError as error:
            cause = error.strerror or error
            raise ConfigError(f"links cannot listen on {self._host}, port {self._port}: {cause}") from error
        self._unix.bind(f"\0{self._name}")  # an abstract name: no file is left behind
        for sock in (self._tcp, self._unix):
            sock.setblocking(False)
            sock.listen(128)

    def methods(self) -> dict[str, Handler]:
        """The handlers by their names in ``link.proto``."""
        return {"Attach": self.attach}

    async def attach(self, request: link_pb2.AttachRequest, context: Context) -> link_pb2.AttachReply:
        """``LinkService.Attach``."""
        return link_pb2.AttachReply(
            version=VERSION,
            port=self._tcp.getsockname()[1],
            local=self._name,
            token=self._tokens.new(time.monotonic(), request.part),
        )

    async def accept(self) -> None:
        """Accept links until cancelled."""
        places = asyncio.Semaphore(MOST_GREETINGS)
        async with asyncio.TaskGroup() as group:
            for sock in (self._tcp, self._unix):
                group.create_task(self._accept(sock, places, group))

    async def _accept(self, sock: socket.socket, places: asyncio.Semaphore, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await places.acquire()
            try:
                connection, _ = await loop.sock_accept(sock)
            except OSError as error:  # too many open files, or a connection that ended at once
                places.release()
                log.warning("link not accepted", error=str(error))
                await asyncio.sleep(0.1)
                continue
            greeting = group.create_task(self._greet(connection))
            greeting.add_done_callback(lambda _: places.release())

    async def _greet(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            tuned(connection)
            async with asyncio.timeout(GREETING_S):
                token = b""
                while len(token) < TOKEN_BYTES:
                    more = await loop.sock_recv(connection, TOKEN_BYTES - len(token))
                    if not more:
                        return
                    token += more
                peer = self._tokens.take(token, time.monotonic())
                if peer is None:
                    log.info("link refused", reason="unknown token")
                    return
                await loop.sock_sendall(connection, ACCEPTED)
            self._links.serve(connection.detach(), peer)
        except (OSError, TimeoutError):
            pass  # it went away, or had nothing to say
        finally:
            connection.close()

    def close(self) -> None:
        """Accept no more links."""
        self._tcp.close()
        self._unix.close()
