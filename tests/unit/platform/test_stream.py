"""Batches at the consumer: over gRPC and by the socket of a daemon on its machine, their time, and where epochs begin."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest

import atta
from atta.client.sessions import slots as asking
from atta.client.sessions import stream as streams
from atta.client.sessions.slots import NearbyDaemon
from atta.client.sessions.stream import BatchStream, ConsumerPace, _checked, cuda_event
from atta.client.tables.string_ids import StringIds
from atta.errors import AttaError, ConfigError, DeadlineError, RemoteError
from atta.partition.schema import Schema, TableSpec
from atta.protos.v1 import session_pb2
from atta.train.launching.epoch_batches import EpochBatches
from atta.wire import memfiles, rpc
from atta.wire.rpc import Bulk
from tests.unit.platform.table_owner import Refused
from tests.waiting import eventually

BATCHES = 3
KEEPER: Any = SimpleNamespace(watch=lambda _: None, keep=lambda *_: None, discard=lambda _: None)


class Daemon:
    address = "daemon:1"

    def __init__(self, failing: int = -1, dtype: str = "<i8", shape: tuple[int, ...] = (1,)) -> None:
        self.read, self.readers = list[int](), set[str]()
        self._failing, self._dtype, self._shape = failing, dtype, shape

    def call(self, name: str, _request: Any, **_: Any) -> Any:
        if name == "SessionService.Open":
            return session_pb2.OpenReply(session="s", batches=BATCHES, lease_s=60.0)
        return session_pb2.CloseReply()

    def error_from(self, failure: grpc.RpcError, timeout: float) -> AttaError:
        return rpc.error_from(self.address, failure, timeout)

    def start(self, name: str, request: Any, *, timeout: float) -> Answer:
        return Answer(self._chunks(int(request.sequence)))

    def _chunks(self, number: int) -> Iterator[Bulk]:
        self.readers.add(threading.current_thread().name)
        data = np.array([number], dtype=np.int64)
        refs = [session_pb2.ArrayRef(name="n", dtype=self._dtype, shape=self._shape, offset=0)]
        yield Bulk(session_pb2.BatchChunk(header=session_pb2.BatchHeader(batch=number, arrays=refs, buffer_bytes=8)))
        if number == self._failing:
            raise Refused(RuntimeError("out of memory"))
        yield Bulk(session_pb2.BatchChunk(), {2: data.tobytes()})
        self.read.append(number)


class Answer(Iterator[Bulk]):
    def __init__(self, chunks: Iterator[Bulk]) -> None:
        self._chunks = chunks

    def __next__(self) -> Bulk:
        return next(self._chunks)

    def cancel(self) -> None:
        pass


def opened(daemon: Any, *, shared: bool) -> BatchStream:
    return BatchStream(daemon, Any, KEEPER, session_pb2.OpenRequest(shared_memory=shared))


def numbers(stream: BatchStream) -> Iterator[int]:
    for batch in stream:
        assert batch.arrays["n"].tolist() == [batch.batch]
        yield batch.batch


def test_from_afar_the_next_batch_comes_while_the_consumer_computes() -> None:
    daemon = Daemon()
    found = numbers(opened(daemon, shared=False))
    assert next(found) == 0
    assert eventually(lambda: daemon.read == [0, 1])
    assert list(found) == [1, 2]
    assert daemon.readers == {"atta-batch"}


def test_in_shared_memory_a_batch_is_read_when_it_is_wanted() -> None:
    daemon = Daemon()
    found = numbers(opened(daemon, shared=True))
    assert [next(found), list(daemon.read)] == [0, [0]]
    assert list(found) == [1, 2]
    assert daemon.readers == {threading.current_thread().name}


def test_a_failure_of_the_next_batch_comes_when_that_is_wanted() -> None:
    found = numbers(opened(Daemon(failing=1), shared=False))
    assert next(found) == 0
    with pytest.raises(RemoteError, match="out of memory"):
        next(found)


@pytest.mark.parametrize("shared", [True, False])
def test_an_epoch_does_not_end_where_the_cluster_is_closed(shared: bool) -> None:
    stream = opened(Daemon(), shared=shared)
    assert next(stream).batch == 0
    stream._state.close()
    for _ in range(2):
        with pytest.raises(ConfigError, match="the cluster has been closed"):
            next(stream)
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("O", (1,)), ("|O8", (1,)), (",f4", (1,)), ("nonsense", (1,)), ("<i8", (2,)), ("<i8", (2**62, 2**62))],
)
def test_arrays_that_cannot_be_read(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError, match="cannot be read"):
        next(opened(Daemon(dtype=dtype, shape=shape), shared=False))


@pytest.mark.parametrize(
    "arrays",
    [
        {"hops/node": np.zeros((3, 3), np.int64)},
        {"n_id/node": np.zeros(3, np.float32)},
        {"input_id": np.zeros((), np.int64)},
        {"row/e": np.zeros(3, np.int64), "col/e": np.zeros(2, np.int64)},
        {"row/e": np.zeros(3, np.int64)},
        {"col/e": np.zeros(3, np.int64)},
    ],
    ids=["two dimensions", "no integers", "no dimension", "fewer targets", "no targets", "no sources"],
)
def test_arrays_that_describe_no_subgraph(arrays: dict[str, np.ndarray]) -> None:
    sound = {"row/e": np.zeros(3, np.int32), "col/e": np.ones(3, np.int32), "table/node/x": np.zeros((3, 2))}
    assert _checked(sound) is sound
    with pytest.raises(ValueError, match=r"not a list of integers|not as many other ends"):
        _checked(arrays)


TOKEN = bytes(range(16))


class NearDaemon(Daemon):
    """Serves batches that hold their own number: over its socket as ``script`` says, and by gRPC.

    ``script`` maps a sequence number to the bytes of an answer, or to None: it hangs up. Numbers that are not in it are
    answered well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.script, self.pid, self.name = {}, os.getpid(), f"atta-test-{secrets.token_hex(8)}"
        self.nearby, self.by_grpc, self.tokens, self.released = [], [], [], []
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

    def start(self, name: str, request: Any, *, timeout: float) -> Answer:
        self.by_grpc.append(int(request.sequence))
        self.released.append(list(request.released))
        return super().start(name, request, timeout=timeout)

    def _serve(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # nobody has come until the end of the test
            return
        self.tokens.append(connection.recv(100))
        with contextlib.suppress(OSError):  # the consumer has gone
            while packet := connection.recv(1 << 20):
                number = int(session_pb2.NextRequest.FromString(packet).sequence)
                self.nearby.append(number)
                answer = self.script.get(number, self.header(number))
                if answer is None:
                    break
                connection.send(answer)
        connection.close()

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


def near(daemon: Any) -> BatchStream:
    return BatchStream(daemon, Slots(), KEEPER, session_pb2.OpenRequest(shared_memory=True))


@pytest.fixture
def daemon() -> Iterator[NearDaemon]:
    made = NearDaemon()
    yield made
    made.close()


@pytest.mark.parametrize("answer", [None, b"\xff\xff", b"x" * 80_000], ids=["hangs up", "nonsense", "too long"])
def test_what_has_no_answer_there_has_one_by_grpc(answer: bytes | None, daemon: NearDaemon) -> None:
    daemon.script[1] = answer
    stream = near(daemon)
    found = numbers(stream)
    assert next(found) == 0
    stream._state._released.append(0)
    stream._read = None  # the request that went ahead did not name it
    assert list(found) == [1, 2]
    assert daemon.by_grpc == [1, 2]
    assert daemon.released[0] == [0], "the lost request's released batches must be named again"


def test_a_pending_batch_is_asked_for_again(daemon: NearDaemon) -> None:
    stream = near(daemon)
    pending = session_pb2.BatchHeader(pending=True).SerializeToString()
    found = numbers(stream)
    daemon.script[1] = pending
    assert next(found) == 0
    threading.Timer(0.1, daemon.script.pop, (1,)).start()
    assert next(found) == 1
    assert daemon.nearby.count(1) > 1
    assert not daemon.by_grpc


def test_a_batch_without_memory_is_the_daemons_mistake(daemon: NearDaemon) -> None:
    daemon.script[0] = session_pb2.BatchHeader(batch=0).SerializeToString() or b"\x10\0"
    with pytest.raises(RemoteError, match="sends no batch"):
        next(near(daemon))


@pytest.mark.parametrize(
    "why", ["another process", "no descriptor", "nobody-listens-here", "x" * 200, "a\0b", "ü" * 60]
)
def test_without_a_socket_grpc_has_the_answer(why: str, daemon: NearDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "another process":
        daemon.pid = 1
    elif why == "no descriptor":
        packets = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
        monkeypatch.setattr(asking, "memfiles", SimpleNamespace(**{**vars(memfiles), "packets": packets}))
    else:
        daemon.name = why
    assert list(numbers(near(daemon))) == [0, 1, 2]
    assert (daemon.nearby, daemon.by_grpc) == ([], [0, 1, 2])


class SilentDaemon(NearDaemon):
    """Accepts, and answers nothing."""

    def _serve(self) -> None:
        self.connection, _ = self._socket.accept()


@pytest.mark.parametrize(
    ("why", "error", "words"),
    [
        ("silent", RemoteError, "a question had no answer"),
        ("closed", RemoteError, "was cancelled"),
        ("cluster closed", ConfigError, "the cluster has been closed"),
        ("late", DeadlineError, r"no answer within 0\.2 s"),
    ],
)
def test_who_waits_is_freed(why: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "NEXT_DEADLINE_S", 0.2 if why == "late" else 20.0)
    daemon = SilentDaemon()
    stream = near(daemon)

    def give_up() -> None:
        time.sleep(0.1)
        if why == "closed":
            stream.close()
        elif why == "cluster closed":
            stream._state.close()
        elif why == "silent":
            stream._state.silent = True
            stream._state.call.cancel()

    threading.Thread(target=give_up).start()
    with pytest.raises(error, match=words):
        next(stream)
    assert not daemon.by_grpc
    daemon.close()


def test_a_request_that_is_too_long_goes_by_grpc(daemon: NearDaemon) -> None:
    nearby = NearbyDaemon.of(daemon.call("SessionService.Open", None), 5.0)
    assert not nearby.ask(session_pb2.NextRequest(released=range(10_000)))
    assert nearby.ask(session_pb2.NextRequest(session="s"))
    assert nearby.header().batch == 0
    nearby.end()
    nearby.end()
    assert not nearby.ask(session_pb2.NextRequest(sequence=1))
    assert nearby.header() is None


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


@dataclass
class Machine:
    """A host, and a GPU that works through the host's queue; times in seconds."""

    now: float = 0.0
    gpu_free: float = 0.0

    def clock(self) -> float:
        return self.now

    def event(self) -> Event:
        return Event(self, max(self.now, self.gpu_free))

    def host(self, seconds: float) -> None:
        self.now += seconds

    def queue(self, seconds: float) -> None:
        self.gpu_free = max(self.now, self.gpu_free) + seconds


@dataclass
class Event:
    machine: Machine
    reached: float
    asked: list[float] = field(default_factory=list)

    def query(self) -> bool:
        return self.reached <= self.machine.now

    def elapsed_time(self, later: Event) -> float:
        assert self.query()
        assert later.query(), "read before it was reached: torch would raise"
        return 1e3 * (later.reached - self.reached)


def train(pace: ConsumerPace, machine: Machine, *, wait: float, host: float, gpu: float, batches: int) -> None:
    for _ in range(batches):
        pace.done()
        machine.host(wait)
        pace.arrived()
        machine.queue(gpu)
        machine.host(host)


def test_without_a_gpu_the_host_counts_and_waiting_for_batches_does_not() -> None:
    machine = Machine()
    pace = ConsumerPace(machine.clock, lambda: None)
    train(pace, machine, wait=0.5, host=0.020, gpu=0.0, batches=10)
    assert pace.ms == pytest.approx(20)
    assert cuda_event() is None, "this process does not use CUDA"


@pytest.mark.parametrize(("host", "gpu"), [(0.001, 0.030), (0.030, 0.002)])
def test_with_a_gpu_the_slower_of_the_two_counts(host: float, gpu: float) -> None:
    machine = Machine()
    pace = ConsumerPace(machine.clock, machine.event)
    # The host may be a batch or two ahead of the GPU, as in training loops that read their loss.
    for _ in range(40):
        pace.done()
        machine.host(0.004)
        pace.arrived()
        machine.queue(gpu)
        machine.host(host)
        machine.now = max(machine.now, machine.gpu_free - 2 * gpu)
    assert pace.ms == pytest.approx(1e3 * max(host, gpu), rel=0.02)


def test_a_gpu_far_behind_is_never_waited_for_and_costs_bounded_memory() -> None:
    machine = Machine()
    pace = ConsumerPace(machine.clock, machine.event)
    train(pace, machine, wait=0.0, host=1e-4, gpu=1.0, batches=1000)
    assert machine.now == pytest.approx(0.1)
    assert len(pace._open) <= 16
    assert pace.ms == 0


def test_the_mean_follows_a_change_of_speed() -> None:
    machine = Machine()
    pace = ConsumerPace(machine.clock, lambda: None)
    train(pace, machine, wait=0.0, host=0.010, gpu=0.0, batches=20)
    train(pace, machine, wait=0.0, host=0.050, gpu=0.0, batches=21)
    assert pace.ms == pytest.approx(50, rel=0.02)


E = "node__to__node"
PLAIN = Schema(("node",), (E,), {"node": 16}, {E: 9}, {"node": {"x": TableSpec("<f4", (2,))}})
EPOCH = 4


@dataclass
class Session(Iterator[Any]):
    epoch: int
    first: int
    batches, version, unlaunched, moving = EPOCH, 7, 1, False
    closed = False

    def __next__(self) -> Any:
        if self.first == EPOCH:
            raise StopIteration
        self.first += 1
        return SimpleNamespace(batch=self.epoch * EPOCH + self.first - 1, version=self.version, stats={}, arrays={})

    def close(self) -> None:
        self.closed = True


class Cluster:
    schema, num_parts, dataset_id, ids, scratch = PLAIN, 1, "d", StringIds(PLAIN, []), None

    def __init__(self) -> None:
        self.full, self.begun, self.versions, self.sessions = False, [], [], list[Session]()

    def stream(self, request: Any, *_: Any, **__: Any) -> Any:
        if self.full:
            raise atta.QuotaExceededError("no more sessions")
        self.begun.append((request.epoch, request.start_batch))
        self.versions.append(request.version)
        self.sessions.append(Session(*self.begun[-1]))
        return self.sessions[-1]


def loader(cluster: Any, **options: Any) -> atta.NeighborLoader:
    options = {"rank": 0, "world_size": 1, **options}
    return atta.NeighborLoader(cluster, [2], np.arange(2 * EPOCH * options["world_size"]), batch_size=2, **options)


@pytest.mark.parametrize(
    ("begin", "state", "begun"),
    [
        (iter, None, [(0, 0), (1, 0)]),
        (lambda made: made.resume(5, 2), None, [(0, 0), (1, 0)]),
        (iter, {"epoch": 2, "batch": 3}, [(2, 3), (3, 0)]),
    ],
    ids=["iterated", "resumed", "loaded"],
)
def test_an_iteration_that_cannot_be_opened_is_no_epoch(begin: Callable[[Any], Any], state: Any, begun: Any) -> None:
    cluster = Cluster()
    made = loader(cluster)
    if state:
        made.load_state_dict({**made.state_dict(), **state})
    before = made.state_dict()
    cluster.full = True
    with pytest.raises(atta.QuotaExceededError):
        begin(made)
    assert made.state_dict() == before
    cluster.full = False
    iter(made)
    iter(made)
    assert cluster.begun == begun


def test_the_length_of_an_iterator_is_what_it_yields() -> None:
    made = loader(Cluster())
    assert len(iter(made)) == EPOCH
    assert [len(made.resume(0, batch)) for batch in range(EPOCH + 1)] == [4, 3, 2, 1, 0]
    made.load_state_dict({**made.state_dict(), "epoch": 2, "batch": 3})
    assert len(iter(made)) == 1
    assert len(made) == EPOCH


@dataclass
class Trainer:
    """Trains as Lightning does: asks for an iterator before it knows its epoch, and gives every rank rank 0's state."""

    epoch: int = 0
    trained: int = 0

    def batches(self, cluster: Any, **options: Any) -> EpochBatches:
        made = loader(cluster, transform=lambda batch: batch.batch_id, **options)
        return EpochBatches(made, lambda: (self.epoch, self.trained))

    def train(self, batches: Iterator[int], count: int) -> list[int]:
        found = []
        for _ in range(count):
            found.append(next(batches))
            self.trained += 1
        return found


def test_batches_are_those_of_the_epoch_in_which_the_first_is_asked_for() -> None:
    cluster, trainer = Cluster(), Trainer()
    batches = trainer.batches(cluster)
    unused, early = iter(batches), iter(batches)
    trainer.epoch = 2  # what Lightning finds out after it has asked for iterators
    assert trainer.train(early, EPOCH) == [8, 9, 10, 11]
    del unused
    assert cluster.begun == [(2, 0)]


def test_an_epoch_that_ends_early_closes_its_session_and_counts_as_a_whole() -> None:
    cluster, trainer = Cluster(), Trainer()
    batches = trainer.batches(cluster)
    begun = iter(batches)
    trainer.train(begun, 2)
    del begun
    assert [session.closed for session in cluster.sessions] == [True]
    trainer.epoch, trainer.trained = 1, 0
    assert list(batches) == [4, 5, 6, 7]


@pytest.mark.parametrize("failed", [0, 1])
def test_every_rank_goes_on_after_the_last_batch_that_was_trained_on(failed: int) -> None:
    trainer = Trainer(epoch=1)
    batches = trainer.batches(Cluster(), rank=0, world_size=2)
    begun = iter(batches)
    assert trainer.train(begun, 2) == [4, 5]
    for _ in range(failed):
        next(begun)
    state = batches.state_dict()

    for rank in range(2):
        cluster, resumed = Cluster(), Trainer()
        again = resumed.batches(cluster, rank=rank, world_size=2)
        again.load_state_dict(state)
        early = iter(again)
        resumed.epoch, resumed.trained = 1, 2
        assert list(early) == [6, 7]
        resumed.epoch, resumed.trained = 2, 0
        assert list(again) == [8, 9, 10, 11]
        assert (cluster.begun, cluster.versions) == ([(1, 2), (2, 0)], [Session.version, 0])


def test_a_state_of_an_epoch_that_has_ended_skips_nothing() -> None:
    trainer = Trainer()
    batches = trainer.batches(Cluster())
    assert trainer.train(iter(batches), EPOCH) == [0, 1, 2, 3]
    ended = batches.state_dict()
    trainer.epoch, trainer.trained = 1, 0
    again = trainer.batches(Cluster())
    again.load_state_dict(ended)
    assert list(again) == [4, 5, 6, 7]
