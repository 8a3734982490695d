"""Both ends of a link until frames follow: one gives out tokens and accepts the connections that bring one, the other
attaches when a peer is first needed, and again after a link has ended."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from atta import _native
from atta.daemon.peers.peers import Peer
from atta.daemon.services.handling import Context
from atta.errors import AttaError, ConfigError
from atta.protos.v1 import link_pb2

TOKEN_BYTES = 16
SECRET_BYTES = 32
TOKEN_S = 10.0
"""How long a token is good, in seconds."""
MOST_TOKENS = 1024
"""Most tokens that are good at a time. Beyond that, the oldest ends early."""
CONNECT_S = 2.0
"""How long to wait for a link before messages are used instead, in seconds."""
RETRY_S = 5.0
"""How long to use messages alone after a link could not be had, in seconds."""
VERSION = 1
"""Of the frames. Daemons of different versions talk by gRPC alone."""
ACCEPTED = b"ATTA"
"""What the serving end sends when it has accepted a token. Frames follow."""
GREETING_S = 5.0
"""How long a new connection may take to send its token, in seconds."""
MOST_GREETINGS = 64
"""Most connections that have not sent their token yet. Further ones wait in the kernel's queue."""

_ENDS_IF_SILENT = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 11_000}
"""Options that end a connection 11 s after the other machine has fallen silent. The last one counts in ms; it is for
bytes under way, for which there are no questions whether the other end is there."""

log = structlog.get_logger("atta.links")


def tuned(sock: socket.socket) -> None:
    """Prepare a connected socket for frames."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _ENDS_IF_SILENT.items():
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class LinkNotSecure(OSError):  # noqa: N818 (says what is wrong)
    """The two ends of a connection could not prove their secret to each other."""


async def secured(sock: socket.socket, secret: bytes, timeout_s: float, *, serves: bool) -> _native.LinkTls | None:
    """The encryption of a connection on which the token has been accepted; None: it has none. Connections within a
    machine have none: a Unix socket leads past everybody else. Raises LinkNotSecure: the other end does not know the
    secret, does not answer in time, or has gone."""
    if not secret or sock.family == socket.AF_UNIX:
        return None
    tls = _native.LinkTls(sock.fileno(), secret, serves)
    shaking = asyncio.get_running_loop().run_in_executor(None, tls.shake_hands, math.ceil(1e3 * timeout_s))
    try:
        why = await asyncio.shield(shaking)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([shaking])  # else its thread would read from the next socket that gets this one's number
        raise
    if why:
        raise LinkNotSecure(why)
    return tls


def congestion_control(sock: socket.socket) -> str:
    """Name of the congestion control of a TCP socket: that of the machine, unless something else was set."""
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.partition(b"\0")[0].decode(errors="replace")


class LinkService:
    """``LinkService`` of a daemon, and the sockets on which it accepts links."""

    def __init__(self, links: _native.Links, listen: str, port: int, *, encrypted: bool = False) -> None:
        """``listen``: the daemon's address. ``port``: of the links there; 0: any free one. ``encrypted``: links to
        other machines speak TLS. Where the native library cannot, there are none."""
        self._links, self._tokens, self._port, self._encrypted = links, Tokens(), port, encrypted
        self._host = listen.rpartition(":")[0].strip("[]")
        self._name = f"atta-{os.getpid()}-{secrets.token_hex(8)}"
        self._tcp = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM)
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def listen(self) -> None:
        """Open the sockets. Raises ConfigError: the port is in use."""
        if self._tcp not in self._sockets():
            log.warning("no links to other machines", reason="Atta was built without OpenSSL and cannot encrypt them")
        if congestion_control(self._tcp) == "bbr":
            log.debug(
                "links take a fifth more processor time with bbr than cubic", set="net.ipv4.tcp_congestion_control"
            )
        if self._port:
            self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a daemon that restarts has its port again
        try:
            self._tcp.bind((self._host, self._port))
        except OSError as error:
            cause = error.strerror or error
            raise ConfigError(f"links cannot listen on {self._host}, port {self._port}: {cause}") from error
        self._unix.bind(f"\0{self._name}")  # an abstract name: no file is left behind
        for sock in self._sockets():
            sock.setblocking(False)
            sock.listen(128)

    def _sockets(self) -> list[socket.socket]:
        return [self._unix] if self._encrypted and not _native.link_tls else [self._tcp, self._unix]

    async def attach(self, request: link_pb2.AttachRequest, context: Context) -> link_pb2.AttachReply:
        secret = secrets.token_bytes(SECRET_BYTES) if self._encrypted else b""
        return link_pb2.AttachReply(
            version=VERSION,
            port=self._tcp.getsockname()[1] if self._tcp in self._sockets() else 0,
            local=self._name,
            token=self._tokens.new(time.monotonic(), Grant(request.part, secret)),
            secret=secret,
        )

    async def accept(self) -> None:
        """Accept links until cancelled."""
        places = asyncio.Semaphore(MOST_GREETINGS)
        async with asyncio.TaskGroup() as group:
            for sock in self._sockets():
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
        loop, grant = asyncio.get_running_loop(), None
        try:
            tuned(connection)
            async with asyncio.timeout(GREETING_S):
                token = await _received(connection, TOKEN_BYTES)
                grant = self._tokens.take(token, time.monotonic())
                if not token:
                    return
                if grant is None:
                    log.info("link refused", reason="unknown token")
                    return
                await loop.sock_sendall(connection, ACCEPTED)
            tls = await secured(connection, grant.secret, GREETING_S, serves=True)
            self._links.serve(connection.detach(), grant.peer, tls)
        except LinkNotSecure as error:
            log.warning("link refused", reason=str(error), part=grant.peer if grant else None)
        except (OSError, TimeoutError):
            pass  # it went away, or had nothing to say
        finally:
            connection.close()

    def close(self) -> None:
        self._tcp.close()
        self._unix.close()


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token is good for: the partition of the daemon that got it, and the key of the connection, which never travels
    on it (empty: the connection is not encrypted)."""

    peer: int
    secret: bytes = field(default=b"", repr=False)


