"""What ``atta top`` shows: one line of figures per daemon, tables of its sessions and of jobs' rows below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atta.cli.cluster.figures import bytes_per_s, lane, number, ratio
from atta.cli.work import size
from atta.client.rates import DaemonRates, SessionRates
from atta.observe.figures import JobFigures, of_all_layers

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
