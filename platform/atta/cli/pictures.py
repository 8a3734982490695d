"""Pictures of runs, graphs and daemons, as ``--plot`` draws them: plain data in, a file out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.cli.figures import COLOURS, figure
from atta.errors import ConfigError
from atta.observe.timeline import ROWS, Event
from atta.train.reports.epochs import PHASES, SERVER_PHASES, EpochReport, Watched, best_epoch

# Of curves that hide each other each later one has wider gaps, through which the earlier ones are seen.
_DASHES = ("-", *((0, (3, 3 * gap)) for gap in (1, 2, 3)))
_MOST_LABELS = 16
"""Bars that have numbers of their own."""
_PHASE_COLOURS = dict(zip(dict.fromkeys(PHASES + SERVER_PHASES), (*COLOURS, "#f0e442"), strict=True))
_PHASE_COLOURS |= {"other": "#7b8794", "evaluation": "#cbd3da"}
_BINS = 900
_GAP = 0.05  # time without work is left out where it is longer than a second and than this share of the time with work
_NOTE: Mapping[str, Any] = {"rotation": 90, "fontsize": "x-small", "ha": "right", "backgroundcolor": "#ffffffb0"}
_SEEN = 0.01
"""A phase with a smaller share of most epochs is part of the others."""
_WIDEST = 165
"""Characters of a legend below a picture."""
_LAYERS = (
    *((0, f"batches {what}") for what in ("being made", "that wait", "being sent")),
    *enumerate(("CPU tasks", "network: waits for other daemons", "served: requests of other daemons"), 1),
)
"""What a timeline shows: the number of the lane in ``ROWS``, and the name."""


def draw_run(path: str, epochs: Sequence[EpochReport], watched: Watched) -> None:
    """The curves of a run, and how long each epoch took."""
    metric = _drawn_metric(epochs, watched)
    best = best_epoch(epochs, watched)
    with figure(path, (12, 3.6), columns=3) as (loss, figures, times):
        _curve(loss, [(e.epoch, e.loss) for e in epochs], 0, "training")
        for number, split in enumerate(("val", "test"), 1):
            _curve(loss, _points(epochs, f"{split}_loss"), number, _SPLITS[split])
            _curve(figures, _points(epochs, f"{split}_{metric}"), number, _SPLITS[split])
        loss.set(xlabel="epoch", ylabel="mean loss")
        _name_axes(figures, "epoch", metric)
        for axis in (loss, figures) if best is not None else ():
            at = best.epoch  # type: ignore[union-attr]
            axis.axvline(at, color="#8a949e", linewidth=1, linestyle=":", label=f"best epoch, {at}")
        _draw_times(times, epochs)
        for axis in (loss, figures, times):
            axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(fontsize="small", framealpha=0.8, ncols=2 if axis is times else 1)


def draw_runs(path: str, groups: Mapping[str, Sequence[Sequence[EpochReport]]], watched: Watched) -> None:
    """Curves of runs, in groups that differ only in the seed: each run thin, their mean bold."""
    metric = _drawn_metric([e for runs in groups.values() for run in runs for e in run], watched)
    across = max(1, _WIDEST // (8 + max(map(len, groups))))
    with figure(path, (12, 3.6 + 0.22 * -(-len(groups) // across)), columns=3) as axes:
        for number, (name, runs) in enumerate(groups.items()):
            judged = [_points(run, f"val_{metric}") for run in runs]
            wider = (len(groups) - 1) // len(_DASHES) - number // len(_DASHES)  # than a later one with the same dashes
            how: dict[str, Any] = {"linestyle": _DASHES[number % len(_DASHES)], "linewidth": 1.8 + 1.4 * wider}
            _bundle(axes[0], [[(e.epoch, e.loss) for e in run] for run in runs], number, name, **how)
            _bundle(axes[1], judged, number, **how)
            _bundle(axes[2], [_by_time(run, points) for run, points in zip(runs, judged, strict=True)], number, **how)
        axes[0].set(xlabel="epoch", ylabel="mean loss")
        for axis in axes[:2]:
            axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        for axis, x in zip(axes[1:], ("epoch", "seconds of training"), strict=True):
            _name_axes(axis, x, metric, "validation ")
        axes[0].figure.legend(loc="outside lower left", ncols=across, fontsize="small", handlelength=3)


_SPLITS = {"val": "validation", "test": "test"}


def _drawn_metric(epochs: Sequence[EpochReport], watched: Watched) -> str:
    """The watched metric without its split; if that is the loss, which has a picture anyway, another one."""
    known = dict.fromkeys([watched.metric, *(name for e in epochs for name in e.metrics if name.startswith("val_"))])
    return next((name for name in known if name != "val_loss"), watched.metric).removeprefix("val_")


def _name_axes(axis: Any, x: str, metric: str, of: str = "") -> None:
    axis.set(xlabel=x, ylabel=f"{of}{metric.replace('_', ' ')}")
    if metric == "accuracy":  # percent, as everywhere else
        axis.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g} %")


def _points(epochs: Sequence[EpochReport], name: str) -> list[tuple[float, float]]:
    return [(e.epoch, value) for e in epochs if (value := e.metric(name)) is not None]


def _by_time(run: Sequence[EpochReport], points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points over epochs as points over the seconds of training until then."""
    ends = dict(zip((e.epoch for e in run), np.cumsum([e.seconds for e in run]), strict=True))
    return [(float(ends[int(epoch)]), value) for epoch, value in points]


