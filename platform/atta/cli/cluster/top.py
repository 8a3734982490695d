"""``atta top``: watch the daemons of a cluster and their sessions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atta.cli.output import DURATION, json_option, printer, size, write_json
from atta.client.watch import DaemonRates, SessionRates
from atta.observe.figures import JobFigures, of_all_layers

if TYPE_CHECKING:
    from atta.client.watch import DaemonRates, Watch

UNKNOWN = "-"


def lane(counters: Mapping[str, float], lane: str) -> str:
    """Number of tasks that wait + number of tasks that run."""
    ready, running = counters.get(f"scheduler_ready_{lane}", 0.0), counters.get(f"scheduler_running_{lane}", 0.0)
    return f"{ready:.0f} + {running:.0f}"


def ratio(predicted: float | None, stale: float | None) -> str:
    """How far predicted rows are from fresh ones, beside stale rows."""
    return UNKNOWN if predicted is None or not stale else f"{predicted / stale:.2f}"


def number(value: float | None, unit: str = "") -> str:
    """A figure, with a decimal where it is small."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}{unit}" if abs(value) >= 100 else f"{value:.1f}{unit}"


def bytes_per_s(value: float | None) -> str:
    """A rate of bytes."""
    return UNKNOWN if value is None else f"{size(value)}/s"


WIDE = 120
"""Width of a terminal from which the figures of all daemons are aligned. On narrower ones long figures wrap."""
_WIDTHS = {"remote": 11, "buffers": 18, "served": 20}
_SESSION_COLUMNS = (
    "epoch", "batches", "batch/s", "seeds/s", "queue", "flight", "held", "score", "sigma", "sample ms", "train ms",
)  # fmt: skip
_JOB_COLUMNS = ("epoch", "sent", "crossed", "rows read", "age min", "mean", "max", "broadcasts", "skipped", "error")
_TRAVELLING = {"forward": "rows", "backward": "gradients"}


def picture(cluster: str, daemons: Sequence[DaemonRates], width: int) -> RenderableType:
    """All daemons on ``width`` columns. ``cluster``: the name that the user gave."""
    answering = sum(not daemon.sample.error for daemon in daemons)
    title = Text(f"{cluster}: {answering} of {len(daemons)} daemons answer", style="bold")
    return Group(title, *(part for daemon in daemons for part in _daemon(daemon, width)))


def _daemon(daemon: DaemonRates, width: int) -> list[RenderableType]:
    sample = daemon.sample
    head = Text.assemble((f"\npart {sample.parts}", "bold cyan"), f"  {sample.address}")
    if sample.error:
        return [head.append(f"  {sample.error}", style="bold red")]
    shown: list[RenderableType] = [head, Padding(_figures(daemon, width), (0, 0, 0, 2))]
    if daemon.sessions:
        shown.append(Padding(_sessions(daemon.sessions), (0, 0, 0, 2)))
    if sample.jobs:
        shown.append(Padding(_jobs(sample.jobs), (0, 0, 0, 2)))
    return shown


def _figures(daemon: DaemonRates, width: int) -> Table:
    counters = daemon.sample.counters
    buffers, limit = counters.get("buffer_bytes", 0.0), counters.get("buffer_limit_bytes", 0.0)
    figures = {
        "CPU": number(daemon.machine_cpu_percent, " %"),
        "daemon CPU": number(daemon.daemon_cpu_percent, " %"),
        "batches/s": number(daemon.batches_per_s),
        "remote": bytes_per_s(daemon.remote_bytes_per_s),
        "cache hits": number(None if daemon.cache_hit_rate is None else 100 * daemon.cache_hit_rate, " %"),
        "buffers": f"{size(buffers)} of {size(limit)}",
        "CPU lane": lane(counters, "cpu"),
        "net lane": lane(counters, "net"),
        "served": f"{number(daemon.served_requests_per_s)}/s, {bytes_per_s(daemon.served_bytes_per_s)}",
    }
    table = _table()
    for name in figures:
        least = _WIDTHS.get(name, 9) if width >= WIDE else None
        table.add_column(name, justify="right", overflow="fold", min_width=least)
    table.add_row(*figures.values())
    return table


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")


def _sessions(sessions: Sequence[SessionRates]) -> Table:
    table = _table()
    table.add_column("job", overflow="fold")
    for name in _SESSION_COLUMNS:
        table.add_column(name, justify="right", overflow="fold")
    for session in sessions:
        s = session.figures
        job = s.job if s.world_size == 1 else f"{s.job} {s.rank}/{s.world_size}"
        table.add_row(
            Text(f"{job}: {s.error}" if s.error else job, style="red" if s.error else ""),
            str(s.epoch),
            f"{s.taken:,}/{s.batches:,}",
            number(session.batches_per_s),
            number(session.seeds_per_s),
            str(s.queued),
            str(s.in_flight),
            size(s.queued_bytes + s.lent_bytes),
            number(s.score),
            number(s.sigma),
            number(s.sample_ms),
            number(s.train_ms),
        )
    return table


def _jobs(jobs: Sequence[JobFigures]) -> Table:
    table = _table()
    table.add_column("job", overflow="fold")
    for name in _JOB_COLUMNS:
        table.add_column(name, justify="right", overflow="fold")
    for job in of_all_layers(jobs):
        table.add_row(
            Text(f"{job.job} {_TRAVELLING.get(job.direction, job.direction)}"),
            str(job.epoch),
            size(job.sent_bytes),
            size(job.crossed_bytes),
            f"{job.rows:,}",
            number(job.age_min),
            number(job.age_mean),
            number(job.age_max),
            str(job.broadcasts),
            str(job.skipped),
            ratio(job.predicted_error, job.stale_error),
        )
    return table


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
