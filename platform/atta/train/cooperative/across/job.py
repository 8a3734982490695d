"""Tells a daemon what an epoch's rows were like, so that ``atta top`` and Prometheus show a job while it runs."""

from __future__ import annotations

import secrets
import time

import torch.distributed as dist

import atta
from atta.observe.figures import DIRECTIONS, MAX_REPORT_S, JobFigures
from atta.train.reports.rows import RowReport

__all__ = ["JobReporter", "job_figures", "keep_s"]

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
        self._since = time.monotonic()

    def report(self, epoch: int, rows: RowReport) -> None:
        """Report an epoch, counted from 0."""
        self._latest = job_figures(self._job, epoch, rows)
        period = time.monotonic() - self._since
        self._since += period
        if dist.get_rank() == 0:
            self._cluster.report(self._latest, keep_s(period))

    def end(self) -> None:
        """Have the job forgotten."""
        if self._latest and dist.get_rank() == 0:
            self._cluster.report(self._latest, 0.0)


def job_figures(job: str, epoch: int, rows: RowReport) -> list[JobFigures]:
    """The figures of all layers together, by direction."""
    found = []
    for direction in DIRECTIONS:
        layers = [layer for layer in rows.layers if layer.direction == direction]
        read = sum(layer.rows for layer in layers)
        found.append(
            JobFigures(
                job,
                epoch,
                direction,
                sent_bytes=sum(layer.payload_bytes for layer in layers),
                crossed_bytes=sum(layer.crossed_bytes for layer in layers),
                rows=read,
                age_min=min((layer.age_min for layer in layers if layer.age_min is not None), default=None),
                age_mean=sum((layer.age_mean or 0.0) * layer.rows for layer in layers) / read if read else None,
                age_max=max((layer.age_max for layer in layers if layer.age_max is not None), default=None),
                broadcasts=sum(layer.broadcasts for layer in layers),
                skipped=sum(layer.skipped for layer in layers),
            )
        )
    return found
