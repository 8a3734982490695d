"""A connection to one daemon: calls with deadlines and typed errors, and the daemon's description of itself."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from atta.errors import (
    AttaError,
    ConfigError,
    DaemonEndedError,
    DeadlineError,
    NotAuthenticatedError,
    RemoteError,
    UnavailableError,
)
from atta.observe.figures import JobFigures, SessionFigures
from atta.observe.machine.processor import machine_id
from atta.observe.recording import Entry, Recording, from_lines
from atta.partition.schema import Schema
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from atta.wire.credentials import ClientChannels, Credentials, TokenHeader, explained
from atta.wire.identity import OWN, Bound, Identity, Release, check, check_release, release_of
from atta.wire.retries import ALONE_S, ASK_AFTER_S, RetryBudget, pause_s

REPORT_S = 5.0
"""How long a report of a job may take."""
CLOSED = "the cluster has been closed"
"""What is said to those who go on using it."""
PATIENCE_S = 15.0
"""How long a client repeats a request to a daemon that has answered before: it may be restarting."""
_JITTER = random.Random()  # its own: the program's random numbers stay what they would be


def drain(call: Iterable[object]) -> None:
    """Receive the rest of a call on a thread of its own, for nobody: until it is read to its end, gRPC keeps a call whose
    readers receive, and its connection."""

    def read() -> None:
        with contextlib.suppress(grpc.RpcError, ValueError):
            deque(call, maxlen=0)

    threading.Thread(target=read, name="atta-drain", daemon=True).start()


@contextlib.contextmanager
def uninterrupted(stop: Callable[[], object] | None = None) -> Iterator[None]:
    """Hold the first Ctrl-C back until the block ends, which ``stop`` may hasten: a KeyboardInterrupt in the middle of
    gRPC's code leaves locks taken that the threads of its channel wait for, forever. The second one comes at once."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[Any] = []

    def hold(*args: Any) -> None:
        if came:
            handler(*args)
        came.extend(args)
        if stop is not None:  # on a thread of its own: this one may have the call's lock
            threading.Thread(target=stop, name="atta-stop", daemon=True).start()

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[:2])


class Call:
    """A call under way; a Ctrl-C that comes while the main thread waits for it cancels it, and is raised then. It ends
    as gRPC's own calls do: ``result`` and iteration raise ``grpc.RpcError``."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        """``begin`` makes gRPC's call."""
        with uninterrupted():
            self._call = begin()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with uninterrupted(self._call.cancel):
            return next(self._call)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """``result``, ``code``, ``done``, ``cancel`` and ``add_done_callback``, as gRPC's call has them."""
        method = getattr(self._call, name)

        def whole(*args: Any) -> Any:
            with uninterrupted(self._call.cancel):
                return method(*args)

        return whole


@dataclass(frozen=True)
class Description:
    """What a daemon says of itself."""

    version: str
    dataset_id: str
    parts: range
    """Partitions that the daemon serves."""
    num_parts: int
    """Partitions of the dataset."""
    schema: Schema
    machine: str
    pid: int
    incarnation: str
    contract: Mapping[str, str]
    """How the daemon draws."""
    release: Release = OWN
    """What the daemon speaks."""
    draining: bool = False
    """It is stopping and takes no new sessions."""
    tables_epoch: int = 0
    """Of the mutable tables that it keeps; 0: it keeps none. Of two daemons, the holder has the higher one."""
    tables_replicated: bool = False
    """It keeps them, or a copy of them, together with another daemon."""
    files: str = ""
    """What is wrong with the files that it serves, and so what to do; empty: nothing."""
    broken: bool = False
    """And so it answers nothing that stands in them."""
    answers: bool = False
    """It has a model, and answers queries about single vertices."""

    @property
    def identity(self) -> Identity:
        """How requests name this daemon."""
        return Identity(self.parts.start, self.dataset_id, self.incarnation)


class Patience:
    """Allows repetitions for ``seconds`` from the first failure on, with longer pauses when ``budget`` is used up."""

    def __init__(self, seconds: float, budget: RetryBudget) -> None:
        self._seconds, self._budget = seconds, budget
        self._until, self._failures = 0.0, 0

    def lasts(self) -> bool:
        """After a failure: wait a little and return True; return False when the time is used up."""
        now = time.monotonic()
        self._until = self._until or now + self._seconds
        self._failures += 1
        if now >= self._until:
            return False
        time.sleep(pause_s(self._failures, self._budget, _JITTER.random()))
        return True


