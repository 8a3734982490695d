"""Where every request to a daemon passes: it is counted, admitted, parsed and answered, and an error becomes a gRPC
status. So do those of the services that come with gRPC: health and reflection."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
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
Admit = Callable[[str, Context], Awaitable[None]]
"""(method such as ``atta.v1.KvService/Pull``, context): ends the call if its caller may not make it."""

log = structlog.get_logger("atta.wire.rpc")
MAX_ERROR_CHARS = 1000
"""Longest text of an error; a quarter where it is not ASCII. gRPC may refuse 8 KiB, with twelve bytes per character."""


MAX_NAMED = 4096
"""At most this many clients, sessions or batches may be named in one request. The event loop goes through them."""


READ_FROM_FILES = ("GraphService.", "KvService.", "IdService.")
"""Methods that answer with what stands in the dataset's files. Sessions check their batches themselves."""


async def everybody(method: str, context: Context) -> None:
    """Admits all callers."""


class Handling:
    """Makes gRPC handlers for a daemon that is ``identity`` and listens at ``address``, and counts their requests. A
    request is read when the caller has been admitted and there is ``room`` for it. All of it runs on the event loop."""

    def __init__(
        self,
        identity: Identity,
        address: str,
        room: RequestRoom,
        check_files: Callable[[], None] = lambda: None,
        admit: Admit = everybody,
    ) -> None:
        """``check_files``: raises DataError if a file has changed from which answers are read."""
        self.identity, self.address, self.room = identity, address, room
        self.check_files, self.admit = check_files, admit
        self.headers = {bound: identity.named(bound) for bound in Bound}
        self.counts: Counter[str] = Counter()

    def stats(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.counts.items()}

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

        async def answer(_: Any, context: Context) -> Any:
            async with ServedCall(self, name, context) as call:
                reply = await handler(call.request, context)
                call.answers(reply)
            return reply

        async def stream(_: Any, context: Context) -> AsyncIterator[Any]:
            async with ServedCall(self, name, context) as call:
                async for reply in handler(call.request, context):
                    call.answers(reply)
                    yield reply

        return stream if rpc.METHODS[name].streams else answer


class ServedCall:
    """One call: admitted and read, then answered; an error ends it with its status. The daemon goes on serving. gRPC
    keeps the frames of calls until garbage is collected, so what failed lets go of its request."""

    def __init__(self, handling: Handling, name: str, context: Context) -> None:
        self._handling, self._name, self._context = handling, name, context
        self._share: RoomShare | None = None
        self.request: Any = None

    async def __aenter__(self) -> ServedCall:
        handling, method = self._handling, rpc.METHODS[self._name]
        await handling.admit(method.path.removeprefix("/"), self._context)
        handling.counts[f"requests_{self._name}"] += 1
        # A counter that is there before it counts shows its first step.
        handling.counts[f"request_errors_{self._name}"] += 0
        try:
            self._check_meant(method.bound)
            self._share, self.request = await handling.room.read(self._context, method.check_request_size)
            large = len(self.request) > MESSAGE_BYTES  # it came in pieces, and protobuf copies it: on a thread
            parse = method.decode_request
            self.request = await aside(parse, self.request) if large else parse(self.request)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    def _check_meant(self, bound: Bound) -> None:
        """Refuse a request that is meant for another daemon; before it is parsed, as it may be of another version."""
        if bound is not Bound.NOTHING:
            metadata: Any = self._context.invocation_metadata()
            named = dict(metadata).get(HEADER, "//")
            if named != self._handling.headers[bound]:
                check(self._handling.identity, Identity.parse(named), bound, self._handling.address)

    def answers(self, reply: Any) -> None:
        """Count an answer. Raises DataError if it was read from files that are not as they were opened."""
        if self._name.startswith(READ_FROM_FILES):
            self._handling.check_files()
        if rpc.METHODS[self._name].payload:
            self._handling.counts[f"sent_bytes_{self._name}"] += _bulk_bytes(reply)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        del trace  # it has the frames of the handler
        try:
            if isinstance(error, Exception):
                # A connection pauses after a request that was no message (it is still bytes), or made no sense. Not after
                # other errors: an honest caller may not know that a table is gone, or that there is no room.
                if self._share is not None and (isinstance(self.request, bytes) or kind is ConfigError):
                    self._handling.room.refused(self._share)
                self.request = None
                await self._fail(error)
        finally:
            if self._share is not None:
                self._handling.room.leave(self._share)

    async def _fail(self, error: Exception) -> NoReturn:
        """Count and log the error and end the call with its status."""
        handling, name = self._handling, self._name
        handling.counts[f"request_errors_{name}"] += 1
        if isinstance(error, grpc.aio.AbortError):  # the handler has ended the call itself
            raise error
        code, details = rpc.status_of(error)
        if isinstance(error, AttaError):
            log.info("request refused", method=name, caller=self._context.peer(), error=shortened(str(error)))
        else:
            log.error("request failed", method=name, caller=self._context.peer(), exc_info=error)
        _forget_frames(error)
        if isinstance(error, RemoteError) and error.peer == handling.address:
            # Callers know this daemon by the address that they have asked. The one it listens on may be 0.0.0.0.
            details = error.cause
        await self._context.abort(code, shortened(details))


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what the frames of an error have, such as the request: futures and gRPC keep errors for long."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def check_named(what: str, count: int) -> None:
    """Raise ConfigError if one request names too many clients, sessions or batches."""
    if count > MAX_NAMED:
        raise ConfigError(f"{count} {what} in one request: at most {MAX_NAMED}")


