"""When a caller's certificate ends. TLS looks only while a connection begins, and connections may last for weeks.

Python's ``ssl`` reads the dates of a connection of its own alone, so the few fields before them are read here: X.509 is
nested elements of a tag, a length and a content (DER), RFC 5280.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache

__all__ = ["end_of"]

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
