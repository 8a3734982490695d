"""Requests that are too long for one message: they travel as several messages of one call. The first one announces how
many bytes follow; it begins with a byte that no request of protobuf begins with. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from atta.errors import ConfigError, QuotaExceededError
from atta.wire.bulk import ARRAYS_BYTES

MESSAGE_BYTES = 5 << 20
"""Longest message that a daemon accepts. gRPC puts a message together on the event loop: a few milliseconds for this."""
PIECE_BYTES = 4 << 20
"""Size of the pieces that are sent."""
LEAST_PIECE_BYTES = 1 << 20
"""Smallest piece that is accepted, apart from the last one. Each piece costs the event loop a wake-up."""

_MARK = b"\x07"
"""A tag of field 0 and wire type 7. Protobuf has neither."""
_SIZE_BYTES = 8


def pieces_of(raw: bytes) -> Iterator[bytes]:
    """The messages of a request: an announcement, then its pieces. Each piece is copied when it is its turn."""
    yield _MARK + len(raw).to_bytes(_SIZE_BYTES, "little")
    view = memoryview(raw)
    for first in range(0, len(raw), PIECE_BYTES):
        yield bytes(view[first : first + PIECE_BYTES])


def announced(message: bytes) -> int | None:
    """How many bytes the first message of a call announces; None: it is the request itself. Raises ConfigError: the
    announcement makes no sense; QuotaExceededError: it announces more bytes than any request may have."""
    if not message.startswith(_MARK):
        return None
    if len(message) != len(_MARK) + _SIZE_BYTES:
        raise ConfigError(f"an announcement of a request has {len(message)} bytes, not {len(_MARK) + _SIZE_BYTES}")
    nbytes = int.from_bytes(message[len(_MARK) :], "little")
    if nbytes == 0:
        raise ConfigError("a request of 0 bytes is announced: one without pieces is a message")
    if nbytes > ARRAYS_BYTES:
        raise QuotaExceededError(f"a request of {nbytes} bytes is announced: at most {ARRAYS_BYTES} are possible")
    return nbytes


class PiecedRequest:
    """A request while its pieces arrive. It takes memory only for the bytes that are there."""

    def __init__(self, nbytes: int) -> None:
        """``nbytes``: as it was announced."""
        self.missing_bytes = nbytes
        """Bytes that have not come yet."""
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """The next piece has come. Raises ConfigError: it is too small, or has more bytes than are missing."""
        if len(piece) > self.missing_bytes:
            raise ConfigError(f"a piece of {len(piece)} bytes, where {self.missing_bytes} of the request are missing")
        if len(piece) < min(LEAST_PIECE_BYTES, self.missing_bytes):
            raise ConfigError(f"a piece of {len(piece)} bytes: all but the last have at least {LEAST_PIECE_BYTES}")
        self._pieces.append(piece)
        self.missing_bytes -= len(piece)

    def whole(self) -> bytes:
        """The request, once no byte is missing. It is a copy, so it is made on a thread: Python lets others go on."""
        assert self.missing_bytes == 0, f"{self.missing_bytes} bytes of the request are missing"
        return b"".join(self._pieces)


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
