"""The way to a peer: gRPC connections to its address, who answers there, and where it is when it has moved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from atta.daemon.peers.watching import PeerWatch
from atta.errors import (
    AttaError,
    DeadlineError,
    ProtocolError,
    SamplingContractError,
    UnavailableError,
    WrongDatasetError,
)
from atta.observe.machine.threads import aside
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from atta.wire.clusterfile import ended_daemon, read_cluster
from atta.wire.credentials import Credentials, Stamp, TokenHeader, explained, open_async_channel, stamp_of
from atta.wire.identity import Bound, Identity, check, check_contract, check_release, release_of
from atta.wire.parts import Addresses, groups_of, parts_text, replicas_of
from atta.wire.retries import ALONE_S, patience_of

CONNECT_S = 15.0
"""How long to wait for a peer that starts or restarts, in seconds. After that the batch fails."""
GRACE_S = 1.0
"""How long connecting to a running peer takes at most, in seconds. A peer that needs longer is logged as lost."""
DESCRIBE_S = 2.0
"""How long a replica may take to say who it is before the next one is asked, in seconds."""
RETRY_S = 0.1
"""How long to wait before a request is made again, in seconds."""

log = structlog.get_logger("atta.peers")


@dataclass(frozen=True, slots=True)
class Alike:
    """The contract that peers must have, and who has it."""

    contract: Mapping[str, str]
    address: str


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How this daemon asks its peers.

    Attributes:
        deadline_s: how long an answer may take.
        delay_s: how long every request waits first.
        connect_s: how long to wait for a peer that is away.
        credentials: for TLS, read again before a peer that was away, or refuses them, is asked anew.
        alike: the contract that peers must have; None: any.
        moved: where given partitions are served now, asked on another thread when a peer does not answer; None: they do
            not move.
    """

    deadline_s: float
    delay_s: float = 0.0
    connect_s: float = CONNECT_S
    credentials: Credentials | None = None
    alike: Alike | None = None
    moved: Callable[[range], Addresses | None] | None = None


class Channel:
    """One connection to the daemon ``meant``, and what can be asked over it."""

    def __init__(self, address: str, meant: Identity, credentials: Credentials | None = None) -> None:
        """Begin to connect, over TLS with ``credentials``. Raises DataError for bad files."""
        self._token = TokenHeader(credentials)
        self.channel = open_async_channel(address, credentials, rpc.client_options())
        self._address, self._meant = address, meant
        self._stubs: dict[str, Any] = {}
        self._headers = {bound: meant.header(bound) for bound in Bound}

    def ask(self, method: str, request: Any, timeout: float) -> Any:
        """Begin a call."""
        if method not in self._stubs:
            self._stubs[method] = rpc.stub(self.channel, method)
        header = self._headers[rpc.METHODS[method].bound] + self._token.now()
        return self._stubs[method](request, timeout=timeout, metadata=header)

    async def answer(self, method: str, request: Any, timeout: float) -> Any:
        """The answer to a call. Raises AttaError: there is none, or a refusal."""
        try:
            return await self.ask(method, request, timeout)
        except grpc.aio.AioRpcError as failure:
            raise rpc.error_from(self._address, failure, timeout) from failure


