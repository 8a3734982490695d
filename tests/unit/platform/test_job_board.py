"""Reports of jobs on a daemon: the latest of each, for a while, at most so many."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from atta.daemon.services.jobs import MAX_JOBS, JobBoard
from atta.errors import ConfigError
from atta.observe.figures import MAX_REPORT_S, JobFigures
from tests.unit.platform.figures import job


class Clock:
    """A time that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_latest_report_is_shown_until_it_is_too_old() -> None:
    clock = Clock()
    board = JobBoard(clock)
    board.put([job(epoch=1), job(epoch=1, direction="backward")], 60)
    board.put([job(job="other")], 10)
    board.put([job(epoch=2)], 60)
    assert board.figures() == [job(job="other"), job(epoch=2)]  # the gradients of epoch 1 are gone with its rows
    clock.now += 10
    assert board.figures() == [job(epoch=2)]
    clock.now += 49.9
    assert board.figures() == [job(epoch=2)]
    clock.now += 0.1
    assert board.figures() == []


def test_a_job_that_ends_is_forgotten() -> None:
    board = JobBoard(Clock())
    board.put([job()], 60)
    board.put([job(job="other")], 60)
    board.put([job()], 0)
    assert board.figures() == [job(job="other")]


def test_the_job_that_is_silent_longest_makes_room() -> None:
    board = JobBoard(Clock())
    for number in range(MAX_JOBS):
        board.put([job(job=str(number))], 60)
    board.put([job(job="0", epoch=9)], 60)
    board.put([job(job="new")], 60)
    shown = [one.job for one in board.figures()]
    assert shown == [*map(str, range(2, MAX_JOBS)), "0", "new"]


@pytest.mark.parametrize(
    ("figures", "keep_s", "cause"),
    [
        ([], 60, "of one job"),
        ([job(), job(job="other", direction="backward")], 60, "of one job"),
        ([job(), job()], 60, "at most once"),
        ([job(direction="up")], 60, "forward, backward"),
        ([job(job="")], 60, "0 characters"),
        ([job(job="j" * 65)], 60, "65 characters"),
        ([job()], -1, "kept for -1 s"),
        ([job()], math.nan, "kept for nan s"),
        ([job()], MAX_REPORT_S + 1, "only for 0 to 86400"),
        ([job(age_mean=math.nan)], 60, "no number of epochs"),
        ([job(age_max=math.inf)], 60, "no number of epochs"),
        ([job(age_min=-1.0)], 60, "no number of epochs"),
    ],
)
def test_bad_reports_change_nothing(figures: list[JobFigures], keep_s: float, cause: str) -> None:
    board = JobBoard(Clock())
    board.put([job(epoch=7)], 60)
    with pytest.raises(ConfigError, match=cause):
        board.put(figures, keep_s)
    assert board.figures() == [job(epoch=7)]


def test_figures_of_jobs_cross_the_wire_unknown_ages_too() -> None:
    for figures in (job(), replace(job(), rows=0, age_min=None, age_mean=None, age_max=None), job(age_min=0.0)):
        assert JobFigures.of_message(
            type(figures.to_message()).FromString(figures.to_message().SerializeToString())
        ) == (figures)
