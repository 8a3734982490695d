"""gRPC between a trainer, its workers and other trainers: a stream each, whose messages are arrays in safetensors."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from atta.errors import ConfigError, RemoteError
from atta.wire import rpc

PROTOCOL = 2
"""Changes whenever messages do. Both ends must have the same."""
MOST_BYTES = 1 << 30
"""Largest message; its receiver has memory for one of each sender."""
MEETING_S = 20.0
"""How long the two ends of a stream may take to meet."""
_MOST_STREAMS = 1024
_SERVICE, _METHOD = "atta.v1.IntervalService", "Join"
PATH = f"/{_SERVICE}/{_METHOD}"
_ABOUT = "about"
_OPTIONS = [
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", MOST_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 60_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
]

Arrays = Mapping[str, np.ndarray]
Message = tuple[dict[str, Any], dict[str, np.ndarray]]
Role = Callable[[dict[str, Any], Iterator[bytes]], Iterator[bytes]]
"""Serves a stream, given how the other end has introduced itself, and its messages; gives those for the other end."""


def packed(about: Mapping[str, Any], arrays: Arrays) -> bytes:
    """A message: ``about`` as JSON, and arrays of float64, float32 or int64.

    Raises:
        ConfigError: the message would be too large.
    """
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    size = text.nbytes + sum(array.nbytes for array in arrays.values())
    if size > MOST_BYTES - (1 << 20):
        raise ConfigError(f"a task of {size} bytes is too large for a message; take more intervals")
    return save({_ABOUT: text, **{name: np.ascontiguousarray(array) for name, array in arrays.items()}})


def unpacked(raw: bytes) -> Message:
    """What ``packed`` was given.

    Raises:
        ConfigError: the bytes are no such message.
    """
    try:
        arrays = load(raw)
        about = json.loads(arrays.pop(_ABOUT).tobytes())
        if not isinstance(about, dict):
            raise TypeError("the description is not an object")
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"a message of {len(raw)} bytes cannot be read: {error}") from error
    return about, arrays


class Listener:
    """The port of a trainer. Whoever proves to know the job's key is served by its role, in a thread of its own.

    Attributes:
        address: ``HOST:PORT``.
        roles: how to serve, by what the other end calls itself.
    """

    def __init__(self, host: str, key: bytes, setting: Mapping[str, Any]) -> None:
        """``setting``: what everybody is told who joins, such as the task that losses are of."""
        self._key, self._setting = key, setting
        self.roles: dict[str, Role] = {}
        self._server = grpc.server(
            ThreadPoolExecutor(_MOST_STREAMS, "atta-listener"),
            options=_OPTIONS,
            maximum_concurrent_rpcs=_MOST_STREAMS,
        )
        join = grpc.stream_stream_rpc_method_handler(self._join)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: join})])
        self.address = f"{host}:{self._server.add_insecure_port(f'{host}:0')}"
        self._server.start()

    def close(self) -> None:
        """End all streams."""
        self._server.stop(None)

    def _join(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            with _within(MEETING_S, context.cancel):
                hello, _ = unpacked(next(messages))
                nonce = secrets.token_hex()
                yield packed({"proof": _proof(self._key, hello["nonce"], "listens"), "nonce": nonce}, {})
                answer, _ = unpacked(next(messages))
            if not hmac.compare_digest(str(answer["proof"]), _proof(self._key, nonce, "calls")):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{rpc.ACCESS}this end does not know the key of the job")
            if hello["protocol"] != PROTOCOL:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"this trainer speaks protocol {PROTOCOL}, not {hello['protocol']!r}; trainers and workers must be of "
                    "the same version of Atta",
                )
            serve = self.roles[hello["role"]]
            yield packed(self._setting, {})
            yield from serve(hello, messages)
        except (StopIteration, ConfigError, KeyError, TypeError, ValueError):
            return  # whoever it was talks nonsense or is gone: the job goes on without it


class Stream:
    """A stream to a ``Listener``. Iterating gives its messages until it ends the stream.

    Attributes:
        setting: what the listener tells everybody.
    """

    def __init__(
        self, address: str, key: bytes, hello: Mapping[str, Any], ended: Callable[[], None] = lambda: None
    ) -> None:
        """Join in the ``role`` of ``hello``. ``ended``: called when the stream is over, in whatever way.

        Raises:
            ConfigError: the other end refuses this one, or ``address`` is none.
            RemoteError, UnavailableError: nobody answers, or it does not know the key.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"{address!r} is no address; give HOST:PORT")
        self._address, self._closed = address, threading.Event()
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._call = self._channel.stream_stream(PATH, bytes, bytes)(iter(self._waiting.get, None))
        self._call.add_callback(self._closed.set)
        try:
            with _within(MEETING_S, self._call.cancel):
                self.setting = self._meet(key, hello)
        except BaseException:
            self.close()
            raise
        if not self._call.add_callback(ended):
            ended()

    def _meet(self, key: bytes, hello: Mapping[str, Any]) -> dict[str, Any]:
        nonce = secrets.token_hex()
        self.send({"protocol": PROTOCOL, **hello, "nonce": nonce})
        answer = self._answer()
        if not hmac.compare_digest(str(answer.get("proof")), _proof(key, nonce, "listens")):
            raise RemoteError(self._address, "does not know the key of this job")
        self.send({"proof": _proof(key, str(answer.get("nonce")), "calls")})
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        found = self._next()
        if found is None:
            raise RemoteError(self._address, "has ended the stream")
        return found[0]

    def send(self, about: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """Send a message, after those before. A stream that has ended sends nothing."""
        self._waiting.put(packed(about, arrays or {}))

    def __iter__(self) -> Iterator[Message]:
        """Raises RemoteError or ConfigError if the other end is gone or sends no messages."""
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> Message | None:
        try:
            raw = next(iter(self._call), None)
            return None if raw is None else unpacked(raw)
        except grpc.RpcError as error:
            raise rpc.error_from(self._address, error, MEETING_S) from error

    def close(self, within_s: float = 0.0) -> None:
        """End the stream; ``within_s``: how long the other end may take to receive what was sent."""
        self._waiting.put(None)
        self._closed.wait(within_s)
        self._channel.close()


@contextlib.contextmanager
def _within(seconds: float, give_up: Callable[[], Any]) -> Iterator[None]:
    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _proof(key: bytes, nonce: str, end: str) -> str:
    return hmac.new(key, f"{end} {nonce}".encode(), hashlib.sha256).hexdigest()
