"""Metrics over HTTPS: who may read them."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from atta.daemon.admission import CallGuard
from atta.daemon.security import ServedCertificate, WatchedTokens, serve_metrics_to
from atta.errors import ConfigError
from atta.observe.metrics import DaemonCollector, DaemonFigures
from atta.wire.credentials import TlsFiles
from atta.wire.tokens import METRICS
from tests.unit.security.authority import Authority


@dataclass
class Served:
    port: int
    context: ssl.SSLContext
    good: dict[str, str]
    expired: dict[str, str]
    certificate: Path

    def read(self, header: str | None) -> tuple[int, str]:
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}/metrics")
        if header is not None:
            request.add_header("Authorization", header)
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.context) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def served(authority: Authority) -> Iterator[Served]:
    own = authority.certificate("daemon", "peer", hosts=("127.0.0.1",))
    certificate = ServedCertificate(TlsFiles(own.ca, own.cert, own.key), ask=True)
    good, expired = authority.tokens(), authority.tokens(valid=timedelta(seconds=-1))
    guard = CallGuard(WatchedTokens(str(authority.token_file)).now)
    collector = DaemonCollector(0, {"dataset": "d"}, lambda: DaemonFigures({"parts": 1.0}, ()))
    port = serve_metrics_to(certificate, guard, "127.0.0.1", 0, collector)
    with pytest.raises(ConfigError, match=f"port {port}"):
        serve_metrics_to(certificate, guard, "127.0.0.1", port, collector)
    yield Served(port, ssl.create_default_context(cafile=own.ca), good, expired, Path(own.cert))
    authority.token_file.unlink()


@pytest.mark.parametrize(
    ("role", "status"), [("reader", 200), ("operator", 200), ("all", 200), ("writer", 403), ("peer", 403)]
)
def test_a_role_is_needed(served: Served, role: str, status: int) -> None:
    found, text = served.read(f"Bearer {served.good[role]}")
    assert found == status
    assert ("atta_daemon_info" in text) == (status == 200)


def test_bad_tokens_are_refused(served: Served) -> None:
    with capture_logs() as lines:
        for header, words in [
            (None, "neither a certificate nor a token"),
            (f"Bearer {served.expired['all']}", "has expired"),
            (f"Bearer {served.good['all'][:-4]}zzzz", "malformed"),
            (f"Basic {served.good['all']}", "not one `Bearer TOKEN`"),
        ]:
            status, text = served.read(header)
            assert (status, words in text) == (401, True), text
    assert [(line["event"], line["method"]) for line in lines[:1]] == [("call refused", METRICS)]
    assert re.fullmatch(r"127\.0\.0\.1:[0-9]+", lines[0]["address"])


def test_a_silent_connection_and_a_plain_one_hold_up_nobody(served: Served) -> None:
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=10),
        socket.create_connection(("127.0.0.1", served.port), timeout=10) as plain,
    ):
        plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"atta" not in plain.recv(4096)
        assert served.read(f"Bearer {served.good['reader']}")[0] == 200


def test_a_bad_certificate_leaves_the_one_of_before(served: Served) -> None:
    good = served.certificate.read_bytes()
    for content in (b"garbage", b"other garbage", good):
        served.certificate.write_bytes(content)
        assert served.read(f"Bearer {served.good['reader']}")[0] == 200
