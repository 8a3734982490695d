"""Connections between a trainer, its workers and other trainers. Messages are arrays in safetensors.

The challenges of ``multiprocessing.connection`` let both ends prove that they know the job's key; nothing is pickled.
Streams of gRPC take two to three times as long for a small task.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from atta.errors import AttaError, ConfigError, RemoteError, UnavailableError

PROTOCOL = 2
"""Changes whenever messages do. Both ends must have the same."""
MOST_BYTES = 1 << 30
"""Largest message; its receiver has memory for one of each sender."""
MEETING_S = 20.0
"""How long the two ends of a connection may take to meet."""
SENDING_S = 60
"""How long a message waits for a receiver that takes nothing in."""
_MOST_STREAMS = 1024
_ABOUT = "about"

Arrays = Mapping[str, np.ndarray]
Message = tuple[dict[str, Any], dict[str, np.ndarray]]


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


class Stream:
    """A connection that carries messages.

    Attributes:
        name: of the other end, for messages.
    """

    def __init__(self, connected: socket.socket, name: str) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SENDING_S, 0))
        self._socket, self._received, self.name = connected, connected.makefile("rb"), name

    def meet(self, key: bytes, *, calls: bool) -> None:
        """Prove to each other that both ends know ``key``; ``calls``: this end has opened the connection.

        Raises:
            RemoteError: the other end does not know it, or is gone.
        """
        try:
            with Connection(os.dup(self._socket.fileno())) as connection:
                for prove in (answer_challenge, deliver_challenge) if calls else (deliver_challenge, answer_challenge):
                    prove(connection, key)
        except (AuthenticationError, AssertionError, ValueError):
            raise RemoteError(self.name, "does not know the key of this job") from None
        except (EOFError, OSError) as error:
            raise RemoteError(self.name, f"went away: {error}") from error

    def send(self, about: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """Send a message. Raises RemoteError if the other end is gone, or takes nothing in."""
        self.send_packed(packed(about, arrays or {}))

    def send_packed(self, raw: bytes) -> None:
        """Send what ``packed`` has made."""
        try:
            self._socket.sendall(len(raw).to_bytes(8, "little"))
            self._socket.sendall(raw)
        except OSError as error:
            raise RemoteError(self.name, f"a message could not be sent: {error}") from error

    def receive(self) -> Message:
        """The next message, however long it takes to come.

        Raises:
            RemoteError: the other end is gone.
            ConfigError: it is no message, or too large.
        """
        size = int.from_bytes(self._bytes(8), "little")
        if size > MOST_BYTES:
            raise ConfigError(f"{self.name}: a message of {size} bytes; at most {MOST_BYTES} are possible")
        return unpacked(self._bytes(size))

    def _bytes(self, count: int) -> bytes:
        try:
            raw = self._received.read(count)
        except (OSError, ValueError) as error:
            raise RemoteError(self.name, f"went away: {error}") from error
        if len(raw) < count:
            raise RemoteError(self.name, "has closed the connection")
        return raw

    def close(self) -> None:
        """End the connection; who waits for a message here or there gets a RemoteError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


Role = Callable[[dict[str, Any], Stream], None]
"""Serves a stream, given how the other end has introduced itself."""


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
        self._streams: set[Stream] = set()
        self._change = threading.Lock()
        self._closed = False
        self._socket = socket.create_server((host, 0), backlog=128)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, name="atta-listener", daemon=True).start()

    def close(self) -> None:
        """End all streams."""
        with self._change:
            self._closed = True
            streams = list(self._streams)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for stream in streams:
            stream.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._closed:
                connected, place = self._socket.accept()
                stream = Stream(connected, f"{place[0]}:{place[1]}")
                with self._change:
                    full = self._closed or len(self._streams) >= _MOST_STREAMS
                    self._streams |= set() if full else {stream}
                if full:
                    stream.close()
                else:
                    threading.Thread(target=self._serve, args=(stream,), name="atta-listener", daemon=True).start()

    def _serve(self, stream: Stream) -> None:
        try:
            with _within(MEETING_S, stream.close):
                stream.meet(self._key, calls=False)
                hello, _ = stream.receive()
            if hello.get("protocol") != PROTOCOL:
                stream.send({"refused": f"this trainer speaks protocol {PROTOCOL}, not {hello.get('protocol')!r}; "
                             "trainers and workers must be of the same version of Atta"})  # fmt: skip
            else:
                stream.send(self._setting)
                self.roles[hello["role"]](hello, stream)
        except (AttaError, KeyError, TypeError, ValueError):
            pass  # whoever it was, the job goes on without it; trainers are missed elsewhere
        finally:
            with self._change:
                self._streams.discard(stream)
            stream.close()


def join(address: str, key: bytes, hello: Mapping[str, Any]) -> tuple[Stream, dict[str, Any]]:
    """A stream to a ``Listener``, in the ``role`` of ``hello``, and what it tells everybody.

    Raises:
        ConfigError: the other end refuses this one, or ``address`` is none.
        RemoteError, UnavailableError: nobody answers, or it does not know the key.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{address!r} is no address; give HOST:PORT")
    try:
        stream = Stream(socket.create_connection((host, int(port)), MEETING_S), address)
    except OSError as error:
        raise UnavailableError(address, str(error)) from error
    try:
        with _within(MEETING_S, stream.close):
            stream.meet(key, calls=True)
            stream.send({"protocol": PROTOCOL, **hello})
            setting, _ = stream.receive()
        if "refused" in setting:
            raise ConfigError(f"{address}: {setting['refused']}")
    except BaseException:
        stream.close()
        raise
    return stream, setting


@contextlib.contextmanager
def _within(seconds: float, give_up: Callable[[], Any]) -> Iterator[None]:
    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
