"""Serves the page over HTTP: GET of ``/`` and ``/trace``, nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from atta.errors import AttaError, ConfigError

__all__ = ["server"]

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


def server(host: str, port: int, page: Callable[[], str], trace: Callable[[], str]) -> ThreadingHTTPServer:
    """A server that listens; the caller runs ``serve_forever``. ``page``, ``trace``: make the answers.

    Raises:
        ConfigError: the port is in use, or the address is not of this machine.
    """
    places = threading.BoundedSemaphore(AT_ONCE)

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path not in ("/", "/trace"):
                self._send(404, "text/plain; charset=utf-8", f"{path[:100]!r}: there are / and /trace\n")
            elif not places.acquire(timeout=WAIT_S):
                self._send(503, "text/plain; charset=utf-8", "too many requests at once\n")
            else:
                try:
                    self._answer(path)
                finally:
                    places.release()

        def _answer(self, path: str) -> None:
            try:
                if path == "/":
                    self._send(200, "text/html; charset=utf-8", page())
                else:
                    self._send(200, "application/json", trace())
            except AttaError as error:
                self._send(502, "text/plain; charset=utf-8", f"{error}\n")

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
        raise ConfigError(f"--listen {host}:{port}: cannot listen there: {error.strerror or error}") from error
    found.daemon_threads = True
    return found
