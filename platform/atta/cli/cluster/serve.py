"""``atta serve``: a daemon on the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import sys
from typing import TYPE_CHECKING, Any

import click

import atta
from atta.cli.options import command, config_option, plugin_option, settings_options
from atta.cli.output import check_folder, need_torch
from atta.daemon.config import DaemonConfig
from atta.errors import AttaError, ConfigError, blaming
from atta.wire.credentials import Credentials
from atta.wire.parts import parts_text, replicas_of

if TYPE_CHECKING:
    from atta.daemon.services.queries import Answerer

ANSWER_S = 2.0  # how long a daemon that has the address already may take to say who it is
_GROUPS = {
    "Data and addresses": "data part listen peers data-cache verify",
    "Memory": "memory buffer queue cache cache-fill cache-share cache-rank window cache-fanouts cache-edges share-pulls",
    "Mutable tables": "tables durability tables-dir log-size snapshots snapshots-size backup keep-backup promote-after",
    "Queries": "model table what fan-out query-wait",
    "Scheduling": "threads requests policy prefetch",
    "Watching": "log-level log-format metrics metrics-port dashboard trace-events",
    "Security": "tls-cert tls-key tls-ca tls-callers tokens peer-token insecure",
    "Other daemons": "links link-port peer-deadline peer-delay",
    "Limits": "lease drain max-sessions max-seeds max-connections max-calls request-memory answer-memory",
    "Other options": "plugin config exit-with-parent help",
}


@command(groups=_GROUPS)
@config_option
@plugin_option
@settings_options(DaemonConfig)
@click.option("--peers", type=click.Path(dir_okay=False), help="Cluster file with the addresses of all daemons.")
@click.option("--dashboard", metavar="HOST:PORT", help="Serve the page of `atta dashboard` there, too.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least of what is logged",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How lines are written.")
def serve(settings: dict[str, Any], peers: str | None, dashboard: str | None, log_level: str, log_format: str) -> None:
    """Serve one partition until SIGTERM.

    Example: atta serve --data products-2p --part 0 --listen 127.0.0.1:7070 --peers cluster.toml
    """
    if atta.OWN_VERBOSITY and not sys.stderr.isatty():  # unless the caller has said what it wants
        os.environ["GRPC_VERBOSITY"] = "ERROR"  # gRPC writes of connections that TLS refuses where a log is kept
    import structlog

    from atta.daemon.daemon import serve as run
    from atta.observe.logs import configure
    from atta.observe.progress import LoggedProgress
    from atta.partition.deploy import local_dataset
    from atta.partition.disk.store import is_url
    from atta.wire.clusterfile import check_address, may_be_at, read_cluster

    given = {field: value for field, value in settings.items() if value is not None}
    config = DaemonConfig(**given, peers=read_cluster(peers) if peers else {}, peers_file=peers or "")
    if config.snapshots:
        check_folder("--snapshots", config.snapshots)
    if config.exit_with_parent:
        _check_stdin()
    configure(format=log_format, level=log_level)
    _check_free("--listen", config.listen, config)  # before loading, which may take minutes
    if (metrics := config.metrics_address) is not None:
        _check_free("--metrics" if config.metrics else "--metrics-port", f"{metrics[0]}:{metrics[1]}", config)
    if dashboard:
        _check_free("--dashboard", check_address(dashboard), config)
    named = [address for part in config.parts for address in replicas_of(config.peers.get(part, ()))]
    if peers and not any(may_be_at(address, config.listen) for address in named):
        about = {"listen": config.listen, "file": peers, "named": ", ".join(dict.fromkeys(named)) or "none"}
        structlog.get_logger("atta.daemon").warning("others look for this daemon elsewhere", **about)
    if is_url(config.data):
        here = local_dataset(config.data, config.parts, cache=config.data_cache, progress=LoggedProgress())
        config = dataclasses.replace(config, data=str(here))
    with contextlib.ExitStack() as page:
        if dashboard:
            from atta.cli.cluster.dashboard import daemon_page

            page.enter_context(daemon_page(config, dashboard, peers))
        run(config, _answerer(config))


def _answerer(config: DaemonConfig) -> Answerer | None:
    """What answers queries; None: no model is given, and torch is not loaded."""
    if not config.model:
        return None
    need_torch("serve --model")
    from atta.train.launching.queries import ModelAnswers

    return ModelAnswers(config)


def _check_free(option: str, address: str, config: DaemonConfig) -> None:
    from atta.daemon.services.front import is_free

    if not is_free(address):
        used = f"cannot listen on {address}: the address is in use by {_who_listens(address, config)}"
        raise ConfigError(f"{used}, or name another port with {option}")


def _who_listens(address: str, config: DaemonConfig) -> str:
    from atta.client.control import Connection

    own = Credentials(config.tls_ca, config.tls_cert, config.tls_key, config.peer_token) if config.tls_ca else None
    try:
        with contextlib.closing(Connection(address, ANSWER_S, credentials=own)) as connection:
            found = connection.describe(timeout=ANSWER_S)
    except AttaError:
        return "another program, or by a daemon with other certificates: end it"
    served = f"partition {parts_text(found.parts)} of dataset {found.dataset_id}"
    return f"an Atta daemon, which serves {served}: stop it (process {found.pid})"


def _check_stdin() -> None:
    """Check that a daemon can wait for the end of standard input: it is no file, and no device such as /dev/null."""
    no_pipe = blaming(ConfigError, "--exit-with-parent: standard input must be a pipe that the parent holds")
    with no_pipe, select.epoll() as waiting:
        waiting.register(0, select.EPOLLIN)


COMMANDS = [serve]
