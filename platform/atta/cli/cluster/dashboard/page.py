"""The page as HTML. Pure: figures in, text out. Every name is escaped, and nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from atta.cli.cluster.dashboard.curves import SHOWN, TrainerHistory, curve
from atta.cli.cluster.figures import UNKNOWN, bytes_per_s, lane, number, ratio
from atta.cli.work import size
from atta.client.rates import DaemonRates, received_from
from atta.observe.figures import of_all_layers

MOST_SESSIONS = 500
"""Sessions of a daemon that are shown."""
MOST_LINKS = 100
"""Pairs of daemons whose bytes are shown, those with the most."""
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:1.5rem;color:#1c2733;background:#fff}
h1{font-size:1.3rem}h2{font-size:1rem;margin:1.4rem 0 .4rem}
table{border-collapse:collapse}th,td{padding:.15rem .7rem .15rem 0;text-align:right;white-space:nowrap}
th{font-weight:500;color:#5b6b7b;border-bottom:1px solid #cfd8e0;position:sticky;top:0;background:#fff}
th:first-child,td:first-child{text-align:left;white-space:normal;overflow-wrap:anywhere;max-width:28rem}
.bad{color:#b00020}.bar{display:inline-block;width:5rem;height:.6rem;background:#e4eaf0}
.bar i{display:block;height:100%;background:#2f6fb0}
.curves{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;width:20rem}figcaption{color:#5b6b7b;font-size:.8rem}
svg{width:100%;background:#f5f8fa}polyline{fill:none;stroke:#2f6fb0;stroke-width:1.6}circle{fill:#2f6fb0}
.axes{fill:none;stroke:#5b6b7b}.grid{stroke:#dde5ec}svg text{font-size:12px;fill:#5b6b7b}
.up,.unit{text-anchor:end}.along{text-anchor:middle}
td.reason{white-space:normal;text-align:left;overflow-wrap:anywhere}
@media(max-width:64rem){body{margin:.8rem}thead{display:none}table,tbody,tr,td{display:block}
tr{border:1px solid #cfd8e0;border-radius:.3rem;margin:.5rem 0;padding:.3rem .6rem}
td,td:first-child{display:flex;justify-content:space-between;gap:1rem;max-width:none;padding:.1rem 0;white-space:normal;
text-align:right;overflow-wrap:anywhere}td::before{content:attr(data-name);color:#5b6b7b;white-space:nowrap}
td.reason{text-align:left}td.reason::before{content:none}figure{width:100%}.bar{width:50%}}
"""


@dataclass(frozen=True)
class View:
    """What the page shows.

    Attributes:
        cluster: the name that the user gave.
        daemons: with rates.
        trainers: curves of those that were named.
        refresh_s: how often browsers load the page again.
    """

    cluster: str
    daemons: Sequence[DaemonRates]
    trainers: Sequence[TrainerHistory] = field(default_factory=tuple)
    refresh_s: float = 2.0


def page(view: View) -> str:
    """A whole document."""
    answering = sum(not daemon.sample.error for daemon in view.daemons)
    title = f"{view.cluster}: {answering} of {len(view.daemons)} daemons answer"
    body = [
        f"<h1>{escape(title)}</h1>",
        _daemons(view.daemons),
        '<p><a href="/trace" download="trace.json">What they did lately, as a trace</a> for ui.perfetto.dev</p>',
        _links(view.daemons),
        *(_sessions(daemon) for daemon in view.daemons if daemon.sessions),
        *(_jobs(daemon) for daemon in view.daemons if daemon.sample.jobs),
        *map(_trainer, view.trainers),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{view.refresh_s:g}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>"
    )


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]], label: str) -> str:
    """``rows`` have HTML; a row of one cell is a remark that takes the whole width. On a narrow screen each row is a box,
    in which the heads stand before their figures."""
    heads = [escape(name) for name in heads]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    lines = "".join(f"<tr>{_cells(heads, row)}</tr>" for row in rows)
    return f'<table aria-label="{escape(label)}"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'


def _cells(heads: Sequence[str], row: Sequence[str]) -> str:
    if len(row) == 1:
        return f'<td class="reason" colspan="{len(heads)}">{row[0]}</td>'
    return "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in zip(heads, row, strict=True))


def _daemons(daemons: Sequence[DaemonRates]) -> str:
    heads = ("part", "address", "up", "CPU", "daemon CPU", "batches/s", "received", "sent to peers", "cache hits",
             "buffers", "CPU lane", "net lane", "memory")  # fmt: skip
    rows = [row for daemon in daemons for row in (_daemon(daemon, len(heads)), _reason(daemon)) if row]
    return _table(heads, rows, "daemons")


def _reason(daemon: DaemonRates) -> list[str]:
    """Why a daemon does not answer, below its line."""
    return [f'<span class="bad">{escape(daemon.sample.error)}</span>'] if daemon.sample.error else []


