"""What a daemon's settings say about its safety: checked at start, and what follows from it."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.registry import Collector

from atta.daemon.config import DaemonConfig
from atta.daemon.security.guard import CallGuard
from atta.daemon.security.renewal import ServedCertificate, WatchedTokens
from atta.daemon.security.scraping import serve_guarded, serve_guarded_metrics
from atta.daemon.services.debts import Debts
from atta.errors import ConfigError
from atta.observe.answering import App
from atta.observe.machine.threads import aside
from atta.wire.security.credentials import Credentials
from atta.wire.security.files import TlsFiles

__all__ = ["DaemonSecurity", "check_exposure", "check_reached_by_others", "is_loopback"]


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
