"""Roles: who may call what, and who may read metrics over HTTPS."""

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
from itertools import chain, combinations
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from structlog.testing import capture_logs

from atta.daemon.admission import CallGuard
from atta.daemon.security import ServedCertificate, WatchedTokens, serve_metrics_to
from atta.errors import ConfigError, UnknownNameError
from atta.observe.metrics import DaemonCollector, DaemonFigures
from atta.wire.rpc import METHODS
from atta.wire.security.files import TlsFiles
from atta.wire.security.tokens import METRICS, ROLES, Role, allowed, is_operators, parse_roles
from tests.unit.security.authority import Authority

SETS = list(chain.from_iterable(combinations(Role, n) for n in range(len(Role) + 1)))


def declared() -> set[str]:
    services = [s for module in (health_pb2, reflection_pb2) for s in module.DESCRIPTOR.services_by_name.values()]
    own = {method.path.removeprefix("/") for method in METHODS.values()}
    return own | {f"{service.full_name}/{method.name}" for service in services for method in service.methods}


def test_every_declared_method_has_roles_of_which_one_is_enough_and_needed() -> None:
    assert set(ROLES) - {METRICS} == declared()
    assert all(ROLES.values())
    for method, needed in ROLES.items():
        assert [roles for roles in SETS if allowed(method, roles)] == [r for r in SETS if needed & set(r)], method
    for method in ("", "atta.v1.KvService", "/atta.v1.KvService/Pull", "atta.v1.KvService/pull"):
        assert not allowed(method, Role), "an unknown method is for nobody"


def test_partitions_are_read_by_peers_alone() -> None:
    partitions = [m for m in ROLES if m.split("/")[0][8:] in {"GraphService", "KvService", "LinkService"}]
    assert len(partitions) == 6
    assert all(ROLES[method] == {Role.PEER} for method in partitions)
    assert all(Role.PEER not in ROLES[m] for m in ROLES if m.split("/")[0][8:] in {"TableService", "SessionService"})


def test_calls_of_operators_are_those_for_them_alone() -> None:
    assert {method.rpartition("/")[2] for method in ROLES if is_operators(method)} == {
        "Stop", "Trace", "Save", "Load", "Delete", "Promote", "Publish", "ServerReflectionInfo",
    }  # fmt: skip


def test_roles_have_names() -> None:
    assert parse_roles(["reader", "peer", "reader"]) == {Role.READER, Role.PEER}
    with pytest.raises(UnknownNameError, match="did you mean 'reader'"):
        parse_roles(["raeder"])


@dataclass
class Served:
    port: int
    context: ssl.SSLContext
    good: dict[str, str]
    expired: str
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
    good, expired = authority.tokens(), authority.tokens(valid=timedelta(seconds=-1))["all"]
    guard = CallGuard(WatchedTokens(str(authority.token_file)).now)
    collector = DaemonCollector(0, {"dataset": "d"}, lambda: DaemonFigures({"parts": 1.0}, ()))
    port = serve_metrics_to(certificate, guard, "127.0.0.1", 0, collector)
    with pytest.raises(ConfigError, match=f"port {port}"):
        serve_metrics_to(certificate, guard, "127.0.0.1", port, collector)
    yield Served(port, ssl.create_default_context(cafile=own.ca), good, expired, Path(own.cert))
    authority.token_file.unlink()


@pytest.mark.parametrize(("status", "roles"), [(200, ["reader", "operator", "all"]), (403, ["writer", "peer"])])
def test_a_role_is_needed_for_metrics(served: Served, status: int, roles: list[str]) -> None:
    for role in roles:
        found, text = served.read(f"Bearer {served.good[role]}")
        assert (found, "atta_daemon_info" in text) == (status, status == 200)


def test_bad_tokens_are_refused(served: Served) -> None:
    with capture_logs() as lines:
        for header, words in [
            (None, "neither a certificate nor a token"),
            (f"Bearer {served.expired}", "has expired"),
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
