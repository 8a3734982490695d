"""A server of HTTP that strangers cannot fill: a few connections at a time, which have to say soon what they want."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

App = Callable[..., Iterable[bytes]]
"""An application of WSGI."""

ANSWER_S = 10.0
"""How long a handshake, the request, and each write of the answer may take, in seconds."""
AT_A_TIME = 16
"""Most connections at a time. Further ones wait in the kernel's queue, the first of them at most ``ANSWER_S``."""
_POLL_S = 0.2


def json_answer(start: Callable[..., Any], status: HTTPStatus, found: Any, *headers: tuple[str, str]) -> list[bytes]:
    """An answer of WSGI in JSON; ``start``: its ``start_response``. Raises ValueError: ``found`` has an infinity or NaN."""
    body = f"{json.dumps(found, allow_nan=False)}\n".encode()
    about = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    start(f"{status.value} {status.phrase}", [*about, *headers])
    return [body]


def refusal(error: type[Exception], message: str) -> dict[str, str]:
    """What an answer in JSON says instead of what was asked for."""
    return {"error": error.__name__, "message": message}


class _BoundedReader(io.RawIOBase):
    """What comes from ``sock`` within ``ANSWER_S`` seconds from now; then reading raises TimeoutError."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._until = sock, time.monotonic() + ANSWER_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._sock.settimeout(max(1e-3, self._until - time.monotonic()))
        try:
            return self._sock.recv_into(buffer)
        finally:
            self._sock.settimeout(ANSWER_S)


class _BoundedHandler(WSGIRequestHandler):
    """Does not wait for a request that comes byte by byte. Logs none: their lines would go to standard error."""

    error_content_type = "application/json"
    error_message_format = '{"error": "ConfigError", "message": "not a request of HTTP: %(explain)s"}\n'

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_BoundedReader(self.connection))

    def get_environ(self) -> dict[str, Any]:
        """As wsgiref's, with the caller's port."""
        return {**super().get_environ(), "REMOTE_PORT": str(self.client_address[1])}

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class'
        pass


def bounded_listener(
    host: str, port: int, app: App, encrypted: Callable[[socket.socket], socket.socket] = lambda plain: plain
) -> WSGIServer:
    """A server of ``app`` that listens; the caller runs it. ``port`` 0: any free one, see ``server_port``.
    ``encrypted`` does the handshake of a connection, and raises OSError or ValueError if there is none. Raises OSError:
    the port is in use, or the address is not of this machine."""
    host = host.strip("[]")
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    places = threading.BoundedSemaphore(AT_A_TIME)

    class Bounded(ThreadingMixIn, WSGIServer):
        """Each connection has a thread, which also does the handshake: a silent caller holds up nobody else."""

        daemon_threads = True
        address_family = family

        def verify_request(self, request: Any, client_address: Any) -> bool:
            return places.acquire(timeout=ANSWER_S)  # not longer: whoever ends the server waits for this

        def process_request(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no thread could be started; one that has started releases its place itself
                places.release()
                raise

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                request.settimeout(ANSWER_S)
                request = encrypted(request)
                self.finish_request(request, client_address)
            except (OSError, ValueError):
                pass  # no handshake, or the caller was too slow or went away
            finally:
                self.shutdown_request(request)
                places.release()

    serving = Bounded((host, port), _BoundedHandler)
    serving.set_app(app)
    return serving


def run_aside(serving: WSGIServer, name: str) -> Callable[[], None]:
    """Run a server on a thread called ``name``; returns what ends it."""
    thread = threading.Thread(target=serving.serve_forever, args=(_POLL_S,), name=name, daemon=True)
    thread.start()

    def end() -> None:
        serving.shutdown()
        serving.server_close()
        thread.join()

    return end
