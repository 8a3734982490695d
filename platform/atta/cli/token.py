"""``atta token``: makes, lists and revokes the tokens that daemons know by their hashes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import click

from atta.cli.options import CommandGroup
from atta.cli.output import DURATION, TO_WRITE, echo, printer, quiet_option, say
from atta.errors import ConfigError, blaming
from atta.wire.credentials import rewrite, write_private
from atta.wire.tokens import Role, TokenFile, issue, parse_roles, read_tokens

MAX_DAYS = 3650

_tokens = click.option(
    "--tokens", "path", required=True, type=click.Path(dir_okay=False), help="The file of hashes that daemons read."
)


def role_option(required: bool) -> Callable[[Any], Any]:
    """The option ``--role``, which may be given several times."""
    return click.option(
        "--role",
        "roles",
        multiple=True,
        required=required,
        type=click.Choice([role.value for role in Role]),
        help="What its bearer may do; may be given several times.",
    )


@click.group(cls=CommandGroup)
def token() -> None:
    """Tokens: who may do what on daemons with TLS.

    Example: atta token list --tokens tokens.toml"""


@token.command()
@_tokens
@click.option("--name", required=True, help="Whose it is: log lines name it.")
@role_option(required=True)
@click.option("--expires", type=DURATION.at_least("1s"), default="90d", help="How long it is good.")
@click.option("--out", type=TO_WRITE, default="-", help="Write it to this file, for its owner alone.")
@quiet_option
def new(path: str, name: str, *, roles: tuple[str, ...], expires: float, out: str, quiet: bool) -> None:
    """Make a token. It is shown or written once: the file of hashes cannot give it back.

    Running daemons know it within a second or two.

    Example: atta token new --tokens tokens.toml --name alice --role reader --out alice.token"""
    if expires > MAX_DAYS * 86_400:
        raise ConfigError(f"--expires: a token is good for at most {MAX_DAYS} days")
    if out != "-" and Path(out).exists():
        raise ConfigError(f"--out {out}: exists already, and may hold a token that is in use")
    secret, entry = issue(name, parse_roles(roles), datetime.now(UTC) + timedelta(seconds=expires))
    with _changed(path) as change:
        change(lambda found: TokenFile.of([*found.entries.values(), entry]))
    told = f"token {entry.id} of {name}: {', '.join(sorted(roles))}, until {entry.expires:%Y-%m-%d %H:%M} UTC"
    if out == "-":
        echo(secret)
        echo(told, err=True)
    else:
        write_private(out, f"{secret}\n")
        say(quiet, f"{out}: {told}")


@token.command("list")
@_tokens
def list_(path: str) -> None:
    """Show the tokens of a file, without their secrets, which it does not have.

    Example: atta token list --tokens tokens.toml"""
    from rich.table import Table

    now = datetime.now(UTC)
    table = Table("id", "name", "roles", "good until")
    for entry in read_tokens(path).entries.values():
        until = f"{entry.expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC" + (" (expired)" if now >= entry.expires else "")
        table.add_row(entry.id, entry.name, ", ".join(sorted(role.value for role in entry.roles)), until)
    printer().print(table)


@token.command()
@_tokens
@click.argument("token_id", metavar="ID")
@quiet_option
def revoke(path: str, token_id: str, *, quiet: bool) -> None:
    """Take the token ID from the file. Running daemons refuse it within a second or two.

    Example: atta token revoke --tokens tokens.toml 9f2c41d0a7b3"""
    with _changed(path) as change:
        change(lambda found: found.without(token_id))
    say(quiet, f"{token_id}: revoked")


@contextmanager
def _changed(path: str) -> Iterator[Callable[[Callable[[TokenFile], TokenFile]], None]]:
    """Yield a function that changes the file, while no other command does."""
    real = Path(os.path.realpath(path))  # the same lock by whatever name
    place = real.with_name(f".{real.name}.lock")
    with blaming(ConfigError, f"--tokens {path}: cannot write"):
        lock = _locked(place)
    with lock:
        try:
            yield lambda change: rewrite(path, change(read_tokens(path) if real.exists() else TokenFile({})).text())
        finally:
            place.unlink(missing_ok=True)


def _locked(place: Path) -> TextIO:
    while True:
        lock = place.open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # whoever held it before has removed it
            if os.path.samestat(os.fstat(lock.fileno()), place.stat()):
                return lock
        lock.close()


COMMANDS = [token]
