"""Where every request to a daemon passes: it is counted, admitted, parsed and answered, and an error becomes a gRPC
status.

Each handler is wrapped once, when the daemon starts. A ``grpc.aio.ServerInterceptor`` would be asked for a handler at
each request. So are those of the services that come with gRPC: health and reflection.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from atta.daemon.services.rooms import RequestRoom, RoomShare
from atta.errors import AttaError, ConfigError, RemoteError
from atta.observe.machine.threads import aside
from atta.wire import rpc
from atta.wire.identity import HEADER, Bound, Identity, check
from atta.wire.pieces import MESSAGE_BYTES

if TYPE_CHECKING:
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext
Handler = Callable[[Any, Context], Any]
"""Takes a request and its context. A coroutine that returns the reply, or an async generator if the method streams."""
Wrap = Callable[[str, Mapping[str, Handler]], Mapping[str, Handler]]
"""(service, its handlers): others in their place."""

log = structlog.get_logger("atta.wire.rpc")
MAX_ERROR_CHARS = 1000
"""Longest text of an error; a quarter where it is not ASCII. It may quote what the caller sent, and gRPC may refuse to
send more than 8 KiB, in which such a character takes up to twelve bytes."""


MAX_NAMED = 4096
"""At most this many clients, sessions or batches may be named in one request. The event loop goes through them."""


READ_FROM_FILES = ("GraphService.", "KvService.", "IdService.")
"""Methods that answer with what stands in the dataset's files. Sessions check their batches themselves."""


class Handling:
    """Makes gRPC handlers for a daemon that is ``identity`` and listens at ``address``, and counts their requests.

    A request is read when the caller has been admitted and there is ``room`` for it.

    All of it runs on the event loop.
    """

    def __init__(
        self, identity: Identity, address: str, room: RequestRoom, check_files: Callable[[], None] | None = None
    ) -> None:
        """``check_files``: raises DataError if a file has changed from which answers are read; None: none will."""
        self._identity, self._address, self._room = identity, address, room
        self._check_files = check_files
        self._headers = {bound: identity.named(bound) for bound in Bound}
        self._counts: Counter[str] = Counter()

    def stats(self) -> dict[str, float]:
        """``requests_SERVICE.METHOD``, ``request_errors_...`` and ``sent_bytes_...`` (bulk) of methods called so far."""
        return {name: float(value) for name, value in self._counts.items()}

    def service(self, service: str, owner: object, wrap: Wrap | None = None) -> grpc.GenericRpcHandler[Any, Any]:
        """The handlers of a service, as gRPC takes them. ``owner`` has them under the names of the service's methods:
        ``ListTables`` is its ``list_tables``. ``wrap``: what is put around each."""
        names = [name.partition(".")[2] for name in rpc.METHODS if name.startswith(f"{service}.")]
        found: Mapping[str, Handler] = {
            name: getattr(owner, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()) for name in names
        }
        if wrap is not None:
            found = wrap(service, found)
        wrapped = {name: self.handler(f"{service}.{name}", handler) for name, handler in found.items()}
        return rpc.handlers(service, wrapped, raw=True)

    def handler(self, name: str, handler: Handler) -> Callable[[Any, Context], Any]:
        """The handler of one method (``"KvService.Pull"``). It reads the request from its context."""
        return self._stream(name, handler) if rpc.METHODS[name].streams else self._unary(name, handler)

    def _unary(self, name: str, handler: Handler) -> Callable[[Any, Context], Any]:
        method, counts, sent = rpc.METHODS[name], self._counts, f"sent_bytes_{name}"

        async def answer(_: Any, context: Context) -> Any:
            self._begun(name)
            share: RoomShare | None = None
            request: Any = None
            try:
                self._admit(method.bound, context)
                share, request = await self._room.read(context, method.check_request_size)
                request = await _parsed(method, request)
                reply = await handler(request, context)
                self._check_read(name)
            except Exception as error:
                self._charge(share, request, error)
                request = None  # gRPC keeps this frame until garbage is collected
                await self._failed(name, error, context)
            finally:
                if share is not None:
                    self._room.leave(share)
            if isinstance(reply, bytes):
                counts[sent] += len(reply)
            return reply

        return answer

    def _stream(self, name: str, handler: Handler) -> Callable[[Any, Context], Any]:
        method, counts, sent = rpc.METHODS[name], self._counts, f"sent_bytes_{name}"

        async def answer(_: Any, context: Context) -> AsyncIterator[Any]:
            self._begun(name)
            share: RoomShare | None = None
            request: Any = None
            try:
                self._admit(method.bound, context)
                share, request = await self._room.read(context, method.check_request_size)
                request = await _parsed(method, request)
                async for reply in handler(request, context):
                    self._check_read(name)
                    counts[sent] += _bulk_bytes(reply)
                    yield reply
            except Exception as error:
                self._charge(share, request, error)
                request = None  # gRPC keeps this frame until garbage is collected
                await self._failed(name, error, context)
            finally:
                if share is not None:
                    self._room.leave(share)

        return answer

    def _check_read(self, name: str) -> None:
        """Whether the answer was read from files that are as they were opened."""
        if self._check_files is not None and name.startswith(READ_FROM_FILES):
            self._check_files()

    def _begun(self, name: str) -> None:
        self._counts[f"requests_{name}"] += 1
        self._counts[f"request_errors_{name}"] += 0  # a counter that is there before it counts shows its first step

    def _admit(self, bound: Bound, context: Context) -> None:
        """Refuse a request that is meant for another daemon; before it is parsed, as it may be of another version."""
        if bound is Bound.NOTHING:
            return
        metadata: Any = context.invocation_metadata()
        named = dict(metadata).get(HEADER, "//")
        if named != self._headers[bound]:
            check(self._identity, Identity.parse(named), bound, self._address)

    def _charge(self, share: RoomShare | None, request: Any, error: Exception) -> None:
        """Have a connection pause after a request that was no message (it is still bytes), or made no sense.

        Not after other errors. An honest caller may not know that a table is gone, or that there is no room.
        """
        if share is not None and (isinstance(request, bytes) or type(error) is ConfigError):
            self._room.refused(share)

    async def _failed(self, name: str, error: Exception, context: Context) -> NoReturn:
        """Count and log the error and end the call with its status. The daemon goes on serving."""
        self._counts[f"request_errors_{name}"] += 1
        if isinstance(error, grpc.aio.AbortError):  # the handler has ended the call itself
            raise error
        code, details = rpc.status_of(error)
        if isinstance(error, AttaError):
            log.info("request refused", method=name, caller=context.peer(), error=shortened(str(error)))
        else:
            log.error("request failed", method=name, caller=context.peer(), exc_info=error)
        _forget_frames(error)
        if isinstance(error, RemoteError) and error.peer == self._address:
            # Callers know this daemon by the address that they have asked. The one it listens on may be 0.0.0.0.
            details = error.cause
        await context.abort(code, shortened(details))


