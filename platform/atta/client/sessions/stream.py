"""One running iterator of a loader: a session on a daemon, read batch by batch."""

from __future__ import annotations

import math
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
import numpy as np

from atta.client.control import Connection
from atta.client.sessions.keeper import SessionKeeper, SessionState
from atta.client.sessions.pace import ConsumerPace
from atta.client.sessions.slots import SlotMaps
from atta.errors import ConfigError, DeadlineError, QuotaExceededError, RemoteError, UnavailableError
from atta.protos.v1 import session_pb2
from atta.wire import rpc
from atta.wire.bulk import BATCH_DATA

__all__ = ["BatchStream", "RawBatch"]

NEXT_DEADLINE_S = 30.0
RETRIES = 3
T = TypeVar("T")


@dataclass(frozen=True)
class RawBatch:
    """A batch as it came: named arrays over shared memory or received bytes, and figures about how it was made."""

    batch: int
    arrays: Mapping[str, np.ndarray]
    stats: dict[str, float]


@dataclass(frozen=True)
class _NextReply:
    """A batch, and how many the daemon had not begun when it sent it."""

    batch: RawBatch
    unlaunched: int


class BatchStream(Iterator[RawBatch]):
    """Reads a session's batches in order and asks for the next one ahead; ``close`` (or garbage collection) ends it.

    A batch that comes over the network is also taken in ahead, by a thread, while the consumer computes on the one before.
    """

    def __init__(
        self, connection: Connection, slots: SlotMaps, keeper: SessionKeeper, request: session_pb2.OpenRequest
    ) -> None:
        """Open the session, which gets a name of its own; ``keeper`` renews its lease.

        Raises:
            ConfigError, UnknownNameError, WrongDatasetError, QuotaExceededError: the daemon refuses the request.
            UnavailableError, DeadlineError: it cannot be reached.
        """
        request.session = secrets.token_hex(8)
        self._state = SessionState(connection, slots, request.session)
        try:
            reply = connection.call("SessionService.Open", request)
        except (ConfigError, QuotaExceededError):
            raise
        except BaseException:  # it may be open all the same: only the answer may have been lost
            keeper.drop(self._state)
            raise
        self.session, self.batches = reply.session, int(reply.batches)
        self._state.session, self._state.pid = self.session, int(reply.pid)
        self._sequence = 0
        self._left = self.batches - int(request.start_batch)
        self.unlaunched = self._left
        """Batches that the daemon had not begun when it sent the latest one."""
        self._pace = ConsumerPace()
        self._from_afar = not request.shared_memory
        self._read: Callable[[], _NextReply | None]
        self._finalizer = weakref.finalize(self, keeper.discard, self._state)
        keeper.keep(self._state, float(reply.lease_s))
        if self._left:
            self._ask()

    def __next__(self) -> RawBatch:
        if not self._left or self._state.closed:
            self.close()
            raise StopIteration
        self._pace.done()
        asked = time.perf_counter()
        try:
            batch = self._receive()
        except BaseException:
            self.close()
            raise
        self._sequence += 1
        self._left -= 1
        if self._left:
            self._ask()
        batch.stats["wait_ms"] = 1e3 * (time.perf_counter() - asked)
        self._pace.arrived()
        return batch

    @property
    def left(self) -> int:
        """Batches that have not been delivered yet."""
        return self._left

    def close(self) -> None:
        """End the session; harmless when repeated."""
        self._finalizer.detach()
        self._state.close()

    def _ask(self) -> None:
        request = session_pb2.NextRequest(
            session=self.session,
            sequence=self._sequence,
            released=self._state.released(),
            train_ms=self._pace.ms,
        )
        call = self._state.connection.start("SessionService.Next", request, timeout=NEXT_DEADLINE_S)
        self._state.call = call
        # Without the stream itself: what reads ahead must not keep alive what is to be closed when nobody holds it.
        read = partial(_read, self._state, call, self._sequence)
        self._read = _begun(read) if self._from_afar else read

    def _receive(self) -> RawBatch:
        """The asked-for batch; a lost answer is asked for again (``Next`` is numbered), a slow one waited for."""
        failures = 0
        while True:
            try:
                answer = self._read()
            except (UnavailableError, DeadlineError):
                # A prefetched answer may pass its deadline while the consumer is busy elsewhere: that is no failure.
                failures += 1
                if failures > RETRIES:
                    raise
                time.sleep(0.1 * failures)
            else:
                self._state.answered()
                if answer is not None:
                    self.unlaunched = answer.unlaunched
                    return answer.batch
            self._ask()


def _begun(function: Callable[[], T]) -> Callable[[], T]:
    """Start ``function`` on a thread of its own; the result waits for it and returns, or raises, what it does."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="atta-batch", daemon=True).start()
    return future.result


def _read(state: SessionState, call: Any, sequence: int) -> _NextReply | None:
    """Take in the answer to a request for batch ``sequence``; None: it is not ready yet."""
    peer = state.connection.address
    try:
        header = next(call).message.header
        if header.pending:
            return None
        if header.last:
            raise RemoteError(peer, "ends the epoch before its last batch")
        shared = header.HasField("slot")
        buffer = state.lease(sequence, header.slot) if shared else _gather(call, header.buffer_bytes, peer)
    except grpc.RpcError as error:
        raise rpc.error_from(peer, error) from error
    except StopIteration as error:
        raise RemoteError(peer, "sends no batch") from error
    try:
        arrays = {ref.name: _array(buffer, ref) for ref in header.arrays}
    except (TypeError, ValueError, OverflowError) as error:
        raise RemoteError(peer, f"sends a batch that cannot be read: {error}") from error
    return _NextReply(RawBatch(int(header.batch), arrays, dict(header.stats)), int(header.unlaunched))


def _array(buffer: np.ndarray, ref: Any) -> np.ndarray:
    dtype, shape = np.dtype(ref.dtype), tuple(ref.shape)
    if dtype.hasobject:
        raise TypeError(f"array {ref.name} of type {dtype}")
    nbytes = dtype.itemsize * math.prod(shape)
    return np.asarray(buffer[ref.offset : ref.offset + nbytes].view(dtype).reshape(shape))


def _gather(call: Any, nbytes: int, peer: str) -> np.ndarray:
    buffer = np.empty(nbytes, dtype=np.uint8)
    at = 0
    for chunk in call:
        data = np.frombuffer(chunk.payloads.get(BATCH_DATA, b""), dtype=np.uint8)
        if at + len(data) > nbytes:
            break
        buffer[at : at + len(data)] = data
        at += len(data)
    if at != nbytes:
        raise RemoteError(peer, f"sends {at} bytes of a batch of {nbytes}")
    return buffer
