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
from atta.train.exchange.policy import Ages
from atta.train.reports.epochs import LayerRows, RowReport

Key = tuple[int, Direction]
"""Layer and direction."""
LayerErrors = dict[tuple[int, str], tuple[float, float]]
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
        broadcasts: how often this trainer sent its rows to those who read them.
        skipped: how often it did not, because theirs were still good enough.
        pushed: bytes of rows that this trainer pushed to the daemon beside it, from which others pull them.
        errors: squared distances of predicted and of stale rows to those of this epoch, of all trainers together.
    """

    sent: Payload = field(default_factory=Counter)
    crossed: Payload = field(default_factory=Counter)
    ages: dict[Key, Ages] = field(default_factory=dict)
    broadcasts: Counter[Key] = field(default_factory=Counter)
    skipped: Counter[Key] = field(default_factory=Counter)
    pushed: Payload = field(default_factory=Counter)
    errors: dict[Key, tuple[float, float]] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin anew."""
        for figure in dataclasses.fields(self):
            getattr(self, figure.name).clear()

    def read(self, key: Key, ages: Ages) -> None:
        """Note the ages of rows that were read."""
        self.ages[key] = self.ages.get(key, Ages()) + ages


def row_report(figures: RowFigures, kept: list[int], device: torch.device | str = "cpu") -> RowReport:
    """The report of an epoch, of all trainers together. All ranks call this and get the same. It takes one message.

    kept: bytes of copies, of second copies, and of what filled the tables, as in ``RowReport``.
    """
    keys = sorted({*figures.broadcasts, *figures.skipped}, key=lambda key: (key[0], key[1] != "forward"))
    mine = [float(value) for key in keys for value in _values(figures, key)] + [float(value) for value in kept]
    world = dist.get_world_size()
    table = torch.zeros((world, len(mine)), dtype=torch.float64, device=device)
    table[dist.get_rank()] = torch.tensor(mine, dtype=torch.float64, device=device)
    dist.all_reduce(table)
    sums, least, most = table.sum(0).tolist(), table.amin(0).tolist(), table.amax(0).tolist()
    width = len(_values(figures, keys[0])) if keys else 0
    layers = []
    for first, (layer, direction) in zip(range(0, len(keys) * width, width or 1), keys, strict=True):
        sent, crossed, pushed, broadcasts, skipped, rows, total = map(int, sums[first : first + 7])
        predicted, stale = figures.errors.get((layer, direction), (None, None))  # of all trainers already
        layers.append(
            LayerRows(
                layer,
                direction,
                payload_bytes=sent,
                crossed_bytes=crossed,
                pushed_bytes=pushed,
                rows=rows,
                age_min=int(least[first + 7]) if rows else None,
                age_mean=total / rows if rows else None,
                age_max=int(most[first + 8]) if rows else None,
                broadcasts=broadcasts,
                skipped=skipped,
                predicted_error=None if predicted is None else math.sqrt(predicted),
                stale_error=None if stale is None else math.sqrt(stale),
            )
        )
    return RowReport(layers, *map(int, sums[-len(kept) :]))


def _values(figures: RowFigures, key: Key) -> tuple[float, ...]:
    """Numbers that are added up, then the bounds of ages."""
    counted = figures.sent, figures.crossed, figures.pushed, figures.broadcasts, figures.skipped
    ages = figures.ages.get(key, Ages())
    return (*(counter[key] for counter in counted), ages.rows, ages.total, ages.least, ages.most)


class JobReporter:
    """Tells a daemon what an epoch's rows were like, so that ``atta top`` and Prometheus show a job while it runs. All
    ranks have one; the first one talks to the daemon.
    """

    def __init__(self, cluster: atta.Cluster, strategy: str) -> None:
        """``strategy``: first part of the job's name; the rest is random."""
        self._cluster = cluster
        self._job = f"{strategy}-{secrets.token_hex(3)}"
        self._latest: list[JobFigures] = []
        self._errors: LayerErrors = {}
        self._since = time.monotonic()

    def report(self, epoch: int, rows: RowReport) -> None:
        """Report an epoch, counted from 0. It is shown until the next one is late: a late one is no dead job."""
        self._errors |= measured_errors(rows)
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
    """The figures of each layer and direction. Distances are those that were measured last: ``errors``."""
    found = []
    for of_layer in rows.layers[:MAX_ENTRIES]:
        figures = dataclasses.asdict(of_layer)
        figures["sent_bytes"] = figures.pop("payload_bytes")
        del figures["pushed_bytes"]
        predicted, stale = errors.get((of_layer.layer, of_layer.direction), (None, None))
        found.append(JobFigures(job, epoch, **{**figures, "predicted_error": predicted, "stale_error": stale}))
    return found


def measured_errors(rows: RowReport) -> LayerErrors:
    """The distances that were measured in an epoch, by layer and direction; those that are finite."""
    return {
        (of_layer.layer, of_layer.direction): (of_layer.predicted_error, of_layer.stale_error)
        for of_layer in rows.layers
        if of_layer.predicted_error is not None
        and of_layer.stale_error is not None
        and math.isfinite(of_layer.predicted_error + of_layer.stale_error)
    }
