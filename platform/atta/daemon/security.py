"""What a daemon's settings say about its safety, checked at start, and what follows from it: its certificate and the
good tokens, which are read again when their files change, and who may read its metrics and pages over HTTPS."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, Generic, TypeVar
from wsgiref.simple_server import WSGIServer

import grpc
import structlog
from prometheus_client.registry import Collector

from atta.daemon.admission import Admitted, CallGuard, Proof, Refusal, end_of
from atta.daemon.config import DaemonConfig
from atta.daemon.services.rooms import Debts
from atta.errors import AttaError, ConfigError, DataError, NotAllowedError, NotAuthenticatedError, blaming
from atta.observe.answering import App, bounded_listener, json_answer, refusal, run_aside
from atta.observe.machine.threads import aside
from atta.observe.metrics import metrics_app
from atta.wire.clusterfile import ip_of
from atta.wire.credentials import Credentials, PemBytes, Stamp, TlsFiles, stamp_of
from atta.wire.parts import replicas_of
from atta.wire.tokens import METRICS, TokenFile, read_tokens

SHORT_DAYS = 7.0
"""A certificate that ends sooner is told of."""
WARNED_S = 24 * 3600.0
"""How often it is told of, in seconds."""
LOOK_S = 1.0
"""How often the file of tokens is looked at, at most, in seconds."""

log = structlog.get_logger("atta.security")
T = TypeVar("T")


class _Reread(Generic[T]):
    """What files hold. Bad ones change nothing, and are told once. Any thread may use it."""

    def __init__(self, file: str, stamp: Callable[[], Stamp], read: Callable[[], T], *, good: str, bad: str) -> None:
        """``stamp``: differs when a file has changed; ``good``, ``bad``: what the log says of new ones, with ``file``.
        Raises AttaError: what ``read`` raises."""
        self._file, self._stamp_of, self._read, self._good, self._bad = file, stamp, read, good, bad
        self._stamp: Stamp | None = stamp()
        self._found, self._told, self._lock = read(), "", threading.Lock()

    def now(self) -> T:
        """Read again if a file has changed."""
        with self._lock:
            stamp: Stamp | None = None
            try:
                stamp = self._stamp_of()
                if stamp == self._stamp:
                    return self._found
                self._found, self._told = self._read(), ""
                log.info(self._good, file=self._file)
            except AttaError as error:
                if str(error) != self._told:
                    log.error(self._bad, error=str(error))
                self._told = str(error)
                if isinstance(error.__cause__, OSError):
                    stamp = None  # they may be readable the next time, as they are
            self._stamp = stamp
            return self._found


@dataclass(frozen=True)
class _Served:
    """A certificate with its key and authority, as gRPC and as Python's ``ssl`` take it."""

    pem: PemBytes
    context: ssl.SSLContext


