"""Tells a daemon what an epoch's rows were like, so that ``atta top`` and Prometheus show a job while it runs."""

from __future__ import annotations

import secrets
import time

import torch
import torch.distributed as dist

import atta
from atta.observe.figures import DIRECTIONS, MAX_REPORT_S, JobFigures
from atta.train.cooperative.across.figures import RowFigures
from atta.train.stale.rules import Ages

__all__ = ["JobReporter", "job_figures", "keep_s"]

_LEAST_S = 60.0
_PERIODS = 3


def keep_s(period_s: float) -> float:
    """How long to show a report if the next one comes after about ``period_s`` seconds: a late one is no dead job."""
    return min(max(_LEAST_S, _PERIODS * period_s), MAX_REPORT_S)


class JobReporter:
    """Reports the epochs of a job. All ranks have one; the first one talks to the daemon."""

    def __init__(self, cluster: atta.Cluster, strategy: str, device: torch.device) -> None:
        """``strategy``: first part of the job's name; the rest is random."""
        self._cluster, self._device = cluster, device
        self._job = f"{strategy}-{secrets.token_hex(3)}"
        self._latest: list[JobFigures] = []
        self._since = time.monotonic()

    def report(self, epoch: int, figures: RowFigures) -> None:
        """Report an epoch; all ranks call this."""
        self._latest = job_figures(self._job, epoch, figures, self._device)
        period = time.monotonic() - self._since
        self._since += period
        if dist.get_rank() == 0:
            self._cluster.report(self._latest, keep_s(period))

    def end(self) -> None:
        """Have the job forgotten."""
        if self._latest and dist.get_rank() == 0:
            self._cluster.report(self._latest, 0.0)


def job_figures(job: str, epoch: int, figures: RowFigures, device: torch.device) -> list[JobFigures]:
    """Figures of all ranks together, by direction; all ranks call this."""
    mine = torch.tensor([_values(figures, d) for d in DIRECTIONS], dtype=torch.float64, device=device)
    every = mine.new_empty((dist.get_world_size() * len(mine), *mine.shape[1:]))
    dist.all_gather_into_tensor(every, mine)
    found = []
    for place, direction in enumerate(DIRECTIONS):
        rows = every[place :: len(DIRECTIONS)]
        sent, crossed, broadcasts, skipped, read, total = map(int, rows[:, :-2].sum(0).tolist())
        shown = JobFigures(
            job,
            epoch,
            direction,
            sent_bytes=sent,
            crossed_bytes=crossed,
            rows=read,
            age_min=float(rows[:, -2].min()) if read else None,
            age_mean=total / read if read else None,
            age_max=float(rows[:, -1].max()) if read else None,
            broadcasts=broadcasts,
            skipped=skipped,
        )
        found.append(shown)
    return found


def _values(figures: RowFigures, direction: str) -> tuple[float, ...]:
    """This rank's figures of a direction: numbers that are added up, then the bounds of ages."""
    counted = (figures.sent, figures.crossed, figures.broadcasts, figures.skipped)
    sums = [sum(count for (_, way), count in counter.items() if way == direction) for counter in counted]
    ages = sum((ages for (_, way), ages in figures.ages.items() if way == direction), Ages())
    return (*sums, ages.rows, ages.total, ages.least, ages.most)
