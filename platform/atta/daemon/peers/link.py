"""The way to a peer: connections to its address, and who answers there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import structlog

from atta.daemon.peers.presence import Presence
from atta.errors import AttaError, UnavailableError, WrongDatasetError
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from atta.wire.identity import Bound, Identity, check
from atta.wire.parts import parts_text
from atta.wire.security.credentials import Credentials, open_async_channel

__all__ = ["CONNECT_S", "RETRY_S", "Link", "PeerLink"]

CONNECT_S = 15.0
"""How long to wait for a peer that starts or restarts, in seconds. After that the batch fails."""
GRACE_S = 1.0
"""How long connecting to a running peer takes at most, in seconds. A peer that needs longer is logged as lost."""
RETRY_S = 0.1
"""How long to wait before a request is made again, in seconds."""

log = structlog.get_logger("atta.peers")


class Link:
    """One connection to the daemon ``meant``, and what can be asked over it."""

    def __init__(self, address: str, meant: Identity, credentials: Credentials | None = None) -> None:
        """Begin to connect, over TLS with ``credentials``. Raises DataError for bad files."""
        token = credentials.headers() if credentials is not None else ()
        self.channel = open_async_channel(address, credentials, rpc.client_options())
        self._meant = meant
        self._stubs: dict[str, Any] = {}
        self._headers = {bound: meant.header(bound) + token for bound in Bound}

    def ask(self, method: str, request: Any, timeout: float) -> Any:
        """Begin a call."""
        if method not in self._stubs:
            self._stubs[method] = rpc.stub(self.channel, method)
        return self._stubs[method](request, timeout=timeout, metadata=self._headers[rpc.METHODS[method].bound])


class PeerLink:
    """Two connections to a peer, which reconnect by themselves: one for all requests, one for those that are late.

    The daemon at the address is asked for its identity before anything else, and again whenever it has been away. Every
    request also names the daemon that it is meant for.
    """

    def __init__(
        self,
        address: str,
        meant: Identity,
        deadline_s: float,
        *,
        connect_s: float = CONNECT_S,
        parts: range | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """``parts``: the partitions that the peer must serve; None: the one of ``meant``. ``credentials``: for TLS,
        read again before a peer that was away is asked anew.
        """
        self._parts, self._credentials = parts, credentials
        self._stamp = credentials.stamp() if credentials is not None else ()
        self._closing: asyncio.Task[None] | None = None
        self.address, self._meant, self._deadline_s = address, meant, deadline_s
        self._connect_s = min(connect_s, deadline_s)
        self.usual = Link(address, meant, credentials)
        self._spare: Link | None = None
        self._known = False
        self._meeting: asyncio.Task[None] | None = None
        self._presence = Presence()

    @property
    def spare(self) -> Link:
        """The other connection, made when it is first needed; the usual one while credentials cannot be read."""
        if self._spare is None:
            try:
                self._spare = Link(self.address, self._meant, self._credentials)
            except AttaError as error:
                log.warning("credentials not read again", error=str(error))
                return self.usual
        return self._spare

    async def ready(self) -> None:
        """Wait until the peer is there and known to be the right one.

        Raises:
            UnavailableError: it does not answer within ``connect_s`` (and the deadline).
            WrongDatasetError: another daemon answers.
        """
        if self._known and self._is_connected():
            return
        if self._meeting is None:  # all that wait share one question
            self._meeting = asyncio.ensure_future(self._meet())
            self._meeting.add_done_callback(self._has_met)
        await asyncio.shield(self._meeting)

    async def reached(self) -> bool:
        """Whether the peer is there now and known to be the right one. Begins to connect, and does not wait for one
        that is away.

        Raises:
            AttaError: as ``ready``.
        """
        if self._is_connected():
            await self.ready()
            return True
        return False

    def broke(self, error: AttaError) -> None:
        """A call has ended as if the peer were gone."""
        self._known = False
        if not self._is_connected():
            self._say_lost(error)

    def _is_connected(self) -> bool:
        return bool(self.usual.channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY)

    def _has_met(self, meeting: asyncio.Task[None]) -> None:
        self._meeting = None
        if not meeting.cancelled():
            meeting.exception()  # retrieve it, as nobody may wait for it any more

    def _renew(self) -> None:
        """Connect with what the files of the credentials hold now, if they have changed."""
        if self._credentials is None or self._closing is not None:
            return
        try:
            stamp = self._credentials.stamp()
            if stamp == self._stamp:
                return
            fresh = Link(self.address, self._meant, self._credentials)
        except AttaError as error:  # being replaced, or wrong: those of before may still do
            log.warning("credentials not read again", error=str(error))
            return
        self._stamp = stamp
        old = [link for link in (self.usual, self._spare) if link is not None]
        self.usual, self._spare = fresh, None
        self._closing = asyncio.ensure_future(self._close_later(old))

    async def _close_later(self, old: list[Link]) -> None:
        """Close connections that nothing new goes over; what is under way may end."""
        try:
            await asyncio.gather(*(link.channel.close(grace=self._deadline_s) for link in old))
        finally:
            self._closing = None

    async def _meet(self) -> None:
        self._renew()
        until = time.monotonic() + self._connect_s
        while True:
            await self._connect(until)
            try:
                request = control_pb2.DescribeRequest()
                reply = await self.usual.ask("ControlService.Describe", request, self._deadline_s)
                break
            except grpc.aio.AioRpcError as failure:
                error = rpc.error_from(self.address, failure)
                if not isinstance(error, UnavailableError) or time.monotonic() >= until:
                    raise error from failure
                self._say_lost(error)
            await asyncio.sleep(RETRY_S)
        found = Identity(reply.part, reply.dataset_id, reply.incarnation)
        try:
            check(found, self._meant, Bound.DATA, self.address)
            self._check_parts(range(reply.part, reply.part + max(1, reply.parts)))
        except WrongDatasetError as error:
            self._say_lost(error)
            raise
        self._known = True
        self._say_met(found)

    def _check_parts(self, found: range) -> None:
        """Daemons that spread the partitions in different ways would mean different vertices by one row."""
        if self._parts is not None and found != self._parts:
            meant, served = parts_text(self._parts), parts_text(found)
            raise WrongDatasetError(self.address, f"serves partition {served}, but the cluster file says {meant}")

    async def _connect(self, until: float) -> None:
        ready = asyncio.ensure_future(self.usual.channel.channel_ready())
        try:
            await asyncio.wait({ready}, timeout=max(0.0, min(GRACE_S, until - time.monotonic())))
            if not ready.done():
                self._say_lost(UnavailableError(self.address, "no daemon answers"))
                await asyncio.wait({ready}, timeout=max(0.0, until - time.monotonic()))
            if not ready.done():
                raise UnavailableError(self.address, f"no daemon answers (waited {self._connect_s:g} s)")
            await ready
        finally:
            ready.cancel()

    def _say_lost(self, error: AttaError) -> None:
        if self._presence.lost(time.monotonic()):
            log.warning("peer lost", part=self._meant.part, error=str(error))

    def _say_met(self, found: Identity) -> None:
        back = self._presence.met(time.monotonic(), found.incarnation)
        if back is not None:
            away_s = round(back.away_s, 1)
            log.warning("peer is back", part=found.part, address=self.address, away_s=away_s, restarted=back.restarted)

    async def close(self) -> None:
        """Close the connections."""
        if self._meeting is not None:
            self._meeting.cancel()
        if self._closing is not None:
            self._closing.cancel()
        for link in (self.usual, self._spare):
            if link is not None:
                await link.channel.close(grace=None)
