"""The consumer's end of the socket to a daemon on its machine: whatever happens there, gRPC has the answer."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.client.sessions import slots as asking
from atta.client.sessions import stream as streams
from atta.client.sessions.slots import NearbyDaemon
from atta.client.sessions.stream import BatchStream
from atta.errors import ConfigError, DeadlineError, RemoteError
from atta.protos.v1 import session_pb2
from atta.wire import memfiles
from tests.forking import in_fork
from tests.unit.platform import test_stream

TOKEN = bytes(range(16))


class Daemon(test_stream.Daemon):
    """Serves batches that hold their own number: over its socket as ``script`` says, and by gRPC.

    ``script`` maps a sequence number to the bytes of an answer, or to None: it hangs up. Numbers that are not in it are
    answered well.
    """

    def __init__(self, script: dict[int, bytes | None] | None = None, pid: int | None = None) -> None:
        super().__init__()
        self.script = script or {}
        self.nearby, self.by_grpc, self.tokens = [], [], []  # type: ignore[var-annotated]
        self.released: list[list[int]] = []
        self.pid = os.getpid() if pid is None else pid
        self.name = f"atta-test-{secrets.token_hex(8)}"
        self._socket = memfiles.packets()
        self._socket.setblocking(True)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(8)
        threading.Thread(target=self._serve, daemon=True).start()

    def call(self, name: str, _request: Any, **options: Any) -> Any:
        reply = super().call(name, _request, **options)
        if name == "SessionService.Open":
            reply.pid, reply.nearby, reply.token = self.pid, self.name, TOKEN
        return reply

    def start(self, name: str, request: Any, *, timeout: float) -> test_stream.Answer:
        self.by_grpc.append(int(request.sequence))
        self.released.append(list(request.released))
        return super().start(name, request, timeout=timeout)

    def _serve(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # nobody has come until the end of the test
            return
        self.tokens.append(connection.recv(100))
        while packet := self._received(connection):
            request = session_pb2.NextRequest.FromString(packet)
            number = int(request.sequence)
            self.nearby.append(number)
            answer = self.script.get(number, self.header(number))
            if answer is None:
                break
            with contextlib.suppress(OSError):  # the consumer has gone
                connection.send(answer)
        connection.close()

    @staticmethod
    def _received(connection: socket.socket) -> bytes:
        try:
            return connection.recv(1 << 20)
        except ConnectionResetError:
            return b""

    @staticmethod
    def header(number: int) -> bytes:
        ref = session_pb2.ArrayRef(name="n", dtype="<i8", shape=(1,), offset=0)
        slot = session_pb2.SharedSlot(path="/slot", capacity=number)
        return session_pb2.BatchHeader(batch=number, arrays=[ref], buffer_bytes=8, slot=slot).SerializeToString()

    def close(self) -> None:
        self._socket.close()


class Slots:
    """A slot's capacity stands for its number."""

    def lease(self, slot: Any, _pid: int, _ended: Any) -> np.ndarray:
        return np.array([slot.capacity], dtype=np.int64).view(np.uint8)


def opened(daemon: Any) -> BatchStream:
    return BatchStream(daemon, Slots(), test_stream.KEEPER, session_pb2.OpenRequest(shared_memory=True))  # type: ignore[arg-type]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    yield made
    made.close()


def test_batches_come_by_the_socket(daemon: Daemon) -> None:
    stream = opened(daemon)
    assert list(test_stream.numbers(stream)) == [0, 1, 2]
    assert (daemon.nearby, daemon.by_grpc, daemon.tokens) == ([0, 1, 2], [], [TOKEN])
    assert stream._state.nearby is None  # closed


def test_a_forked_child_takes_no_batch_of_its_parent(daemon: Daemon) -> None:
    stream = opened(daemon)
    found = test_stream.numbers(stream)
    assert next(found) == 0

    def child() -> None:
        with pytest.raises(ConfigError, match="connections do not survive a fork"):
            next(stream)
        stream.close()
        stream._state.close()

    assert in_fork(child)
    assert list(found) == [1, 2]
    assert (daemon.nearby, daemon.by_grpc) == ([0, 1, 2], []), "the connection still serves the parent"


@pytest.mark.parametrize("answer", [None, b"\xff\xff", b"x" * 80_000], ids=["hangs up", "nonsense", "too long"])
def test_what_has_no_answer_there_has_one_by_grpc(answer: bytes | None, daemon: Daemon) -> None:
    daemon.script[1] = answer
    stream = opened(daemon)
    found = test_stream.numbers(stream)
    assert next(found) == 0
    stream._state._released.append(0)
    stream._read = None  # the request that went ahead did not name it
    assert list(found) == [1, 2]
    assert daemon.by_grpc == [1, 2]
    assert daemon.released[0] == [0], "the lost request's released batches must be named again"


