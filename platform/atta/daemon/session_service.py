"""Batch streams: ``Open`` checks a request and starts a session, ``Next`` hands out its batches, ``Close`` ends it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import structlog

from atta.daemon.config import DaemonConfig
from atta.daemon.engine import Engine
from atta.daemon.guard import guarded, guarded_stream
from atta.daemon.seeds import ChosenSeeds, choose_seeds
from atta.daemon.session import Delivery, Session, SessionRequest
from atta.errors import ConfigError, QuotaExceededError, UnknownNameError, WrongDatasetError
from atta.kvstore.store import known_codec
from atta.protos.v1 import common_pb2, session_pb2
from atta.rpc import Bulk
from atta.samplers.layout import check_draws_alone, layout_of
from atta.samplers.seeds import SeedPlan, SeedPolicy, plan_seeds, plan_sized
from atta.samplers.spec import check_spec

__all__ = ["SessionService"]

log = structlog.get_logger("atta.session")
LONG_POLL_S = 20.0
"""A ``Next`` without a batch answers "pending" after so long, well before its deadline."""
LINGER_S = 10.0
"""A closed session waits so long for the slots that its consumer still looks at (usually one: the last batch of an epoch, until
the first one of the next arrives). After that they are given up: fresh pages cost more, but memory must not pile up."""
MIN_WEIGHT = 1e-3
INLINE_CHUNK_BYTES = 4 << 20


class SessionService:
    """All sessions of a daemon and their leases."""

    def __init__(self, config: DaemonConfig, engine: Engine, address: str) -> None:
        self._config, self._engine, self._address = config, engine, address
        self._sessions: dict[str, Session] = {}
        self._lingering: dict[str, Session] = {}
        self._opened = self._expired = 0.0
        self.draining = False

    def __len__(self) -> int:
        return len(self._sessions)

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
        return {
            "sessions_opened": self._opened,
            "sessions_expired": self._expired,
            "sessions_lingering": float(len(self._lingering)),
        }

    @guarded
    async def open(self, request: Any, context: Any) -> Any:
        """``SessionService.Open``."""
        if self.draining:
            raise QuotaExceededError("the daemon is stopping and takes no new sessions")
        if len(self._sessions) >= self._config.max_sessions:
            raise QuotaExceededError(f"{len(self._sessions)} sessions are open, the most that this daemon allows")
        checked = await asyncio.get_running_loop().run_in_executor(None, self._check, request)
        session = Session(secrets.token_hex(8), checked, self._engine.slots, time.monotonic())
        self._sessions[session.id] = session
        self._opened += 1
        self._engine.open(session)
        log.info("session opened", session=session.id, job=checked.job, epoch=checked.epoch, batches=session.batches)
        return session_pb2.OpenReply(
            session=session.id,
            batches=checked.seeds.batches,
            seeds=len(checked.seeds.seeds),
            lease_s=self._config.lease_s,
        )

    def _check(self, request: Any) -> SessionRequest:
        dataset = self._engine.dataset
        if request.dataset_id and request.dataset_id != dataset.dataset_id:
            raise WrongDatasetError(
                self._address, f"this daemon serves dataset {dataset.dataset_id}, not {request.dataset_id}"
            )
        if not 1 <= request.batch_size <= self._config.max_batch_size:
            raise ConfigError(f"batch size {request.batch_size}: must be 1 to {self._config.max_batch_size}")
        if not request.rank < request.world_size:
            raise ConfigError(f"rank {request.rank} of {request.world_size} trainers")
        plan = check_spec(request.dag, dataset.schema)
        source = request.seeds.WhichOneof("source")
        if plan.links != (source == "links"):
            raise ConfigError("seeds: the DAG starts from edges, or the session does, but not both")
        if source in ("batches", "part") and not any(op.operator is not None for op in plan.ops):
            raise ConfigError(
                "seeds: only a batch operator can do without them, or with a partition's vertices at once"
            )
        if source == "batches":
            check_draws_alone(plan, dataset.schema)
        if request.seeds.node_type != plan.seed.node_type:
            raise ConfigError(
                f"seeds are of node type {request.seeds.node_type!r}, the DAG starts at {plan.seed.node_type!r}"
            )
        chosen = choose_seeds(dataset, request.seeds)
        if plan.temporal != (chosen.times is not None):
            raise ConfigError("seeds: temporal sampling needs their times, and no other has a use for them")
        seeds = self._plan_seeds(request, chosen)
        if request.start_batch > seeds.batches:
            raise ConfigError(f"start batch {request.start_batch} of {seeds.batches}")
        # A partition is as large as it is, and this daemon holds one.
        if source != "part" and not seeds.batch_size <= self._config.max_batch_size:
            raise ConfigError(f"batch size {seeds.batch_size}: at most {self._config.max_batch_size}")
        edge_ids, wide_ids = request.edge_ids, request.wide_ids
        layout = layout_of(plan, dataset.schema, seeds.batch_size, edge_ids=edge_ids, wide_ids=wide_ids)
        return SessionRequest(
            plan,
            layout,
            seeds,
            request.start_batch,
            request.seed,
            request.epoch,
            request.shared_memory,
            request.job,
            sources=chosen.sources,
            times=chosen.times,
            weight=_weight(request.weight),
            codec=known_codec(request.codec),
            exclude=chosen.exclude,
        )

    def _plan_seeds(self, request: Any, chosen: ChosenSeeds) -> SeedPlan:
        if chosen.sizes is not None:
            if request.shuffle or request.drop_last:
                raise ConfigError("batches of given sizes come in the given order: no shuffle, no drop_last")
            # A partition's vertices are one batch, for whichever rank asks.
            pad = request.pad or request.seeds.WhichOneof("source") == "part"
            return plan_sized(chosen.internal, chosen.sizes, rank=request.rank, world=request.world_size, pad=pad)
        return plan_seeds(
            chosen.internal,
            chosen.keys,
            batch_size=request.batch_size,
            parts=self._engine.dataset.num_parts,
            policy=SeedPolicy(request.policy),
            rank=request.rank,
            world=request.world_size,
            seed=request.seed,
            epoch=request.epoch,
            shuffle=request.shuffle,
            drop_last=request.drop_last,
            pad=request.pad,
            position=chosen.position,
        )

    @guarded_stream
    async def next(self, request: Any, context: Any) -> AsyncIterator[Bulk]:
        """``SessionService.Next``."""
        session = self._find(request.session)
        session.busy += 1
        session.last_seen = time.monotonic()
        try:
            session.let_go(list(request.released))
            if request.sequence >= session.batches:
                yield Bulk(session_pb2.BatchChunk(header=session_pb2.BatchHeader(last=True)))
                return
            wait_s = min(LONG_POLL_S, max(0.0, (context.time_remaining() or LONG_POLL_S) - 1))
            delivery, fresh = await session.batch(request.sequence, wait_s)
            if delivery is None:
                yield Bulk(session_pb2.BatchChunk(header=session_pb2.BatchHeader(pending=True)))
                return
            if fresh:
                self._engine.taken(session, delivery.batch, request.train_ms)
            try:
                for bulk in _messages(delivery, self._engine.unlaunched(session)):
                    yield bulk
            finally:  # a consumer that has all it needs does not wait for the end of the answer
                if fresh:
                    self._engine.recorder.batch("sent", session.id, delivery.batch)
        finally:
            session.busy -= 1
            session.last_seen = time.monotonic()

    @guarded
    async def renew(self, request: Any, context: Any) -> Any:
        """``SessionService.Renew``."""
        reply = session_pb2.RenewReply()
        for name in request.sessions:
            session = self._sessions.get(name)
            if session is None:
                reply.unknown.append(name)
            else:
                session.last_seen = time.monotonic()
        return reply

    @guarded
    async def close(self, request: Any, context: Any) -> Any:
        """``SessionService.Close``; closing an unknown session is no error, so that it may be repeated."""
        session = self._sessions.pop(request.session, None)
        if session is not None:
            self._engine.close(session)
            session.last_seen = time.monotonic()
            self._lingering[session.id] = session
            log.info("session closed", session=session.id)
        session = self._lingering.get(request.session)
        if session is None:
            return session_pb2.CloseReply(lingering=False)
        session.let_go([sequence for sequence in session.held if sequence not in request.viewed])
        if not session.held:
            del self._lingering[session.id]
        return session_pb2.CloseReply(lingering=True)

    async def expire(self) -> None:
        """Close sessions whose lease has run out and give up the slots of those closed long ago, until cancelled."""
        while True:
            await asyncio.sleep(min(1.0, self._config.lease_s / 4))
            now = time.monotonic()
            for session in list(self._sessions.values()):
                if not session.busy and now - session.last_seen > self._config.lease_s:
                    self._expired += 1
                    log.warning("lease ran out", session=session.id, job=session.request.job)
                    del self._sessions[session.id]
                    self._engine.close(session)
                    session.give_up()
                elif not session.busy or not self._engine.waits_for_room(session):
                    session.roomy_at = now
                elif now - session.roomy_at > self._config.lease_s:
                    self._engine.fail(session, self._no_room())
            for session in list(self._lingering.values()):
                if now - session.last_seen > LINGER_S:
                    del self._lingering[session.id]
                    session.give_up()

    def _no_room(self) -> QuotaExceededError:
        return QuotaExceededError(
            f"other batches have left no room in {self._config.buffer_bytes >> 20} MiB of buffers for {self._config.lease_s:g} s: "
            "raise --buffer, lower the batch size, or let go of old batches"
        )

    def _find(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            raise UnknownNameError(f"session {name} does not exist (closed, or its lease ran out)")
        return session


def _weight(value: float) -> float:
    """A session's weight, 1 if none is given; ConfigError outside 0.001 to 1000."""
    if value and not MIN_WEIGHT <= value <= 1 / MIN_WEIGHT:
        raise ConfigError(f"weight {value:g}: must be {MIN_WEIGHT:g} to {1 / MIN_WEIGHT:g}")
    return value or 1.0


