"""Turns what a handler raises into a gRPC status; the daemon itself goes on serving."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import structlog

from atta.errors import AttaError
from atta.wire.rpc import status_of

__all__ = ["guarded", "guarded_stream"]

log = structlog.get_logger("atta.wire.rpc")


def guarded(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap a unary handler method ``(self, request, context) -> reply``."""

    @functools.wraps(handler)
    async def wrapper(self: Any, request: Any, context: Any) -> Any:
        try:
            return await handler(self, request, context)
        except Exception as error:
            return await _abort(context, handler.__qualname__, error)

    return wrapper


def guarded_stream(handler: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Wrap a streaming handler method ``(self, request, context) -> async iterator of replies``."""

    @functools.wraps(handler)
    async def wrapper(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for reply in handler(self, request, context):
                yield reply
        except Exception as error:
            await _abort(context, handler.__qualname__, error)

    return wrapper


async def _abort(context: Any, name: str, error: Exception) -> None:
    if isinstance(error, AttaError):
        log.info("request refused", method=name, error=str(error))
    else:
        log.error("request failed", method=name, exc_info=error)
    code, details = status_of(error)
    await context.abort(code, details)
