"""``atta dashboard``."""

from __future__ import annotations

import threading

import click

from atta.cli.output import DURATION, quiet_option
from atta.cli.work import say
from atta.errors import ConfigError


@click.command()
@click.option("--cluster", "target", required=True, help="Cluster file, or host:port,host:port.")
@click.option("--listen", default="127.0.0.1:8800", show_default=True, metavar="HOST:PORT", help="Where the page is.")
@click.option("--trainer", "trainers", multiple=True, metavar="HOST:PORT", help="Metrics of `atta train --metrics`.")
@click.option("--interval", type=DURATION.at_least("500ms"), default="2s", show_default=True, help="Between two looks.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine: the network is trusted.")
@quiet_option
def dashboard(
    target: str, listen: str, trainers: tuple[str, ...], interval: float, *, insecure: bool, quiet: bool
) -> None:
    """Serve a page that shows a cluster: daemons, sessions, launch scores, and curves of training. Ctrl-C ends it.

    The page needs no scripts and no network but its own. Whoever reaches it sees what `atta top` shows.

    Example: atta dashboard --cluster cluster.toml --trainer 127.0.0.1:9100
    """
    from atta.cli.cluster.dashboard.page import page
    from atta.cli.cluster.dashboard.serving import server
    from atta.cli.cluster.dashboard.watching import Watching
    from atta.cli.cluster.trace import recorded
    from atta.daemon.security.security import is_loopback
    from atta.observe.answering import run_aside
    from atta.wire.clusterfile import check_address

    host, _, port = check_address(listen).rpartition(":")
    for trainer in trainers:
        check_address(trainer)
    if not (is_loopback(host) or insecure):
        raise ConfigError(
            f"--listen {listen}: everybody who reaches it could read the page; give --insecure to allow it"
        )
    with Watching(target, trainers, interval) as watching:
        found = server(host, int(port), lambda: page(watching.view), lambda: recorded(target)[0])
        say(quiet, f"http://{host}:{found.server_address[1]}/ shows {target}; Ctrl-C ends it")
        end = run_aside(found, "atta-page")
        try:
            threading.Event().wait()  # the main thread only waits: Ctrl-C cannot come amid the start of a thread
        finally:
            end()


COMMANDS = [dashboard]