def _curve(axis: Any, points: Sequence[tuple[float, float]], number: int, label: str = "", **how: Any) -> None:
    if points:
        colour, dash = COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)]
        how = {"color": colour, "linestyle": dash, "marker": "." if len(points) < 40 else None, **how}
        axis.plot(*zip(*points, strict=True), label=label or None, **how)


def _bundle(
    axis: Any, curves: Sequence[Sequence[tuple[float, float]]], number: int, label: str = "", **how: Any
) -> None:
    """Curves of one colour, and the mean as far as all go, which has the label."""
    curves = [curve for curve in curves if curve]
    for curve in curves if len(curves) > 1 else ():
        _curve(axis, curve, number, alpha=0.3, linewidth=0.8, marker=None)
    shared = min(map(len, curves), default=0)
    mean = np.mean([curve[:shared] for curve in curves], axis=0) if shared else np.zeros((0, 2))
    _curve(axis, [(x, y) for x, y in mean], number, label, marker="." if shared == 1 else None, **how)


def _phases(epochs: Sequence[EpochReport]) -> dict[str, npt.NDArray[np.float64]]:
    """Seconds of each epoch by what they were spent on. Where a trainer waits for batches, daemons sample and fetch them
    meanwhile."""
    names = dict.fromkeys(name for e in epochs for name in e.breakdown)
    own = [name for name in names if "wait" not in names or name not in ("sample", "fetch")]
    all_ = np.array([max(e.seconds, 1e-9) for e in epochs])
    spent = {name: np.array([e.breakdown.get(name, 0.0) for e in epochs]) for name in own}
    found = {name: seconds for name, seconds in spent.items() if np.median(seconds / all_) > _SEEN}
    found["other"] = np.maximum(0.0, all_ - sum(found.values(), np.zeros(len(all_))))
    return {**found, "evaluation": np.array([e.eval_seconds for e in epochs])}


def _draw_times(axis: Any, epochs: Sequence[EpochReport]) -> None:
    """A bar for each epoch. A first one that takes long does not make the others too small to see."""
    numbers, layers = np.arange(epochs[0].epoch, epochs[-1].epoch + 1), _phases(epochs)
    base = np.zeros(len(epochs))
    for name, values in layers.items():
        how = {"label": name, "color": _PHASE_COLOURS[name]}
        if len(epochs) <= 50:
            axis.bar(numbers, values, bottom=base, **how)
        else:  # no room for gaps
            axis.stairs(base + values, np.append(numbers, numbers[-1] + 1) - 0.5, baseline=base, fill=True, **how)
        base = base + values
    top = base[1:].max(initial=0.0)
    if len(epochs) > 1 and base[0] > 3 * top:
        axis.set_title(f"epoch {epochs[0].epoch} took {base[0]:.3g} s", fontsize="medium")
    else:
        top = base.max()
    axis.set(xlabel="epoch", ylabel="seconds", ylim=(0, 1.4 * top or 1.0))


