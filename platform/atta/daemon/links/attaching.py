"""The end of links that asks: it attaches to peers when they are first needed, and again after a link has ended."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable

import structlog

from atta import _native
from atta.daemon.links.listening import ACCEPTED, VERSION, secured, tuned
from atta.daemon.peers.peers import Peer
from atta.errors import AttaError
from atta.protos.v1 import link_pb2

__all__ = ["Attaching"]

CONNECT_S = 2.0
"""How long to wait for a link before messages are used instead, in seconds."""
RETRY_S = 5.0
"""How long to use messages alone after a link could not be had, in seconds."""

log = structlog.get_logger("atta.links")


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
        due = [part for part in parts if self._not_before.get(part, 0.0) <= now]
        if due:
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
        """Give up what is being attached."""
        coming = [*self._coming.values()]
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


async def _connected(address: str, reply: link_pb2.AttachReply) -> tuple[socket.socket, _native.LinkTls | None]:
    """A socket to the daemon at ``address`` that has accepted the token, and its encryption.

    It is a Unix socket if the daemon is on this machine.
    """
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
        accepted = b""
        while len(accepted) < len(ACCEPTED):
            more = await loop.sock_recv(sock, len(ACCEPTED) - len(accepted))
            if not more:
                raise OSError("the daemon has refused the token")
            accepted += more
        if accepted != ACCEPTED:
            raise OSError("the daemon has answered something else")
        return sock, await secured(sock, reply.secret, CONNECT_S, serves=False)
    except BaseException:
        sock.close()
        raise
