"""What a caller brings to a daemon, and the channels that bring it. Credentials are paths of files, so they may stand
in settings and in logs."""

from __future__ import annotations

import contextlib
import os
import secrets
import ssl
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from socket import create_connection
from typing import Any, NoReturn, TypeAlias

import grpc
from grpc.experimental import ChannelOptions

from atta.errors import AttaError, ConfigError, DataError, NotAuthenticatedError, UnavailableError, blaming
from atta.wire import rpc
from atta.wire.parts import check_keys
from atta.wire.pieces import MethodStub
from atta.wire.tokens import read_token

Stamp: TypeAlias = tuple[tuple[int, int, int, int], ...]
"""Differs when a file does: inode, size and times of change of each, of what it holds and of its owner or mode."""
_TRIES = 3
"""How often files are read that are being replaced meanwhile."""


def stamp_of(*paths: str) -> Stamp:
    """The present stamp of files; raises DataError where one is missing."""
    return tuple(_stat(path) for path in paths if path)


def _stat(path: str) -> tuple[int, int, int, int]:
    with blaming(DataError, path, "cannot be read"):
        found = os.stat(path)
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
    with blaming(DataError, path, "cannot be read"):
        return Path(path).read_bytes()


def write_private(path: str | Path, text: str) -> None:
    """Write a file that only its owner may read: completely or not at all. Raises ConfigError: it cannot be written."""
    _write(Path(path), text, None)


def rewrite(path: str | Path, text: str) -> None:
    """As ``write_private``, but a file that is there keeps its owner, group and mode, and the links that lead to it.
    Raises ConfigError: it cannot be written, or not so. Then it stays as it is."""
    real = Path(os.path.realpath(path))
    with blaming(ConfigError, f"{path}: cannot write"):
        before = real.stat() if real.exists() else None
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


_OTHER_HOST = "Hostname Verification Check failed"
_PATIENCE_S = 2.0


def explained(error: AttaError, address: str, credentials: Credentials | None) -> AttaError:
    """``error``, or one that says what the caller lacks. For a certificate of another host, the daemon is asked once more."""
    if isinstance(error, UnavailableError) and error.cause.endswith(rpc.CLOSES):
        return UnavailableError(address, f"{error.cause}; {_lacking(credentials)}")
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


def _lacking(credentials: Credentials | None) -> str:
    where = "in [tls] of the cluster file, or by ATTA_TLS_CERT and ATTA_TLS_KEY"
    if credentials is None:
        return f"a daemon with TLS asks for credentials, and none are given: name ca, cert and key {where}, ATTA_TLS_CA"
    if not credentials.cert:
        return f"a daemon may ask for a certificate, and none is given: name cert and key {where}"
    return f"the certificate {credentials.cert} may have expired, or be of another authority: name another {where}"


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


READ_BY_CALLERS = "TableService.Pull"
"""The method whose answers are received by those who read them: waking a thread of gRPC takes as long as a small pull."""
LONGEST_CALL_S = 3600.0
"""Channels of before are kept for so many seconds at least, for the calls that are under way on them."""


@dataclass(frozen=True)
class _Opened:
    """Two channels with one connection, see ``open_channels``, and the stubs of methods on them, by name."""

    usual: grpc.Channel
    read_by_callers: grpc.Channel
    stubs: dict[str, MethodStub] = field(default_factory=dict)

    def stub(self, name: str) -> MethodStub:
        if name not in self.stubs:
            self.stubs[name] = rpc.stub(self.read_by_callers if name == READ_BY_CALLERS else self.usual, name)
        return self.stubs[name]

    def close(self) -> None:
        self.read_by_callers.close()
        self.usual.close()


