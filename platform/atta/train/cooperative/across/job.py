"""Tells a daemon what an epoch's rows were like, so that ``atta top`` and Prometheus show a job while it runs."""

from __future__ import annotations

import math
import secrets
import time

import torch.distributed as dist

import atta
from atta.observe.figures import MAX_ENTRIES, MAX_REPORT_S, JobFigures
from atta.train.reports.epochs import RowReport

__all__ = ["JobReporter", "LayerErrors", "job_figures", "keep_s", "measured"]

LayerErrors = dict[tuple[int, str], tuple[float, float]]
"""Distances of predicted and of stale rows to fresh ones, by layer and direction."""

_LEAST_S = 60.0
_PERIODS = 3


def keep_s(period_s: float) -> float:
    """How long to show a report if the next one comes after about ``period_s`` seconds: a late one is no dead job."""
    return min(max(_LEAST_S, _PERIODS * period_s), MAX_REPORT_S)


class JobReporter:
    """Reports the epochs of a job. All ranks have one; the first one talks to the daemon."""

    def __init__(self, cluster: atta.Cluster, strategy: str) -> None:
        """``strategy``: first part of the job's name; the rest is random."""
        self._cluster = cluster
        self._job = f"{strategy}-{secrets.token_hex(3)}"
        self._latest: list[JobFigures] = []
        self._errors: LayerErrors = {}
        self._since = time.monotonic()

    def report(self, epoch: int, rows: RowReport) -> None:
        """Report an epoch, counted from 0."""
        self._errors |= measured(rows)
        self._latest = job_figures(self._job, epoch, rows, self._errors)
        period = time.monotonic() - self._since
        self._since += period
        if dist.get_rank() == 0:
            self._cluster.report(self._latest, keep_s(period))

    def end(self) -> None:
        """Have the job forgotten."""
        if self._latest and dist.get_rank() == 0:
            self._cluster.report(self._latest, 0.0)


def job_figures(job: str, epoch: int, rows: RowReport, errors: LayerErrors) -> list[JobFigures]:
    """The figures of each layer and direction. Distances are those that were measured last: ``errors``."""
    found = []
    for of_layer in rows.layers[:MAX_ENTRIES]:
        predicted, stale = errors.get((of_layer.layer, of_layer.direction), (None, None))
        found.append(
            JobFigures(
                job,
                epoch,
                of_layer.direction,
                sent_bytes=of_layer.payload_bytes,
                crossed_bytes=of_layer.crossed_bytes,
                rows=of_layer.rows,
                age_min=of_layer.age_min,
                age_mean=of_layer.age_mean,
                age_max=of_layer.age_max,
                broadcasts=of_layer.broadcasts,
                skipped=of_layer.skipped,
                layer=of_layer.layer,
                predicted_error=predicted,
                stale_error=stale,
            )
        )
    return found


def measured(rows: RowReport) -> LayerErrors:
    """The distances that were measured in an epoch, by layer and direction; those that are finite."""
    return {
        (of_layer.layer, of_layer.direction): (of_layer.predicted_error, of_layer.stale_error)
        for of_layer in rows.layers
        if of_layer.predicted_error is not None
        and of_layer.stale_error is not None
        and math.isfinite(of_layer.predicted_error + of_layer.stale_error)
    }