def test_a_pending_batch_is_asked_for_again(daemon: Daemon) -> None:
    stream = opened(daemon)
    pending = session_pb2.BatchHeader(pending=True).SerializeToString()
    found = test_stream.numbers(stream)
    daemon.script[1] = pending
    assert next(found) == 0
    threading.Timer(0.1, daemon.script.pop, (1,)).start()
    assert next(found) == 1
    assert daemon.nearby.count(1) > 1
    assert not daemon.by_grpc


def test_a_batch_without_memory_is_the_daemons_mistake(daemon: Daemon) -> None:
    daemon.script[0] = session_pb2.BatchHeader(batch=0).SerializeToString() or b"\x10\0"
    with pytest.raises(RemoteError, match="sends no batch"):
        next(opened(daemon))


def test_another_process_behind_the_name_is_not_asked() -> None:
    daemon = Daemon(pid=1)
    assert list(test_stream.numbers(opened(daemon))) == [0, 1, 2]
    assert (daemon.nearby, daemon.by_grpc) == ([], [0, 1, 2])
    daemon.close()


@pytest.mark.parametrize("name", ["nobody-listens-here", "x" * 200, "a\0b", "ü" * 60])
def test_names_behind_which_nobody_listens(name: str, daemon: Daemon) -> None:
    daemon.name = name
    assert list(test_stream.numbers(opened(daemon))) == [0, 1, 2]
    assert daemon.by_grpc == [0, 1, 2]


def test_without_a_free_descriptor_the_daemon_is_asked_by_grpc(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def packets() -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asking, "memfiles", SimpleNamespace(**{**vars(memfiles), "packets": packets}))
    assert list(test_stream.numbers(opened(daemon))) == [0, 1, 2]
    assert (daemon.nearby, daemon.by_grpc) == ([], [0, 1, 2])


def test_a_daemon_that_does_not_answer_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "NEXT_DEADLINE_S", 0.2)
    silent = SilentDaemon()
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"no answer within 0\.2 s"):
        next(opened(silent))
    assert time.monotonic() - began < 5
    silent.close()


class SilentDaemon(Daemon):
    """Accepts, and answers nothing."""

    def _serve(self) -> None:
        self.connection, _ = self._socket.accept()


@pytest.mark.parametrize(
    ("why", "error", "words"),
    [
        ("silent", RemoteError, "a question had no answer"),
        ("closed", RemoteError, "was cancelled"),
        ("cluster closed", ConfigError, "the cluster has been closed"),
    ],
)
def test_who_waits_is_freed_when_the_daemon_is_given_up(why: str, error: type[Exception], words: str) -> None:
    daemon = SilentDaemon()
    stream = opened(daemon)

    def give_up() -> None:
        time.sleep(0.1)
        if why == "closed":
            stream.close()
        elif why == "cluster closed":
            stream._state.close()
        else:
            stream._state.silent = True
            stream._state.call.cancel()

    threading.Thread(target=give_up).start()
    with pytest.raises(error, match=words):
        next(stream)
    assert not daemon.by_grpc
    daemon.close()


def test_a_request_that_is_too_long_goes_by_grpc(daemon: Daemon) -> None:
    near = NearbyDaemon.of(daemon.call("SessionService.Open", None), 5.0)
    assert near is not None
    assert not near.ask(session_pb2.NextRequest(released=range(10_000)))
    assert near.ask(session_pb2.NextRequest(session="s"))
    header = near.header()
    assert header is not None
    assert header.batch == 0
    near.end()
    near.end()
    assert not near.ask(session_pb2.NextRequest(sequence=1))
    assert near.header() is None


def test_no_socket_is_left_where_it_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    def packets() -> socket.socket:
        made.append(memfiles.packets())
        return made[-1]

    monkeypatch.setattr(asking, "memfiles", SimpleNamespace(**{**vars(memfiles), "packets": packets}))
    assert NearbyDaemon.of(session_pb2.OpenReply(nearby="nobody-listens-here", token=TOKEN), 5.0) is None
    assert [sock.fileno() for sock in made] == [-1]
    assert NearbyDaemon.of(session_pb2.OpenReply(), 5.0) is None
    assert len(made) == 1
