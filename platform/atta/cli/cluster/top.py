"""``atta top``: what the daemons of a cluster and their sessions do right now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from atta.cli.output import DURATION, json_option, printer, write_json

if TYPE_CHECKING:
    from atta.client.rates import DaemonRates
    from atta.client.watch import Watch


@click.command()
@click.option("--cluster", "target", required=True, help="Cluster file, or host:port,host:port.")
@click.option(
    "--interval", type=DURATION.at_least("100ms"), default="1s", show_default=True, help="Rates are means over this."
)
@click.option("--once", is_flag=True, help="Print one picture, after one interval, and exit.")
@json_option
def top(target: str, interval: float, once: bool, json_file: str | None) -> None:
    """Watch the daemons of a cluster and their sessions, until Ctrl-C.

    A session is shown with the batches that its consumer has taken, those that wait (queue) and those being made
    (flight). `held` is the memory of batches that wait or that the consumer still reads. Lanes: tasks ready + running.
    --json writes one document and exits. Exit code 1: no daemon answers.

    Example: atta top --cluster cluster.toml
    """
    from atta.client.watch import Watch

    with Watch(target) as watch:
        if once or json_file is not None:
            _once(watch, target, interval, json_file)
            return
        _live(watch, target, interval)


def _once(watch: Watch, target: str, interval: float, json_file: str | None) -> None:
    from atta.cli.cluster.picture import picture

    watch.look()
    time.sleep(interval)
    daemons = watch.look()
    document = {"schema": 1, "interval_s": interval, "daemons": [daemon.to_dict() for daemon in daemons]}
    if json_file != "-":
        console = printer()
        console.print(picture(target, daemons, console.width))
    write_json(json_file, document)
    if all(daemon.sample.error for daemon in daemons):
        click.get_current_context().exit(1)


def _live(watch: Watch, target: str, interval: float) -> None:
    """One picture per interval: in place on a terminal, one after another elsewhere."""
    from rich.live import Live

    from atta.cli.cluster.picture import picture

    console = printer()
    if not console.is_terminal:
        for daemons in _looks(watch, interval):
            console.print(picture(target, daemons, console.width))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for daemons in _looks(watch, interval):
            live.update(picture(target, daemons, console.width), refresh=True)


def _looks(watch: Watch, interval: float) -> Iterator[Sequence[DaemonRates]]:
    due = time.monotonic()
    while True:
        yield watch.look()
        now = time.monotonic()
        due = max(due + interval, now)  # a silent daemon may have taken longer than the interval
        time.sleep(due - now)


COMMANDS = [top]
