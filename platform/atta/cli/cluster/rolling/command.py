"""``atta roll``: restart a cluster daemon by daemon."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from atta.cli.output import DURATION, echo, json_option, quiet_option, write_json
from atta.errors import ConfigError


@click.command()
@click.argument("target", metavar="CLUSTER")
@click.option("--command", default="", help="Starts a daemon that has ended; {part}, {address} and {host} are its own.")
@click.option("--local", is_flag=True, help="Start daemons of this machine again as they ran: atta serve, atta.local.")
@click.option(
    "--timeout",
    type=DURATION.at_least("1s"),
    default="2min",
    show_default=True,
    help="For a daemon to stop, and again to start, and to be seen by its peers.",
)
@click.option("--allow-pause", is_flag=True, help="Restart also the only daemon of a part: its consumers wait.")
@json_option
@quiet_option
def roll(
    *, target: str, command: str, local: bool, timeout: float, allow_pause: bool, json_file: str | None, quiet: bool
) -> None:
    """Restart the daemons of a cluster one after another, while jobs go on.

    Each drains, ends, and is started again by its supervisor, by --command or by --local. The next one follows when its
    successor serves and all daemons reach each other. Consumers move to a replica, or wait for the daemon. Ctrl-C ends
    it after the daemon at hand, a second one at once.

    Example: atta roll cluster.toml --command "ssh {host} sudo systemctl start atta-daemon-{part}"
    """
    from atta.cli.cluster.rolling.processes import ANSWER_S, RunningFleet
    from atta.cli.cluster.rolling.roll import Roll
    from atta.client.every import check_operator
    from atta.wire.named import credentials_for, resolve_target

    if command and local:
        raise ConfigError("--command and --local: give one of them")
    addresses, credentials = resolve_target(target), credentials_for(target)
    fleet = RunningFleet(addresses, credentials, command=command, local=local)
    check_operator(addresses, deadline_s=ANSWER_S, credentials=credentials)

    def tell(line: str) -> None:
        if not quiet:
            echo(line, err=json_file == "-")

    rolling = Roll(
        fleet,
        addresses,
        allow_pause=allow_pause,
        timeout_s=timeout,
        tell=tell,
        clock=time.monotonic,
        sleep=time.sleep,
    )
    try:
        with _patient(tell) as interrupted:
            rolling.run(interrupted)
    finally:
        fleet.close()
        done = [one.to_dict() for one in rolling.rolled]
        write_json(json_file, {"schema": 1, "cluster": target, "daemons": done})


@contextmanager
def _patient(tell: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C only be noted; what is yielded tells it. A second one interrupts as usual."""
    noted: list[bool] = []

    def note(number: int, frame: Any) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(True)
        tell("interrupted: this daemon is restarted to the end; Ctrl-C again ends at once")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)


COMMANDS = [roll]
