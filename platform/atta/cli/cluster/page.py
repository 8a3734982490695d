"""The page of ``atta dashboard``: HTML and SVG of a cluster and of the curves of training, without scripts of others."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from prometheus_client.parser import text_string_to_metric_families

from atta.cli.cluster.top import UNKNOWN, bytes_per_s, daemon_figures, job_figures, session_figures
from atta.cli.output import size
from atta.client.watch import DaemonRates, Sample, received_from
from atta.observe.figures import of_all_layers

SHOWN = ("loss", "val_accuracy", "seeds_per_second", "epoch_seconds")
"""What has a curve, in this order."""
MOST_EPOCHS = 1000
"""Epochs of a trainer that are remembered."""
MOST_CHARACTERS = 1 << 20
"""Longest text of metrics that is read."""
_WIDTH, _HEIGHT, _EDGE = 300, 146, 8
_LEFT, _BOTTOM = 46, 112
"""Where the axes meet."""


def figures_of(text: str) -> tuple[int, dict[str, float]]:
    """Ended epochs and the latest one's figures, from a trainer's metrics. Raises ValueError: they are none."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{len(text)} characters of metrics")
    epochs, found = 0, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("atta_training_")
            if name == "epochs_total":
                epochs = int(sample.value)
            elif name == "metric":
                found[sample.labels.get("metric", "")] = sample.value
            elif name == "phase_seconds":
                found[f"phase {sample.labels.get('phase', '')}"] = sample.value
            elif sample.name != name and not sample.labels:
                found[name] = sample.value
    return epochs, found


@dataclass
class TrainerHistory:
    """What one trainer has exported so far: the figures by number of ended epochs, or why the last attempt failed."""

    address: str
    error: str = ""
    points: deque[tuple[int, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=MOST_EPOCHS))

    def add(self, epochs: int, figures: Mapping[str, float]) -> None:
        """Take what was scraped. A run that begins anew replaces the one before."""
        self.error = ""
        if self.points and epochs < self.points[-1][0]:
            self.points.clear()
        if not epochs or (self.points and epochs == self.points[-1][0]):
            return
        self.points.append((epochs, dict(figures)))

    def series(self, name: str) -> list[tuple[int, float]]:
        """(ended epochs, value) where the figure is known."""
        return [(epochs, figures[name]) for epochs, figures in self.points if name in figures]


def curve(title: str, points: Sequence[tuple[int, float]]) -> str:
    """An SVG of ``points`` with axes, and the last value in words; they need not be in equal steps."""
    points = [(x, y) for x, y in points if math.isfinite(y)]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    right, left = _WIDTH - _EDGE, _LEFT
    across, up = (right - left) / max(xs[-1] - xs[0], 1), (_BOTTOM - _EDGE) / ((high - low) or 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (x - xs[0]) * across, _BOTTOM - (y - low) * up

    line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
    at_x, at_y = place(*points[-1])
    words = f"{escape(title)}: {points[-1][1]:.4g} after {xs[-1]} epochs; {low:.4g} to {high:.4g}"
    marks = "".join(_mark(*place(xs[0], y), f"{y:.4g}", across=True) for y in _ticks(low, high))
    marks += "".join(_mark(*place(x, low), f"{x:g}", across=False) for x in _ticks(xs[0], xs[-1], whole=True))
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{words}">'
        f'<path class="axes" d="M{left} {_EDGE}V{_BOTTOM}H{right}"/>{marks}'
        f'<text class="unit" x="{right}" y="{_HEIGHT - 4}">epochs</text>'
        f'<polyline points="{line}"/><circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="3"/></svg>'
        f"<figcaption>{words}</figcaption></figure>"
    )


def _mark(x: float, y: float, text: str, *, across: bool) -> str:
    """A tick with its number: beside the upright axis, with a line ``across`` the picture, or below the other one."""
    if across:
        line = f'<path class="grid" d="M{x:.1f} {y:.1f}H{_WIDTH - _EDGE}"/>'
        return f'{line}<text class="up" x="{x - 4:.1f}" y="{y + 4:.1f}">{text}</text>'
    return f'<text class="along" x="{x:.1f}" y="{_BOTTOM + 14}">{text}</text>'


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """At most five round numbers within [low, high]; at least one. ``whole``: integers."""
    if high <= low:
        return [low]
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    step = max(1.0, math.ceil(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)] or [low]


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
    """What the page shows. Daemons have rates, trainers curves."""

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
    """``rows`` have HTML; a row of one cell is a remark that takes the whole width. On a narrow screen each row is a
    box, in which the heads stand before their figures."""
    heads = [escape(name) for name in heads]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    lines = "".join(f"<tr>{_cells(heads, row)}</tr>" for row in rows)
    return f'<table aria-label="{escape(label)}"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'


def _cells(heads: Sequence[str], row: Sequence[str]) -> str:
    if len(row) == 1:
        return f'<td class="reason" colspan="{len(heads)}">{row[0]}</td>'
    return "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in zip(heads, row, strict=True))


def _daemons(daemons: Sequence[DaemonRates]) -> str:
    heads = ("part", "address", "up", *daemon_figures(DaemonRates(Sample(0, ""))), "memory")
    rows = [row for daemon in daemons for row in (_daemon(daemon, len(heads)), _reason(daemon)) if row]
    return _table(heads, rows, "daemons")


def _reason(daemon: DaemonRates) -> list[str]:
    return [f'<span class="bad">{escape(daemon.sample.error)}</span>'] if daemon.sample.error else []


def _daemon(daemon: DaemonRates, width: int) -> list[str]:
    sample, counters = daemon.sample, daemon.sample.counters
    name = [escape(sample.parts), escape(sample.address)]
    if sample.error:
        return [*name, '<span class="bad">down</span>', *[UNKNOWN] * (width - 3)]
    memory = size(counters.get("process_resident_bytes", 0.0))
    return [*name, _duration(sample.at), *daemon_figures(daemon).values(), memory]


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
    shown = daemon.sessions[:MOST_SESSIONS]
    heads, rows = [*session_figures(shown[0])], []
    for session in shown:
        s = session.figures
        share = 100 * s.taken / s.batches if s.batches else 100.0
        job, *cells = map(escape, session_figures(session).values())
        cells.insert(2, f'<span class="bar"><i style="width:{share:.0f}%"></i></span>')
        rows.append([f'<span class="bad">{job}</span>' if s.error else job, *cells])
    heads.insert(3, "")
    more = len(daemon.sessions) - len(rows)
    title = f"Sessions on part {daemon.sample.parts} ({len(daemon.sessions)})"
    note = f"<p>{more} more are not shown.</p>" if more else ""
    return f"<h2>{escape(title)}</h2>{_table(heads, rows, title)}{note}"


def _jobs(daemon: DaemonRates) -> str:
    figures = [job_figures(job) for job in of_all_layers(daemon.sample.jobs)]
    rows = [[*map(escape, one.values())] for one in figures]
    return f"<h2>Rows between trainers</h2>{_table(figures[0], rows, 'rows between trainers')}"


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
