"""Prometheus metrics and pages over HTTPS, for those who bring a token with a role that may read them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client.registry import Collector

from atta.daemon.security.admission import Admitted, Proof, Refusal
from atta.daemon.security.guard import CallGuard
from atta.daemon.security.renewal import ServedCertificate
from atta.errors import ConfigError
from atta.observe.answering import App, bounded_listener, run_aside
from atta.observe.metrics import metrics_app
from atta.wire.security.roles import METRICS

__all__ = ["serve_guarded", "serve_guarded_metrics"]

_STATUS = {Refusal.UNKNOWN: "401 Unauthorized", Refusal.LACKS_ROLE: "403 Forbidden"}


def serve_guarded_metrics(
    host: str, port: int, collector: Collector, certificate: ServedCertificate, guard: CallGuard
) -> int:
    """Serve ``collector`` at https://``host``:``port``/metrics. Returns the port.

    Raises:
        ConfigError: the port is in use, or the address is not of this machine.
    """
    app = _guarded(metrics_app(collector), guard, lambda _: METRICS, "Bearer")
    try:
        serving = _serving(host, port, app, certificate)
    except OSError as error:
        raise ConfigError(f"cannot serve metrics on port {port} of {host} ({error.strerror})") from error
    run_aside(serving, "atta-metrics")
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
    guarded = _guarded(app, guard, method, 'Basic realm="atta", charset="UTF-8"')
    return run_aside(_serving(*place, guarded, certificate), "atta-page")


def _serving(host: str, port: int, app: App, certificate: ServedCertificate) -> WSGIServer:
    return bounded_listener(host, port, app, lambda plain: certificate.context().wrap_socket(plain, server_side=True))


def _guarded(app: App, guard: CallGuard, method: Callable[[str], str], scheme: str) -> App:
    """``app`` behind the same decision as gRPC's methods. ``scheme``: what a caller without a token is asked for."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        header = _bearer(environ.get("HTTP_AUTHORIZATION"))
        proof = Proof(authorization=() if header is None else (header,))
        decision = guard.decide(method(environ.get("PATH_INFO") or "/"), _caller(environ), proof)
        if isinstance(decision, Admitted):
            return app(environ, start_response)
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        if decision.why is Refusal.UNKNOWN:
            headers.append(("WWW-Authenticate", scheme))
        start_response(_STATUS[decision.why], headers)
        return [f"{decision.cause}\n".encode()]

    return answer


def _caller(environ: dict[str, Any]) -> str:
    host, port = environ["REMOTE_ADDR"], environ["REMOTE_PORT"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bearer(header: str | None) -> str | None:
    """A name and a password as the token that the password is; any other header as it is."""
    kind, _, coded = (header or "").partition(" ")
    if kind.lower() != "basic":
        return header
    try:
        return "Bearer " + base64.b64decode(coded, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return header
