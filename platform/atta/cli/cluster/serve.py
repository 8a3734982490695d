"""``atta serve``: a daemon on the command line."""

from __future__ import annotations

import click

from atta.cli.output import DURATION, INTS, SIZE, check_folder
from atta.scheduler import POLICIES

__all__ = ["COMMANDS"]


@click.command()
@click.option("--data", required=True, help="Partitioned dataset (folder written by `atta partition`).")
@click.option("--part", required=True, type=click.IntRange(min=0), help="Partition to serve.")
@click.option("--listen", default="127.0.0.1:7070", show_default=True, help="Address to listen on, host:port.")
@click.option("--peers", type=click.Path(dir_okay=False), help="Cluster file with the addresses of all daemons.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Worker threads  [default: number of cores].")
@click.option(
    "--requests", type=click.IntRange(min=1), default=16, show_default=True, help="To other daemons, at a time."
)
@click.option(
    "--memory",
    type=click.Choice(["auto", "copy", "map"]),
    default="auto",
    show_default=True,
    help="Load the partition, or map its files; auto: load it if it takes at most a quarter of the free memory.",
)
@click.option(
    "--buffer", type=SIZE.at_least("64MiB"), default="4GiB", show_default=True, help="Memory for batch buffers."
)
@click.option(
    "--queue", type=SIZE.at_least("1MiB"), default="1GiB", show_default=True, help="Batches ahead, per session."
)
@click.option(
    "--cache", type=SIZE, default="1GiB", show_default=True, help="Memory for hot rows of other partitions; 0: none."
)
@click.option(
    "--cache-share",
    type=click.FloatRange(0, 100),
    help="Most of those rows, in percent of the number of HALO vertices  [default: as many as fit].",
)
@click.option(
    "--cache-rank",
    type=click.Choice(["degree", "access", "recent"]),
    default="degree",
    show_default=True,
    help="Whose rows: HALO vertices by edges into the partition, by expected visits, or what was asked for lately.",
)
@click.option(
    "--cache-fanouts", type=INTS, default="15,10,5", show_default=True, help="Fan-outs that `access` expects."
)
@click.option(
    "--share-pulls/--no-share-pulls",
    default=True,
    show_default=True,
    help="Rows that several batches in flight want cross the network once.",
)
@click.option(
    "--tables", type=SIZE, default="4GiB", show_default=True, help="Memory for mutable tables (embeddings, states)."
)
@click.option(
    "--snapshots",
    type=click.Path(file_okay=False),
    help="Where snapshots of mutable tables are kept; 'shutdown' when the daemon ends.",
)
@click.option(
    "--lease",
    type=DURATION.at_least("500ms"),
    default="60s",
    show_default=True,
    help="A session without a sign of life from its consumer ends after this.",
)
@click.option(
    "--peer-deadline",
    type=DURATION.at_least("100ms"),
    default="60s",
    show_default=True,
    help="How long to wait for another daemon.",
)
@click.option(
    "--peer-delay",
    type=DURATION,
    default="0s",
    help="Every request to another daemon waits so long first: experiments with distant machines.",
)
@click.option(
    "--max-sessions", type=click.IntRange(min=1), default=256, show_default=True, help="Sessions open at a time."
)
@click.option("--drain", type=DURATION, default="10s", show_default=True, help="Grace for sessions after SIGTERM.")
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    default="two-level",
    show_default=True,
    help="Of the scheduler.",
)
@click.option("--prefetch", type=click.IntRange(min=1), default=4, help="Depth of the policy `prefetch`.")
@click.option(
    "--trace-events",
    type=click.IntRange(min=0),
    default=65_536,
    show_default=True,
    help="What `atta trace` can look back on, about 300 bytes each; 0: nothing.",
)
@click.option(
    "--metrics", default="", metavar="HOST:PORT", help="Prometheus metrics over HTTP, such as 127.0.0.1:9090."
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), default=0, help="The same on every address of the machine."
)
@click.option("--verify/--no-verify", default=True, help="Check the checksums of all files at start.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text")
@click.option("--exit-with-parent", is_flag=True, help="Stop when standard input closes.")
def serve(  # noqa: PLR0917 - one parameter per option
    data: str,
    part: int,
    listen: str,
    peers: str | None,
    threads: int | None,
    requests: int,
    memory: str,
    buffer: int,
    queue: int,
    cache: int,
    cache_share: float | None,
    cache_rank: str,
    cache_fanouts: tuple[int, ...],
    share_pulls: bool,
    tables: int,
    snapshots: str | None,
    lease: float,
    peer_deadline: float,
    peer_delay: float,
    max_sessions: int,
    drain: float,
    policy: str,
    prefetch: int,
    trace_events: int,
    metrics: str,
    metrics_port: int,
    verify: bool,
    log_level: str,
    log_format: str,
    exit_with_parent: bool,
) -> None:
    """Serve one partition until SIGTERM.

    Example: atta serve --data products-2p --part 0 --listen 10.0.0.1:7070 --peers cluster.toml
    """
    from atta.daemon.config import DaemonConfig
    from atta.daemon.server import serve as run
    from atta.observe.logs import configure
    from atta.observe.machine.processor import usable_cores
    from atta.wire.clusterfile import read_cluster

    if snapshots:
        check_folder("--snapshots", snapshots)
    configure(format=log_format, level=log_level)
    run(
        DaemonConfig(
            data=data,
            part=part,
            listen=listen,
            peers=read_cluster(peers) if peers else {},
            threads=threads or usable_cores(),
            requests=requests,
            verify=verify,
            memory=memory,
            buffer_bytes=buffer,
            queue_bytes=queue,
            cache_bytes=cache,
            cache_share=None if cache_share is None else cache_share / 100,
            cache_rank=cache_rank,
            cache_fanouts=cache_fanouts,
            share_pulls=share_pulls,
            table_bytes=tables,
            snapshots=snapshots or "",
            lease_s=lease,
            peer_deadline_s=peer_deadline,
            peer_delay_s=peer_delay,
            max_sessions=max_sessions,
            drain_s=drain,
            policy=policy,
            prefetch=prefetch,
            trace_events=trace_events,
            metrics=metrics,
            metrics_port=metrics_port,
            exit_with_parent=exit_with_parent,
        )
    )


COMMANDS = [serve]
