"""Prometheus metrics over HTTPS, for those who bring a token with a role that may read them."""

from __future__ import annotations

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

__all__ = ["serve_guarded_metrics"]

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
    serving.set_app(_guarded(make_wsgi_app(registry), guard))
    threading.Thread(target=serving.serve_forever, name="atta-metrics", daemon=True).start()
    return int(serving.server_port)


def _guarded(app: Callable[..., Iterable[bytes]], guard: CallGuard) -> Callable[..., Iterable[bytes]]:
    """``app`` behind the same decision as gRPC's methods."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        header = environ.get("HTTP_AUTHORIZATION")
        proof = Proof(authorization=() if header is None else (header,))
        address = f"{environ.get('REMOTE_ADDR')}:{environ.get('REMOTE_PORT', '')}"
        decision: Admitted | Refused = guard.decide(METRICS, address, proof)
        if isinstance(decision, Admitted):
            return app(environ, start_response)
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        if decision.why is Refusal.UNKNOWN:
            headers.append(("WWW-Authenticate", "Bearer"))
        start_response(_STATUS[decision.why], headers)
        return [f"{decision.cause}\n".encode()]

    return answer


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
