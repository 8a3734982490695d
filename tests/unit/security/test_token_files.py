"""Tokens: what is written can be read, what is not good is refused, and no secret is kept."""

from __future__ import annotations

import errno
import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from atta.cli.token import token as command
from atta.daemon.admission import Admitted, CallGuard, Proof, Refused
from atta.daemon.security import WatchedTokens
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.wire.credentials import AUTHORIZATION, Credentials, TokenHeader, stamp_of
from atta.wire.tokens import Role, TokenEntry, TokenFile, issue, read_token, read_tokens
from tests.waiting import eventually

NOW = datetime(2027, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


def run(*words: str) -> Any:
    result = CliRunner().invoke(command, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@settings(max_examples=50)
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
    assert "alice" in listed
    assert "bob" in listed
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
    assert {file.name for file in tmp_path.rglob("*")} == {"etc", "t.toml", ".t.toml.lock"}


def test_a_file_that_would_get_another_owner_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.toml"
    path.write_text(GOOD)
    before = path.stat()

    def fchown(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", fchown)
    with pytest.raises(ConfigError, match=r"t.toml: unchanged: it belongs to user \d+ .*Operation not permitted"):
        run("new", "--tokens", str(path), "--name", "bob", "--role", "peer")
    assert (path.read_text(), path.stat()) == (GOOD, before)
    assert {file.name for file in tmp_path.iterdir()} == {"t.toml", ".t.toml.lock"}


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

    write(TokenFile.of(entries[:1]).text())
    watched = WatchedTokens(str(path), clock=lambda: now)
    write(TokenFile.of(entries).text())
    assert len(watched.now().entries) == 1  # not looked at again yet
    assert len(watched.latest().entries) == 2
    write(TokenFile.of(entries[:1]).text())
    now = 0.9
    assert len(watched.now().entries) == 2
    now = 1.0
    assert len(watched.now().entries) == 1
    write(TokenFile.of(entries).text())
    now = 2.0
    assert len(watched.now().entries) == 2
    write("damaged")
    now = 3.0
    assert len(watched.now().entries) == 2
    path.unlink()
    now = 4.0
    assert len(watched.now().entries) == 2
    write(TokenFile.of(entries[:1]).text())
    now = 5.0
    assert [*watched.now().entries] == [entries[0].id]
    write("")
    now = 6.0
    assert not watched.now().entries


def test_a_file_that_cannot_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the way may end without a change of the file, and is told once."""
    path, now = tmp_path / "t.toml", 0.0
    path.write_text(GOOD)
    watched = WatchedTokens(str(path), clock=lambda: now)
    path.write_text("")
    read, tries = Path.read_text, 0

    def failing(self: Path, **options: Any) -> str:
        nonlocal tries
        if (tries := tries + 1) <= 3:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(self, **options)

    monkeypatch.setattr(Path, "read_text", failing)
    with capture_logs() as lines:
        for now in (1.0, 2.0, 3.0):  # noqa: B007 (the clock of above)
            assert len(watched.now().entries) == 1
        now = 4.0
        assert not watched.now().entries
        now = 5.0
        watched.now()
    assert tries == 4
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
    now = 0.9
    assert header.now() == ((AUTHORIZATION, f"Bearer {old}"),)
    now = 1.0
    assert header.now() == ((AUTHORIZATION, f"Bearer {new}"),)
    for change in (lambda: path.write_text("damaged"), path.unlink):
        change()
        now += 1
        assert header.now() == ((AUTHORIZATION, f"Bearer {new}"),)
    path.write_text(old)
    now += 1
    assert header.now() == ((AUTHORIZATION, f"Bearer {old}"),)
    assert TokenHeader(Credentials("ca.pem")).now() == TokenHeader(None).now() == ()
