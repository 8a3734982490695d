"""Stands before every method of a daemon, also those of gRPC's own services: nothing of a request is parsed before its
caller is admitted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc

from atta.daemon.security.admission import Admitted, Proof, Refusal, Refused, admit
from atta.daemon.security.audit import AuditLines
from atta.daemon.security.certificates import end_of
from atta.daemon.services.debts import Debts
from atta.wire.rpc import ACCESS
from atta.wire.security.credentials import AUTHORIZATION
from atta.wire.security.tokens import TokenFile

__all__ = ["CallGuard"]

if TYPE_CHECKING:
    _Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _Interceptor = grpc.aio.ServerInterceptor

_CODES = {
    Refusal.UNKNOWN: grpc.StatusCode.UNAUTHENTICATED,
    Refusal.LACKS_ROLE: grpc.StatusCode.PERMISSION_DENIED,
}


class CallGuard(_Interceptor):
    """Wraps the handler of each method once."""

    def __init__(
        self,
        tokens: Callable[[], TokenFile | None],
        latest: Callable[[], TokenFile | None] | None = None,
        debts: Debts | None = None,
        most_waiting: int = 512,
    ) -> None:
        """Guard a daemon.

        Args:
            tokens: returns those that are good now; None: none are taken.
            latest: the same with a look at the file, for tokens that are younger than the last one; None: there is none.
            debts: of connections. Refusals add to them, and wait until they are paid; None: there are none.
            most_waiting: so many refusals wait at a time. Further ones do not: all count as calls under way.
        """
        self._tokens, self._latest = tokens, latest or tokens
        self._debts, self._lines = debts, AuditLines()
        self._waiting, self._most_waiting = 0, most_waiting
        self._guarded: dict[str, Any] = {}

    def decide(self, method: str, address: str, proof: Proof) -> Admitted | Refused:
        """Admit or refuse a call, and write the line that it deserves."""
        now = datetime.now(UTC)
        decision = admit(method, proof, self._tokens(), now)
        if isinstance(decision, Refused) and decision.why is Refusal.UNKNOWN:
            decision = admit(method, proof, self._latest(), now)
        self._lines.write(method, address, decision)
        return decision

    def standing(self, method: str, context: Any) -> Callable[[], str]:
        """For what outlives its call: a function that says why the caller may not call ``method`` any more; "": it may."""
        proof = _proof_of(context)

        def refused() -> str:
            decision = admit(method, proof, self._tokens(), datetime.now(UTC))
            return decision.cause if isinstance(decision, Refused) else ""

        return refused

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """The handler with which gRPC answers ``call``; None where there is no such method."""
        found = self._guarded.get(call.method)
        if found is None:
            handler = await continuation(call)
            if handler is None:
                return None
            found = self._guarded[call.method] = self._wrapped(call.method.removeprefix("/"), handler)
        return found

    def _wrapped(self, method: str, handler: Any) -> Any:
        streams, parse = handler.response_streaming, handler.request_deserializer
        function = _function_of(handler)
        # gRPC parses the messages of a stream as they are read, which is after admission. It parses a single request
        # before it calls the handler, so that is done here.
        early = None if handler.request_streaming else parse
        answer = self._stream if streams and inspect.isasyncgenfunction(function) else self._call
        return _MAKERS[handler.request_streaming, streams](
            answer(method, function, early),
            request_deserializer=parse if handler.request_streaming else None,
            response_serializer=handler.response_serializer,
        )

    def _call(self, method: str, function: Callable[..., Any], parse: Callable[[bytes], Any] | None) -> Any:
        async def answer(raw: Any, context: Any) -> Any:
            await self._admit(method, context)
            reply = function(await _parsed(method, parse, raw, context), context)
            return await reply if inspect.isawaitable(reply) else reply

        return answer

    def _stream(self, method: str, function: Callable[..., Any], parse: Callable[[bytes], Any] | None) -> Any:
        async def answer(raw: Any, context: Any) -> AsyncIterator[Any]:
            await self._admit(method, context)
            async for reply in function(await _parsed(method, parse, raw, context), context):
                yield reply

        return answer

    async def _admit(self, method: str, context: Any) -> None:
        decision = self.decide(method, context.peer(), _proof_of(context))
        if isinstance(decision, Refused):
            await self._charge(context.peer())
            await context.abort(_CODES[decision.why], f"{ACCESS}{decision.cause}")

    async def _charge(self, connection: str) -> None:
        """Note what a refusal costs its connection, and wait while that owes too much."""
        if self._debts is None:
            return
        now = asyncio.get_running_loop().time()
        self._debts.not_admitted(connection, now)
        pause = self._debts.wait_s(connection, now)
        if pause and self._waiting < self._most_waiting:
            self._waiting += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._waiting -= 1


_MAKERS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def _function_of(handler: Any) -> Callable[..., Any]:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    found: Callable[..., Any] = next(function for function in kinds if function is not None)
    return found


async def _parsed(method: str, parse: Callable[[bytes], Any] | None, raw: Any, context: Any) -> Any:
    if parse is None:
        return raw
    try:
        return parse(raw)
    except Exception:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{method}: the request is not such a message")


def _proof_of(context: Any) -> Proof:
    """What the connection and the header of a call show. TLS has verified the certificate already."""
    shown = context.auth_context()
    certificates = shown.get("x509_pem_cert", ())
    names = shown.get("x509_common_name") or (b"",) if certificates else ()
    return Proof(
        certificate=names[0].decode(errors="replace") if names else None,
        end=end_of(certificates[0]) if certificates else None,
        uris=[uri.decode(errors="replace") for uri in shown.get("peer_uri", ())],
        authorization=[_text(value) for key, value in context.invocation_metadata() or () if key == AUTHORIZATION],
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
