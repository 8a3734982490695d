"""``atta cert``: a test authority, and certificates for daemons and callers."""

from __future__ import annotations

from pathlib import Path

import click

from atta.cli.output import quiet_option
from atta.cli.security.token import role_option
from atta.cli.work import say

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
    from atta.cli.security.openssl import make_authority

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
    from atta.cli.security.openssl import make_certificate

    made = make_certificate(Path(folder), name, roles=roles, hosts=hosts, days=days)
    told = ", ".join([*sorted(set(roles)), *hosts]) or "no role"
    say(quiet, f"{made}: {told}, good for {days} days")


COMMANDS = [cert]
