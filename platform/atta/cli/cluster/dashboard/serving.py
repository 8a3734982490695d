"""Serves the page over HTTP: GET of ``/`` and ``/trace``, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIServer

from atta.errors import AttaError, ConfigError
from atta.observe.answering import App, bounded_listener

PATHS = ("/", "/trace")
"""What there is."""

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


def application(page: Callable[[], str], trace: Callable[[], str]) -> App:
    """The page and the trace for a server of WSGI."""

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
) -> WSGIServer:
    """A server that listens; the caller runs ``serve_forever``. ``page``, ``trace``: make the answers. ``option``: what
    errors name.

    Raises:
        ConfigError: the port is in use, or the address is not of this machine.
    """
    try:
        return bounded_listener(host, port, application(page, trace))
    except OSError as error:
        raise ConfigError(f"{option} {host}:{port}: cannot listen there: {error.strerror or error}") from error
