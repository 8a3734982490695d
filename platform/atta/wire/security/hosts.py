"""Whom the certificate of a daemon names, where it does not name the host that was asked: gRPC says only that."""

from __future__ import annotations

import ssl
from socket import create_connection
from typing import Any

from atta.errors import AttaError, NotAuthenticatedError
from atta.wire.security.credentials import Credentials

__all__ = ["with_hosts"]

_OTHER_HOST = "Hostname Verification Check failed"
_PATIENCE_S = 2.0


def with_hosts(error: AttaError, address: str, credentials: Credentials | None) -> AttaError:
    """``error``, or if it says that a certificate is for another host: one that names both. It asks the daemon once more."""
    if credentials is None or not isinstance(error, NotAuthenticatedError) or _OTHER_HOST not in error.cause:
        return error
    host = address.rpartition(":")[0].strip("[]")
    try:
        named = ", ".join(_hosts_shown(host, int(address.rpartition(":")[2]), credentials))
    except (OSError, ValueError):  # it has gone, or has another certificate by now
        return error
    return NotAuthenticatedError(
        address,
        f"its certificate is for {named or 'no host'}, not for {host}: ask it by such a name, or give it a certificate for "
        f"{host} (atta cert new --host {host})",
    )


def _hosts_shown(host: str, port: int, credentials: Credentials) -> list[str]:
    """The hosts in the certificate that is shown at an address, which must be of the authority of ``credentials``."""
    context = ssl.create_default_context(cafile=credentials.ca)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if credentials.cert:
        context.load_cert_chain(credentials.cert, credentials.key)
    with create_connection((host, port), _PATIENCE_S) as plain, context.wrap_socket(plain) as encrypted:
        shown: Any = encrypted.getpeercert()
    return [value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
