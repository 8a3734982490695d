"""Which role may call which method, the tokens that callers bring, and the file in which a daemon keeps their hashes. A
token is ``atta-ID-SECRET``. ID finds its entry in the file, SECRET has 256 random bits. So a plain SHA-256 of it is
enough: nobody can try all of them, which slow hashes are for. The file never holds a secret."""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError, blaming, known_name
from atta.wire.parts import check_keys, read_toml


class Role(enum.Enum):
    """What somebody is to a cluster. One caller may have several."""

    READER = "reader"
    """Opens sessions, reads tables and figures, and asks models."""
    WRITER = "writer"
    """Creates mutable tables, reads them and pushes to them."""
    PEER = "peer"
    """Another daemon of the cluster, which asks for rows and edges."""
    OPERATOR = "operator"
    """Watches and stops daemons; saves, loads and deletes tables; publishes versions of the dataset's tables."""


METRICS = "metrics"
"""Stands in the table for the Prometheus metrics, which are no gRPC method."""


def _methods(service: str, roles: Iterable[Role], *names: str) -> dict[str, frozenset[Role]]:
    return {f"{service}/{name}": frozenset(roles) for name in names}


_GRAPH, _KV, _LINK = "atta.v1.GraphService", "atta.v1.KvService", "atta.v1.LinkService"
_BACKUP = "atta.v1.BackupService"
_IDS, _WEIGHTS = "atta.v1.IdService", "atta.v1.ParameterService"
_TABLE, _SESSION, _CONTROL = "atta.v1.TableService", "atta.v1.SessionService", "atta.v1.ControlService"
_UPDATE, _QUERY = "atta.v1.UpdateService", "atta.v1.QueryService"
_REFLECTION, _HEALTH = "grpc.reflection.v1alpha.ServerReflection", "grpc.health.v1.Health"
_FIGURES = (Role.READER, Role.WRITER, Role.OPERATOR)

ROLES: dict[str, frozenset[Role]] = {
    **_methods(_GRAPH, [Role.PEER], "Sample", "Pair", "Probe"),
    **_methods(_KV, [Role.PEER], "Pull", "ListTables"),
    **_methods(_LINK, [Role.PEER], "Attach"),
    **_methods(_BACKUP, [Role.PEER], "Follow", "Append", "Piece", "Vote"),
    **_methods(_BACKUP, [Role.OPERATOR], "Promote"),
    **_methods(_IDS, [Role.READER, Role.WRITER], "Numbers", "Strings"),
    **_methods(_TABLE, [Role.WRITER], "Create", "Grow", "Register", "Push", "Forget"),
    **_methods(_TABLE, [Role.READER, Role.WRITER], "Locate", "Pull"),
    **_methods(_TABLE, _FIGURES, "List", "Describe", "Snapshots"),
    **_methods(_TABLE, [Role.WRITER, Role.OPERATOR], "Delete"),
    **_methods(_TABLE, [Role.OPERATOR], "Save", "Load"),
    **_methods(_UPDATE, [Role.OPERATOR], "Publish"),
    **_methods(_UPDATE, _FIGURES, "Versions"),
    **_methods(_UPDATE, [Role.READER, Role.WRITER], "Changes", "EdgesFrom"),
    **_methods(_WEIGHTS, [Role.WRITER], "Create", "Join", "Begin", "Push", "Renew", "Leave", "Drop"),
    **_methods(_WEIGHTS, [Role.READER, Role.WRITER], "Pull"),
    **_methods(_SESSION, [Role.READER], "Open", "Next", "Renew", "Close"),
    **_methods(_QUERY, [Role.READER], "Predict", "Recommend"),
    **_methods(_CONTROL, Role, "Describe"),
    **_methods(_CONTROL, _FIGURES, "Stats", "Sessions"),
    **_methods(_CONTROL, [Role.READER], "Report"),
    **_methods(_CONTROL, [Role.OPERATOR], "Trace", "Stop"),
    **_methods(_REFLECTION, [Role.OPERATOR], "ServerReflectionInfo"),
    **_methods(_HEALTH, Role, "Check", "List", "Watch"),
    METRICS: frozenset({Role.READER, Role.OPERATOR}),
}
"""The roles of which a caller needs one, by method: ``"atta.v1.KvService/Pull"``."""


def allowed(method: str, roles: Collection[Role]) -> bool:
    """Whether a caller with these ``roles`` may call ``method``. An unknown method is for nobody."""
    return not ROLES.get(method, frozenset()).isdisjoint(roles)


def parse_roles(names: Iterable[object]) -> frozenset[Role]:
    """The roles with these names. Raises UnknownNameError: there is no such role."""
    known = {role.value: role for role in Role}
    names = list(names)
    for name in names:
        known_name("role", name, known)
    return frozenset(known[str(name)] for name in names)