class Tokens:
    """Tokens that were given out and not used yet, the oldest first. Each is good once."""

    def __init__(self) -> None:
        self._given: OrderedDict[bytes, tuple[float, Grant]] = OrderedDict()

    def new(self, now: float, grant: Grant) -> bytes:
        """A token that is good until ``now + TOKEN_S``."""
        self._forget(now, room=1)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._given[token] = now + TOKEN_S, grant
        return token

    def take(self, token: bytes, now: float) -> Grant | None:
        """What ``token`` is good for; None: it is not good. It is not afterwards."""
        self._forget(now)
        _, grant = self._given.pop(token, (now, None))
        return grant

    def _forget(self, now: float, *, room: int = 0) -> None:
        """Forget tokens that have ended, and as many as it takes for ``room`` more."""
        while self._given and (len(self._given) + room > MOST_TOKENS or next(iter(self._given.values()))[0] <= now):
            self._given.popitem(last=False)


class Attaching:
    """Links to all peers, ``width`` for each. All of it runs on the event loop.

    Attributes:
        missing: the partitions to whose owners there is no link.
    """

    def __init__(
        self, links: _native.Links, part: int, peers: Callable[[int], Peer], parts: Iterable[int], *, width: int
    ) -> None:
        """``part``: the first partition of this daemon; ``parts``: the owners that are peers."""
        self.missing = set(parts)
        self._links, self._part, self._peers, self._width = links, part, peers, width
        self._coming: dict[int, asyncio.Task[None]] = {}
        self._not_before: dict[int, float] = {}
        self._addresses: dict[int, str] = {}  # by partition, where the latest link to its owner leads

    async def ready(self, parts: Iterable[int]) -> None:
        """Attach to the owners of ``parts``, which are missing. An owner that cannot be had is left to messages."""
        now = time.monotonic()
        if due := [part for part in parts if self._not_before.get(part, 0.0) <= now]:
            await asyncio.gather(*map(self._attach, due))

    def lost(self, part: int) -> None:
        """A link to the owner of ``part`` has ended."""
        if not self._links.attached(part):
            self.missing.add(part)

    def leads_elsewhere(self, part: int) -> bool:
        """Whether the link to the owner of ``part`` leads to another daemon than messages do."""
        return self._addresses.get(part) != self._peers(part).address

    async def _attach(self, part: int) -> None:
        coming = self._coming.get(part)
        if coming is None:  # all that wait share one attempt
            coming = self._coming[part] = asyncio.create_task(self._connect(part))
            coming.add_done_callback(lambda _: self._coming.pop(part, None))
        await asyncio.shield(coming)

    async def _connect(self, part: int) -> None:
        peer = self._peers(part)
        try:
            async with asyncio.timeout(CONNECT_S):
                for _ in range(self._width - self._links.attached(part)):  # some may live from an attempt that failed
                    reply = await peer.attach(link_pb2.AttachRequest(version=VERSION, part=self._part))
                    if reply.version != VERSION:
                        raise AttaError(f"speaks version {reply.version} of the frames, not {VERSION}")
                    self._addresses[part] = peer.address
                    sock, tls = await _connected(peer.address, reply)
                    self._links.attach(part, sock.detach(), tls)
        except (AttaError, OSError, TimeoutError) as error:
            self._not_before[part] = time.monotonic() + RETRY_S
            log.info("no link", part=part, address=peer.address, error=str(error) or type(error).__name__)
            return
        self.missing.discard(part)

    async def close(self) -> None:
        coming = [*self._coming.values()]
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


async def _received(sock: socket.socket, nbytes: int) -> bytes:
    """The next ``nbytes``, or fewer where the connection ends."""
    loop, found = asyncio.get_running_loop(), b""
    while len(found) < nbytes and (more := await loop.sock_recv(sock, nbytes - len(found))):
        found += more
    return found


async def _connected(address: str, reply: link_pb2.AttachReply) -> tuple[socket.socket, _native.LinkTls | None]:
    """A socket to the daemon at ``address`` that has accepted the token, and its encryption. It is a Unix socket if the
    daemon is on this machine."""
    loop = asyncio.get_running_loop()
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        tuned(local)
        await loop.sock_connect(local, f"\0{reply.local}")
        sock = local
    except BaseException as error:
        local.close()
        if not isinstance(error, OSError):
            raise
        if not reply.port:
            raise OSError("the daemon has no links to other machines: it was built without OpenSSL") from None
        if reply.secret and not _native.link_tls:
            raise OSError("the daemon encrypts its links, and this one was built without OpenSSL") from None
        host = address.rpartition(":")[0].strip("[]")
        (family, kind, protocol, _, where), *_ = await loop.getaddrinfo(host, reply.port, type=socket.SOCK_STREAM)
        sock = socket.socket(family, kind, protocol)
        try:
            tuned(sock)
            await loop.sock_connect(sock, where)
        except BaseException:
            sock.close()
            raise
    try:
        await loop.sock_sendall(sock, reply.token)
        if (accepted := await _received(sock, len(ACCEPTED))) != ACCEPTED:
            raise OSError("the daemon has " + ("answered something else" if accepted else "refused the token"))
        return sock, await secured(sock, reply.secret, CONNECT_S, serves=False)
    except BaseException:
        sock.close()
        raise
