"""Roles and tokens: who may call what and read metrics, what is not good is refused, and no secret is kept."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, combinations
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from atta.cli.token import token as command
from atta.daemon.admission import Admitted, CallGuard, Proof, Refused
from atta.daemon.security import ServedCertificate, WatchedTokens, serve_metrics_to
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.observe.metrics import DaemonCollector, DaemonFigures
from atta.wire.credentials import AUTHORIZATION, Credentials, TlsFiles, TokenHeader, stamp_of
from atta.wire.rpc import METHODS
from atta.wire.tokens import (
    METRICS,
    ROLES,
    Role,
    TokenEntry,
    TokenFile,
    allowed,
    issue,
    parse_roles,
    read_token,
    read_tokens,
)
from tests.unit.security.authority import Authority
from tests.waiting import eventually

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


NOW = datetime(2027, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


def run(*words: str) -> Any:
    result = CliRunner().invoke(command, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@given(
    name=st.text(min_size=1, max_size=64).filter(str.isprintable),
    roles=st.sets(st.sampled_from(Role), min_size=1),
    expires=st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(9000, 1, 1), timezones=st.just(UTC)),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, name: str, roles: set[Role], expires: datetime) -> None:
    path = tmp_path_factory.getbasetemp() / "t.toml"
    entries = [issue(name, roles, expires.replace(microsecond=0))[1] for _ in range(2)]
    path.write_text(TokenFile.of(entries).text(), encoding="utf-8")
    assert [*read_tokens(path).entries.values()] == entries


def test_a_token_is_found_by_its_bearer_alone() -> None:
    token, entry = issue("alice", {Role.READER}, LATER)
    other, _ = issue("bob", {Role.OPERATOR}, LATER)
    tokens = TokenFile.of([entry])
    assert tokens.find(token, NOW) == entry
    secret = token.rpartition("-")[2]
    assert entry.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    forged = token[:-1] + ("0" if token[-1] != "0" else "1")
    assert tokens.find(forged, NOW) == tokens.find(other, NOW) == "the token is unknown"
    assert "expired" in str(tokens.find(token, LATER))
    for malformed in ("", "atta", f"{token} ", token.upper(), token[:-1], f"{token}0", "\xe4" * 80):
        assert tokens.find(malformed, NOW) == "the token is malformed"
    assert all(secret not in str(tokens.find(t, LATER)) for t in (token, forged))


def test_no_secret_is_kept(tmp_path: Path) -> None:
    path, out = tmp_path / "t.toml", tmp_path / "alice"
    made = run("new", "--tokens", str(path), "--name", "alice", "--role", "reader", "--out", str(out))
    secret = read_token(out).rpartition("-")[2]
    assert secret not in made.output
    assert all(secret not in file.read_text() for file in tmp_path.iterdir() if file != out)
    assert secret not in repr(read_tokens(path))
    assert {file.stat().st_mode & 0o777 for file in (path, out)} == {0o600}


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    words = ("--tokens", str(path))
    first = run("new", *words, "--name", "alice", "--role", "reader", "--role", "writer").stdout.strip()
    second = run("new", *words, "--name", "bob", "--role", "peer", "--expires", "2d").stdout.strip()
    now = datetime.now(UTC)
    found = read_tokens(path).find(first, now)
    assert isinstance(found, TokenEntry)
    assert (found.name, found.roles) == ("alice", {Role.READER, Role.WRITER})
    assert timedelta(days=89) < found.expires - now < timedelta(days=91)
    listed = run("list", *words).output
    assert all(name in listed for name in ("alice", "bob"))
    assert first.rpartition("-")[2] not in listed
    run("revoke", *words, found.id)
    assert read_tokens(path).find(first, now) == "the token is unknown"
    assert isinstance(read_tokens(path).find(second, now), TokenEntry)
    assert isinstance(read_tokens(path).find(second, now + timedelta(days=3)), str)
    with pytest.raises(UnknownNameError, match="unknown token"):
        run("revoke", *words, found.id)
    with pytest.raises(ConfigError, match="exists already"):
        run("new", *words, "--name", "eve", "--role", "peer", "--out", str(path))


def test_a_changed_file_keeps_its_owner_its_mode_and_the_links_to_it(tmp_path: Path) -> None:
    real, link = tmp_path / "etc" / "t.toml", tmp_path / "t.toml"
    real.parent.mkdir()
    real.write_text(GOOD)
    real.chmod(0o640)
    owner = 12345 if os.geteuid() == 0 else os.geteuid()
    os.chown(real, owner, owner if os.geteuid() == 0 else -1)
    link.symlink_to(real)
    run("new", "--tokens", str(link), "--name", "bob", "--role", "peer")
    found = real.stat()
    assert link.is_symlink()
    assert [entry.name for entry in read_tokens(real).entries.values()] == ["alice", "bob"]
    assert (found.st_mode & 0o777, found.st_uid) == (0o640, owner)
    assert {file.name for file in tmp_path.rglob("*")} == {"etc", "t.toml"}


def test_a_file_that_would_get_another_owner_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.toml"
    path.write_text(GOOD)

    def kept() -> tuple[int, ...]:
        found = path.stat()  # without st_atime, which reading may change
        return found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns

    before = kept()
    monkeypatch.setattr(os, "fchown", Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted")))
    with pytest.raises(ConfigError, match=r"t.toml: unchanged: it belongs to user \d+ .*Operation not permitted"):
        run("new", "--tokens", str(path), "--name", "bob", "--role", "peer")
    assert (path.read_text(), kept()) == (GOOD, before)
    assert {file.name for file in tmp_path.iterdir()} == {"t.toml"}


def test_tokens_that_are_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path, names = tmp_path / "t.toml", {f"user {number}" for number in range(12)}
    main = [sys.executable, "-m", "atta.cli.main", "token", "new", "--tokens", str(path), "--role", "reader", "--name"]
    running = [subprocess.Popen([*main, name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for name in names]
    assert [process.wait(60) for process in running] == [0] * len(names)
    assert {entry.name for entry in read_tokens(path).entries.values()} == names
    assert [file.name for file in tmp_path.iterdir()] == ["t.toml"]


GOOD = issue("alice", {Role.READER}, LATER)[1].text()


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("token = 3", ConfigError, r"begin with \[\[token\]\]"),
        ("[[token]", DataError, "not a TOML"),
        ("[[tokens]]", UnknownNameError, "did you mean 'token'"),
        (GOOD.replace("roles =", "role ="), ConfigError, "did you mean 'roles'"),
        (GOOD.replace('["reader"]', '["raeder"]'), ConfigError, "did you mean 'reader'"),
        (GOOD.replace('["reader"]', "[]"), ConfigError, "no list of roles"),
        (GOOD.replace("id = ", 'id = "x" #'), ConfigError, "no id of 12"),
        (GOOD.replace("expires = 2027-01-02T00:00:00Z", "expires = 2027-01-02T00:00:00"), ConfigError, "time zone"),
        (GOOD.replace('sha256 = "', 'sha256 = "g'), ConfigError, "no sha256"),
        (GOOD + GOOD, ConfigError, "one id"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(error, match=words) as caught:
        read_tokens(tmp_path / "t.toml")
    assert "t.toml" in str(caught.value)


def test_a_file_without_a_token_is_not_shown(tmp_path: Path) -> None:
    for content in (b"something secret", b"\xff\xfe"):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(DataError, match="holds no token") as caught:
            read_token(tmp_path / "t")
        assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="cannot be read"):
        read_token(tmp_path / "absent")


def test_a_running_daemon_sees_what_has_changed_and_keeps_what_was_good(tmp_path: Path) -> None:
    path, now = tmp_path / "t.toml", 0.0
    entries = [issue(name, {Role.READER}, LATER)[1] for name in ("a", "b")]

    def write(text: str) -> None:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(path)

    one, both = (TokenFile.of(entries[:count]).text() for count in (1, 2))
    write(one)
    watched = WatchedTokens(str(path), clock=lambda: now)
    write(both)
    assert len(watched.now().entries) == 1  # not looked at again yet
    assert len(watched.latest().entries) == 2
    steps = [(0.9, one, 2), (1.0, one, 1), (2.0, both, 2), (3.0, "bad", 2), (4.0, None, 2), (5.0, one, 1), (6.0, "", 0)]
    for now, text, count in steps:  # noqa: B007 (the clock of above)
        path.unlink() if text is None else write(text)
        assert [*watched.now().entries] == [entry.id for entry in entries[:count]]


def test_a_file_that_cannot_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the way may end without a change of the file, and is told once."""
    path, now = tmp_path / "t.toml", 0.0
    path.write_text(GOOD)
    watched = WatchedTokens(str(path), clock=lambda: now)
    path.write_text("")
    failing = Mock(side_effect=[PermissionError(errno.EACCES, "Permission denied")] * 3 + [""])
    monkeypatch.setattr(Path, "read_text", failing)
    with capture_logs() as lines:
        for now in (1.0, 2.0, 3.0):  # noqa: B007 (the clock of above)
            assert len(watched.now().entries) == 1
        now = 4.0
        assert not watched.now().entries
        now = 5.0
        watched.now()
    assert failing.call_count == 4
    assert [line["event"].partition(":")[0] for line in lines] == ["tokens not read again", "tokens read"]


