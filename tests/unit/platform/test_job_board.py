"""Reports of jobs on a daemon: the latest of each, for a while, at most so many."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from atta.daemon.services.control import MAX_JOBS, JobBoard
from atta.errors import ConfigError
from atta.observe.figures import MAX_ENTRIES, MAX_REPORT_S, JobFigures, of_all_layers
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
        ([job(job="\x1b[2J")], 60, r"'\\x1b\[2J': its name must have printable"),
        ([job(job="\u202eevil")], 60, "printable"),
        ([job()], -1, "kept for -1 s"),
        ([job()], math.nan, "kept for nan s"),
        ([job()], MAX_REPORT_S + 1, "only for 0 to 86400"),
        ([job(age_mean=math.nan)], 60, "ages must be at least 0"),
        ([job(age_max=math.inf)], 60, "ages must be at least 0"),
        ([job(age_min=-1.0)], 60, "ages must be at least 0"),
        ([job(predicted_error=math.nan)], 60, "errors of rows must be at least 0"),
        ([job(stale_error=-1.0)], 60, "errors of rows must be at least 0"),
        ([job(layer=layer) for layer in range(MAX_ENTRIES + 1)], 60, "513 layers and directions, at most 512"),
    ],
)
def test_bad_reports_change_nothing(figures: list[JobFigures], keep_s: float, cause: str) -> None:
    board = JobBoard(Clock())
    board.put([job(epoch=7)], 60)
    with pytest.raises(ConfigError, match=cause):
        board.put(figures, keep_s)
    assert board.figures() == [job(epoch=7)]


def test_figures_of_jobs_cross_the_wire_unknown_ages_too() -> None:
    unread = replace(job(), rows=0, age_min=None, age_mean=None, age_max=None)
    for figures in (job(), unread, job(age_min=0.0), job(layer=3, predicted_error=0.0, stale_error=2.5)):
        assert JobFigures.of_message(
            type(figures.to_message()).FromString(figures.to_message().SerializeToString())
        ) == (figures)


def test_layers_add_up_for_each_job_and_direction() -> None:
    unread = job(layer=3, rows=0, age_min=None, age_mean=None, age_max=None, sent_bytes=0)
    layers = [
        job(layer=1, rows=10, age_min=1.0, age_mean=1.5, age_max=2.0, predicted_error=3.0, stale_error=5.0),
        job(layer=1, direction="backward"),
        job(layer=2, rows=30, age_min=0.0, age_mean=0.5, age_max=4.0, predicted_error=4.0, stale_error=12.0),
        unread,
        job(job="other"),
    ]
    rows, gradients, other = of_all_layers(layers)
    assert (rows.rows, rows.sent_bytes, rows.crossed_bytes) == (40, 2 * (3 << 20), 3 * (2 << 20))
    assert (rows.age_min, rows.age_mean, rows.age_max) == (0.0, 0.75, 4.0)
    assert (rows.broadcasts, rows.skipped) == (9, 15)
    assert (rows.predicted_error, rows.stale_error) == (5.0, 13.0)
    assert (gradients.direction, gradients.predicted_error) == ("backward", None)
    assert other == job(job="other")
    assert of_all_layers([unread])[0].age_mean is None
