"""What a daemon's settings say about its safety, checked at start, and what follows from it: also who may read its
metrics and pages over HTTPS."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client.registry import Collector

from atta.daemon.config import DaemonConfig
from atta.daemon.security.admission import Admitted, CallGuard, Proof, Refusal
from atta.daemon.security.certificates import ServedCertificate, WatchedTokens
from atta.daemon.services.rooms import Debts
from atta.errors import ConfigError
from atta.observe.answering import App, bounded_listener, run_aside
from atta.observe.machine.threads import aside
from atta.observe.metrics import metrics_app
from atta.wire.security.credentials import Credentials
from atta.wire.security.files import TlsFiles
from atta.wire.security.tokens import METRICS

WATCH_S = 60.0
"""How often a daemon looks when its own certificate ends, in seconds."""


class DaemonSecurity:
    """TLS, tokens and roles of one daemon. ``of`` makes one where they are on.

    Attributes:
        outgoing: what the daemon brings to its peers.
        guard: decides about every call.
    """

    def __init__(self, config: DaemonConfig, debts: Debts | None = None) -> None:
        """Read all files. ``debts``: of connections, which pause after refusals; None: they do not.

        Raises:
            DataError, ConfigError: a file is missing or wrong, or an option lacks another one.
        """
        _check_complete(config)
        ask = config.tls_callers == "certificate"
        self._certificate = ServedCertificate(TlsFiles(config.tls_ca, config.tls_cert, config.tls_key), ask=ask)
        tokens = WatchedTokens(config.tokens) if config.tokens else None
        self.guard = CallGuard(
            tokens.now if tokens is not None else lambda: None,
            tokens.latest if tokens is not None else None,
            debts=debts,
            most_waiting=config.max_calls // 8,
        )
        self.outgoing = Credentials(config.tls_ca, config.tls_cert, config.tls_key, config.peer_token)
        self.outgoing.headers()  # a bad file is refused now and not when a batch needs a peer

    @classmethod
    def of(cls, config: DaemonConfig, debts: Debts | None = None) -> DaemonSecurity | None:
        """The security of a daemon; None: it is off.

        Raises:
            DataError, ConfigError: as above, or the daemon would listen beyond this machine without it.
        """
        check_exposure(config)
        return cls(config, debts) if config.tls_cert or config.tls_key or config.tls_ca or config.tokens else None

    def stats(self) -> dict[str, float]:
        """Gauges."""
        return {"certificate_days_left": self._certificate.days_left()}

    async def watch_certificate(self) -> None:
        """Say in the log when the daemon's own certificate ends, until cancelled."""
        while True:
            await aside(self._certificate.warn, time.monotonic())
            await asyncio.sleep(WATCH_S)

    def listen(self, server: Any, address: str) -> int:
        """Have gRPC listen on ``address``; returns the port. Raises RuntimeError where that fails."""
        return int(server.add_secure_port(address, self._certificate.for_grpc()))

    def serve_metrics(self, host: str, port: int, collector: Collector) -> None:
        """Serve metrics over HTTPS; raises ConfigError where the port is in use."""
        serve_guarded_metrics(host, port, collector, self._certificate, self.guard)

    def serve_app(
        self, option: str, host: str, port: int, app: App, method: Callable[[str], str]
    ) -> Callable[[], None]:
        """Serve ``app`` over HTTPS to those who may call ``method(path)``; returns what ends it.

        Raises:
            ConfigError: the port of ``option`` is in use.
        """
        try:
            return serve_guarded((host, port), app, method, self._certificate, self.guard)
        except OSError as error:
            raise ConfigError(f"{option} {host}:{port}: cannot listen there: {error.strerror or error}") from error


def _check_complete(config: DaemonConfig) -> None:
    for option, value in (("cert", config.tls_cert), ("key", config.tls_key), ("ca", config.tls_ca)):
        if not value:
            raise ConfigError(f"--tls-{option} is missing: TLS needs --tls-cert, --tls-key and --tls-ca")
    if config.tls_callers == "token" and not config.tokens:
        raise ConfigError("--tls-callers token needs --tokens, the file of those that are good")
    if config.tls_callers == "token" and len(set(config.peers.values())) > 1 and not config.peer_token:
        raise ConfigError("--tls-callers token needs --peer-token, which this daemon brings to its peers")
    if config.metrics_address is not None and not config.tokens:
        raise ConfigError("metrics with TLS need --tokens: whoever reads them brings one")


def check_exposure(config: DaemonConfig) -> None:
    """Refuse to listen beyond this machine without TLS, unless ``--insecure`` says that the network is trusted.

    Raises:
        ConfigError: names the option.
    """
    if config.tls_cert:
        return
    places = {"--listen": config.listen.rpartition(":")[0]}
    if config.metrics_address is not None:
        places["--metrics" if config.metrics else "--metrics-port"] = config.metrics_address[0]
    check_reached_by_others(places, insecure=config.insecure)


def check_reached_by_others(places: Mapping[str, str], *, insecure: bool) -> None:
    """Refuse hosts that other machines reach, unless the network is trusted. ``places``: hosts by option.

    Raises:
        ConfigError: names the option.
    """
    for option, host in places.items():
        if not (insecure or is_loopback(host)):
            raise ConfigError(
                f"{option}: {host} is reached from other machines, where anybody could read, change and stop what is "
                "served: give --tls-cert, --tls-key and --tls-ca, or --insecure in a network that you trust"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``. Other names than localhost may mean any address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


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
