"""One running iterator of a loader: a session on a daemon that is read batch by batch."""

from __future__ import annotations

import math
import re
import secrets
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np

from atta.client.control import Connection
from atta.client.sessions.keeper import SessionKeeper, SessionState
from atta.client.sessions.slots import NearbyDaemon, SlotMaps
from atta.errors import (
    AttaError,
    ConfigError,
    DaemonEndedError,
    DeadlineError,
    QuotaExceededError,
    RemoteError,
    RestartedError,
    UnavailableError,
)
from atta.observe.machine.threads import begun
from atta.protos.v1 import session_pb2
from atta.wire import rpc
from atta.wire.bulk import BATCH_DATA
from atta.wire.retries import ALONE_S

NEXT_DEADLINE_S = 30.0
"""How long one ``Next`` may take."""
RETRIES = 3
"""How often a batch is asked for again after failures."""
LISTS = frozenset({"input_id", "n_id", "e_id", "row", "col", "hops", "tree", "link"})
"""First parts of the names of arrays that have one integer per seed, vertex, edge or hop."""
DTYPE = re.compile(r"[<>|][biufcSU][1-9][0-9]{0,8}")
"""How numpy names the type of an array of numbers or texts. It takes other names for programs, and parses them."""
OTHER_END = {"row": "col", "col": "row"}
_NEW = 0.2
"""Weight of the newest batch in the running mean."""
_OPEN = 16
"""Most measurements on the GPU that may be outstanding. Older ones are dropped."""


@dataclass(frozen=True)
class RawBatch:
    """A batch as it arrives: named arrays over shared memory or received bytes, and figures about how it was made.

    Attributes:
        unlaunched: number of batches that the daemon had not begun when it sent this one.
        moving: whether the daemon is stopping, so that the rest had better come from a replica.
    """

    batch: int
    arrays: Mapping[str, np.ndarray]
    stats: dict[str, float]
    version: int = 0
    unlaunched: int = 0
    moving: bool = False


