"""Opens requests: whom they mean is checked before they are parsed, and what is no message is refused as such."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import structlog

from atta.errors import AttaError, RemoteError
from atta.wire.identity import HEADER, Bound, Identity, check
from atta.wire.rpc import METHODS, status_of

__all__ = ["Admission"]

log = structlog.get_logger("atta.wire.rpc")


class Admission:
    """Wraps the handlers of a daemon that is ``identity`` and listens at ``address``.

    The wrapped ones take bytes. They are plain functions that hand on what the handler returns, so that the messages of a stream
    pass through no further layer.
    """

    def __init__(self, identity: Identity, address: str) -> None:
        self._identity, self._address = identity, address
        self._exactly = {bound: identity.named(bound) for bound in Bound}

    def admitted(self, service: str, methods: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """The same handlers for those requests that mean this daemon."""
        return {name: self._wrap(f"{service}.{name}", handler) for name, handler in methods.items()}

    def _wrap(self, name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        method = METHODS[name]
        refuse: Callable[[Any, str, AttaError], Any] = _refuse_stream if method.streams else _refuse

        def wrapper(raw: bytes, context: Any) -> Any:
            try:
                self._check(method.bound, context)
                request = method.decode_request(raw)
            except AttaError as error:
                return refuse(context, name, error)
            return handler(request, context)

        return wrapper

    def _check(self, bound: Bound, context: Any) -> None:
        if bound is Bound.NOTHING:
            return
        named = dict(context.invocation_metadata()).get(HEADER, "//")
        if named != self._exactly[bound]:
            check(self._identity, Identity.parse(named), bound, self._address)


async def _refuse(context: Any, name: str, error: AttaError) -> None:
    log.info("request refused", method=name, caller=context.peer(), error=str(error))
    code, details = status_of(error)
    # Callers know the address that they have asked; that on which the daemon listens may be 0.0.0.0.
    await context.abort(code, error.cause if isinstance(error, RemoteError) else details)


async def _refuse_stream(context: Any, name: str, error: AttaError) -> AsyncIterator[Any]:
    await _refuse(context, name, error)
    yield  # never reached: it makes this a stream
