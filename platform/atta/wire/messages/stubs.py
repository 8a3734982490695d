"""What calls a method of a daemon: a request that is too long for one message goes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from atta.wire.messages.pieces import MESSAGE_BYTES, pieces_of

__all__ = ["MethodStub"]


class MethodStub:
    """Calls one method over a sync or asyncio channel, as gRPC's stubs do."""

    def __init__(
        self, channel: Any, path: str, *, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], streams: bool
    ) -> None:
        """``path``: of the method in gRPC. ``encode``: its requests. ``decode``: its replies. ``streams``: whether it
        answers with many."""
        # A request is serialised before the call begins, as its size decides how it goes.
        made = {"request_serializer": bytes, "response_deserializer": decode}
        self._encode = encode
        self._whole = (channel.unary_stream if streams else channel.unary_unary)(path, **made)
        self._in_pieces = (channel.stream_stream if streams else channel.stream_unary)(path, **made)

    def __call__(self, request: Any, **options: Any) -> Any:
        """Begin the call, and wait for the reply if the method has one and the channel is not asyncio's."""
        call, sent = self._chosen(request)
        return call(sent, **options)

    def future(self, request: Any, **options: Any) -> Any:
        """Begin the call of a method that does not stream."""
        call, sent = self._chosen(request)
        return call.future(sent, **options)

    def _chosen(self, request: Any) -> tuple[Any, bytes | Iterable[bytes]]:
        raw = self._encode(request)
        return (self._whole, raw) if len(raw) <= MESSAGE_BYTES else (self._in_pieces, pieces_of(raw))
