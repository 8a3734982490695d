"""Batches that come over a network are received while the consumer computes.

Those in shared memory need no such step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from atta.client.sessions.stream import BatchStream, _checked
from atta.errors import AttaError, ConfigError, RemoteError
from atta.protos.v1 import session_pb2
from atta.wire import rpc
from atta.wire.rpc import Bulk
from tests.waiting import eventually

BATCHES = 3
KEEPER: Any = SimpleNamespace(watch=lambda _: None, keep=lambda *_: None, discard=lambda _: None)


class Failure(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return "out of memory"


class Daemon:
    """Serves a session whose batches hold their own number, and records which ones are read to the end."""

    address = "daemon:1"

    def __init__(self, failing: int = -1, dtype: str = "<i8", shape: tuple[int, ...] = (1,)) -> None:
        self.read: list[int] = []
        self.readers: set[str] = set()
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
            raise Failure
        yield Bulk(session_pb2.BatchChunk(), {2: data.tobytes()})
        self.read.append(number)


class Answer:
    def __init__(self, chunks: Iterator[Bulk]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[Bulk]:
        return self._chunks

    def __next__(self) -> Bulk:
        return next(self._chunks)

    def cancel(self) -> None:
        pass


def opened(daemon: Any, *, shared: bool) -> BatchStream:
    return BatchStream(daemon, Any, KEEPER, session_pb2.OpenRequest(shared_memory=shared))  # type: ignore[arg-type]


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
    with pytest.raises(ValueError, match=r"not a list of integers|not as many other ends"):
        _checked(arrays)


def test_arrays_that_describe_a_subgraph() -> None:
    sound = {"row/e": np.zeros(3, np.int32), "col/e": np.ones(3, np.int32), "table/node/x": np.zeros((3, 2))}
    assert _checked(sound) is sound
