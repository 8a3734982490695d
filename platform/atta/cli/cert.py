"""``atta cert``: a test authority, and certificates for daemons and callers."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atta.cli.options import CommandGroup
from atta.cli.output import quiet_option, say
from atta.cli.token import role_option
from atta.errors import ConfigError, DataError, blaming

_folder = click.argument("folder", type=click.Path(file_okay=False))
_days = click.IntRange(1, 3650)


@click.group(cls=CommandGroup)
def cert() -> None:
    """A test authority and certificates for TLS.

    It is for tests and small clusters: the authority's key lies beside the certificates.

    Example: atta cert authority certs"""


@cert.command()
@_folder
@click.option("--name", default="atta-test-authority", help="Its common name.")
@click.option("--days", type=_days, default=365, help="How long it is good.")
@quiet_option
def authority(folder: str, *, name: str, days: int, quiet: bool) -> None:
    """Make an authority in FOLDER: ca.pem, which everybody needs, and ca.key, which signs.

    Example: atta cert authority certs"""

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
@click.option("--days", type=_days, default=90, help="How long it is good.")
@quiet_option
def new(folder: str, name: str, *, roles: tuple[str, ...], hosts: tuple[str, ...], days: int, quiet: bool) -> None:
    """Make the certificate NAME.pem and its key NAME.key, signed by the authority in FOLDER.

    A daemon needs --role peer, and the --host that callers find it at.

    Example: atta cert new certs daemon-0 --role peer --host 127.0.0.1"""

    made = make_certificate(Path(folder), name, roles=roles, hosts=hosts, days=days)
    told = ", ".join([*sorted(set(roles)), *hosts]) or "no role"
    say(quiet, f"{made}: {told}, good for {days} days")


COMMANDS = [cert]


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


def make_authority(folder: Path, name: str, days: int) -> Path:
    """Make ``ca.pem`` and ``ca.key`` in ``folder``; returns the path of the first. Raises ConfigError: the name is no
    name, or there is an authority already."""
    _check_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _begun(name, key.public_key(), key.public_key(), datetime.now(UTC), days, signs=True)
    certificate = certificate.issuer_name(_common_name(name))
    return _kept(folder, "ca", certificate.sign(key, hashes.SHA256()), key)


def make_certificate(
    folder: Path, name: str, *, roles: Sequence[str], hosts: Sequence[str], days: int, begins: datetime | None = None
) -> Path:
    """Make ``NAME.pem`` and ``NAME.key`` in ``folder``, signed by the authority there; returns the path of the first.

    ``roles`` stand in the certificate as URI names. Where ``hosts`` are given, a daemon may show it at these addresses.
    ``begins``: from when it is good; None: from now. Raises ConfigError: a name or host is none, the authority is
    missing, or the files exist; DataError: the authority cannot be read."""
    _check_name(name)
    paths = folder / "ca.pem", folder / "ca.key"
    if name == "ca" or not all(path.is_file() for path in paths):
        raise ConfigError(f"{folder}: has no authority (ca.pem, ca.key): make it with `atta cert authority {folder}`")
    names = [x509.UniformResourceIdentifier(f"atta:role/{role}") for role in roles] + [_host_name(h) for h in hosts]
    with blaming(DataError, paths[0], "the authority cannot be read", of=(OSError, ValueError, TypeError), say=str):
        authority = x509.load_pem_x509_certificate(paths[0].read_bytes())
        signer = load_pem_private_key(paths[1].read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != authority.public_key():
        raise DataError(paths[1], f"is not the key of {paths[0].name}, as `atta cert authority` makes it")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _begun(name, key.public_key(), signer.public_key(), begins or datetime.now(UTC), days, signs=False)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH][not hosts :]
    certificate = certificate.issuer_name(authority.subject)
    certificate = certificate.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if names:
        certificate = certificate.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _kept(folder, name, certificate.sign(signer, hashes.SHA256()), key)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} cannot name a certificate: give 1 to 64 letters, digits, dots or dashes")


def _host_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise ConfigError(f"--host {host[:80]!r} is neither an IP address nor the name of a host")
    return x509.DNSName(host)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    name: str,
    owner: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePublicKey,
    begins: datetime,
    days: int,
    *,
    signs: bool,
) -> x509.CertificateBuilder:
    """A certificate without its issuer; ``signs``: it may sign others, and nothing else."""
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .public_key(owner)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **usage), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(owner), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _kept(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write both files, unless there are others."""
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files = {f"{name}.pem": certificate.public_bytes(Encoding.PEM), f"{name}.key": secret}
    for file in files:
        if (folder / file).exists():
            raise ConfigError(f"{folder / file}: exists already; give another name, or remove it and its pair first")
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as place:  # that only this user can read
        for file, data in files.items():
            Path(place, file).write_bytes(data)
        Path(place, f"{name}.key").chmod(0o600)
        for file in reversed(files):
            Path(place, file).rename(folder / file)
    return folder / f"{name}.pem"
