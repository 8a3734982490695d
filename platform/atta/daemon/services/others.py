"""Services that come with gRPC, for tools: health and reflection. What is not their message is refused like ours."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from atta.daemon.services.handling import Context, shortened

__all__ = ["add_health_and_reflection"]

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