MAX_TOKENS = 10_000
"""Most entries of a file."""
_ID_BYTES, _SECRET_BYTES = 6, 32
_TOKEN = re.compile(r"atta-([0-9a-f]{12})-([0-9a-f]{64})")
_KEYS = ("id", "name", "roles", "expires", "sha256")


@dataclass(frozen=True)
class TokenEntry:
    """What is known of one token. ``id``: the part of it that everybody may see. ``name``: whose it is. ``sha256``: of the
    secret, in hexadecimal digits."""

    id: str
    name: str
    roles: frozenset[Role]
    expires: datetime
    sha256: str

    def text(self) -> str:
        """The entry as it stands in the file."""
        roles = json.dumps(sorted(role.value for role in self.roles))
        return (
            f"[[token]]\nid = {json.dumps(self.id)}\nname = {json.dumps(self.name, ensure_ascii=False)}\nroles = {roles}\n"
            f"expires = {self.expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}\nsha256 = {json.dumps(self.sha256)}\n"
        )


@dataclass(frozen=True)
class TokenFile:
    """The entries of a file, by their ids."""

    entries: Mapping[str, TokenEntry]

    @classmethod
    def of(cls, entries: Iterable[TokenEntry]) -> TokenFile:
        """From entries; raises ConfigError where two have one id or there are too many."""
        listed = list(entries)
        found = {entry.id: entry for entry in listed}
        if len(found) != len(listed):
            raise ConfigError("two tokens have one id")
        if len(found) > MAX_TOKENS:
            raise ConfigError(f"{len(found)} tokens: at most {MAX_TOKENS} are kept")
        return cls(found)

    def find(self, token: str, now: datetime) -> TokenEntry | str:
        """The entry of ``token``, or why it is refused. The reason says nothing of the secret."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return "the token is malformed"
        entry = self.entries.get(parts[1])
        # Unknown ids cost as much as known ones, and the comparison takes as long wherever the hashes differ.
        wanted = entry.sha256 if entry is not None else _digest("")
        same = hmac.compare_digest(_digest(parts[2]), wanted)
        if entry is None or not same:
            return "the token is unknown"
        return f"the token {entry.id} of {entry.name} has expired" if now >= entry.expires else entry

    def without(self, token_id: str) -> TokenFile:
        """The file without the entry ``token_id``; raises UnknownNameError where there is none."""
        known_name("token", token_id, self.entries)
        return TokenFile({name: entry for name, entry in self.entries.items() if name != token_id})

    def text(self) -> str:
        """What stands in the file."""
        return "\n".join(entry.text() for entry in self.entries.values())


def issue(name: str, roles: Iterable[Role], expires: datetime) -> tuple[str, TokenEntry]:
    """A new token, and the entry that lets daemons know it. The token is nowhere else. Raises ConfigError: no role is
    given, or the name is empty, too long or has control characters."""
    if not name or len(name) > 64 or not name.isprintable():
        raise ConfigError(f"{name[:80]!r} is no name of a token: give 1 to 64 printable characters")
    given = frozenset(roles)
    if not given:
        raise ConfigError("a token needs at least one role")
    token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    return f"atta-{token_id}-{secret}", TokenEntry(token_id, name, given, expires, _digest(secret))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def read_tokens(path: str | Path) -> TokenFile:
    """Read a file of hashes. Raises DataError: it cannot be read, or is not TOML; ConfigError: a key is missing,
    unknown or of the wrong type, or a role does not exist."""
    content = read_toml(path)
    check_keys(f"in {path}", content, ["token"])
    entries = content.get("token", [])
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: entries begin with [[token]]")
    with blaming(ConfigError, path, of=ConfigError):
        return TokenFile.of(map(_entry, entries))


def _entry(found: Any) -> TokenEntry:
    if not isinstance(found, dict):
        raise ConfigError("entries begin with [[token]]")
    check_keys("of a token", found, _KEYS)
    token_id, name, roles, expires, sha256 = (found.get(key) for key in _KEYS)
    if not isinstance(token_id, str) or not re.fullmatch(r"[0-9a-f]{12}", token_id):
        raise ConfigError("a token has no id of 12 hexadecimal digits")
    if not isinstance(name, str) or not isinstance(roles, list) or not roles:
        raise ConfigError(f"token {token_id} has no name, or no list of roles")
    if not isinstance(expires, datetime) or expires.tzinfo is None:
        raise ConfigError(f"token {token_id} does not say when it expires, with a time zone")
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ConfigError(f"token {token_id} has no sha256 of 64 hexadecimal digits")
    return TokenEntry(token_id, name, parse_roles(roles), expires, sha256)


def read_token(path: str | Path) -> str:
    """The token in a file that a caller keeps, without the white space around it. Raises DataError: the file cannot be
    read, or holds something else. The error does not show what."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise DataError(path, "holds no token") from None
    if not _TOKEN.fullmatch(token):
        raise DataError(path, "holds no token, which `atta token new` makes")
    return token