async def _parsed(method: rpc.RpcMethod, raw: bytes) -> Any:
    """The request. What has come in pieces is parsed on a thread: protobuf copies it."""
    if len(raw) <= MESSAGE_BYTES:
        return method.decode_request(raw)
    return await aside(method.decode_request, raw)


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what the frames of an error have, such as the request. Futures and gRPC keep errors until garbage is
    collected."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def check_named(what: str, count: int) -> None:
    """Raise ConfigError if one request names too many clients, sessions or batches."""
    if count > MAX_NAMED:
        raise ConfigError(f"{count} {what} in one request: at most {MAX_NAMED}")


def shortened(text: str) -> str:
    """The text of an error without what is too much of it, and without what is no Unicode."""
    text = text.encode("utf-8", "backslashreplace").decode()
    most = MAX_ERROR_CHARS if text.isascii() else MAX_ERROR_CHARS // 4
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]} ... ({left_out} more characters)"


def _bulk_bytes(reply: Any) -> int:
    if isinstance(reply, rpc.Bulk):
        return sum(memoryview(payload).nbytes for payload in reply.payloads.values())
    return len(reply) if isinstance(reply, bytes) else 0


MAX_BYTES = 4096
"""Largest message of these services: they name a service, a file or a symbol."""


def add_health_and_reflection(server: grpc.aio.Server, services: Iterable[str]) -> Any:
    """Serve both, for the services that have these names. Returns what keeps their health."""
    checked: Any = _Checked(server)
    keeper = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(keeper, checked)
    names = [*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
    # ``enable_server_reflection`` would take the stand-in for a server that is not asynchronous.
    reflector = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflector, checked)
    return keeper


class _Checked:
    """Stands for a gRPC server while handlers are added to it, and wraps each of them."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Generated code calls this as well as the next method. One of them is enough."""

    def add_registered_method_handlers(self, service: str, methods: dict[str, Any]) -> None:
        """Add the methods of a service."""
        made = {name: method for name, method in methods.items() if not _is_missing(method)}
        wrapped = {name: _wrapped(method) for name, method in made.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, wrapped),))


def _is_missing(method: Any) -> bool:
    """Whether gRPC's service does not have the method: generated code stands in for it, which is not asynchronous."""
    return method.unary_unary is not None and not inspect.iscoroutinefunction(method.unary_unary)


def _wrapped(method: Any) -> Any:
    """The handler of a method that gets nothing but messages of its type."""
    if method.request_streaming:
        return grpc.stream_stream_rpc_method_handler(
            _reading(method.stream_stream), _parser(method.request_deserializer), method.response_serializer
        )
    make = grpc.unary_stream_rpc_method_handler if method.response_streaming else grpc.unary_unary_rpc_method_handler
    function = method.unary_stream if method.response_streaming else method.unary_unary
    return make(_checking(function), _parser(method.request_deserializer), method.response_serializer)


def _parser(deserialise: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Returns an error where it would raise one: gRPC would call that an error of the daemon."""

    def parse(raw: bytes) -> Any:
        if len(raw) > MAX_BYTES:
            return ValueError(f"a message of {len(raw)} bytes: at most {MAX_BYTES} are possible")
        try:
            return deserialise(raw)
        except (DecodeError, ValueError) as error:
            return error

    return parse


async def _check(request: Any, context: Context) -> Any:
    if isinstance(request, Exception):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, shortened(f"the request is no message: {request}"))
    return request


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    async def answer(request: Any, context: Context) -> Any:
        return await function(await _check(request, context), context)

    return answer


def _reading(function: Callable[..., Any]) -> Callable[..., Any]:
    async def answer(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async def checked() -> AsyncIterator[Any]:
            async for request in requests:
                yield await _check(request, context)

        async for reply in function(checked(), context):
            yield reply

    return answer