class BatchStream(Iterator[RawBatch]):
    """Reads a session's batches in order and asks for the next one ahead. ``close`` or garbage collection ends the
    session. If batches come over the network, a thread receives the next one while the consumer computes on the one
    before."""

    def __init__(
        self,
        connection: Connection,
        slots: SlotMaps,
        keeper: SessionKeeper,
        request: session_pb2.OpenRequest,
        timeout_s: float | None = None,
        *,
        patience_s: float = ALONE_S,
    ) -> None:
        """Open the session under a random name. ``keeper`` renews its lease, and asks the daemon whether it is there
        while the session or a batch is waited for; ``patience_s``: how long the answer may take. Without
        ``timeout_s`` the request is repeated for a while if nobody answers, see ``Connection.call``. Raises what the
        daemon refuses it with."""
        request.session = secrets.token_hex(16)  # who knows it may close the session
        self._state = SessionState(connection, slots, request.session)
        self._state.patience_s = patience_s
        keeper.watch(self._state)
        try:
            with self._state.owed():
                reply = connection.call("SessionService.Open", request, timeout=timeout_s, begun=self._state.awaits)
        except (ConfigError, QuotaExceededError):
            raise
        except BaseException as error:  # the session may be open: perhaps only the answer was lost
            silent = self._state.silent  # before the state is closed
            keeper.drop(self._state)
            if silent and isinstance(error, AttaError):
                raise UnavailableError(connection.address, _owing("the session", patience_s)) from error
            raise
        self.session, self.batches = reply.session, int(reply.batches)
        self.version = int(reply.version)
        """Of the tables, in all batches."""
        self._state.answered()
        self._state.session, self._state.pid = self.session, int(reply.pid)
        self._state.nearby = NearbyDaemon.of(reply, NEXT_DEADLINE_S) if request.shared_memory else None
        self._sequence = 0
        self.left = self.batches - int(request.start_batch)
        """Number of batches that have not been delivered yet."""
        self.unlaunched = self.left
        self._pace = ConsumerPace()
        self._from_afar = not request.shared_memory
        self._read: Callable[[], RawBatch | None] | None = None
        self.moving = False
        self._finalizer = weakref.finalize(self, keeper.discard, self._state)
        keeper.keep(self._state, float(reply.lease_s))
        if self.left:
            self._ask()

    def __next__(self) -> RawBatch:
        if not self.left or not self._finalizer.alive:  # at the end, or after ``close`` or a failure
            self.close()
            raise StopIteration
        self._state.check_usable()
        self._pace.done()
        asked = time.perf_counter()
        try:
            batch = self._receive()
        except (UnavailableError, DeadlineError, RestartedError):
            self._finalizer()  # closes the session without waiting for a daemon that does not answer
            raise
        except BaseException:
            self.close()
            raise
        self._sequence += 1
        self.left -= 1
        self._read = None
        if self.left and not self.moving:
            self._ask()
        batch.stats["wait_ms"] = 1e3 * (time.perf_counter() - asked)
        self._pace.arrived()
        return batch

    @property
    def silent(self) -> bool:
        """Whether the stream has failed because the daemon did not answer a question in time."""
        return self._state.silent

    def be_patient(self, times: float) -> None:
        """Give the daemon ``times`` as long to answer a question."""
        self._state.patience_s *= times

    @property
    def address(self) -> str:
        """``host:port`` of the daemon."""
        return self._state.connection.address

    def close(self) -> None:
        """End the session; repeating it does nothing."""
        self._finalizer.detach()
        self._state.close()

    def _ask(self) -> None:
        request = session_pb2.NextRequest(
            session=self.session, sequence=self._sequence, released=self._state.released(), train_ms=self._pace.ms
        )
        # The reader gets no reference to the stream: a stream that nobody else holds is to be collected and closed.
        if self._state.nearby is not None and self._state.nearby.ask(request):
            self._state.awaits(self._state.nearby)
            self._read = partial(_read_nearby, self._state, self._state.nearby, request)
            return
        read = partial(_read, self._state, _asked(self._state, request), self._sequence)
        self._read = begun(read, "atta-batch").result if self._from_afar else read

    def _receive(self) -> RawBatch:
        """The batch that was asked for. A lost answer is asked for again, which is safe because ``Next`` is numbered."""
        failures, began = 0, time.monotonic()
        while True:
            try:
                with self._state.owed():
                    if self._read is None:  # nothing was asked for ahead
                        self._ask()
                    assert self._read is not None
                    answer = self._read()
            except AttaError as error:
                if self._finalizer.alive:  # else another thread has closed the iterator
                    self._state.check_usable()
                if self._state.silent:
                    raise UnavailableError(self.address, _owing("a batch", self._state.patience_s)) from error
                if not isinstance(error, UnavailableError | DeadlineError) or isinstance(error, DaemonEndedError):
                    raise
                # An answer that was asked for ahead may miss its deadline while the consumer is busy elsewhere.
                late = isinstance(error, DeadlineError) and time.monotonic() - began > NEXT_DEADLINE_S / 2
                failures += 1
                if failures > RETRIES or late:
                    raise
                time.sleep(0.1 * failures)
            else:
                self._state.answered()
                if answer is not None:
                    self.unlaunched, self.moving = answer.unlaunched, answer.moving
                    return answer
            self._ask()


def _owing(what: str, patience_s: float) -> str:
    return f"owes {what}, and a question had no answer for {patience_s:g} s"


def _asked(state: SessionState, request: session_pb2.NextRequest) -> Iterator[Any]:
    call = state.connection.start("SessionService.Next", request, timeout=NEXT_DEADLINE_S)
    state.awaits(call)
    return call


def _read_nearby(state: SessionState, daemon: NearbyDaemon, request: session_pb2.NextRequest) -> RawBatch | None:
    """As ``_read``, from a daemon on this machine. If it cannot be asked so any more, it is asked by gRPC."""
    peer, sequence = state.connection.address, int(request.sequence)
    try:
        header = daemon.header()
    except TimeoutError as error:
        state.leave_nearby()
        raise DeadlineError(peer, f"no answer within {NEXT_DEADLINE_S:g} s") from error
    if header is None:
        state.leave_nearby()
        if state.silent or state.closed:
            raise RemoteError(peer, "the request was cancelled")
        return _read(state, _asked(state, request), sequence)
    if header.pending:
        return None
    if not header.HasField("slot"):
        raise RemoteError(peer, "sends no batch")
    return _reply(peer, header, state.lease(sequence, header.slot))