def _daemon(daemon: DaemonRates, width: int) -> list[str]:
    sample, counters = daemon.sample, daemon.sample.counters
    name = [escape(sample.parts), escape(sample.address)]
    if sample.error:
        return [*name, '<span class="bad">down</span>', *[UNKNOWN] * (width - 3)]
    hits = None if daemon.cache_hit_rate is None else 100 * daemon.cache_hit_rate
    buffers, limit = counters.get("buffer_bytes", 0.0), counters.get("buffer_limit_bytes", 0.0)
    return [
        *name,
        _duration(sample.at),
        number(daemon.machine_cpu_percent, " %"),
        number(daemon.daemon_cpu_percent, " %"),
        number(daemon.batches_per_s),
        bytes_per_s(daemon.remote_bytes_per_s),
        bytes_per_s(daemon.served_bytes_per_s),
        number(hits, " %"),
        f"{size(buffers)} of {size(limit)}",
        lane(counters, "cpu"),
        lane(counters, "net"),
        size(counters.get("process_resident_bytes", 0.0)),
    ]


def _links(daemons: Sequence[DaemonRates]) -> str:
    """Who sent whom how much over links; empty where there are none."""
    known = {daemon.sample.part: daemon.sample.parts for daemon in daemons}
    found = [
        (daemon.sample.counters[name], peer, daemon)
        for daemon in daemons
        for peer, name in received_from(daemon.sample).items()
    ]
    found.sort(key=lambda link: (-link[0], link[1], link[2].sample.address))
    rows = [
        [
            f"part {escape(known.get(peer, str(peer)))}",
            f"part {escape(daemon.sample.parts)}",
            escape(daemon.sample.address),
            bytes_per_s(daemon.received_per_s.get(peer)),
            size(total),
        ]
        for total, peer, daemon in found[:MOST_LINKS]
    ]
    if not rows:
        return ""
    more = f"<p>{len(found) - len(rows)} more are not shown.</p>" if len(found) > len(rows) else ""
    table = _table(("from", "to", "address", "bytes/s", "in all"), rows, "links")
    return f"<h2>Links between daemons ({len(found)})</h2>{table}{more}"


def _sessions(daemon: DaemonRates) -> str:
    heads = ("job", "epoch", "batches", "", "batch/s", "seeds/s", "queue", "flight", "held", "score", "sigma",
             "sample ms", "train ms")  # fmt: skip
    rows = []
    for session in daemon.sessions[:MOST_SESSIONS]:
        s = session.figures
        job = escape(s.job if s.world_size == 1 else f"{s.job} {s.rank}/{s.world_size}")
        share = 100 * s.taken / s.batches if s.batches else 100.0
        rows.append([
            f'<span class="bad">{job}: {escape(s.error)}</span>' if s.error else job,
            str(s.epoch),
            f"{s.taken:,}/{s.batches:,}",
            f'<span class="bar"><i style="width:{share:.0f}%"></i></span>',
            number(session.batches_per_s),
            number(session.seeds_per_s),
            str(s.queued),
            str(s.in_flight),
            size(s.queued_bytes + s.lent_bytes),
            number(s.score),
            number(s.sigma),
            number(s.sample_ms),
            number(s.train_ms),
        ])  # fmt: skip
    more = len(daemon.sessions) - len(rows)
    title = f"Sessions on part {daemon.sample.parts} ({len(daemon.sessions)})"
    note = f"<p>{more} more are not shown.</p>" if more else ""
    return f"<h2>{escape(title)}</h2>{_table(heads, rows, title)}{note}"


def _jobs(daemon: DaemonRates) -> str:
    heads = ("job", "epoch", "sent", "crossed", "rows read", "age min", "mean", "max", "broadcasts", "skipped", "error")
    rows = [
        [
            escape(f"{job.job} {job.direction}"),
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
        ]
        for job in of_all_layers(daemon.sample.jobs)
    ]
    return f"<h2>Rows between trainers</h2>{_table(heads, rows, 'rows between trainers')}"


def _trainer(trainer: TrainerHistory) -> str:
    head = f"<h2>Training, {escape(trainer.address)}</h2>"
    if trainer.error:
        head += f'<p class="bad">{escape(trainer.error)}</p>'
    drawn = "".join(curve(name, trainer.series(name)) for name in SHOWN)
    if not trainer.points:
        return head + ("" if trainer.error else "<p>No epoch has ended yet.</p>")
    phases = sorted((n, v) for n, v in trainer.points[-1][1].items() if n.startswith("phase "))
    told = ", ".join(f"{escape(name.removeprefix('phase '))} {value:.3g} s" for name, value in phases)
    return f'{head}<div class="curves">{drawn}</div><p>{told}</p>'


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min" if minutes else f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} d"