def test_a_new_owner_or_mode_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(GOOD)
    before = stamp_of(str(path))
    assert eventually(lambda: path.chmod(0o600) or stamp_of(str(path)) != before)  # the kernel's clock has ticked


def test_a_token_is_good_at_once_when_it_is_new(tmp_path: Path) -> None:
    """Else its first calls would fail, and jobs with them: callers may see the new token before the daemon does."""
    path = tmp_path / "t.toml"
    path.write_text("")
    watched = WatchedTokens(str(path), clock=lambda: 0.0)
    guard = CallGuard(watched.now, watched.latest)
    token, entry = issue("a", {Role.READER}, datetime.now(UTC) + timedelta(hours=1))
    proof = Proof(authorization=[f"Bearer {token}"])
    assert isinstance(guard.decide("atta.v1.SessionService/Open", "here", proof), Refused)
    path.write_text(TokenFile.of([entry]).text())
    assert isinstance(guard.decide("atta.v1.SessionService/Open", "here", proof), Admitted)


def test_a_caller_looks_at_its_token_once_a_second_and_keeps_what_was_good(tmp_path: Path) -> None:
    path, now = tmp_path / "token", 0.0
    old, new = (issue("a", {Role.READER}, LATER)[0] for _ in range(2))
    credentials = Credentials("ca.pem", token=str(path))
    with pytest.raises(DataError, match="token: cannot be read"):
        TokenHeader(credentials)
    path.write_text(old)
    header = TokenHeader(credentials, clock=lambda: now)
    (tmp_path / "new").write_text(new)
    (tmp_path / "new").replace(path)
    for now, change, kept in (  # noqa: B007 (the clock of above)
        (0.9, None, old),
        (1.0, None, new),
        (2.0, lambda: path.write_text("damaged"), new),
        (3.0, path.unlink, new),
        (4.0, lambda: path.write_text(old), old),
    ):
        if change:
            change()
        assert header.now() == ((AUTHORIZATION, f"Bearer {kept}"),)
    assert TokenHeader(Credentials("ca.pem")).now() == TokenHeader(None).now() == ()