class ServedCertificate:
    """The certificate that a daemon shows, and the authority that it asks callers' certificates from. Threads of gRPC
    and of the metrics ask for it at each new connection."""

    def __init__(self, files: TlsFiles, *, ask: bool) -> None:
        """``ask``: whether every caller has to show a certificate of the authority. Raises DataError for bad files."""
        self._files, self._ask, self._warned = files, ask, (-math.inf, PemBytes(b"", b"", b""))
        bad = "certificate not renewed: the one of before goes on"
        self._served = _Reread(files.cert, files.stamp, self._read, good="certificate renewed", bad=bad)
        self._shown = self._served.now().pem  # by gRPC

    def _read(self) -> _Served:
        found, _ = self._files.read()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # the files were good a moment ago
        with blaming(DataError, self._files.cert, "is being replaced", of=(ssl.SSLError, OSError), say=str):
            context.load_cert_chain(self._files.cert, self._files.key)
        return _Served(found, context)

    def for_grpc(self) -> grpc.ServerCredentials:
        """As gRPC takes it: with a look at the files at each handshake."""
        renewed: Any = self._renewed  # the stubs do not know that None means: as before
        return grpc.dynamic_ssl_server_credentials(self._configuration(), renewed, self._ask)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What has changed since gRPC last asked; None: nothing."""
        found = self._served.now().pem
        if self._shown is found:
            return None
        self._shown = found
        return self._configuration()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pem = self._shown
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca if self._ask else None)

    def context(self) -> ssl.SSLContext:
        """For connections of the metrics. They show no certificate of their own."""
        return self._served.now().context

    def days_left(self) -> float:
        """How long the certificate in the file is good, in days; negative: it has ended; NaN: it cannot be read."""
        try:
            return (end_of(self._served.now().pem.cert) - datetime.now(UTC)) / timedelta(days=1)
        except ValueError:
            return math.nan

    def hosts(self) -> list[str]:
        """The names and addresses that the certificate in the file is for."""
        from cryptography import x509

        try:
            found = x509.load_pem_x509_certificate(self._served.now().pem.cert).extensions
            names = found.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, x509.ExtensionNotFound):
            return []
        return [str(name.value).lower() for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]

    def warn(self, now: float) -> None:
        """Say in the log, once a day, that the certificate has ended or will soon. ``now``: seconds of any clock."""
        days, (warned_at, of), pem = self.days_left(), self._warned, self._served.now().pem
        if not days < SHORT_DAYS or (of is pem and now - warned_at < WARNED_S):
            return
        self._warned = now, pem
        what = "has ended: nobody can connect" if days < 0 else "ends soon: replace its file"
        tell = log.error if days < 0 else log.warning
        tell(f"certificate {what}", file=self._files.cert, days_left=round(days, 1))


class WatchedTokens:
    """The tokens of a file. ``clock`` counts seconds."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises DataError or ConfigError where the file is bad."""
        bad, stamp = "tokens not read again: those of before are still good", partial(stamp_of, path)
        self._file = _Reread(path, stamp, partial(read_tokens, path), good="tokens read", bad=bad)
        self._clock, self._looked, self._tokens = clock, clock(), self._file.now()

    def now(self) -> TokenFile:
        """The tokens as the file had them at most ``LOOK_S`` ago."""
        return self._tokens if self._clock() - self._looked < LOOK_S else self.latest()

    def latest(self) -> TokenFile:
        """The tokens as the file has them."""
        self._looked = self._clock()
        self._tokens = self._file.now()
        return self._tokens


WATCH_S = 60.0
"""How often a daemon looks when its own certificate ends, in seconds."""


class DaemonSecurity:
    """TLS, tokens and roles of one daemon. ``of`` makes one where they are on.

    Attributes:
        outgoing: what the daemon brings to its peers.
        guard: decides about every call.
    """

    def __init__(self, config: DaemonConfig, debts: Debts | None = None) -> None:
        """Read all files. ``debts``: of connections, which pause after refusals; None: they do not. Raises DataError,
        ConfigError: a file is missing or wrong, or an option lacks another one."""
        _check_complete(config)
        self._places = _places(config)
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
        """The security of a daemon; None: it is off. Raises DataError, ConfigError: as above, or the daemon would
        listen beyond this machine without it."""
        check_exposure(config)
        return cls(config, debts) if config.tls_cert or config.tls_key or config.tls_ca or config.tokens else None

    def stats(self) -> dict[str, float]:
        return {"certificate_days_left": self._certificate.days_left()}

    async def watch_certificate(self) -> None:
        """Say in the log that the daemon's own certificate is for another host, and when it ends, until cancelled."""
        holds = await aside(self._certificate.hosts)
        if self._places and not any(map(partial(_names, holds), self._places)):
            places = ", ".join(self._places)
            log.warning("certificate is for another host", holds=", ".join(holds) or "no host", served_at=places)
        while True:
            await aside(self._certificate.warn, time.monotonic())
            await asyncio.sleep(WATCH_S)

    def listen(self, server: Any, address: str) -> int:
        """Have gRPC listen on ``address``; returns the port. Raises RuntimeError where that fails."""
        return int(server.add_secure_port(address, self._certificate.for_grpc()))

    def serve_metrics(
        self, host: str, port: int, collector: Collector, beside: Mapping[str, tuple[str, App]] | None = None
    ) -> None:
        """Serve metrics over HTTPS, and what is ``beside`` them (see ``serve_metrics_to``); raises ConfigError where the
        port is in use."""
        serve_metrics_to(self._certificate, self.guard, host, port, collector, beside=beside)

    def serve_app(
        self, option: str, host: str, port: int, app: App, method: Callable[[str], str]
    ) -> Callable[[], None]:
        """Serve ``app`` over HTTPS to those who may call ``method(path)``; returns what ends it. A browser asks for a
        name and a password: the password is the token. Raises ConfigError: the port of ``option`` is in use."""
        guarded = _guarded(app, self.guard, method, 'Basic realm="atta", charset="UTF-8"')
        with blaming(ConfigError, f"{option} {host}:{port}: cannot listen there"):
            return run_aside(_serving(host, port, guarded, self._certificate), "atta-page")


