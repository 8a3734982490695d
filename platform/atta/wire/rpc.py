"""gRPC in one place: the table of methods, from which handlers and stubs are built, the options of channels, and how
errors cross the wire."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from atta import errors
from atta.protos.v1 import (
    backup_pb2,
    control_pb2,
    graph_pb2,
    ids_pb2,
    kv_pb2,
    link_pb2,
    query_pb2,
    session_pb2,
    table_pb2,
    update_pb2,
    weights_pb2,
)
from atta.wire import bulk
from atta.wire.bulk import ARRAYS_BYTES, check_fields, check_size
from atta.wire.identity import Bound
from atta.wire.pieces import MethodStub

ACCESS = "access refused: "
"""How the reason begins with which a daemon refuses a caller. Forgotten clients of tables have the same status."""
PEER_LOST = "another daemon does not answer: "
"""How the reason begins if a daemon needs another one that is away. Its defects have the same status."""
FILE_CHANGED = "a file of the dataset has changed: "
"""How the reason begins if a daemon has no dataset any more. Damaged snapshots have the same status."""
PEER_ENDED = "a daemon is gone: "
"""How it begins if that one is known to have ended: waiting for it would be in vain."""
MAX_MESSAGE_BYTES = ARRAYS_BYTES
"""Largest answer in one message. Senders cut long ones into chunks of a few MB. A request may have as many bytes, and
travels in pieces (``atta.wire.pieces``)."""


@dataclass(frozen=True, slots=True)
class Bulk:
    """A message and its large fields by number. On arrival their buffers are views of the received bytes."""

    message: Any
    payloads: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """One remote procedure.

    Attributes:
        bound: how its requests must name the daemon that they are meant for.
        streams: whether it answers with many replies.
        payload, request_payload: numbers of the large fields of replies and of requests.
    """

    path: str
    bound: Bound
    request: type[Message]
    reply: type[Message]
    streams: bool = False
    payload: tuple[int, ...] = ()
    request_payload: tuple[int, ...] = ()

    def encode_request(self, request: Any) -> bytes:
        """Serialise a request (a ``Bulk`` where the method has payload fields)."""
        if isinstance(request, Bulk):
            return bulk.pack(request.message, request.payloads)
        return bytes(request.SerializeToString())

    def check_request_size(self, nbytes: int) -> None:
        """Raise QuotaExceededError if no request of this method has so many bytes."""
        check_size(self.request, nbytes)

    def decode_request(self, raw: bytes) -> Any:
        """Parse a request; a ``Bulk`` of views into ``raw`` where the method has payload fields. Raises ConfigError:
        the bytes are not such a message; QuotaExceededError: it has too many bytes or fields."""
        try:
            check_fields(self.request, raw)
            if self.request_payload:
                return Bulk(*bulk.unpack(self.request, raw, self.request_payload))
            return self.request.FromString(raw)
        except (DecodeError, ValueError) as error:
            raise errors.ConfigError(
                f"{self.path}: the request is no {self.request.DESCRIPTOR.name}: {error}"
            ) from error

    def encode_reply(self, reply: Any) -> bytes:
        """Serialise a reply (a ``Bulk`` where the method has payload fields, or bytes that are serialised already)."""
        if isinstance(reply, bytes):
            return reply
        if isinstance(reply, Bulk):
            return bulk.pack(reply.message, reply.payloads)
        return bytes(reply.SerializeToString())

    def decode_reply(self, raw: bytes) -> Any:
        """Parse a reply; a ``Bulk`` of views into ``raw`` where the method has payload fields."""
        return Bulk(*bulk.unpack(self.reply, raw, self.payload)) if self.payload else self.reply.FromString(raw)


_MODULES = (
    backup_pb2, control_pb2, graph_pb2, ids_pb2, kv_pb2,
    link_pb2, query_pb2, session_pb2, table_pb2, update_pb2, weights_pb2,
)  # fmt: skip
_BOUND = {
    "ParameterService": Bound.PROCESS,
    "SessionService": Bound.PROCESS,
    "ControlService": Bound.NAMED,
    "ControlService.Describe": Bound.NOTHING,
}
"""What requests of a service or a method must name. Others are bound to data."""
_REPLY_FIELDS = {
    "GraphService.Sample": bulk.SAMPLE_REPLY,
    "KvService.Pull": bulk.PULL_REPLY,
    "TableService.Pull": bulk.ROWS_CHUNK,
    "ParameterService.Begin": bulk.BEGIN_REPLY,
    "ParameterService.Pull": bulk.WEIGHTS_REPLY,
    "SessionService.Next": bulk.BATCH_CHUNK,
}
_REQUEST_FIELDS = {
    "TableService.Push": bulk.PUSH_REQUEST,
    "ParameterService.Create": bulk.CREATE_REQUEST,
    "ParameterService.Push": bulk.GRADIENT_REQUEST,
}


def _declared(service: Any) -> Iterator[tuple[str, RpcMethod]]:
    for method in service.methods:
        name = f"{service.name}.{method.name}"
        yield (
            name,
            RpcMethod(
                f"/{service.full_name}/{method.name}",
                _BOUND.get(name, _BOUND.get(service.name, Bound.DATA)),
                GetMessageClass(method.input_type),
                GetMessageClass(method.output_type),
                method.server_streaming,
                _REPLY_FIELDS.get(name, ()),
                _REQUEST_FIELDS.get(name, ()),
            ),
        )


METHODS: dict[str, RpcMethod] = {
    name: method
    for module in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for name, method in _declared(service)
}
"""Every method that the .proto files declare, by ``SERVICE.METHOD``."""

_RETRY = json.dumps(
    {
        "methodConfig": [
            {
                # Not streams: gRPC 1.85 may retry a stream for ever, past its deadline, if its connection breaks as it
                # begins.
                "name": [
                    {"service": f"atta.v1.{name.partition('.')[0]}", "method": name.partition(".")[2]}
                    for name, method in METHODS.items()
                    if not method.streams
                ],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


def channel_options(received_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, Any]]:
    """Options of both sides of a connection: bounds of messages, keep-alive, and retries while a peer restarts.

    ``received_bytes``: the longest message that this side accepts.

    Retrying is safe because every procedure is idempotent: sampling is a pure function, ``Next`` and pushes are
    numbered. Streams are not retried here. Their readers begin them again."""
    return [
        ("grpc.max_receive_message_length", received_bytes),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.service_config", _RETRY),
    ]


def client_options() -> list[tuple[str, Any]]:
    """Options of channels: those of both sides, and how to connect.

    A daemon that comes back is seen within a second, even if its host name now stands for another address. By default
    gRPC waits up to two minutes between two attempts. Every channel has a connection of its own (but see
    ``open_channels``): channels that share one also wait together."""
    return [
        *channel_options(),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # in spite of its name: how long one attempt may take
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ]


HANDLERS: dict[tuple[bool, bool], Any] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""What makes a handler, by whether it reads requests itself, and whether it streams replies."""


