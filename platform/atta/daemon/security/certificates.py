"""Files that a daemon reads again when they change: its own certificate, and the tokens that are good. TLS looks at the
dates of certificates only while a connection begins, and connections may last for weeks."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

import grpc
import structlog

from atta.errors import AttaError, DataError
from atta.wire.security.files import PemBytes, Stamp, TlsFiles, stamp_of
from atta.wire.security.tokens import TokenFile, read_tokens


@lru_cache(maxsize=1024)
def end_of(pem: bytes) -> datetime:
    """The last moment at which the first certificate of a chain is good. Each call of a connection asks for it.

    Raises:
        ValueError: this is no certificate.
    """
    from cryptography import x509  # loading it takes longer than all else of a daemon without TLS

    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


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

        Raises:
            AttaError: what ``read`` raises.
        """
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
    """The certificate that a daemon shows, and the authority that it asks callers' certificates from.

    Threads of gRPC and of the metrics ask for it at each new connection.
    """

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
        try:
            context.load_cert_chain(self._files.cert, self._files.key)
        except (ssl.SSLError, OSError) as error:  # they were good a moment ago
            raise DataError(self._files.cert, f"is being replaced: {error}") from error
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
        """How long the certificate in the file is good, in days; negative: it has ended. NaN: it is none that can be
        read."""
        try:
            return (end_of(self._served.now().pem.cert) - datetime.now(UTC)) / timedelta(days=1)
        except ValueError:
            return math.nan

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
