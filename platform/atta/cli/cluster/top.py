"""``atta top``: watch the daemons of a cluster and their sessions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atta.cli.options import command
from atta.cli.output import DURATION, cluster_option, json_option, printer, size, write_json
from atta.client.watch import DaemonRates, SessionRates, Watch
from atta.observe.figures import JobFigures, of_all_layers

UNKNOWN = "-"


def _lane(counters: Mapping[str, float], lane: str) -> str:
    """Number of tasks that wait + number of tasks that run."""
    ready, running = counters.get(f"scheduler_ready_{lane}", 0.0), counters.get(f"scheduler_running_{lane}", 0.0)
    return f"{ready:.0f} + {running:.0f}"


def number(value: float | None, unit: str = "") -> str:
    """A figure, with a decimal where it is small."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}{unit}" if abs(value) >= 100 else f"{value:.1f}{unit}"


def bytes_per_s(value: float | None) -> str:
    """A rate of bytes."""
    return UNKNOWN if value is None else f"{size(value)}/s"


def daemon_figures(daemon: DaemonRates) -> dict[str, str]:
    """What is shown of a daemon, by heading."""
    counters = daemon.sample.counters
    buffers, limit = counters.get("buffer_bytes", 0.0), counters.get("buffer_limit_bytes", 0.0)
    return {
        "CPU": number(daemon.machine_cpu_percent, " %"),
        "daemon CPU": number(daemon.daemon_cpu_percent, " %"),
        "batches/s": number(daemon.batches_per_s),
        "remote": bytes_per_s(daemon.remote_bytes_per_s),
        "cache hits": number(None if daemon.cache_hit_rate is None else 100 * daemon.cache_hit_rate, " %"),
        "buffers": f"{size(buffers)} of {size(limit)}",
        "CPU lane": _lane(counters, "cpu"),
        "net lane": _lane(counters, "net"),
        "served": f"{number(daemon.served_requests_per_s)}/s, {bytes_per_s(daemon.served_bytes_per_s)}",
    }


def session_figures(session: SessionRates) -> dict[str, str]:
    """What is shown of a session, by heading; the name of its job comes first."""
    s = session.figures
    job = s.job if s.world_size == 1 else f"{s.job} {s.rank}/{s.world_size}"
    return {
        "job": f"{job}: {s.error}" if s.error else job,
        "epoch": str(s.epoch),
        "batches": f"{s.taken:,}/{s.batches:,}",
        "batch/s": number(session.batches_per_s),
        "seeds/s": number(session.seeds_per_s),
        "queue": str(s.queued),
        "flight": str(s.in_flight),
        "held": size(s.queued_bytes + s.lent_bytes),
        "score": number(s.score),
        "sigma": number(s.sigma),
        "sample ms": number(s.sample_ms),
        "train ms": number(s.train_ms),
    }


def job_figures(job: JobFigures) -> dict[str, str]:
    """What is shown of the rows between a job's trainers, by heading; the name of the job comes first."""
    # How far predicted rows are from fresh ones, and stale rows.
    predicted, stale = job.predicted_error, job.stale_error
    return {
        "job": f"{job.job} {_TRAVELLING.get(job.direction, job.direction)}",
        "epoch": str(job.epoch),
        "sent": size(job.sent_bytes),
        "crossed": size(job.crossed_bytes),
        "rows read": f"{job.rows:,}",
        "age min": number(job.age_min),
        "mean": number(job.age_mean),
        "max": number(job.age_max),
        "broadcasts": str(job.broadcasts),
        "skipped": str(job.skipped),
        "error": UNKNOWN if predicted is None or not stale else f"{predicted / stale:.2f}",
    }


WIDE = 120
"""Width of a terminal from which the figures of all daemons are aligned. On narrower ones long figures wrap."""
_WIDTHS = {"remote": 11, "buffers": 18, "served": 20}
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
        wrong = [bool(session.figures.error) for session in daemon.sessions]
        shown.append(_named_rows([*map(session_figures, daemon.sessions)], wrong))
    if jobs := of_all_layers(sample.jobs):
        shown.append(_named_rows([*map(job_figures, jobs)], [False] * len(jobs)))
    return shown


def _figures(daemon: DaemonRates, width: int) -> Table:
    figures, table = daemon_figures(daemon), _table()
    for name in figures:
        least = _WIDTHS.get(name, 9) if width >= WIDE else None
        table.add_column(name, justify="right", overflow="fold", min_width=least)
    table.add_row(*figures.values())
    return table


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")


def _named_rows(rows: Sequence[Mapping[str, str]], wrong: Sequence[bool]) -> Padding:
    """A line for each of ``rows``, whose first figure is a name; red where something is ``wrong``."""
    table = _table()
    for place, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for (name, *figures), red in zip((row.values() for row in rows), wrong, strict=True):
        table.add_row(Text(name, style="red" if red else ""), *figures)
    return Padding(table, (0, 0, 0, 2))


@command()
@cluster_option
@click.option("--interval", type=DURATION.at_least("100ms"), default="1s", help="Rates are means over this.")
@click.option("--once", is_flag=True, help="Print one picture, after one interval, and exit.")
@json_option
def top(target: str, interval: float, once: bool, json_file: str | None) -> None:
    """Watch the daemons of a cluster and their sessions, until Ctrl-C.

    A session is shown with the batches that its consumer has taken, those that wait (queue) and those being made
    (flight). `held` is the memory of batches that wait or that the consumer still reads. Lanes: tasks ready + running.
    --json writes one document and exits. Exit code 1: no daemon answers.

    Example: atta top --cluster cluster.toml
    """

    with Watch(target) as watch:
        if once or json_file is not None:
            _once(watch, target, interval, json_file)
            return
        _live(watch, target, interval)


def _once(watch: Watch, target: str, interval: float, json_file: str | None) -> None:

    watch.look()
    time.sleep(interval)
    daemons = watch.look()
    write_json(json_file, {"schema": 1, "interval_s": interval, "daemons": [daemon.to_dict() for daemon in daemons]})
    if json_file != "-":
        console = printer()
        console.print(picture(target, daemons, console.width))
    if all(daemon.sample.error for daemon in daemons):
        click.get_current_context().exit(1)


def _live(watch: Watch, target: str, interval: float) -> None:
    """One picture per interval: in place on a terminal, one after another elsewhere."""

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