class Connection:
    """A connection to one daemon. It reconnects by itself, with what the files of its credentials hold then. Every call
    has a deadline and raises Atta's typed errors; after ``close`` it is ConfigError.

    Requests name the daemon that they are meant for, as far as it is known here: by ``part``, its first partition, or
    as ``meet`` has found it. Another daemon refuses them with WrongDatasetError. The same daemon, restarted, refuses
    requests that need what the earlier process held with RestartedError."""

    def __init__(
        self,
        address: str,
        deadline_s: float,
        *,
        part: int | None = None,
        patience_s: float = PATIENCE_S,
        credentials: Credentials | None = None,
        ended: Callable[[str], DaemonEndedError | None] | None = None,
    ) -> None:
        """``patience_s``: see ``call``; ``credentials``: for a daemon with TLS; ``ended``: how the daemon at an address has
        ended, asked when nobody answers. Raises DataError for bad files."""
        self.ended = ended
        self.address, self.deadline_s, self._patience_s = address, deadline_s, patience_s
        self._credentials, self._token = credentials, TokenHeader(credentials)
        self._channels = ClientChannels(address, credentials)
        self._closed = threading.Event()
        self._budget = RetryBudget()
        self._meant = Identity(part)
        self._pinned: Connection | None = None
        self.takes_lent = self.reads_lent = False
        """Whether the daemon may write answers into memory of this process; whether it may read pushes from there."""
        self._reporting: Call | None = None  # gRPC gives up a call that nobody holds

    def meet(self, found: Description) -> None:
        """From now on address requests to the daemon with this description. Raises WrongDatasetError: it contradicts
        what is known of the daemon so far."""
        check(found.identity, self._meant, Bound.NAMED, self.address)
        self.takes_lent = self.reads_lent = found.machine == machine_id()
        if found.identity != self._meant:
            self._meant, self._pinned = found.identity, None

    def pinned(self) -> Connection:
        """This connection with requests that always name the daemon's present process, even after another ``meet``: for
        sessions, which live in the daemon's memory. It shares the channel and ends with this connection."""
        if self._pinned is None:
            self._pinned = copy.copy(self)
        return self._pinned

    def start(self, name: str, request: Any, *, timeout: float | None = None) -> Call:
        """Begin a streaming call. Who wants no more of it must ``cancel`` it, or ``drain`` it if its messages are received
        by those who iterate (``wire.credentials.READ_BY_CALLERS``)."""
        self._budget.asked()
        ask, header = self._stub(name), self._header(name)
        return Call(lambda: ask(request, timeout=timeout or self.deadline_s, metadata=header))

    def begin(self, name: str, request: Any, *, timeout: float | None = None, wait: bool = False) -> Call:
        """Begin a unary call. ``wait``: see ``call``."""
        self._budget.asked()
        ask, header = self._stub(name), self._header(name)
        options = {"timeout": timeout or self.deadline_s, "wait_for_ready": wait, "metadata": header}
        return Call(lambda: ask.future(request, **options))

    def call(
        self,
        name: str,
        request: Any,
        *,
        wait: bool = False,
        timeout: float | None = None,
        begun: Callable[[Call], None] | None = None,
        silent_s: float = ALONE_S,
    ) -> Any:
        """One unary call, e.g. ``call("ControlService.Describe", ...)``. ``wait``: wait for a daemon that is starting.
        ``begun`` gets the call, and may cancel it from another thread: that is UnavailableError here. While nothing comes,
        the daemon is asked a question; no answer to it within ``silent_s`` is DeadlineError.

        Without a ``timeout``, a call to a daemon that has been met is repeated for ``patience_s`` while nobody answers.
        That is safe: every request may be repeated. Repetitions have a budget (``RetryBudget``); beyond it, each comes
        half a second to a second after its failure."""
        patience = self.patience() if timeout is None else Patience(0, self._budget)
        while True:
            call = self.begin(name, request, timeout=timeout, wait=wait)
            if begun is not None:
                begun(call)
            try:
                is_watched = not wait and begun is None and (timeout or self.deadline_s) > silent_s
                return rpc.answered(self.address, self._watched(call, silent_s) if is_watched else call.result())
            except grpc.FutureCancelledError:
                raise UnavailableError(self.address, "the request was cancelled") from None
            except grpc.RpcError as failure:
                error = self.error_from(failure, timeout)
                if isinstance(error, NotAuthenticatedError) and self._token.renewed():
                    continue
                hopeless = not isinstance(error, UnavailableError) or isinstance(error, DaemonEndedError)
                if hopeless or not patience.lasts():
                    try:
                        raise error from failure
                    finally:  # an error that its own frame holds keeps all callers' variables until garbage is collected
                        del error, call

    def _watched(self, call: Call, silent_s: float) -> Any:
        while True:
            with contextlib.suppress(grpc.FutureTimeoutError):
                return call.result(ASK_AFTER_S)
            try:
                self.call("ControlService.Describe", control_pb2.DescribeRequest(), timeout=silent_s)
            except DeadlineError:
                if not call.done():
                    call.cancel()
                    raise
            except AttaError:  # of which the call itself will tell
                return call.result()

    def error_from(self, failure: grpc.RpcError, timeout: float | None = None) -> AttaError:
        """The typed error of a call. ``timeout``: its own, if it had one."""
        failure.__traceback__ = None  # it is the call itself, which frames hold, and with it all callers' variables
        if self._closed.is_set():
            return ConfigError(CLOSED)
        error = rpc.error_from(self.address, failure, timeout or self.deadline_s)
        if isinstance(error, UnavailableError) and self.ended is not None and (end := self.ended(self.address)):
            return end
        return explained(error, self.address, self._credentials)

    def patience(self) -> Patience:
        """How long to repeat requests while nobody answers; not at all before the daemon has been met."""
        return Patience(min(self._patience_s, self.deadline_s) if self._meant.incarnation else 0, self._budget)

    def _stub(self, name: str) -> Any:
        if self._closed.is_set():
            raise ConfigError(CLOSED)
        return self._channels.stub(name)

    def _header(self, name: str) -> tuple[tuple[str, str], ...]:
        return self._meant.header(rpc.METHODS[name].bound) + self._token.now()

    def describe(self, *, wait: bool = False, timeout: float | None = None) -> Description:
        """Ask the daemon for its description. Any daemon answers; see ``meet``. Raises ProtocolError: the daemon's
        release and this one have no protocol in common."""
        reply = self.call("ControlService.Describe", control_pb2.DescribeRequest(), wait=wait, timeout=timeout)
        release = release_of(reply)
        check_release(release, self.address)
        with rpc.understanding(self.address):
            schema = Schema.from_json(json.loads(reply.schema))
        return Description(
            reply.version, reply.dataset_id, range(reply.part, reply.part + reply.parts), reply.num_parts, schema,
            reply.host, reply.pid, reply.incarnation, dict(reply.contract), release, reply.draining,
            reply.tables_epoch, reply.tables_replicated, reply.files, reply.broken,
            reply.answers,
        )  # fmt: skip

    def unreached(self) -> list[str]:
        """Have the daemon connect its peers; the addresses of those that do not answer within a second."""
        reply = self.call("ControlService.Describe", control_pb2.DescribeRequest(reach=True), timeout=self.deadline_s)
        return list(reply.unreached)

    def stats(self) -> dict[str, float]:
        """The daemon's counters and gauges."""
        return dict(self.call("ControlService.Stats", control_pb2.StatsRequest()).counters)

    def sessions(self) -> list[SessionFigures]:
        """The daemon's open sessions, in the order of opening."""
        reply = self.call("ControlService.Sessions", control_pb2.SessionsRequest())
        with rpc.understanding(self.address):
            return [SessionFigures.of_message(session) for session in reply.sessions]

    def report(self, figures: Sequence[JobFigures], keep_s: float) -> None:
        """Have the daemon show the figures of a job for ``keep_s`` seconds; 0: forget the job. The call does not wait,
        and nobody learns whether it failed. A report is left out while the one before is under way; the last one, of
        0 s, waits for it."""
        if keep_s == 0:
            self._finish_report()
        elif self._reporting is not None and not self._reporting.done():
            return
        request = control_pb2.ReportRequest(keep_s=keep_s, rows=[one.to_message() for one in figures])
        self._reporting = self.begin("ControlService.Report", request, timeout=REPORT_S)

    def trace(self, last_s: float = 0.0) -> Recording:
        """What the daemon has recorded in the last ``last_s`` seconds; 0: everything that it still has. Raises
        RemoteError: the daemon sends something else than a recording."""
        header = control_pb2.TraceHeader()
        entries: list[Entry] = []
        chunks = self.start("ControlService.Trace", control_pb2.TraceRequest(last_s=last_s))
        try:
            for chunk in chunks:
                if chunk.HasField("header"):
                    header = chunk.header
                entries += from_lines(chunk.entries)
        except grpc.RpcError as error:
            raise self.error_from(error) from error
        except ValueError as error:
            raise RemoteError(self.address, f"sends something else than a recording: {error}") from error
        about = (header.now, header.offset_ns, header.capacity, header.full)
        return Recording(header.part, self.address, *about, entries=tuple(entries))

    def check_operator(self) -> None:
        """Raise NotAllowedError or NotAuthenticatedError if this caller may not do what only operators may. It changes
        nothing: a trace of no time is asked for, which takes the same role as a stop."""
        self.trace(1e-9)

    def stop(self) -> None:
        """Ask the daemon to drain and exit."""
        # Not repeated: a daemon that has stopped and been restarted must not be stopped again.
        self.call("ControlService.Stop", control_pb2.StopRequest(), timeout=self.deadline_s)

    def close(self) -> None:
        """Close the channels, after the latest report has arrived or failed."""
        self._finish_report()
        self._closed.set()
        with uninterrupted():
            self._channels.close()

    def _finish_report(self) -> None:
        if self._reporting is not None:
            with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError):
                self._reporting.result(REPORT_S)
