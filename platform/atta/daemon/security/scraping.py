"""Prometheus metrics and pages over HTTPS, for those who bring a token with a role that may read them."""

from __future__ import annotations

import base64
import binascii
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from atta.daemon.security.admission import Admitted, Proof, Refusal, Refused
from atta.daemon.security.guard import CallGuard
from atta.daemon.security.renewal import ServedCertificate
from atta.errors import ConfigError
from atta.wire.security.roles import METRICS

__all__ = ["App", "serve_guarded", "serve_guarded_metrics"]

App = Callable[..., Iterable[bytes]]
"""An application of WSGI."""

ANSWER_S = 10.0
"""How long a scrape may take to send its request and to read the answer, in seconds."""
AT_A_TIME = 16
"""Most scrapes that are answered at a time. Further ones wait in the kernel's queue."""

_STATUS = {Refusal.UNKNOWN: "401 Unauthorized", Refusal.LACKS_ROLE: "403 Forbidden"}


def serve_guarded_metrics(
    host: str, port: int, collector: Collector, certificate: ServedCertificate, guard: CallGuard
) -> int:
    """Serve ``collector`` at https://``host``:``port``/metrics. Returns the port.

    Raises:
        ConfigError: the port is in use, or the address is not of this machine.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        serving = _serving(host.strip("[]"), port, certificate)
    except OSError as error:
        raise ConfigError(f"cannot serve metrics on port {port} of {host} ({error.strerror})") from error
    serving.set_app(_guarded(make_wsgi_app(registry), guard, lambda _: METRICS, "Bearer"))
    threading.Thread(target=serving.serve_forever, name="atta-metrics", daemon=True).start()
    return int(serving.server_port)


def serve_guarded(
    place: tuple[str, int], app: App, method: Callable[[str], str], certificate: ServedCertificate, guard: CallGuard
) -> Callable[[], None]:
    """Serve ``app`` over HTTPS. A browser asks for a name and a password: the password is the token.

    Args:
        place: host and port.
        app: what answers.
        method: what a path counts as in the table of roles.
        certificate: of the daemon.
        guard: decides about every request.

    Returns:
        What ends it.

    Raises:
        OSError: the port is in use, or the address is not of this machine.
    """
    serving = _serving(place[0].strip("[]"), place[1], certificate)
    serving.set_app(_guarded(app, guard, method, 'Basic realm="atta", charset="UTF-8"'))
    thread = threading.Thread(target=serving.serve_forever, args=(0.2,), name="atta-page", daemon=True)
    thread.start()

    def end() -> None:
        serving.shutdown()
        serving.server_close()

    return end


def _guarded(app: App, guard: CallGuard, method: Callable[[str], str], scheme: str) -> App:
    """``app`` behind the same decision as gRPC's methods. ``scheme``: what a caller without a token is asked for."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        header = _bearer(environ.get("HTTP_AUTHORIZATION"))
        proof = Proof(authorization=() if header is None else (header,))
        address = f"{environ.get('REMOTE_ADDR')}:{environ.get('REMOTE_PORT', '')}"
        decision: Admitted | Refused = guard.decide(method(environ.get("PATH_INFO") or "/"), address, proof)
        if isinstance(decision, Admitted):
            return app(environ, start_response)
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        if decision.why is Refusal.UNKNOWN:
            headers.append(("WWW-Authenticate", scheme))
        start_response(_STATUS[decision.why], headers)
        return [f"{decision.cause}\n".encode()]

    return answer


def _bearer(header: str | None) -> str | None:
    """A name and a password as the token that the password is; any other header as it is."""
    kind, _, coded = (header or "").partition(" ")
    if kind.lower() != "basic":
        return header
    try:
        return "Bearer " + base64.b64decode(coded, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return header


class _Silent(WSGIRequestHandler):
    """Logs no requests: their lines would go to standard error."""

    timeout = ANSWER_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class'
        pass


def _serving(host: str, port: int, certificate: ServedCertificate) -> WSGIServer:
    places = threading.BoundedSemaphore(AT_A_TIME)

    class Encrypted(ThreadingMixIn, WSGIServer):
        """Each connection has a thread, which also does the handshake: a silent caller holds up nobody else."""

        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def process_request(self, request: Any, client_address: Any) -> None:
            places.acquire()
            try:
                super().process_request(request, client_address)
            except BaseException:
                places.release()
                raise

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                request.settimeout(ANSWER_S)
                with certificate.context().wrap_socket(request, server_side=True) as encrypted:
                    self.finish_request(encrypted, client_address)
            except (OSError, ValueError):
                pass  # no handshake, or the caller went away
            finally:
                self.shutdown_request(request)
                places.release()

    return Encrypted((host, port), _Silent)
