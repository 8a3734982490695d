"""What training jobs report of their latest epoch: kept for a while, for ``atta top`` and Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from atta.errors import ConfigError
from atta.observe.figures import DIRECTIONS, MAX_ENTRIES, MAX_REPORT_S, JobFigures

__all__ = ["MAX_JOBS", "JobBoard", "check_printable"]

MAX_JOBS = 64
"""At most this many jobs are kept. One more takes the place of the one that has been silent longest."""
MAX_NAME_CHARS = 64


def check_printable(job: str) -> None:
    """Raise ConfigError for a job's name that people could not be shown as it is."""
    if not job.isprintable():
        raise ConfigError(f"job {job[:MAX_NAME_CHARS]!r}: its name must have printable characters alone")


class _Entry(NamedTuple):
    until: float
    figures: tuple[JobFigures, ...]


class JobBoard:
    """The latest report of each job. It does no more than show it.

    A job says how long its report is good for. So a dead job leaves nothing, and a slow one stays visible.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: the time in seconds."""
        self._clock = clock
        self._jobs: dict[str, _Entry] = {}

    def put(self, figures: Sequence[JobFigures], keep_s: float) -> None:
        """Keep ``figures`` of one job for ``keep_s`` seconds, in place of its earlier ones; 0 s: forget the job.

        Raises:
            ConfigError: the figures are not those of one job, or a value is out of range.
        """
        if len({one.job for one in figures}) != 1:
            raise ConfigError("a report must be of one job")
        job = figures[0].job
        if not 0 < len(job) <= MAX_NAME_CHARS:
            raise ConfigError(f"a job's name of {len(job)} characters: must have 1 to {MAX_NAME_CHARS}")
        check_printable(job)
        if not 0 <= keep_s <= MAX_REPORT_S:
            raise ConfigError(f"report of job {job}: cannot be kept for {keep_s} s, only for 0 to {MAX_REPORT_S:.0f}")
        keys = {(one.layer, one.direction) for one in figures}
        if len(keys) != len(figures) or not {direction for _, direction in keys} <= set(DIRECTIONS):
            raise ConfigError(f"report of job {job}: each layer must have {', '.join(DIRECTIONS)} at most once")
        if len(figures) > MAX_ENTRIES:
            raise ConfigError(f"report of job {job}: {len(figures)} layers and directions, at most {MAX_ENTRIES}")
        ages = [age for one in figures for age in (one.age_min, one.age_mean, one.age_max)]
        if not all(age is None or 0 <= age < math.inf for age in ages):
            raise ConfigError(f"report of job {job}: an age is no number of epochs")
        errors = [error for one in figures for error in (one.predicted_error, one.stale_error)]
        if not all(error is None or 0 <= error < math.inf for error in errors):
            raise ConfigError(f"report of job {job}: an error of rows is no distance")
        self._jobs.pop(job, None)
        self._expire()
        if keep_s > 0:
            while len(self._jobs) >= MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]  # reports are in the order of their arrival
            self._jobs[job] = _Entry(self._clock() + keep_s, tuple(figures))

    def figures(self) -> list[JobFigures]:
        """Those of all jobs, in the order of their reports."""
        self._expire()
        return [one for entry in self._jobs.values() for one in entry.figures]

    def _expire(self) -> None:
        now = self._clock()
        self._jobs = {job: entry for job, entry in self._jobs.items() if entry.until > now}
