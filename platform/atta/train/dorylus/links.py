"""Connections between a trainer, its workers and other trainers. Messages are arrays in safetensors. The challenges of
``multiprocessing.connection`` let both ends prove that they know the job's key; nothing is pickled. Streams of gRPC
take two to three times as long for a small task."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from atta.client.parameters import JobWeights
from atta.errors import AttaError, ConfigError, DeadlineError, RemoteError, UnavailableError
from atta.train.dorylus.progress import Acknowledged, Arrived, Begun, Broken, Happening, PipelineStage, Work

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
    """A message: ``about`` as JSON, and arrays of float64, float32 or int64. Raises ConfigError: the message would be
    too large."""
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    if (size := text.nbytes + sum(array.nbytes for array in arrays.values())) > MOST_BYTES - (1 << 20):
        raise ConfigError(f"a task of {size} bytes is too large for a message; take more intervals")
    return save({_ABOUT: text, **{name: np.ascontiguousarray(array) for name, array in arrays.items()}})


def unpacked(raw: bytes) -> Message:
    """What ``packed`` was given. Raises ConfigError: the bytes are no such message."""
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
        """Prove to each other that both ends know ``key``; ``calls``: this end has opened the connection. Raises
        RemoteError: the other end does not know it, or is gone."""
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
        """The next message, however long it takes to come. Raises RemoteError: the other end is gone; ConfigError: it
        is no message, or too large."""
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
    """The port of a trainer, at ``address``. Whoever proves to know the job's key is served by its role, in a thread of
    its own; ``roles``: how to serve, by what the other end calls itself."""

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
    """A stream to a ``Listener``, in the ``role`` of ``hello``, and what it tells everybody. Raises ConfigError: the
    other end refuses this one, or ``address`` is none; RemoteError, UnavailableError: nobody answers, or it does not
    know the key."""
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


_ASKED_S = 0.5
"""How long a request for weights waits for slower intervals. After that another interval may have its turn."""
_END_S = 5.0


class PeerLinks:
    """A stream to each trainer that reads rows of this one, and those that others have opened to its listener. Few
    messages wait: an interval scatters once per stage, and is at most so many epochs ahead."""

    def __init__(self, listener: Listener, key: bytes, rank: int, happenings: queue.SimpleQueue[Happening]) -> None:
        self._key, self._rank, self._happenings, self._closed = key, rank, happenings, False
        self._senders: dict[int, tuple[ThreadPoolExecutor, Stream]] = {}
        listener.roles["trainer"] = self._bring

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Open the streams to other trainers, by rank; raises the errors of ``join``."""
        for other, address in addresses.items():
            stream, _ = join(address, self._key, {"role": "trainer", "rank": self._rank})
            self._senders[other] = ThreadPoolExecutor(1, "atta-rows"), stream

    def send(self, rank: int, stage: PipelineStage, interval: int, epoch: int, rows: np.ndarray) -> None:
        """Send rows of an interval; on the other side they come as ``Arrived``."""
        about = {"part": stage.part, "layer": stage.layer, "interval": interval, "epoch": epoch}
        thread, stream = self._senders[rank]
        thread.submit(self._deliver, rank, stream, packed(about, {"rows": rows}))

    def close(self) -> None:
        """End the streams after everything has been sent; other trainers must have ended their work."""
        self._closed = True
        for thread, stream in self._senders.values():
            wait([thread.submit(stream.close)], _END_S)
            stream.close()
            thread.shutdown()

    def _deliver(self, rank: int, stream: Stream, raw: bytes) -> None:
        try:
            stream.send_packed(raw)
        except RemoteError as error:
            self._lose(rank, f"reads no rows any more: {error}")

    def _bring(self, hello: dict[str, Any], stream: Stream) -> None:
        rank = int(hello["rank"])
        try:
            while True:
                about, arrays = stream.receive()
                stage, producer = PipelineStage(about["part"], int(about["layer"])), (rank, int(about["interval"]))
                self._happenings.put(Arrived(stage, producer, int(about["epoch"]), arrays["rows"]))
        except (AttaError, KeyError, TypeError, ValueError) as error:
            self._lose(rank, f"sends no rows any more: {error}")

    def _lose(self, rank: int, what: str) -> None:
        if not self._closed:
            self._happenings.put(Broken(RemoteError(f"trainer {rank}", what)))


class DaemonWeights:
    """The weights of a job: one thread asks for them, another sends gradients. Members of the job are intervals: those
    of this trainer count from ``first``."""

    def __init__(self, job: JobWeights, first: int, happenings: queue.SimpleQueue[Happening]) -> None:
        self._job, self._first, self._happenings = job, first, happenings
        self._asks, self._pushes = (ThreadPoolExecutor(1, "atta-weights") for _ in range(2))
        self._change = threading.Lock()
        self._wanted: list[Work] = []
        self._asked: set[tuple[int, int]] = set()
        self._asking = self._closed = False

    def want(self, works: Sequence[Work]) -> None:
        """Ask for weights for these intervals and epochs, in place of those that were wanted before."""
        with self._change:
            self._wanted = [work for work in works if (work.interval, work.epoch) not in self._asked]
            if self._wanted and not self._asking:
                self._asking = True
                self._asks.submit(self._tell, self._ask)

    def push(self, work: Work, layer: int, version: int, gradient: np.ndarray) -> None:
        """At most one gradient per interval and layer waits."""
        self._pushes.submit(self._tell, partial(self._send, work, layer, version, gradient))

    def close(self) -> None:
        """End the threads, after the requests that are under way."""
        self._closed = True
        for pool in (self._asks, self._pushes):
            pool.shutdown(cancel_futures=True)

    def _tell(self, step: Callable[[], None]) -> None:
        try:
            step()
        except AttaError as error:
            if not self._closed:
                self._happenings.put(Broken(error))

    def _ask(self) -> None:
        while (work := self._slowest()) is not None:
            try:
                found = self._job.begin(self._first + work.interval, work.epoch, within_s=_ASKED_S)
            except DeadlineError:
                continue
            if found.values is None:
                raise RemoteError(
                    "the daemon", f"interval {work.interval} cannot begin epoch {work.epoch}: it is over there"
                )
            with self._change:
                self._asked.add((work.interval, work.epoch))
                self._asked.discard((work.interval, work.epoch - 2))
                self._wanted = [one for one in self._wanted if one != work]
            self._happenings.put(Begun(work.interval, work.epoch, found.version, found.values))

    def _slowest(self) -> Work | None:
        with self._change:
            found = None if self._closed else min(self._wanted, default=None)
            self._asking = found is not None
            return found

    def _send(self, work: Work, layer: int, version: int, gradient: np.ndarray) -> None:
        self._job.push(self._first + work.interval, work.epoch, gradient, layer=layer, version=version)
        self._happenings.put(Acknowledged(work.interval, work.epoch, layer))  # the answer means that it counts
