"""``atta cert``: a test authority, and certificates for daemons and callers, made with the program ``openssl``."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from atta.cli.output import quiet_option, say
from atta.cli.token import role_option
from atta.errors import AttaError, ConfigError

_folder = click.argument("folder", type=click.Path(file_okay=False))
_days = click.IntRange(1, 3650)


@click.group()
def cert() -> None:
    """A test authority and certificates for TLS; needs the program openssl.

    It is for tests and small clusters: the authority's key lies beside the certificates.

    Example: atta cert authority certs
    """


@cert.command()
@_folder
@click.option("--name", default="atta-test-authority", show_default=True, help="Its common name.")
@click.option("--days", type=_days, default=365, show_default=True, help="How long it is good.")
@quiet_option
def authority(folder: str, *, name: str, days: int, quiet: bool) -> None:
    """Make an authority in FOLDER: ca.pem, which everybody needs, and ca.key, which signs.

    Example: atta cert authority certs
    """

    say(quiet, f"{make_authority(Path(folder), name, days)}: authority, good for {days} days")


@cert.command()
@_folder
@click.argument("name")
@role_option(required=False)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="IP address or name at which a daemon shows it; may be given several times. Without one it is for callers.",
)
@click.option("--days", type=_days, default=90, show_default=True, help="How long it is good.")
@quiet_option
def new(folder: str, name: str, *, roles: tuple[str, ...], hosts: tuple[str, ...], days: int, quiet: bool) -> None:
    """Make the certificate NAME.pem and its key NAME.key, signed by the authority in FOLDER.

    A daemon needs --role peer, and the --host that callers find it at.

    Example: atta cert new certs daemon-0 --role peer --host 127.0.0.1
    """

    made = make_certificate(Path(folder), name, roles=roles, hosts=hosts, days=days)
    told = ", ".join([*sorted(set(roles)), *hosts]) or "no role"
    say(quiet, f"{made}: {told}, good for {days} days")


COMMANDS = [cert]


DEADLINE_S = 30.0
"""How long one run of openssl may take."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_authority(folder: Path, name: str, days: int) -> Path:
    """Make ``ca.pem`` and ``ca.key`` in ``folder``; returns the path of the first.

    Raises:
        ConfigError: the name is no name, there is an authority already, or openssl is missing.
    """
    _check_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    with _workplace(folder) as place:
        made = place / "ca.pem", place / "ca.key"
        subject = ("-subj", f"/CN={name}", "-days", str(days), "-config", str(_empty_config(place)))
        _openssl("req", "-x509", *_KEY, "-keyout", str(made[1]), "-out", str(made[0]), *subject, *usage)
        return _kept(folder, *made)


def make_certificate(folder: Path, name: str, *, roles: Sequence[str], hosts: Sequence[str], days: int) -> Path:
    """Make ``NAME.pem`` and ``NAME.key`` in ``folder``, signed by the authority there; returns the path of the first.

    ``roles`` stand in the certificate as URI names. Where ``hosts`` are given, a daemon may show it at these addresses.

    Raises:
        ConfigError: a name or host is none, the authority is missing, the files exist, or openssl is missing.
    """
    _check_name(name)
    authority = folder / "ca.pem", folder / "ca.key"
    if name == "ca" or not all(path.is_file() for path in authority):
        raise ConfigError(f"{folder}: has no authority (ca.pem, ca.key): make it with `atta cert authority {folder}`")
    names = [f"URI:atta:role/{role}" for role in roles] + [_host_name(host) for host in hosts]
    with _workplace(folder) as place:
        made, request = (place / f"{name}.pem", place / f"{name}.key"), str(place / "request")
        extensions = place / "extensions"
        extensions.write_text(
            "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
            f"extendedKeyUsage={'serverAuth,' if hosts else ''}clientAuth\n"
            + (f"subjectAltName={','.join(names)}\n" if names else "")
        )
        subject = ("-subj", f"/CN={name}", "-config", str(_empty_config(place)))
        _openssl("req", "-new", *_KEY, "-keyout", str(made[1]), "-out", request, *subject)
        signer = ("-CA", str(authority[0]), "-CAkey", str(authority[1]), "-set_serial", f"0x{secrets.token_hex(16)}")
        signed = ("-in", request, "-out", str(made[0]), "-days", str(days), "-extfile", str(extensions))
        _openssl("x509", "-req", *signer, *signed)
        return _kept(folder, *made)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} is no name of a certificate: give 1 to 64 letters, digits, dots or dashes")


def _host_name(host: str) -> str:
    """The entry of a host in a certificate."""
    try:
        return f"IP:{ipaddress.ip_address(host.strip('[]'))}"
    except ValueError:
        pass
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise ConfigError(f"--host {host[:80]!r} is neither an IP address nor the name of a host")
    return f"DNS:{host}"


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """A folder that only this user can read, on the disk of ``folder``."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as place:
        yield Path(place)


def _empty_config(place: Path) -> Path:
    """A configuration of our own: that of the machine may add names and ask questions."""
    path = place / "config"
    path.write_text("[req]\ndistinguished_name=none\n[none]\n")
    return path


def _kept(folder: Path, certificate: Path, key: Path) -> Path:
    """Give the files their places, unless there are others."""
    for path in (certificate, key):
        if (folder / path.name).exists():
            raise ConfigError(f"{folder / path.name}: exists already")
    os.chmod(key, 0o600)
    key.rename(folder / key.name)
    return certificate.rename(folder / certificate.name)


def _openssl(*words: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError(
            "the program openssl is not installed: install it, or use certificates that you have"
        ) from None
    except subprocess.TimeoutExpired:
        raise AttaError(f"openssl {words[0]} did not end within {DEADLINE_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise AttaError(f"openssl {words[0]} failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
