"""Certificates and tokens of a running daemon, which are read again when their files change.

A file that has become unreadable or wrong changes nothing: the daemon goes on with what it has, and says so.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from atta.errors import AttaError
from atta.wire.security.files import PemBytes, Stamp, TlsFiles, stamp_of
from atta.wire.security.tokens import TokenFile, read_tokens

__all__ = ["LOOK_S", "ServedCertificate", "WatchedTokens"]

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
        self._found, self._stamp = files.read()
        self._lock = threading.Lock()

    def for_grpc(self) -> grpc.ServerCredentials:
        """As gRPC takes it: with a look at the files at each handshake."""
        renewed: Any = self._renewed  # the stubs do not know that None means: as before
        return grpc.dynamic_ssl_server_credentials(_configuration(self._found, self._ask), renewed, self._ask)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What has changed since the last handshake; None: nothing."""
        with self._lock:
            try:
                if self._files.stamp() == self._stamp:
                    return None
                self._found, self._stamp = self._files.read()
            except AttaError as error:
                log.error("certificate not renewed", error=str(error))
                return None
            log.info("certificate renewed", file=self._files.cert)
            return _configuration(self._found, self._ask)

    def context(self) -> ssl.SSLContext:
        """For connections of the metrics, with what the files hold now. They show no certificate of their own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._files.cert, self._files.key)
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
        self._looked = clock()
        self._lock = threading.Lock()

    def now(self) -> TokenFile:
        """The tokens as the file had them at most ``LOOK_S`` ago."""
        with self._lock:
            if self._clock() - self._looked >= LOOK_S:
                self._looked = self._clock()
                self._look()
            return self._tokens

    def _look(self) -> None:
        try:
            stamp: Stamp | None = stamp_of(self._path)
        except AttaError as error:
            self._keep(None, error)
            return
        if stamp == self._stamp:
            return
        try:
            self._tokens = read_tokens(self._path)
        except AttaError as error:
            self._keep(stamp, error)
            return
        self._stamp = stamp
        log.info("tokens read", file=self._path, tokens=len(self._tokens.entries))

    def _keep(self, stamp: Stamp | None, error: AttaError) -> None:
        """Go on with the tokens of before; say so once per change of the file."""
        if stamp != self._stamp:
            log.error("tokens not read again: those of before are still good", error=str(error))
        self._stamp = stamp