MAX_NAME_CHARS = 64
"""Longest name of a job."""


def check_printable(job: str) -> None:
    """Raise ConfigError for a job's name that people could not be shown as it is."""
    if not job.isprintable():
        raise ConfigError(f"job {job[:MAX_NAME_CHARS]!r}: its name must have printable characters alone")


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


def add_health_and_reflection(server: grpc.aio.Server, services: Iterable[str], admit: Admit = everybody) -> Any:
    """Serve both, for the services that have these names. Returns what keeps their health."""
    checked: Any = _Checked(server, admit)
    keeper = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(keeper, checked)
    names = [*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
    # ``enable_server_reflection`` would take the stand-in for a server that is not asynchronous.
    reflector = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflector, checked)
    return keeper


class _Checked:
    """Stands for a gRPC server while handlers are added to it, and wraps each of them."""

    def __init__(self, server: grpc.aio.Server, admit: Admit) -> None:
        self._server, self._admit = server, admit

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Generated code calls this as well as the next method. One of them is enough."""

    def add_registered_method_handlers(self, service: str, methods: dict[str, Any]) -> None:
        wrapped = {
            name: self._wrapped(f"{service}/{name}", method)
            for name, method in methods.items()
            # Generated code stands in for methods that gRPC's service does not have. It is not asynchronous.
            if method.unary_unary is None or inspect.iscoroutinefunction(method.unary_unary)
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, wrapped),))

    def _wrapped(self, name: str, method: Any) -> Any:
        """The handler of a method that gets nothing but messages of its type, from callers who may send them."""

        async def message(context: Context) -> Any:
            return await _read_message(await context.read(), method.request_deserializer, context)

        async def messages(context: Context) -> AsyncIterator[Any]:
            while (raw := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                yield await _read_message(raw, method.request_deserializer, context)

        async def answer(_: Any, context: Context) -> Any:
            await self._admit(name, context)
            return await (method.unary_unary or method.unary_stream)(await message(context), context)

        async def stream(_: Any, context: Context) -> AsyncIterator[Any]:
            await self._admit(name, context)
            async for reply in method.stream_stream(messages(context), context):
                yield reply

        make = rpc.HANDLERS[True, method.response_streaming]
        return make(stream if method.request_streaming else answer, None, method.response_serializer)


async def _read_message(raw: Any, parse: Callable[[bytes], Any], context: Context) -> Any:
    try:
        if raw is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise ValueError("the call ended before it")
        if len(raw) > MAX_BYTES:
            raise ValueError(f"a message of {len(raw)} bytes: at most {MAX_BYTES} are possible")
        return parse(raw)
    except (DecodeError, ValueError) as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, shortened(f"the request is no message: {error}"))
