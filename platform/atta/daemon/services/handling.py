"""Where every request to a daemon passes: it is counted, admitted, parsed and answered, and an error becomes a gRPC
status.

Each handler is wrapped once, when the daemon starts. A ``grpc.aio.ServerInterceptor`` would be asked for a handler at
each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc
import structlog

from atta.errors import AttaError, RemoteError
from atta.wire import rpc
from atta.wire.identity import HEADER, Bound, Identity, check

__all__ = ["Context", "Handler", "Handling"]

if TYPE_CHECKING:
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext
Handler = Callable[[Any, Context], Any]
"""Takes a request and its context. A coroutine that returns the reply, or an async generator if the method streams."""

log = structlog.get_logger("atta.wire.rpc")


class Handling:
    """Makes gRPC handlers for a daemon that is ``identity`` and listens at ``address``, and counts their requests.

    All of it runs on the event loop.
    """

    def __init__(self, identity: Identity, address: str) -> None:
        self._identity, self._address = identity, address
        self._headers = {bound: identity.named(bound) for bound in Bound}
        self._counts: Counter[str] = Counter()

    def stats(self) -> dict[str, float]:
        """``requests_SERVICE.METHOD``, ``request_errors_...`` and ``sent_bytes_...`` (bulk) of methods called so far."""
        return {name: float(value) for name, value in self._counts.items()}

    def service(self, service: str, handlers: Mapping[str, Handler]) -> grpc.GenericRpcHandler[Any, Any]:
        """The handlers of a service, by method, as gRPC takes them."""
        wrapped = {name: self.handler(f"{service}.{name}", handler) for name, handler in handlers.items()}
        return rpc.handlers(service, wrapped, raw=True)

    def handler(self, name: str, handler: Handler) -> Callable[[bytes, Context], Any]:
        """The handler of one method (``"KvService.Pull"``), for requests as bytes."""
        return self._stream(name, handler) if rpc.METHODS[name].streams else self._unary(name, handler)

    def _unary(self, name: str, handler: Handler) -> Callable[[bytes, Context], Any]:
        method, counts, sent = rpc.METHODS[name], self._counts, f"sent_bytes_{name}"

        async def answer(raw: bytes, context: Context) -> Any:
            self._begun(name)
            try:
                self._admit(method.bound, context)
                reply = await handler(method.decode_request(raw), context)
            except Exception as error:
                await self._failed(name, error, context)
            if isinstance(reply, bytes):
                counts[sent] += len(reply)
            return reply

        return answer

    def _stream(self, name: str, handler: Handler) -> Callable[[bytes, Context], Any]:
        method, counts, sent = rpc.METHODS[name], self._counts, f"sent_bytes_{name}"

        async def answer(raw: bytes, context: Context) -> AsyncIterator[Any]:
            self._begun(name)
            try:
                self._admit(method.bound, context)
                async for reply in handler(method.decode_request(raw), context):
                    counts[sent] += _bulk_bytes(reply)
                    yield reply
            except Exception as error:
                await self._failed(name, error, context)

        return answer

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

    async def _failed(self, name: str, error: Exception, context: Context) -> NoReturn:
        """Count and log the error and end the call with its status. The daemon goes on serving."""
        self._counts[f"request_errors_{name}"] += 1
        if isinstance(error, grpc.aio.AbortError):  # the handler has ended the call itself
            raise error
        if isinstance(error, AttaError):
            log.info("request refused", method=name, caller=context.peer(), error=str(error))
        else:
            log.error("request failed", method=name, caller=context.peer(), exc_info=error)
        code, details = rpc.status_of(error)
        if isinstance(error, RemoteError) and error.peer == self._address:
            # Callers know this daemon by the address that they have asked. The one it listens on may be 0.0.0.0.
            details = error.cause
        await context.abort(code, details)


def _bulk_bytes(reply: Any) -> int:
    if isinstance(reply, rpc.Bulk):
        return sum(memoryview(payload).nbytes for payload in reply.payloads.values())
    return len(reply) if isinstance(reply, bytes) else 0
