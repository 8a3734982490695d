"""Serves the page over HTTP: GET of ``/`` and ``/trace``, nothing else. ``application`` is the same for WSGI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from atta.errors import AttaError, ConfigError

__all__ = ["PATHS", "application", "server"]

PATHS = ("/", "/trace")
"""What there is."""

AT_ONCE = 16
"""Requests that are answered at the same time; others wait for a moment, then they are refused."""
WAIT_S, IDLE_S = 2.0, 10.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""No script runs on the page, and nothing is loaded."""


def _answer(path: str, page: Callable[[], str], trace: Callable[[], str]) -> tuple[int, str, str]:
    """Status, type and text for one of ``PATHS``."""
    try:
        return (200, "text/html; charset=utf-8", page()) if path == "/" else (200, "application/json", trace())
    except AttaError as error:
        return 502, "text/plain; charset=utf-8", f"{error}\n"


def _unknown(path: str) -> tuple[int, str, str]:
    return 404, "text/plain; charset=utf-8", f"{path[:100]!r}: there are / and /trace\n"


def application(page: Callable[[], str], trace: Callable[[], str]) -> Callable[..., Iterable[bytes]]:
    """The page and the trace for a server of WSGI, which bounds the requests that are answered at the same time."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO") or "/"
        if environ.get("REQUEST_METHOD") != "GET":
            status, kind, text = 501, "text/plain; charset=utf-8", "GET alone\n"
        else:
            status, kind, text = _answer(path, page, trace) if path in PATHS else _unknown(path)
        body = text.encode()
        headers = {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}
        start_response(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
        return [body]

    return answer


def server(
    host: str, port: int, page: Callable[[], str], trace: Callable[[], str], *, option: str = "--listen"
) -> ThreadingHTTPServer:
    """A server that listens; the caller runs ``serve_forever``. ``page``, ``trace``: make the answers. ``option``: what
    errors name.

    Raises:
        ConfigError: the port is in use, or the address is not of this machine.
    """
    places = threading.BoundedSemaphore(AT_ONCE)

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path not in PATHS:
                self._send(*_unknown(path))
            elif not places.acquire(timeout=WAIT_S):
                self._send(503, "text/plain; charset=utf-8", "too many requests at once\n")
            else:
                try:
                    self._send(*_answer(path, page, trace))
                finally:
                    places.release()

        def _send(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response_only(status)
            for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    try:
        found = ThreadingHTTPServer((host.strip("[]"), port), Handler)
    except OSError as error:
        raise ConfigError(f"{option} {host}:{port}: cannot listen there: {error.strerror or error}") from error
    found.daemon_threads = True
    return found