class ClientChannels:
    """Channels to one daemon. gRPC connects them again and again, and always with the certificate that they began with.
    So they are opened anew when a file of the certificate or the authority has changed. Files that have become
    unreadable, or do not fit together, change nothing."""

    def __init__(
        self, address: str, credentials: Credentials | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``credentials``: for a daemon with TLS. ``clock`` counts seconds. Raises DataError for bad files."""
        self._address, self._credentials, self._clock, self._looked = address, credentials, clock, clock()
        self._stamp = credentials.certificate_stamp() if credentials is not None else ()
        self._present = self._opened()
        self._former: list[tuple[float, _Opened]] = []
        self._lock = threading.Lock()
        self._closed = False

    def stub(self, name: str) -> MethodStub:
        """What begins a call of the method ``name`` with what the files held at most ``LOOK_S`` ago. Any thread may ask."""
        now = self._clock()
        if self._credentials is not None and now - self._looked >= LOOK_S:
            self._looked = now
            with self._lock, contextlib.suppress(DataError):
                self._renew(self._credentials, now)
        return self._present.stub(name)

    def close(self) -> None:
        """Close all channels."""
        with self._lock:
            self._closed = True
            for opened in (*(former for _, former in self._former), self._present):
                opened.close()

    def _opened(self) -> _Opened:
        return _Opened(*open_channels(self._address, self._credentials, rpc.client_options()))

    def _renew(self, credentials: Credentials, now: float) -> None:
        stamp = credentials.certificate_stamp()
        if stamp == self._stamp or self._closed:
            return
        fresh = self._opened()
        while self._former and now - self._former[0][0] >= LONGEST_CALL_S:
            self._former.pop(0)[1].close()
        self._former.append((now, self._present))
        self._present, self._stamp = fresh, stamp


AUTHORIZATION = "authorization"
"""The header with which a call brings a token: ``Bearer TOKEN``."""
VARIABLES = {"ca": "ATTA_TLS_CA", "cert": "ATTA_TLS_CERT", "key": "ATTA_TLS_KEY", "token": "ATTA_TOKEN_FILE"}
"""Environment variables that name the files."""
LOOK_S = 1.0
"""How often a caller looks at the files of its credentials, at most, in seconds."""
LOCAL_POOL = "grpc.use_local_subchannel_pool"
"""The option with which a channel shares its connection with no other."""


@dataclass(frozen=True)
class Credentials:
    """Files with which a caller talks to daemons over TLS.

    Attributes:
        ca: certificate of the authority that daemons must have theirs from (PEM).
        cert, key: the caller's own certificate and private key, for daemons that ask for one (PEM).
        token: a file that holds a token, from ``atta token new``.

    Raises ConfigError: the authority is missing, or one of certificate and key is."""

    ca: str
    cert: str = ""
    key: str = ""
    token: str = ""

    def __post_init__(self) -> None:
        if not self.ca:
            raise ConfigError("a certificate or token needs the authority's certificate, too: it goes only over TLS")
        _ = self._files

    @property
    def _files(self) -> TlsFiles:
        return TlsFiles(self.ca, self.cert, self.key)

    @classmethod
    def of(cls, where: str, given: Mapping[str, Any], folder: Path | None = None) -> Credentials | None:
        """From keys ``ca``, ``cert``, ``key`` and ``token``, then from the environment, which wins; None: neither.

        ``where``: what errors name; ``folder``: where relative paths begin. Raises ConfigError: a key is unknown or is
        no text. Also what ``Credentials`` raises."""
        check_keys(f"in {where}", given, VARIABLES)
        for key, value in given.items():
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{where}: {key} is not the name of a file")
        named = {key: str((folder or Path()) / value) for key, value in given.items()}
        named |= {key: os.environ[name] for key, name in VARIABLES.items() if os.environ.get(name)}
        return cls(**{"ca": "", **named}) if named else None

    def to_dict(self) -> dict[str, str]:
        """The paths, for a task of another process on this machine."""
        return {key: str(Path(path).absolute()) if path else "" for key, path in asdict(self).items()}

    def stamp(self) -> Stamp:
        """Differs when a file has changed; raises DataError where one is missing."""
        return stamp_of(self.ca, self.cert, self.key, self.token)

    def certificate_stamp(self) -> Stamp:
        """As ``stamp``, without the token's file: new channels need the others only."""
        return self._files.stamp()

    def headers(self) -> tuple[tuple[str, str], ...]:
        """gRPC metadata of every call: the token. Reads the file; raises DataError where it holds none."""
        return ((AUTHORIZATION, f"Bearer {read_token(self.token)}"),) if self.token else ()

    def for_channel(self) -> grpc.ChannelCredentials:
        """As gRPC takes them. Reads the files; raises DataError where they do not fit together."""
        found, _ = self._files.read()
        return grpc.ssl_channel_credentials(found.ca, found.key or None, found.cert or None)


class TokenHeader:
    """The header that brings a token, which is read again when its file has changed: connections outlive tokens. A file
    that has become unreadable or wrong changes nothing. The daemon refuses the token of before when it has ended."""

    def __init__(self, credentials: Credentials | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` counts seconds. Raises DataError where the file holds no token."""
        self._credentials, self._clock, self._looked = credentials, clock, clock()
        self._stamp: Stamp = ()
        self._header: tuple[tuple[str, str], ...] = ()
        self._look()

    def now(self) -> tuple[tuple[str, str], ...]:
        """gRPC metadata of a call: what the file held at most ``LOOK_S`` ago. Any thread may ask."""
        if self._clock() - self._looked >= LOOK_S:
            self._looked = self._clock()
            with contextlib.suppress(DataError):
                self._look()
        return self._header

    def renewed(self) -> bool:
        """Look at the file now, as a daemon has refused the token; whether it holds another one."""
        before, self._looked = self._header, self._clock()
        with contextlib.suppress(DataError):
            self._look()
        return self._header != before

    def _look(self) -> None:
        if self._credentials is None or not self._credentials.token:
            return
        stamp = stamp_of(self._credentials.token)
        if stamp != self._stamp:
            self._header, self._stamp = self._credentials.headers(), stamp


def open_channels(
    address: str, credentials: Credentials | None, options: list[tuple[str, Any]]
) -> tuple[grpc.Channel, grpc.Channel]:
    """Two channels to ``address`` with one connection: over TLS with ``credentials``, plain without. A thread of gRPC
    receives what the first one's streams bring. The second one's streams need no such thread: who reads them receives.
    Each of those must be read to its end, or else its connection outlives the channels. Raises DataError: bad files."""
    # gRPC has one connection for channels of the same address, credentials and options, and it counts unknown ones.
    own = [*(option for option in options if option[0] != LOCAL_POOL), ("atta.connection", secrets.token_hex(8))]
    by_readers = [*own, (ChannelOptions.SingleThreadedUnaryStream, 1)]
    if credentials is None:
        return grpc.insecure_channel(address, options=own), grpc.insecure_channel(address, options=by_readers)
    secured = credentials.for_channel()
    return grpc.secure_channel(address, secured, options=own), grpc.secure_channel(address, secured, options=by_readers)


def open_async_channel(address: str, credentials: Credentials | None, options: list[tuple[str, Any]]) -> Any:
    """A channel for the event loop, which has a connection of its own if the options say so."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials.for_channel(), options=options)