def handlers(
    service: str, methods: Mapping[str, Callable[..., Any]], *, raw: bool = False
) -> grpc.GenericRpcHandler[Any, Any]:
    """The handlers of ``service``: a coroutine for each method, or an async generator if the method streams. ``raw``:
    whether they read requests themselves, as bytes, from their contexts (``await context.read()``). gRPC then treats a
    request as a stream of one message: on the wire that is the same."""
    table = {}
    for name, function in methods.items():
        method = METHODS[f"{service}.{name}"]
        make = HANDLERS[raw, method.streams]
        table[name] = make(
            function,
            request_deserializer=None if raw else method.decode_request,
            response_serializer=method.encode_reply,
        )
    return grpc.method_handlers_generic_handler(f"atta.v1.{service}", table)


def stub(channel: Any, name: str) -> MethodStub:
    """A callable for one method (``"KvService.Pull"``) over a sync or asyncio channel."""
    method = METHODS[name]
    encode, decode = method.encode_request, method.decode_reply
    return MethodStub(channel, method.path, encode=encode, decode=decode, streams=method.streams)


_STATUS: dict[type[errors.AttaError], grpc.StatusCode] = {
    errors.UnknownClientError: grpc.StatusCode.UNAUTHENTICATED,
    errors.UnknownNameError: grpc.StatusCode.NOT_FOUND,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DataError: grpc.StatusCode.DATA_LOSS,
    errors.QuotaExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.WrongDatasetError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleRowError: grpc.StatusCode.OUT_OF_RANGE,
    errors.RestartedError: grpc.StatusCode.ABORTED,
    errors.DrainingError: grpc.StatusCode.UNAVAILABLE,
    errors.RemoteError: grpc.StatusCode.INTERNAL,
    errors.AttaError: grpc.StatusCode.INTERNAL,
}


