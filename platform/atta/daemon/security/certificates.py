"""The daemon's own certificate, which is read again when its file changes, and when a caller's ends. TLS looks only
while a connection begins, and connections may last for weeks.

Python's ``ssl`` reads the dates of a connection of its own alone, so the few fields before them are read here: X.509 is
nested elements of a tag, a length and a content (DER), RFC 5280.
"""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import grpc
import structlog

from atta.errors import AttaError, DataError
from atta.wire.security.files import PemBytes, Stamp, TlsFiles, stamp_of
from atta.wire.security.tokens import TokenFile, read_tokens

_VERSION, _UTC_TIME = 0xA0, 0x17
"""Tags: of the version, which may be absent, and of a date whose year has two digits."""
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_VALIDITY = 3
"""The place of the dates after the version: serial number, algorithm and issuer come before."""


@lru_cache(maxsize=1024)
def end_of(pem: bytes) -> datetime:
    """The last moment at which a certificate is good, which TLS has verified. Each call of a connection asks for it.

    Raises:
        ValueError, IndexError: this is no certificate.
    """
    first = pem[pem.index(_BEGIN) : pem.index(_END) + len(_END)]  # others of the chain follow, and there may be remarks
    _, certificate = next(_elements(ssl.PEM_cert_to_DER_cert(first.decode("ascii"))))
    _, body = next(_elements(certificate))
    fields = [content for tag, content in _elements(body) if tag != _VERSION]
    _, (tag, end) = _elements(fields[_VALIDITY])
    text = end.decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text < "5" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents of the elements that stand in ``der`` one after the other."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:  # the length itself has so many bytes
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        yield tag, der[at : at + length]
        at += length


SHORT_DAYS = 7.0
"""A certificate that ends sooner is told of."""
WARNED_S = 24 * 3600.0
"""How often it is told of, in seconds."""
LOOK_S = 1.0
"""How often the file of tokens is looked at, at most, in seconds."""

log = structlog.get_logger("atta.security")


class ServedCertificate:
    """The certificate that a daemon shows, and the authority that it asks callers' certificates from.

    Threads of gRPC and of the metrics ask for it at each new connection.
    """

    def __init__(self, files: TlsFiles, *, ask: bool) -> None:
        """``ask``: whether every caller has to show a certificate of the authority. Raises DataError for bad files."""
        self._files, self._ask = files, ask
        self._stamp: Stamp | None
        self._found, self._stamp = files.read()
        self._told = ""
        self._warned: float | None = None
        self._context = _context(files)
        self._shown = self._found  # by gRPC
        self._lock = threading.Lock()

    def for_grpc(self) -> grpc.ServerCredentials:
        """As gRPC takes it: with a look at the files at each handshake."""
        renewed: Any = self._renewed  # the stubs do not know that None means: as before
        return grpc.dynamic_ssl_server_credentials(_configuration(self._shown, self._ask), renewed, self._ask)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What has changed since gRPC last asked; None: nothing."""
        with self._lock:
            self._look()
            if self._shown is self._found:
                return None
            self._shown = self._found
            return _configuration(self._found, self._ask)

    def context(self) -> ssl.SSLContext:
        """For connections of the metrics, with a look at the files. They show no certificate of their own."""
        with self._lock:
            self._look()
            return self._context

    def days_left(self) -> float:
        """How long the certificate in the file is good, in days; negative: it has ended. NaN: it is none that can be
        read."""
        with self._lock:
            self._look()
        try:
            return (end_of(self._found.cert) - datetime.now(UTC)) / timedelta(days=1)
        except (ValueError, IndexError):
            return math.nan

    def warn(self, now: float) -> None:
        """Say in the log, once a day, that the certificate has ended or will soon. ``now``: seconds of any clock."""
        days = self.days_left()
        if days >= SHORT_DAYS or (self._warned is not None and now - self._warned < WARNED_S):
            return
        self._warned = now
        if days < 0:
            log.error("certificate has ended: nobody can connect", file=self._files.cert, days_left=round(days, 1))
        elif days < SHORT_DAYS:
            log.warning("certificate ends soon: replace its file", file=self._files.cert, days_left=round(days, 1))

    def _look(self) -> None:
        """Read the files again if they have changed. Bad ones change nothing, and are told once."""
        stamp: Stamp | None = None
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return
            found, stamp = self._files.read()
            context = _context(self._files)
        except AttaError as error:
            if str(error) != self._told:
                log.error("certificate not renewed: the one of before goes on", error=str(error))
            self._stamp, self._told = _stamp_after(error, stamp), str(error)
            return
        self._found, self._context, self._stamp, self._told = found, context, stamp, ""
        self._warned = None
        log.info("certificate renewed", file=self._files.cert)


def _stamp_after(error: AttaError, stamp: Stamp | None) -> Stamp | None:
    """The stamp of files that need not be read again, as what they hold is wrong; None: they could not be read."""
    return None if isinstance(error.__cause__, OSError) else stamp


def _context(files: TlsFiles) -> ssl.SSLContext:
    """For a server with the certificate of ``files``. Raises DataError where they are bad."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert, files.key)
    except (ssl.SSLError, OSError) as error:  # they were good a moment ago
        raise DataError(files.cert, f"is being replaced: {error}") from error
    return context


def _configuration(found: PemBytes, ask: bool) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.cert)], found.ca if ask else None)


class WatchedTokens:
    """The tokens of a file. ``clock`` counts seconds."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises DataError or ConfigError where the file is bad."""
        self._path, self._clock = path, clock
        self._stamp: Stamp | None = stamp_of(path)
        self._tokens = read_tokens(path)
        self._told = ""
        self._looked = clock()
        self._lock = threading.Lock()

    def now(self) -> TokenFile:
        """The tokens as the file had them at most ``LOOK_S`` ago."""
        return self._known(LOOK_S)

    def latest(self) -> TokenFile:
        """The tokens as the file has them."""
        return self._known(0.0)

    def _known(self, seconds: float) -> TokenFile:
        with self._lock:
            if self._clock() - self._looked >= seconds:
                self._looked = self._clock()
                self._look()
            return self._tokens

    def _look(self) -> None:
        """Read the file again if it has changed. A bad one changes nothing, and is told once."""
        stamp: Stamp | None = None
        try:
            stamp = stamp_of(self._path)
            if stamp == self._stamp:
                return
            self._tokens = read_tokens(self._path)
        except AttaError as error:
            if str(error) != self._told:
                log.error("tokens not read again: those of before are still good", error=str(error))
            self._stamp, self._told = _stamp_after(error, stamp), str(error)
            return
        self._stamp, self._told = stamp, ""
        log.info("tokens read", file=self._path, tokens=len(self._tokens.entries))