def draw_graph(path: str, report: Mapping[str, Any], degrees: Mapping[str, npt.NDArray[np.int64]]) -> None:
    """The in-degrees of a graph, and of a dataset also what each partition holds. ``report``: of ``describe``; ``degrees``:
    by node type how many vertices have each in-degree."""
    parts = report["quality"]["parts"] if report["kind"] == "dataset" else []
    with figure(path, (13.5, 3.8) if parts else (5, 3.8), columns=3 if parts else 1, squeeze=False) as all_:
        _draw_degrees(all_[0, 0], degrees)
        if not parts:
            return
        nodes, halo, edges = (
            np.array([sum(part[key].values()) for part in parts]) for key in ("nodes", "halo", "edges")
        )
        cut = np.array([part["cut_edges"] for part in parts])
        vertices = {"own vertices": nodes, "HALO": halo}, [f"{r:.3f}" for r in halo / np.maximum(1, nodes)]
        title = f"HALO vertices per own vertex: {report['quality']['halo_ratio']:.3f}"
        _bars(all_[0, 1], *vertices, xlabel="partition", ylabel="vertices", title=title)
        shares = {"within the partition": edges - cut, "cut": cut}, [f"{r:.2%}" for r in cut / np.maximum(1, edges)]
        title = f"edges cut: {report['quality']['edge_cut']:.2%}"
        _bars(all_[0, 2], *shares, xlabel="partition", ylabel="in-edges", title=title)


def _draw_degrees(axis: Any, degrees: Mapping[str, npt.NDArray[np.int64]]) -> None:
    from matplotlib.ticker import LogLocator

    largest = sorted(degrees.items(), key=lambda of: -int(of[1].sum()))[: 2 * len(COLOURS)]
    for number, (name, counts) in enumerate(largest):
        at_least = counts[::-1].cumsum()[::-1] / max(1, int(counts.sum()))
        known = np.flatnonzero(counts[1:]) + 1
        none = f" ({1 - at_least[1:2].sum():.2%} have none)" if counts[:1].any() else ""
        _curve(axis, [(int(k), float(at_least[k])) for k in known], number, f"{name}{none}")
    axis.set(xscale="log", yscale="log", xlabel="in-degree", ylabel="share of vertices with at least as many")
    subs = (1, 2, 5) if np.divide(*axis.get_xlim()) > 1 / 300 else (1,)  # over more decades such labels would touch
    axis.xaxis.set(major_locator=LogLocator(subs=subs), major_formatter="{x:,g}", minor_formatter="")
    axis.legend(fontsize="small")


def _bars(axis: Any, layers: Mapping[str, npt.NDArray[Any]], labels: Sequence[str], **about: Any) -> None:
    places, below = np.arange(len(labels)), np.zeros(len(labels))
    for number, (name, values) in enumerate(layers.items()):
        bars = axis.bar(places, values, bottom=below, color=COLOURS[number], label=name)
        below = below + values
    if len(labels) <= _MOST_LABELS:
        axis.bar_label(bars, labels, fontsize="small", rotation=90 if len(labels) > 6 else 0, padding=2)
        axis.set_xticks(places)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(ylim=(0, 1.4 * max(1.0, below.max(initial=0))), **about)
    axis.legend(fontsize="small", loc="upper left", ncols=2)


def draw_timeline(path: str, events: Sequence[Event]) -> None:
    """How many batches, tasks and requests of each daemon were under way at once, from the first batch on, without the
    time when nothing was. ``events``: of ``trace_events``. Raises ConfigError: there is nothing to draw."""
    daemons = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    batches = [event["ts"] for event in events if event.get("cat") == "batch"]
    begin = min(batches, default=0.0)
    timed = [{**event, "ts": event["ts"] - begin} for event in events if event.get("ts", -1.0) >= begin]
    events = [*(event for event in events if "ts" not in event), *timed]
    idle = _idle(spans := _spans([event for event in timed if event["ph"] == "X"]))
    if not np.diff(spans).any():
        raise ConfigError(f"--plot {path}: nothing was under way, so nothing to draw: trace while a run trains")
    edges = np.linspace(0.0, _shown(spans[:, 1], idle).max(initial=1e-3), _BINS + 1)
    found = {pid: _at_once([event for event in events if event["pid"] == pid], edges, idle) for pid in daemons}
    in_lane = [[lane == number for lane, _ in _LAYERS] for number in range(len(ROWS))]
    most = (max(float(layers[lane].sum(0).max()) for layers in found.values()) for lane in in_lane)
    tops = {number: top for number, top in enumerate(most) if top}
    with figure(path, (11, 0.9 + 1.4 * len(daemons)), rows=len(daemons), sharex=True, squeeze=False) as axes:
        for axis, (pid, title) in zip(axes[:, 0], daemons.items(), strict=True):
            _draw_lanes(axis, edges, found[pid], tops)
            opened = np.array([e["ts"] / 1e6 for e in events if e["pid"] == pid and e["name"].endswith(" opened")])
            axis.vlines(_shown(opened, idle), 0, len(tops), "#5b6b7b", ":", linewidth=0.8)
            axis.vlines(cuts := _shown(idle[:, 0], idle), 0, len(tops), "#5b6b7b", linewidth=0.8)
            axis.set_title(title, fontsize="medium", loc="left")
        for at, seconds in zip(cuts, np.diff(idle)[:, 0], strict=True):
            axes[0, 0].text(at, 0.05, f"{seconds:.3g} s left out", **_NOTE)
        told = f"seconds since the first {'batch' if batches else 'request'}"
        told += ", without those in which nothing was under way" if len(idle) else ""
        axes[-1, 0].set_xlabel(f"{told}; dotted: a session begins")
        legend = axes[0, 0].get_legend_handles_labels()
        axes[0, 0].figure.legend(*legend, loc="outside lower center", ncols=3, fontsize="small")