class PeerConnection:
    """Two connections to a peer, which reconnect by themselves: one for all requests, one for those that are late.

    The daemon at the address is asked for its identity before anything else, and again whenever it has been away. Every
    request also names the daemon that it is meant for. If the peer has replicas, the next one is taken when it does not
    answer; the first of them that answers is used until it is lost too. One that has moved is found where the cluster
    file says now.

    Attributes:
        watch: of the answers that the peer owes.
    """

    def __init__(
        self, addresses: Addresses, meant: Identity, settings: PeerSettings, *, parts: range | None = None
    ) -> None:
        """``addresses``: of the peer, or of its replicas. ``parts``: the partitions that it must serve; None: the one of
        ``meant``."""
        self._replicas, self.changes, self._parts, self._settings = replicas_of(addresses), 0, parts, settings
        self._stamp = self._stamp_now()
        self._closing: set[asyncio.Future[list[None]]] = set()
        self.address, self._meant, self._deadline_s = self._replicas[0], meant, settings.deadline_s
        self._connect_s = min(settings.connect_s, settings.deadline_s)
        self.usual = self._channel(self.address)
        self._spare: Channel | None = None
        self._known = False
        self._meeting: asyncio.Task[None] | None = None
        self._incarnation = ""
        self._lost_at: float | None = None
        self.watch = PeerWatch(self._asked, self._fell_silent)

    def _channel(self, address: str) -> Channel:
        return Channel(address, self._meant, self._settings.credentials)

    def _stamp_now(self) -> Stamp:
        credentials = self._settings.credentials
        return () if credentials is None else credentials.stamp()

    @property
    def spare(self) -> Channel:
        """The other connection, made when it is first needed; the usual one while credentials cannot be read."""
        if self._spare is None:
            try:
                self._spare = self._channel(self.address)
            except AttaError as error:
                log.warning("credentials not read again", error=str(error))
                return self.usual
        return self._spare

    async def ready(self) -> None:
        """Wait until the peer is there and known to be the right one. Raises UnavailableError: it does not answer
        within ``connect_s`` (and the deadline), or is known to have ended. WrongDatasetError: another daemon answers.
        """
        if self._known and self._is_connected():
            return
        if self._meeting is None:  # all that wait share one question
            self._meeting = asyncio.ensure_future(self._meet())
            self._meeting.add_done_callback(self._has_met)
        await asyncio.shield(self._meeting)

    async def reached(self) -> bool:
        """Whether the peer is there now and known to be the right one. Begins to connect, and does not wait for one
        that is away. Raises AttaError: as ``ready``."""
        if self._is_connected():
            await self.ready()
            return True
        return False

    def broke(self, error: AttaError) -> None:
        """A call has ended as if the peer were gone."""
        self._known = False
        if not self._is_connected():
            self._say_lost(error)

    def renewed(self, used: Channel) -> bool:
        """Whether requests go over another connection than ``used``, on which the peer does not accept the credentials any
        more: one with what their files hold now."""
        if self.usual is used and self._meeting is None:  # a meeting has begun with a look at the files
            self._renew()
        return self.usual is not used

    async def explained(self, error: AttaError) -> AttaError:
        """``error``; where the peer's certificate is for another host, one that names both hosts."""
        return await aside(explained, error, self.address, self._settings.credentials)

    async def _asked(self) -> None:
        """Ask a small question. Raises UnavailableError or DeadlineError if the peer does not answer."""
        link, patience_s = self.usual, patience_of(len(self._replicas))
        try:
            await link.answer("ControlService.Describe", control_pb2.DescribeRequest(), patience_s)
        except AttaError as error:
            if link is self.usual and isinstance(error, UnavailableError | DeadlineError):
                raise

    def _fell_silent(self, error: AttaError) -> None:
        """What is under way has no answer. The next request goes to a replica, or over another connection."""
        self._known = False
        self._say_lost(error)
        if self._meeting is not None:
            return  # the peer is looked for already, over the connection of now
        if len(self._replicas) > 1:
            self._change()
        elif isinstance(error, DeadlineError):  # else gRPC knows that it is broken, and connects anew
            self._replace(self._channel(self.address))

    def _is_connected(self) -> bool:
        return bool(self.usual.channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY)

    def _has_met(self, meeting: asyncio.Task[None]) -> None:
        self._meeting = None
        if not meeting.cancelled():
            meeting.exception()  # retrieve it, as nobody may wait for it any more

    def _renew(self) -> None:
        """Connect with what the files of the credentials hold now, if they have changed."""
        if self._closing:
            return
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return
            fresh = self._channel(self.address)
        except AttaError as error:  # being replaced, or wrong: those of before may still do
            log.warning("credentials not read again", error=str(error))
            return
        self._stamp = stamp
        self._replace(fresh)

    def _replace(self, fresh: Channel) -> None:
        """Close the connections of before, which nothing new goes over; what is under way may end."""
        old = [link for link in (self.usual, self._spare) if link is not None]
        self.usual, self._spare = fresh, None
        closing = asyncio.gather(*(link.channel.close(grace=self._deadline_s) for link in old))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _change(self) -> None:
        """Take the next replica."""
        at = self._replicas.index(self.address)
        self.address = self._replicas[(at + 1) % len(self._replicas)]
        self.changes += 1
        self._replace(self._channel(self.address))

    async def _meet(self) -> None:
        self._renew()
        until = time.monotonic() + self._connect_s
        refused: set[str] = set()
        while True:
            refusal: AttaError | None = None
            try:
                if (reply := await self._described(until)) is not None:
                    self._say_met(self._checked(reply))
                    self._known = True
                    return
            except (WrongDatasetError, SamplingContractError, ProtocolError) as error:
                self._say_lost(error)
                refused.add(self.address)
                refusal = error
            has_moved = await self._follow()
            if refusal is not None and refused.issuperset(self._replicas):
                raise refusal
            if not has_moved and len(self._replicas) > 1:
                self._change()
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> bool:
        """Take the addresses of now. Whether the one that was asked is no longer among them, so that another is taken."""
        moved = self._settings.moved
        if moved is None or self._parts is None:
            return False
        found = await asyncio.to_thread(moved, self._parts)
        if found is None:
            return False
        replicas = replicas_of(found)
        if self.address not in replicas:
            fresh = self._channel(replicas[0])
            log.warning("peer has moved", part=self._meant.part, before=self.address, address=replicas[0])
            self._replicas, self.address = replicas, replicas[0]
            self._replace(fresh)
            return True
        self._replicas = replicas
        return False

    async def _described(self, until: float) -> Any:
        """What the peer at the present address says of itself; None: it does not answer, but there is time left."""
        few_s = min(self._deadline_s, ALONE_S if len(self._replicas) == 1 else DESCRIBE_S)
        try:
            await self._connect(until)
            return await self.usual.answer("ControlService.Describe", control_pb2.DescribeRequest(), few_s)
        except (DeadlineError, UnavailableError) as error:
            self._say_lost(error)
            if time.monotonic() >= until or (isinstance(error, DeadlineError) and len(self._replicas) == 1):
                raise
        return None

    def _checked(self, reply: control_pb2.DescribeReply) -> Identity:
        """Who has answered. Raises ProtocolError, WrongDatasetError, SamplingContractError: it is another peer."""
        check_release(release_of(reply), self.address)
        found = Identity(reply.part, reply.dataset_id, reply.incarnation)
        check(found, self._meant, Bound.DATA, self.address)
        served = range(reply.part, reply.part + reply.parts)
        if self._parts is not None and served != self._parts:  # by one row, both would mean different vertices
            meant = parts_text(self._parts)
            raise WrongDatasetError(
                self.address, f"serves partition {parts_text(served)}, but the cluster file says {meant}"
            )
        if (alike := self._settings.alike) is not None:
            check_contract(reply.contract, self.address, alike.contract, alike.address)
        return found

    async def _connect(self, until: float) -> None:
        """Wait a moment for a connection, which goes on coming about if there is none yet. Raises UnavailableError."""
        ready = asyncio.ensure_future(self.usual.channel.channel_ready())
        try:
            await asyncio.wait({ready}, timeout=max(0.0, min(GRACE_S, until - time.monotonic())))
            if not ready.done():
                raise UnavailableError(self.address, f"no daemon answers{self._waited(until)}")
            await ready
        finally:
            ready.cancel()

    def _waited(self, until: float) -> str:
        if len(self._replicas) > 1:
            return f" (replicas: {', '.join(self._replicas)})"
        return f" (waited {self._connect_s:g} s)" if time.monotonic() >= until else ""

    def _say_lost(self, error: AttaError) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            log.warning("peer lost", part=self._meant.part, error=str(error))

    def _say_met(self, found: Identity) -> None:
        restarted = self._incarnation not in ("", found.incarnation)
        away_s = 0.0 if self._lost_at is None else round(time.monotonic() - self._lost_at, 1)
        if self._lost_at is not None or restarted:
            log.warning("peer is back", part=found.part, address=self.address, away_s=away_s, restarted=restarted)
        self._lost_at, self._incarnation = None, found.incarnation

    async def close(self) -> None:
        self.watch.close()
        if self._meeting is not None:
            self._meeting.cancel()
        for closing in [*self._closing]:
            closing.cancel()
        for link in (self.usual, self._spare):
            if link is not None:
                await link.channel.close(grace=None)


class PeerAddresses:
    """Addresses of the daemons of a cluster by the partitions that each serves, also after some have moved."""

    def __init__(self, known: Mapping[int, Addresses], file: str = "") -> None:
        """``known``: addresses by partition, as in ``file``; without a file they stay."""
        self._known, self._file = groups_of(known), file
        self._stamp: Stamp = ()  # it may have changed since it was read: loading takes minutes

    def now(self, parts: range) -> Addresses | None:
        """Where ``parts`` are served; None: nobody has said so. Reads the file if it has changed, which may be slow:
        not for the event loop. A file that cannot be read changes nothing. Where it no longer names ``parts`` together,
        their address of before stays."""
        try:
            stamp = stamp_of(self._file)
        except AttaError:  # it is being replaced
            stamp = self._stamp
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._known = {**self._known, **groups_of(read_cluster(self._file))}
            except AttaError as error:
                log.warning("cluster file not read again", error=str(error))
        found = self._known.get(parts)
        if found is not None and self._file and (gone := ended_daemon(self._file, replicas_of(found)[0])) is not None:
            raise gone
        return found
