"""One place admits, counts and answers requests, and turns errors into statuses."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest

from atta.daemon.services.handling import Handling
from atta.daemon.services.rooms import RequestRoom
from atta.errors import ConfigError, UnavailableError, WrongDatasetError
from atta.protos.v1 import control_pb2, table_pb2
from atta.wire.bulk import ROWS_VALUES
from atta.wire.identity import HEADER, Bound, Identity
from atta.wire.rpc import Bulk

HERE = Identity(1, "data", "now")
PULL = table_pb2.PullRowsRequest(name="t")


class Aborted(Exception):
    """The status that the client gets instead of an answer."""


class Context:
    def __init__(self, named: str | None, raw: bytes = b"") -> None:
        self._named, self._raw = named, raw

    async def read(self) -> bytes:
        return self._raw

    def invocation_metadata(self) -> Any:
        return () if self._named is None else ((HEADER, self._named),)

    def peer(self) -> str:
        return "somewhere"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(f"{code.name}: {details}")


class Service:
    """Records the requests that reach it, and fails on demand."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.error: Exception | None = None

    async def stats(self, request: control_pb2.StatsRequest, context: Any) -> control_pb2.StatsReply:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return control_pb2.StatsReply(counters={"a": 1})

    async def pull(self, request: table_pb2.PullRowsRequest, context: Any) -> AsyncIterator[Any]:
        self.requests.append(request)
        yield b"12345"
        yield Bulk(table_pb2.RowsChunk(), {ROWS_VALUES: np.zeros(3, np.int64)})
        if self.error is not None:
            raise self.error


class Daemon:
    """The handlers of a daemon at ``here:1``, without gRPC."""

    def __init__(self) -> None:
        self.handling, self.service = Handling(HERE, "here:1", RequestRoom(1 << 30)), Service()
        self._stats = self.handling.handler("ControlService.Stats", self.service.stats)
        self._pull = self.handling.handler("TableService.Pull", self.service.pull)

    def stats(self, named: str | None = HERE.named(Bound.NAMED), raw: bytes = b"") -> Any:
        context: Any = Context(named, raw)
        return asyncio.run(self._stats(None, context))

    def pull(self, named: str | None = HERE.named(Bound.DATA), raw: bytes = PULL.SerializeToString()) -> list[Any]:
        context: Any = Context(named, raw)

        async def read() -> list[Any]:
            return [reply async for reply in self._pull(None, context)]

        return asyncio.run(read())


def test_a_request_arrives_as_its_message_and_the_reply_leaves_as_it_is() -> None:
    daemon = Daemon()
    assert daemon.stats() == control_pb2.StatsReply(counters={"a": 1})
    first, second = daemon.pull()
    assert first == b"12345"
    assert isinstance(second, Bulk)
    assert daemon.service.requests == [control_pb2.StatsRequest(), PULL]


def test_requests_errors_and_bulk_bytes_are_counted_by_method() -> None:
    daemon = Daemon()
    daemon.stats()
    assert daemon.handling.stats() == {"requests_ControlService.Stats": 1, "request_errors_ControlService.Stats": 0}
    daemon.pull()
    daemon.service.error = ValueError("broken")
    for ask in (daemon.stats, daemon.pull):
        with pytest.raises(Aborted):
            ask()
    assert daemon.handling.stats() == {
        "requests_ControlService.Stats": 2,
        "request_errors_ControlService.Stats": 1,
        "requests_TableService.Pull": 2,
        "request_errors_TableService.Pull": 1,
        "sent_bytes_TableService.Pull": 2 * (5 + 24),
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("fan-out -3"), "INVALID_ARGUMENT: fan-out -3"),
        (ValueError("broken"), "INTERNAL: ValueError: broken"),
        (
            UnavailableError("third:3", "no daemon answers"),
            "INTERNAL: another daemon does not answer: third:3: no daemon answers",
        ),
        (
            WrongDatasetError("here:1", "serves another"),
            "FAILED_PRECONDITION: serves another",
        ),  # asked for as another type
    ],
)
def test_errors_become_statuses(error: Exception, status: str) -> None:
    daemon = Daemon()
    daemon.service.error = error
    for ask in (daemon.stats, daemon.pull):
        with pytest.raises(Aborted, match=f"^{status}$"):
            ask()


@pytest.mark.parametrize("named", [None, "//", "2/data/", "1/other/", "1/other/now"])
def test_what_is_meant_for_another_daemon_reaches_no_handler(named: str | None) -> None:
    daemon = Daemon()
    with pytest.raises(Aborted, match=r"^FAILED_PRECONDITION: serves partition 1 of dataset data"):
        daemon.pull(named, b"not looked at")
    assert daemon.service.requests == []
    assert daemon.handling.stats()["request_errors_TableService.Pull"] == 1


def test_what_is_no_message_reaches_no_handler() -> None:
    daemon = Daemon()
    for ask, name in ((daemon.stats, "StatsRequest"), (daemon.pull, "PullRowsRequest")):
        with pytest.raises(Aborted, match=rf"INVALID_ARGUMENT: .*the request is not a {name}"):
            ask(raw=b"\xff" * 5)
    assert daemon.service.requests == []


def test_a_stream_that_its_reader_leaves_is_no_error() -> None:
    daemon = Daemon()
    context: Any = Context(HERE.named(Bound.DATA))

    async def leave() -> None:
        replies = daemon._pull(PULL.SerializeToString(), context)
        async for _ in replies:
            break
        await replies.aclose()

    asyncio.run(leave())
    assert daemon.handling.stats()["request_errors_TableService.Pull"] == 0


class Held:
    """What a request brings, and a frame has."""


def test_an_error_that_is_kept_keeps_nothing_of_its_request() -> None:
    """gRPC keeps the status with which a handler ends its call, in a cycle with the call."""
    kept: list[BaseException] = []
    freed: list[Any] = []

    async def stats(request: Any, context: Any) -> Any:
        held = Held()
        freed.append(weakref.ref(held))
        try:
            raise KeyError(len(vars(held)))
        except KeyError as error:
            kept.append(error)
            raise ConfigError("wrong") from error

    async def pull(request: Any, context: Any) -> AsyncIterator[Any]:
        await stats(request, context)
        yield b""

    handling = Handling(HERE, "here:1", RequestRoom(1 << 30))
    unary, stream = handling.handler("ControlService.Stats", stats), handling.handler("TableService.Pull", pull)

    async def call() -> None:
        context: Any = Context(HERE.named(Bound.NAMED))
        try:
            await unary(None, context)
        except Aborted as error:
            kept.append(error)
        context = Context(HERE.named(Bound.DATA), PULL.SerializeToString())
        try:
            [reply async for reply in stream(None, context)]
        except Aborted as error:
            kept.append(error)

    gc.disable()
    try:
        asyncio.run(call())
        assert len(kept) == 4
        assert [ref() for ref in freed] == [None, None]
    finally:
        gc.enable()
