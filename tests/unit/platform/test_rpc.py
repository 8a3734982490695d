"""Errors keep their type and their cause across the wire."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from atta import errors
from atta.daemon.config import DaemonConfig
from atta.daemon.services.front import grpc_options
from atta.wire import rpc
from atta.wire.bulk import ARRAYS_BYTES
from atta.wire.pieces import MESSAGE_BYTES, announced


class FakeRpcError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError("fan-out -3"),
        errors.UnknownNameError("unknown split 'tran'"),
        errors.QuotaExceededError("too many sessions"),
        errors.WrongDatasetError("a:1", "serves dataset 12"),
        errors.RestartedError("a:1", "has been started anew"),
        errors.DaemonEndedError("[::1]:7", "the daemon of partition 1 was killed: out of memory?"),
        errors.DataError("part-0000/x.npy", "truncated"),
        errors.ChangedFileError("part-0000/x.npy", "truncated"),
    ],
)
def test_round_trip(error: errors.AttaError) -> None:
    back = rpc.error_from("b:2", FakeRpcError(*rpc.status_of(error)), 2.5)
    expected = errors.RemoteError if type(error) is errors.DataError else type(error)
    assert type(back) is expected
    assert str(error) in str(back)


def test_a_third_daemon_being_gone_is_not_retried_as_if_it_were_this_one() -> None:
    code, details = rpc.status_of(errors.UnavailableError("c:3", "no daemon answers"))
    assert code is not grpc.StatusCode.UNAVAILABLE
    assert "c:3" in str(rpc.error_from("b:2", FakeRpcError(code, details), 2.5))


def test_a_third_daemon_that_is_late_is_not_this_one_started_anew() -> None:
    for error in (errors.DeadlineError("c:3", "late"), errors.UnavailableError("c:3", "gone")):
        back = rpc.error_from("b:2", FakeRpcError(*rpc.status_of(error)), 2.5)
        assert type(back) is errors.PeerLostError
        assert str(back) == f"b:2: {error}"


@pytest.mark.parametrize(
    ("code", "details", "broke"),
    [
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", True),
        ("UNAVAILABLE", "GOAWAY received; Error code: 0", True),
        ("CANCELLED", "", True),
        ("CANCELLED", "Received RST_STREAM with error code 8", True),
        ("CANCELLED", "Locally cancelled by application!", False),
        ("CANCELLED", "Channel closed!", False),
        ("INTERNAL", "Received RST_STREAM with error code 2", True),
        ("UNKNOWN", "Stream removed", True),
        ("INTERNAL", "c:3: the connection broke (Received RST_STREAM with error code 2)", False),
        ("UNKNOWN", "ValueError: x", False),
        ("ABORTED", "Connection reset", False),
    ],
)
def test_a_call_that_breaks_off_without_a_word_is_one_whose_daemon_is_gone(
    code: str, details: str, broke: bool
) -> None:
    error = rpc.error_from("b:2", FakeRpcError(grpc.StatusCode[code], details), 2.5)
    assert isinstance(error, errors.UnavailableError) == broke
    assert str(error).startswith("b:2: ")


@pytest.mark.parametrize("name", rpc.METHODS)
def test_what_is_no_message_is_named(name: str) -> None:
    method = rpc.METHODS[name]
    with pytest.raises(
        errors.ConfigError, match=f"{method.path}: the request is not a {method.request.DESCRIPTOR.name}"
    ):
        method.decode_request(b"\xff" * 5)


def test_a_bug_is_reported_as_such() -> None:
    code, details = rpc.status_of(KeyError("x"))
    assert code is grpc.StatusCode.INTERNAL
    assert "KeyError" in details


@pytest.mark.parametrize("lacking", [MemoryError("of 1 GiB"), RuntimeError("can't start new thread")])
def test_a_lack_of_memory_is_a_bound(lacking: Exception) -> None:
    code, details = rpc.status_of(lacking)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    back = rpc.error_from("b:2", FakeRpcError(code, details), 2.5)
    assert isinstance(back, errors.QuotaExceededError)
    assert str(lacking) in str(back)


def test_other_runtime_errors_are_mistakes() -> None:
    assert rpc.status_of(RuntimeError("x"))[0] is grpc.StatusCode.INTERNAL


class Channel:
    """Gives callables that note how they are called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, kind: str) -> Any:
        def make(path: str, request_serializer: Any, response_deserializer: Any) -> Any:
            def begin(request: Any, **options: Any) -> str:
                sent = request if kind.startswith("unary") else list(request)
                self.calls.append((kind, sent))
                return f"{path} {options}"

            begin.future = begin  # type: ignore[attr-defined]
            return begin

        return make


@pytest.mark.parametrize("nbytes", [0, 100, MESSAGE_BYTES - 100, MESSAGE_BYTES, 2 * MESSAGE_BYTES])
@pytest.mark.parametrize("name", ["TableService.Pull", "TableService.Locate"])
def test_a_request_that_is_too_long_for_a_message_goes_in_pieces(name: str, nbytes: int) -> None:
    channel, method = Channel(), rpc.METHODS[name]
    request = method.request(**{"rows" if "Pull" in name else "ids": bytes(nbytes)})
    raw, stub = request.SerializeToString(), rpc.stub(channel, name)
    for begin in (stub, stub.future):
        assert begin(request, timeout=3) == f"{method.path} {{'timeout': 3}}"
    answers = "stream" if method.streams else "unary"
    if len(raw) <= MESSAGE_BYTES:
        assert channel.calls == [(f"unary_{answers}", raw)] * 2
        return
    for kind, (first, *rest) in channel.calls:
        assert kind == f"stream_{answers}"
        assert announced(first) == len(raw)
        assert b"".join(rest) == raw
        assert max(map(len, rest)) <= MESSAGE_BYTES


def test_a_daemon_accepts_no_longer_message_and_its_callers_do() -> None:
    limit = "grpc.max_receive_message_length"
    assert dict(grpc_options(DaemonConfig(data="", parts=range(1)), 10))[limit] == MESSAGE_BYTES
    assert dict(rpc.client_options())[limit] == rpc.MAX_MESSAGE_BYTES == ARRAYS_BYTES