@contextlib.contextmanager
def understanding(peer: str) -> Iterator[None]:
    """Read a reply of ``peer`` within: what cannot be made of it is its error, not one of this process. Raises
    RemoteError: instead of the errors of Python and numpy that bytes, numbers or JSON without a meaning cause."""
    try:
        yield
    except errors.AttaError:
        raise
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        cause = f"{type(error).__name__}: {error}"[:200]
        raise errors.RemoteError(peer, f"sends an answer that cannot be read ({cause})") from error


def answered(peer: str, reply: Any) -> Any:
    """``reply`` to a call; gRPC's is None if it cannot be read, or if a server ends the call well and sends none:
    RemoteError."""
    if reply is None:
        raise errors.RemoteError(peer, "ends a call without an answer that can be read")
    return reply


NO_THREAD = "can't start new thread"


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """The gRPC status that carries ``error``: each of Atta's errors has its own, anything else is INTERNAL. A lack of
    memory is a bound that was reached: the request fails, the daemon goes on. Python says so, too, when there is no
    room for the stack of a thread."""
    if isinstance(error, MemoryError) or (type(error) is RuntimeError and str(error) == NO_THREAD):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, f"not enough memory: {error}"
    # A third daemon did not answer. The caller must not think that this one did not answer: it would retry in vain.
    lost = errors.DeadlineError | errors.UnavailableError | errors.PeerLostError
    if isinstance(error, errors.DaemonEndedError):
        return grpc.StatusCode.INTERNAL, f"{PEER_ENDED}{error}"
    if isinstance(error, lost) and not isinstance(error, errors.DrainingError):
        return grpc.StatusCode.INTERNAL, f"{PEER_LOST}{str(error).rpartition(PEER_LOST)[2]}"  # not who passes it on
    if isinstance(error, errors.ChangedFileError):
        return grpc.StatusCode.DATA_LOSS, f"{FILE_CHANGED}{error}"
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind], str(error)
    return grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"


