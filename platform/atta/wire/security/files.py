"""Files that processes read to trust each other: when they change, whether they fit together, and private new ones."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

from atta.errors import ConfigError, DataError

Stamp: TypeAlias = tuple[tuple[int, int, int, int], ...]
"""Differs when a file does: inode, size and times of change of each, of what it holds and of its owner or mode."""
_TRIES = 3
"""How often files are read that are being replaced meanwhile."""


def stamp_of(*paths: str) -> Stamp:
    """The present stamp of files; raises DataError where one is missing."""
    return tuple(_stat(path) for path in paths if path)


def _stat(path: str) -> tuple[int, int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True)
class PemBytes:
    """What stands in certificate files. Empty where there is no file. The private key is never shown."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files: the authority's certificate, and a certificate with its private key. Empty: none. Raises
    ConfigError: one of certificate and key is given without the other."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigError(f"{self.cert or self.key}: a certificate and its private key are given together")

    def stamp(self) -> Stamp:
        """Differs when a file has changed; raises DataError where one is missing."""
        return stamp_of(self.ca, self.cert, self.key)

    def read(self) -> tuple[PemBytes, Stamp]:
        """What the files hold, and their stamp, which is of the same moment. Raises DataError: a file cannot be read,
        is no PEM file, or the key is not that of the certificate."""
        for _ in range(_TRIES):
            stamp = self.stamp()
            found = PemBytes(*(_read(path) for path in (self.ca, self.cert, self.key)))
            failure = self._failure()
            if self.stamp() == stamp:  # else they were replaced between two reads
                break
        if failure is not None:
            raise failure
        return found, stamp

    def _failure(self) -> DataError | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.ca:
                context.load_verify_locations(self.ca)
        except (ssl.SSLError, OSError):
            return DataError(self.ca, "is not the certificate of an authority in PEM form")
        try:
            if self.cert:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
        except _PasswordError:
            return DataError(self.key, "is encrypted: a daemon cannot ask for its password")
        except (ssl.SSLError, OSError):
            return DataError(self.key, f"is not the private key of {self.cert}, or one of them is not in PEM form")
        return None


class _PasswordError(Exception):
    """The key needs a password."""


def _no_password() -> NoReturn:
    raise _PasswordError


def _read(path: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error


def write_private(path: str | Path, text: str) -> None:
    """Write a file that only its owner may read: completely or not at all. Raises ConfigError: it cannot be written."""
    _write(Path(path), text, None)


def rewrite(path: str | Path, text: str) -> None:
    """As ``write_private``, but a file that is there keeps its owner, group and mode, and the links that lead to it.
    Raises ConfigError: it cannot be written, or not so. Then it stays as it is."""
    real = Path(os.path.realpath(path))
    try:
        before = real.stat() if real.exists() else None
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from error
    _write(real, text, before)


def _write(path: Path, text: str, before: os.stat_result | None) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)
            if before is not None:
                _give_as(before, file.fileno(), path)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _give_as(before: os.stat_result, fd: int, path: Path) -> None:
    """Give a file the owner, group and mode of the one that it replaces. Daemons could not read it otherwise."""
    try:
        os.fchown(fd, before.st_uid, before.st_gid)
        os.fchmod(fd, stat.S_IMODE(before.st_mode))
    except OSError as error:
        raise ConfigError(
            f"{path}: unchanged: it belongs to user {before.st_uid} and group {before.st_gid}, and a new file cannot be "
            f"given to them ({error.strerror})"
        ) from error