def _spans(bars: Sequence[Event]) -> npt.NDArray[np.float64]:
    """When each began and ended, in seconds: [bars, 2]."""
    return np.array([(bar["ts"], bar["ts"] + bar["dur"]) for bar in bars]).reshape(-1, 2) / 1e6


def _idle(spans: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """When none of ``spans`` [n, 2] was under way for long: [times, 2]."""
    begins, ends = np.sort(spans[:, 0])[1:], np.maximum.accumulate(spans[np.argsort(spans[:, 0]), 1])
    gaps = (begins - ends[:-1]).clip(0.0)
    long = gaps > max(1.0, _GAP * (np.ptp(spans) - gaps.sum())) if len(spans) else gaps > 0.0
    return np.stack([ends[:-1][long], begins[long]], 1)


def _shown(times: npt.NDArray[np.float64], idle: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Where ``times`` lie in a picture without the ``idle`` times [n, 2]."""
    passed = np.diff(idle, prepend=idle[:, :1]).cumsum()  # at both ends of each
    return times - np.interp(times, idle.ravel(), passed) if len(idle) else times


def _at_once(
    events: Sequence[Event], edges: npt.NDArray[np.float64], idle: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Of a daemon what was under way on average in each bin, by ``_LAYERS``: [layers, bins]."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    bars: list[list[Event]] = [[] for _ in _LAYERS]
    for bar in (event for event in events if event["ph"] == "X"):
        lane = ROWS.index(names[bar["tid"]].rpartition(" ")[0])
        layer = lane + 2 if lane else {"waits": 1, "sent": 2}.get(bar["name"].rpartition(" ")[2], 0)
        bars[layer].append(bar)
    return np.stack([_under_way(_shown(_spans(of), idle), edges) for of in bars])


def _under_way(spans: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How many ``spans`` [n, 2] are under way, on average in each bin."""

    def passed(times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The sum over ``times`` of how long ago they were, at each edge."""
        ordered = np.sort(times)
        before = np.searchsorted(ordered, edges)
        sums: npt.NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(ordered)])
        return before * edges - sums[before]

    at_once: npt.NDArray[np.float64] = np.diff(passed(spans[:, 0]) - passed(spans[:, 1])) / np.diff(edges)
    return at_once.clip(0.0)


def _draw_lanes(
    axis: Any, edges: npt.NDArray[np.float64], layers: npt.NDArray[np.float64], tops: Mapping[int, float]
) -> None:
    # Lanes in which nothing was ever under way are in no picture.
    heights = np.arange(len(tops))[::-1]
    bases = {lane: np.full(len(edges), float(height)) for lane, height in zip(tops, heights, strict=True)}
    for number, (lane, name) in ((n, layer) for n, layer in enumerate(_LAYERS) if layer[0] in tops):
        base = bases[lane]
        bases[lane] = top = base + np.append(0.9 * layers[number] / tops[lane], 0.0)
        busy = (top > base) | np.append(False, top > base)[:-1]  # a step needs its end, too
        axis.fill_between(edges, base, top, where=busy, step="post", color=COLOURS[number], linewidth=0, label=name)
    most = [(bases[lane] - height).max() / 0.9 * tops[lane] for lane, height in zip(tops, heights, strict=True)]
    known = (f"up to {max(1.0, np.ceil(round(at_once, 2))):.0f} at once" if at_once else "none" for at_once in most)
    labels = [f"{ROWS[lane]}, {text}" for lane, text in zip(tops, known, strict=True)]
    axis.set_yticks(heights, labels, va="bottom", fontsize="small")
    axis.tick_params(axis="y", length=0)
    axis.set(ylim=(0, len(tops)), xlim=(edges[0], edges[-1]))