def _places(config: DaemonConfig) -> list[str]:
    """The hosts at which callers look for a daemon: the one that it listens at; if it listens at all, those of the
    cluster file."""
    listed = [a for part in config.parts for a in replicas_of(config.peers.get(part, ()))]
    hosts = [_plain_host(address.rpartition(":")[0]) for address in (config.listen, *listed)]
    return hosts[:1] if hosts[0] not in ("", "0.0.0.0", "::") else [*dict.fromkeys(hosts[1:])]


def _plain_host(host: str) -> str:
    host = host.strip("[]").partition("%")[0].lower()
    return str(ip_of(host) or host)


def _names(holds: list[str], host: str) -> bool:
    """Whether a certificate that ``holds`` such hosts is for ``host``; ``*.x`` is for each name right below ``x``."""
    return host in holds or f"*.{host.partition('.')[2]}" in holds


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
    """Refuse to listen beyond this machine without TLS, unless ``--insecure`` says that the network is trusted. Raises
    ConfigError: names the option."""
    if config.tls_cert:
        return
    places = {"--listen": config.listen.rpartition(":")[0]}
    if config.metrics_address is not None:
        places["--metrics" if config.metrics else "--metrics-port"] = config.metrics_address[0]
    check_reached_by_others(places, insecure=config.insecure)


def check_reached_by_others(places: Mapping[str, str], *, insecure: bool) -> None:
    """Refuse hosts that other machines reach, unless the network is trusted. ``places``: hosts by option. Raises
    ConfigError: names the option."""
    for option, host in places.items():
        if not (insecure or is_loopback(host)):
            raise ConfigError(
                f"{option}: {host} is reached from other machines, where anybody could read, change and stop what is "
                "served: give --tls-cert, --tls-key and --tls-ca, or --insecure in a network that you trust"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``. Other names than localhost may mean any address."""
    found = ip_of(host.strip("[]").partition("%")[0])
    return host == "localhost" or (found is not None and found.is_loopback)


def serve_metrics_to(
    certificate: ServedCertificate,
    guard: CallGuard,
    host: str,
    port: int,
    collector: Collector,
    *,
    beside: Mapping[str, tuple[str, App]] | None = None,
) -> int:
    """Serve ``collector`` at https://``host``:``port``/metrics to those whom ``guard`` admits, and what is ``beside`` it,
    by path, to those who may call the method that it has. Returns the port. Raises ConfigError: the port is in use, or the
    address is not of this machine."""
    apps = beside or {}
    plain = metrics_app(collector, {path: app for path, (_, app) in apps.items()})
    app = _guarded(plain, guard, lambda path: apps[path][0] if path in apps else METRICS, "Bearer")
    try:
        serving = _serving(host, port, app, certificate)
    except OSError as error:
        raise ConfigError(f"cannot serve metrics on port {port} of {host} ({error.strerror})") from error
    run_aside(serving, "atta-metrics")
    return int(serving.server_port)


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
        if decision.why is Refusal.LACKS_ROLE:
            return json_answer(start_response, HTTPStatus.FORBIDDEN, refusal(NotAllowedError, decision.cause))
        said, asked = refusal(NotAuthenticatedError, decision.cause), ("WWW-Authenticate", scheme)
        return json_answer(start_response, HTTPStatus.UNAUTHORIZED, said, asked)

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