def _messages(delivery: Delivery, unlaunched: int) -> list[Bulk]:
    """The header of a batch and, unless it lies in shared memory, its bytes."""
    out, slot = delivery.out, delivery.slot
    header = session_pb2.BatchHeader(batch=delivery.batch, stats=delivery.stats, unlaunched=unlaunched)
    filled = {name: out.filled(name) for name in out.arrays}
    offset = 0
    for name, array in filled.items():
        at = out.layout.regions[name].offset if delivery.shared else offset
        header.arrays.append(common_pb2.ArrayRef(name=name, dtype=array.dtype.str, shape=array.shape, offset=at))
        offset += -(-array.nbytes // 8) * 8
    header.buffer_bytes = offset
    if delivery.shared:
        shared = session_pb2.SharedSlot(path=slot.path, capacity=slot.capacity, nonce=slot.nonce)
        header.slot.CopyFrom(shared)
        return [Bulk(session_pb2.BatchChunk(header=header))]
    return [Bulk(session_pb2.BatchChunk(header=header)), *_inline(list(filled.values()))]


def _inline(arrays: list[np.ndarray]) -> list[Bulk]:
    """Chunks of the arrays' bytes, each array padded to a multiple of 8; views, copied only when they are sent."""
    chunks: list[Bulk] = []
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), INLINE_CHUNK_BYTES):
            chunks.append(Bulk(session_pb2.BatchChunk(), {2: flat[at : at + INLINE_CHUNK_BYTES]}))
        if pad := -len(flat) % 8:
            chunks.append(Bulk(session_pb2.BatchChunk(), {2: b"\0" * pad}))
    return chunks
