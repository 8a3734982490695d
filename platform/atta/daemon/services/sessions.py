"""``SessionService``: ``Open`` checks a request and starts a session, ``Next`` sends its batches, ``Close`` ends it."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import structlog

from atta.daemon.admission import CallGuard
from atta.daemon.config import DaemonConfig
from atta.daemon.engine.engine import Engine
from atta.daemon.engine.session import Delivery, Session, SessionRequest
from atta.daemon.services.handling import Context, check_named
from atta.daemon.services.nearby import NearbyConsumers
from atta.daemon.services.opening import Openings, check_name, check_request, shown_name, taken, unknown, with_schema
from atta.daemon.services.rooms import UNASKED_S, Debts
from atta.daemon.versions import LiveVersions
from atta.errors import ConfigError, DataError, DrainingError, QuotaExceededError, UnknownNameError
from atta.observe.machine.threads import aside
from atta.partition.disk.watching import WatchedFiles
from atta.protos.v1 import session_pb2
from atta.wire.bulk import BATCH_DATA
from atta.wire.rpc import Bulk

log = structlog.get_logger("atta.session")
OPEN = "atta.v1.SessionService/Open"
LONG_POLL_S = 20.0
"""How long a ``Next`` waits for its batch before it answers "pending"; well before its deadline."""
INLINE_CHUNK_BYTES = 4 << 20
"""Largest piece of a batch in one message where it does not lie in shared memory."""
LARGE_REQUEST = 1 << 20
"""Bytes of an ``Open`` from which on its digest takes longer than the way to a thread and back."""


class SessionService:
    """All sessions of a daemon and their leases."""

    def __init__(
        self,
        config: DaemonConfig,
        engine: Engine,
        versions: LiveVersions | None = None,
        *,
        debts: Debts | None = None,
        guard: CallGuard | None = None,
        files: WatchedFiles | None = None,
    ) -> None:
        """``versions``: of the tables; None: there is only the dataset. ``debts``: of connections, which pause; None: of
        this service alone. ``guard``: admits callers; None: everybody may come. ``files``: those that batches are made
        of; None: nobody writes to them."""
        self._debts, self._guard = debts or Debts(), guard
        self._versions, self._files = versions, files
        self._config, self._engine = config, engine
        self._sessions: dict[str, Session] = {}  # by shown name, as all below
        self._openings = Openings()
        self.nearby = NearbyConsumers(self._at_once)
        self._looked = 0.0
        self._opened = self._expired = 0.0
        self.draining = False

    def __len__(self) -> int:
        return len(self._sessions)

    def stats(self) -> dict[str, float]:
        return {
            "sessions_opened": self._opened,
            "sessions_expired": self._expired,
            "sessions_lingering": float(self._engine.slots.lingering),
            "consumers_nearby": float(len(self.nearby)),
            "requests_nearby": float(self.nearby.requests),
        }

    def listen(self) -> None:
        """From now on answer consumers on this machine without gRPC, unless the daemon is to use gRPC alone."""
        if self._config.links:
            self.nearby.listen()

    async def open(self, request: session_pb2.OpenRequest, context: Context) -> session_pb2.OpenReply:
        """``SessionService.Open``. The same request under the same name gets the same session."""
        own_name = check_name(request.session) if request.session else secrets.token_hex(16)
        name, digest = shown_name(own_name), await _digest(request)
        self._openings.refuse_ended(name)
        if name not in self._sessions:
            if not self._openings.under_way(name):
                self._check_places(len(self._openings))
            dataset = self._engine.dataset if self._versions is None else self._versions.now
            check = partial(check_request, request, dataset, self._config)
            try:
                checked = await self._openings.checked(name, digest, check)
            except DataError:  # a file that is mapped for the session alone may have changed
                await self._check_files()
                raise
            await self._check_files()
            await self._start(name, digest, checked, request)
        session = self._sessions[name]
        if session.digest != digest:
            raise taken(name)
        self._seen(session, context)
        return session_pb2.OpenReply(
            session=own_name, batches=session.request.seeds.batches, seeds=len(session.request.seeds.seeds),
            lease_s=self._config.lease_s, pid=os.getpid(), version=session.version,
            nearby=self.nearby.name if request.shared_memory else "",
            token=session.token if request.shared_memory and self.nearby.name else b"",
        )  # fmt: skip

    async def _check_files(self) -> None:
        """Raise DataError if a file has changed since the daemon opened it. Batches would be made of it."""
        if self._files is not None:
            await aside(self._files.look)
            self._files.check()

    def _check_places(self, opening: int) -> None:
        """Refuse one session more where there is no place. Sessions that are being checked have theirs already."""
        if self.draining:
            raise DrainingError(self._config.listen)
        if len(self._sessions) + opening >= self._config.max_sessions:
            raise QuotaExceededError(
                f"{len(self._sessions)} sessions are open and {opening} being opened, "
                f"the most that this daemon allows (--max-sessions {self._config.max_sessions})"
            )

    async def _start(self, name: str, digest: bytes, checked: SessionRequest, request: session_pb2.OpenRequest) -> None:
        """Start the session, unless the same request has done so. From here on it has its version of the tables."""
        if name in self._sessions:
            return
        with ExitStack() as undo:
            view = None
            if self._versions is not None:
                asked = request.version if request.HasField("version") else None
                view = await self._versions.open(asked, checked.plan.edge_types)
                undo.callback(self._versions.close, view)
                schema = view.dataset.schema
                if checked.schema is not None and checked.schema.room != schema.room:  # it may be about other vertices
                    checked = await aside(check_request, request, view.dataset, self._config)
                elif checked.schema is not schema:
                    checked = with_schema(checked, schema, self._config)
            if checked.plan.summed is not None:
                schema, sources = self._engine.dataset.schema, {} if view is None else view.sources
                checked = replace(checked, shifts=await self._engine.largest.shifts(checked.plan, schema, sources))
            if name in self._sessions:  # of several requests that have waited, the first opens it
                return
            self._openings.refuse_ended(name)
            self._check_places(0)  # others may have been opened while the version was read
            session = Session(name, checked, self._engine.slots, time.monotonic(), digest=digest, view=view)
            undo.pop_all()
        self._sessions[name] = session
        self._opened += 1
        self.nearby.begin(session)
        self._engine.open(session)
        log.debug("session opened", session=name, job=checked.job, epoch=checked.epoch, batches=session.batches)

    async def next(self, request: session_pb2.NextRequest, context: Context) -> AsyncIterator[Bulk]:
        session = self._sessions.get(name := shown_name(request.session))
        if session is None:
            raise unknown(name)
        with session.answering():
            self._check_next(session, request)
            if request.sequence >= session.batches:
                yield Bulk(session_pb2.BatchChunk(header=session_pb2.BatchHeader(last=True)))
                return
            wait_s = min(LONG_POLL_S, max(0.0, (context.time_remaining() or LONG_POLL_S) - 1))
            delivery = await session.batch(request.sequence, wait_s)
            if delivery is None:
                yield Bulk(session_pb2.BatchChunk(header=session_pb2.BatchHeader(pending=True)))
                return
            with self._sent(session, delivery, request) as header, session.sending(delivery):
                for bulk in _messages(header, delivery):
                    yield bulk

    def _at_once(self, session: Session, request: session_pb2.NextRequest) -> session_pb2.BatchHeader | None:
        """Like ``Next``, for a consumer on this machine, but without waiting: None if the batch is not finished. Raises
        AttaError: the answer is no batch in shared memory."""
        self._check_next(session, request)
        if request.sequence >= session.batches:
            raise ConfigError(f"batch number {request.sequence} of {session.batches}")
        delivery = session.batch_at_once(request.sequence)
        if delivery is None:
            return None
        with self._sent(session, delivery, request) as header:
            if not delivery.shared:
                raise QuotaExceededError("the consumer holds too many batches: the next one is sent as bytes")
            return header

    def _check_next(self, session: Session, request: session_pb2.NextRequest) -> None:
        """Take back what the request releases; raises ConfigError if it makes no sense, DataError if a file of the
        dataset has changed: finished batches may be made of it."""
        if self._files is not None:
            self._files.check()
        if not 0 <= request.train_ms < math.inf:
            raise ConfigError(f"{request.train_ms} ms per batch: must be a time")
        check_named("released batches", len(request.released))
        session.let_go(request.released)

    @contextmanager
    def _sent(
        self, session: Session, delivery: Delivery, request: session_pb2.NextRequest
    ) -> Iterator[session_pb2.BatchHeader]:
        fresh, delivery.told = not delivery.told, True
        if fresh:
            self._engine.taken(session, delivery.batch, request.train_ms)
        try:
            yield _header(delivery, self._engine.unlaunched(session), moving=self.draining, version=session.version)
        finally:  # also if the consumer leaves before the end of the answer
            if fresh:
                self._engine.recorder.batch("sent", session.id, delivery.batch)

    async def renew(self, request: session_pb2.RenewRequest, context: Context) -> session_pb2.RenewReply:
        check_named("sessions", len(request.sessions))
        reply = session_pb2.RenewReply()
        for name in request.sessions:
            session = self._sessions.get(shown_name(name))
            if session is None:
                reply.unknown.append(name)
            else:
                self._seen(session, context)
        return reply

    def _seen(self, session: Session, context: Context) -> None:
        """Its client was admitted with what it brings now. The session ends when that does."""
        session.last_seen = time.monotonic()
        if self._guard is not None:
            session.refused = self._guard.standing(OPEN, context)

    async def close(self, request: session_pb2.CloseRequest, context: Context) -> session_pb2.CloseReply:
        """``SessionService.Close``. An unknown session is not an error: it may be repeated or overtake its open."""
        name = shown_name(check_name(request.session))
        session = self._sessions.get(name)
        if session is not None and not session.asked:
            self._debts.owes(context.peer(), UNASKED_S, asyncio.get_running_loop().time())
        self._end(name)
        return session_pb2.CloseReply()

    def _end(self, name: str) -> None:
        self._openings.end(name)
        if (session := self._sessions.pop(name, None)) is not None:
            self.nearby.end(session)
            self._engine.close(session)
            if self._versions is not None and session.view is not None:
                self._versions.close(session.view)
            log.debug("session closed", session=name)

    async def expire(self) -> None:
        """Check again and again, until cancelled, which sessions are to end."""
        period = min(1.0, self._config.lease_s / 4)
        self._looked = time.monotonic()
        while True:
            await asyncio.sleep(period)
            self.look(time.monotonic(), late_s=2 * period)

    def look(self, now: float, late_s: float) -> None:
        """Close sessions whose lease has run out or whose client is not admitted any more: requests on the socket of
        this machine bring no token. Take back slots that consumers have released.

        If more than ``late_s`` have passed since the last check, the excess does not count. The daemon was stopped, or
        its machine asleep, and the renewals of living consumers are still waiting to be read.
        """
        missed, self._looked = max(0.0, now - self._looked - late_s), now
        for session in list(self._sessions.values()):
            session.last_seen = min(now, session.last_seen + missed)
            session.roomy_at = min(now, session.roomy_at + missed)
            if session.refused is not None and (cause := session.refused()):
                log.warning("session ended", session=session.id, job=session.request.job, reason=cause)
                session.fail(UnknownNameError(f"the session has ended: {cause}"))  # for requests that wait for a batch
                self._end(session.id)
            elif not session.busy and now - session.last_seen > self._config.lease_s:
                self._expired += 1
                log.warning("lease ran out", session=session.id, job=session.request.job)
                self._end(session.id)
            elif not session.busy or not self._engine.waits_for_room(session):
                session.roomy_at = now
            elif now - session.roomy_at > self._config.lease_s:
                self._engine.fail(session, self._no_room())
        self._engine.slots.trim(now)

    def _no_room(self) -> QuotaExceededError:
        config = self._config
        return QuotaExceededError(
            f"other batches have left no room in {config.most_buffer_bytes >> 20} MiB of buffers for {config.lease_s:g} s: "
            "raise --buffer, lower the batch size, or let go of old batches"
        )


async def _digest(request: session_pb2.OpenRequest) -> bytes:
    """Tells requests apart. That of millions of seeds is made on a thread."""

    def made() -> bytes:
        return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()

    return made() if request.ByteSize() < LARGE_REQUEST else await asyncio.to_thread(made)


def _header(delivery: Delivery, unlaunched: int, *, moving: bool, version: int) -> session_pb2.BatchHeader:
    """Where the arrays of a batch lie: in shared memory, or one after the other in the bytes that follow."""
    out, slot = delivery.out, delivery.slot
    header = session_pb2.BatchHeader(batch=delivery.batch, stats=delivery.stats, unlaunched=unlaunched, moving=moving)
    header.version = version
    offset = 0
    for name in out.arrays:
        array = out.filled(name)
        at = out.layout.regions[name].offset if delivery.shared else offset
        header.arrays.append(session_pb2.ArrayRef(name=name, dtype=array.dtype.str, shape=array.shape, offset=at))
        offset += -(-array.nbytes // 8) * 8
    header.buffer_bytes = offset
    if delivery.shared:
        shared = session_pb2.SharedSlot(path=slot.path, capacity=slot.capacity, nonce=slot.nonce, offset=slot.offset)
        shared.inode, shared.made = slot.arena.inode, slot.made
        header.slot.CopyFrom(shared)
    return header


def _messages(header: session_pb2.BatchHeader, delivery: Delivery) -> list[Bulk]:
    """The header of a batch, followed by its bytes unless they lie in shared memory."""
    first = Bulk(session_pb2.BatchChunk(header=header))
    if delivery.shared:
        return [first]
    return [first, *_inline([delivery.out.filled(name) for name in delivery.out.arrays])]


def _inline(arrays: list[np.ndarray]) -> list[Bulk]:
    """Chunks of the arrays' bytes, each array padded to a multiple of 8. They are views and copied only when sent."""
    chunks: list[Bulk] = []
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), INLINE_CHUNK_BYTES):
            chunks.append(Bulk(session_pb2.BatchChunk(), {BATCH_DATA: flat[at : at + INLINE_CHUNK_BYTES]}))
        if pad := -len(flat) % 8:
            chunks.append(Bulk(session_pb2.BatchChunk(), {BATCH_DATA: b"\0" * pad}))
    return chunks
