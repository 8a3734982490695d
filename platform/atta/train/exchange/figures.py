"""What the exchange of rows has done in an epoch, in numbers: of one trainer, of all together, and as daemons show them."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

import atta
from atta.observe.figures import MAX_ENTRIES, MAX_REPORT_S, JobFigures
from atta.train.cooperative.source import Direction, Payload
from atta.train.exchange.policies import Ages
from atta.train.reports.epochs import LayerRows, RowReport

Key = tuple[int, Direction]
"""Layer and direction."""
LayerErrors = dict[tuple[int, str], tuple[float | None, float | None]]
"""Distances of predicted and of stale rows to fresh ones, by layer and direction."""
_LEAST_S = 60.0
_PERIODS = 3


@dataclass
class RowFigures:
    """Counted by layer and direction.

    Attributes:
        sent: bytes of rows that this trainer sent to others, or pulled from daemons.
        crossed: the bytes of these that went to, or came from, other servers.
        ages: of the rows that were read, in epochs.
        broadcasts, skipped: how often this trainer sent its rows, or did not, because those of readers were good enough.
        pushed: bytes of rows that this trainer pushed to the daemon beside it, from which others pull them.
        errors: squared distances of predicted and of stale rows to those pulled in this epoch, of all trainers together.
        whole: with a budget, bytes that exact rows would have taken.
        choices, row_errors: with a budget, the level of each owner, and the largest error of an owner's rows.
    """

    sent: Payload = field(default_factory=Counter)
    crossed: Payload = field(default_factory=Counter)
    ages: dict[Key, Ages] = field(default_factory=dict)
    broadcasts: Counter[Key] = field(default_factory=Counter)
    skipped: Counter[Key] = field(default_factory=Counter)
    pushed: Payload = field(default_factory=Counter)
    errors: dict[Key, tuple[float, float]] = field(default_factory=dict)
    whole: Payload = field(default_factory=Counter)
    choices: dict[Key, list[str]] = field(default_factory=dict)
    row_errors: dict[Key, float] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin anew."""
        for figure in dataclasses.fields(self):
            getattr(self, figure.name).clear()

    def count(self, key: Key, *, broadcast: bool) -> None:
        """Count that this trainer sent its rows of a layer, or did not."""
        (self.broadcasts if broadcast else self.skipped)[key] += 1

    def read(self, key: Key, ages: Ages) -> None:
        """Note the ages of rows that were read."""
        self.ages[key] = self.ages.get(key, Ages()) + ages


def row_report(figures: RowFigures, kept: list[int], device: torch.device | str = "cpu") -> RowReport:
    """The report of an epoch, of all trainers together, who all call this; ``kept``: bytes, as in ``RowReport``."""
    keys = sorted({*figures.broadcasts, *figures.skipped}, key=lambda key: (key[0], key[1] != "forward"))
    counters = figures.sent, figures.crossed, figures.pushed, figures.broadcasts, figures.skipped, figures.whole
    mine: list[float] = []
    for key in keys:
        ages = figures.ages.get(key, Ages())
        mine += [*(float(counter[key]) for counter in counters), ages.rows, ages.total, ages.least, ages.most]
    table = torch.zeros((dist.get_world_size(), len(mine) + len(kept)), dtype=torch.float64, device=device)
    table[dist.get_rank()] = torch.tensor([*mine, *kept], dtype=torch.float64, device=device)
    dist.all_reduce(table)
    sums, least, most = table.sum(0).tolist(), table.amin(0).tolist(), table.amax(0).tolist()
    layers = []
    for first, (layer, direction) in zip(range(0, len(mine), len(counters) + 4), keys, strict=True):
        sent, crossed, pushed, broadcasts, skipped, whole, rows, total = map(int, sums[first : first + 8])
        errors = figures.errors.get((layer, direction))  # of all trainers already
        predicted, stale = (None, None) if errors is None else map(math.sqrt, errors)
        layers.append(
            LayerRows(
                layer,
                direction,
                payload_bytes=sent,
                crossed_bytes=crossed,
                pushed_bytes=pushed,
                rows=rows,
                age_min=int(least[first + 8]) if rows else None,
                age_mean=total / rows if rows else None,
                age_max=int(most[first + 9]) if rows else None,
                broadcasts=broadcasts,
                skipped=skipped,
                predicted_error=predicted,
                stale_error=stale,
                saved_bytes=whole - sent if whole else 0,
                choices=figures.choices.get((layer, direction), []),
                row_error=figures.row_errors.get((layer, direction)),
            )
        )
    kept_bytes, copied_bytes, filled_bytes = map(int, sums[-len(kept) :])
    return RowReport(layers, kept_bytes, copied_bytes, filled_bytes)


class JobReporter:
    """Tells a daemon what an epoch's rows were like, so that ``atta top`` and Prometheus show a job while it runs. All
    ranks have one; the first one talks to the daemon."""

    def __init__(self, cluster: atta.Cluster, strategy: str) -> None:
        """``strategy``: first part of the job's name; the rest is random."""
        self._cluster = cluster
        self._job = f"{strategy}-{secrets.token_hex(3)}"
        self._latest: list[JobFigures] = []
        self._errors: LayerErrors = {}
        self._since = time.monotonic()

    def report(self, epoch: int, rows: RowReport) -> None:
        """Report an epoch, counted from 0. It is shown until the next one is late: a late one is no dead job."""
        self._latest = job_figures(self._job, epoch, rows, self._errors)
        period = time.monotonic() - self._since
        self._since += period
        if dist.get_rank() == 0:
            self._cluster.report(self._latest, min(max(_LEAST_S, _PERIODS * period), MAX_REPORT_S))

    def end(self) -> None:
        """Have the job forgotten."""
        if self._latest and dist.get_rank() == 0:
            self._cluster.report(self._latest, 0.0)


def job_figures(job: str, epoch: int, rows: RowReport, errors: LayerErrors) -> list[JobFigures]:
    """The figures of each layer and direction. Distances are those that were measured last: this epoch's join ``errors``."""
    found = []
    for of_layer in rows.layers:
        key, measured = (of_layer.layer, of_layer.direction), (of_layer.predicted_error, of_layer.stale_error)
        if all(error is not None and math.isfinite(error) for error in measured):
            errors[key] = measured
        figures = dataclasses.asdict(of_layer)
        figures["sent_bytes"] = figures.pop("payload_bytes")
        for name in ("pushed_bytes", "saved_bytes", "choices", "row_error"):
            del figures[name]
        figures |= zip(("predicted_error", "stale_error"), errors.get(key, (None, None)), strict=True)
        found.append(JobFigures(job, epoch, **figures))
    return found[:MAX_ENTRIES]