def _read(state: SessionState, call: Iterator[Any], sequence: int) -> RawBatch | None:
    """Receive the answer to a request for batch ``sequence``; None if the batch is not ready yet."""
    peer = state.connection.address
    try:
        header = next(call).message.header
        if header.pending:
            state.read = True
            return None
        if header.last:
            raise RemoteError(peer, "ends the epoch before its last batch")
        shared = header.HasField("slot")
        buffer = state.lease(sequence, header.slot) if shared else _gather(call, header.buffer_bytes, peer)
        state.read = True
    except grpc.RpcError as error:
        raise state.connection.error_from(error, NEXT_DEADLINE_S) from error
    except StopIteration as error:
        raise RemoteError(peer, "sends no batch") from error
    return _reply(peer, header, buffer)


def _reply(peer: str, header: session_pb2.BatchHeader, buffer: np.ndarray) -> RawBatch:
    with rpc.understanding(peer):
        arrays = _checked({ref.name: _array(buffer, ref) for ref in header.arrays})
    stats, unlaunched = dict(header.stats), int(header.unlaunched)
    return RawBatch(int(header.batch), arrays, stats, int(header.version), unlaunched, header.moving)


def _array(buffer: np.ndarray, ref: Any) -> np.ndarray:
    if not DTYPE.fullmatch(ref.dtype):
        raise TypeError(f"array {ref.name} of type {ref.dtype[:20]!r}")
    dtype, shape = np.dtype(ref.dtype), tuple(ref.shape)
    nbytes = dtype.itemsize * math.prod(shape)
    return np.asarray(buffer[ref.offset : ref.offset + nbytes].view(dtype).reshape(shape))


def _checked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``arrays``, if those that describe the subgraph are lists of integers, and every edge has both ends. Raises
    ValueError: they are not."""
    for name, array in arrays.items():
        kind, _, owner = name.partition("/")
        if kind in LISTS and (array.ndim != 1 or array.dtype.kind not in "iu"):
            raise ValueError(f"array {name} is {array.dtype} {list(array.shape)}, not a list of integers")
        if kind in OTHER_END and len(array) != len(arrays.get(f"{OTHER_END[kind]}/{owner}", ())):
            raise ValueError(f"array {name} has {len(array)} ends of edges, and there are not as many other ends")
    return arrays


def _gather(call: Iterator[Any], nbytes: int, peer: str) -> np.ndarray:
    with rpc.understanding(peer):
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


def cuda_event() -> Any:
    """An event in the current CUDA stream, recorded now; None if the process does not use CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class ConsumerPace:
    """Running mean of the time from a batch's arrival to the request for the next one.

    When the consumer comes back, its work on a GPU is only queued. So the GPU's time is that between two events in the
    stream: the first is reached when the GPU is done with the batch before, the second when it is done with this one.
    The larger of the host's time and the GPU's time counts. Events are read after they have been reached, so nothing
    here waits for the GPU.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, event: Callable[[], Any] = cuda_event) -> None:
        """``clock`` returns seconds. ``event`` returns an event like torch's (``query``, ``elapsed_time``), or None."""
        self._clock, self._event = clock, event
        self._arrived: tuple[float, Any] | None = None
        self._open: deque[tuple[float, Any, Any]] = deque(maxlen=_OPEN)
        self.ms = 0.0
        """Milliseconds per batch; 0 while unknown."""

    def arrived(self) -> None:
        """The consumer gets a batch."""
        self._arrived = self._clock(), self._event()

    def done(self) -> None:
        """The consumer asks for the next batch."""
        if self._arrived is None:
            return
        (since, first), self._arrived = self._arrived, None
        host_ms = 1e3 * (self._clock() - since)
        if first is None:
            self._add(host_ms)
        else:
            self._open.append((host_ms, first, self._event()))
        while self._open and self._open[0][2].query():
            host_ms, first, last = self._open.popleft()
            self._add(max(host_ms, float(first.elapsed_time(last))))

    def _add(self, ms: float) -> None:
        self.ms = ms if self.ms == 0 else (1 - _NEW) * self.ms + _NEW * ms