def error_from(peer: str, error: grpc.RpcError, deadline_s: float) -> errors.AttaError:
    """The typed error of a call to ``peer`` that has failed within ``deadline_s``. Its message is what the peer said."""
    code, details = error.code(), error.details() or ""
    if _broke_off(code, details):
        return errors.UnavailableError(peer, f"the connection broke ({_brief(details)})")
    if code in _OF_PEERS:
        return _OF_PEERS[code](peer, details)
    if code in _PLAIN:
        return _PLAIN[code](details)
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return _unreached(peer, details)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.DeadlineError(peer, f"no answer within {deadline_s:g} s")
        case grpc.StatusCode.UNAUTHENTICATED:
            known = details.startswith(ACCESS)
            return errors.NotAuthenticatedError(peer, details) if known else errors.UnknownClientError(details)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return errors.QuotaExceededError(f"{peer}: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return errors.RemoteError(peer, "is not an Atta daemon, or one of another version")
    return _failed(peer, code, details)


_OF_PEERS: dict[grpc.StatusCode, Callable[[str, str], errors.AttaError]] = {
    grpc.StatusCode.FAILED_PRECONDITION: errors.WrongDatasetError,
    grpc.StatusCode.ABORTED: errors.RestartedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.NotAllowedError,
}
_PLAIN: dict[grpc.StatusCode, Callable[[str], errors.AttaError]] = {
    grpc.StatusCode.NOT_FOUND: errors.UnknownNameError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.ConfigError,
    grpc.StatusCode.OUT_OF_RANGE: errors.StaleRowError,
}
"""Errors that are not the peer's."""


def _broke_off(code: grpc.StatusCode, details: str) -> bool:
    """Whether the other side, or something in between, ended a call without saying why. A daemon that stops in the
    middle of an answer cancels it. A killed daemon, or a proxy, may reset the stream."""
    if code is grpc.StatusCode.CANCELLED:
        return not details.startswith(_OWN_DOING)
    return code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN} and details.startswith(_BROKEN)


def _failed(peer: str, code: grpc.StatusCode, details: str) -> errors.AttaError:
    if details.startswith(FILE_CHANGED):
        # The path is one of the machine of the daemon that reads it, so that daemon is named, too.
        path, _, cause = details.removeprefix(FILE_CHANGED).partition(": ")
        named = cause if "(the daemon at " in cause else f"{cause} (the daemon at {peer})"
        return errors.ChangedFileError(path, named)
    if details.startswith(PEER_LOST):
        return errors.PeerLostError(peer, details)
    if details.startswith(PEER_ENDED):
        return errors.DaemonEndedError(*details.removeprefix(PEER_ENDED).split(": ", 1))
    return errors.RemoteError(peer, details or str(code))


def _unreached(peer: str, details: str) -> errors.RemoteError:
    """The error of a connection that does not come about."""
    if details.endswith(errors.DrainingError.CAUSE):
        return errors.DrainingError(peer)
    if "WRONG_VERSION_NUMBER" in details:
        cure = "start it with --tls-cert, or take [tls] out of the cluster file"
        return errors.NotAuthenticatedError(peer, f"no TLS connection comes about: the daemon has none; {cure}")
    if _UNTRUSTED in details:
        why = details.rpartition(_UNTRUSTED)[2].strip(": )")
        said = f"its certificate is not of the authority that you trust (ca of [tls] in the cluster file): {why}"
        return errors.NotAuthenticatedError(peer, f"no TLS connection comes about: {said}")
    if any(sign in details for sign in _NO_HANDSHAKE):
        return errors.NotAuthenticatedError(peer, f"no TLS connection comes about ({_brief(details)})")
    why = next((said for sign, said in _WHY.items() if re.search(sign, details)), _brief(details))
    return errors.UnavailableError(peer, f"no daemon answers: {why}")


# A daemon with TLS accepts the connection of a caller that it does not trust before it closes it.
CLOSES = "what listens there closes connections at once"
_WHY = {  # patterns of gRPC's words, and what is said instead
    "Connection refused": "nothing listens there (connection refused)",
    "errors resolving|DNS resolution failed": "host not found",
    "timed out": "the connection timed out",
    "Failed parsing HTTP/2": "what listens there is no daemon",
    "failed to connect.*Socket closed": CLOSES,
}
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_NO_HANDSHAKE = ("erification Check failed", "_ALERT_")
_OWN_DOING = ("Locally cancelled", "Cancelled upon", "Channel closed")
_BROKEN = ("Received RST_STREAM", "RST_STREAM", "Stream removed", "Connection reset")


def _brief(details: str) -> str:
    last = details.rpartition("; last error: ")[2]
    return re.sub(r"^[A-Z]+: ipv[46]:\S+: (Failed to connect to remote host: )?", "", last)[:200]
