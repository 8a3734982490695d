"""What a trainer tells daemons of an epoch: a layer at a time, with the distances that were measured last."""

from __future__ import annotations

import math
from typing import Any

from atta.observe.figures import MAX_ENTRIES
from atta.train.exchange.figures import LayerErrors, job_figures
from atta.train.reports.epochs import LayerRows, RowReport


def layer(number: int, direction: str = "forward", **more: Any) -> LayerRows:
    return LayerRows(
        number, direction, payload_bytes=100 * number, crossed_bytes=10 * number, pushed_bytes=0, rows=7, age_min=1,
        age_mean=1.5, age_max=2, broadcasts=4, skipped=0, **more,
    )  # fmt: skip


def test_each_layer_and_direction_is_told() -> None:
    report = RowReport([layer(1), layer(1, "backward"), layer(2, predicted_error=2.0, stale_error=3.0)])
    first, gradients, second = job_figures("sat-1", 5, report, {})
    assert (first.job, first.epoch, first.layer, first.direction, first.sent_bytes) == ("sat-1", 5, 1, "forward", 100)
    assert (gradients.layer, gradients.direction, gradients.stale_error) == (1, "backward", None)
    assert (second.layer, second.crossed_bytes, second.predicted_error, second.stale_error) == (2, 20, 2.0, 3.0)


def test_distances_stay_until_they_are_measured_again() -> None:
    errors: LayerErrors = {}
    for report, expected in (
        (RowReport([layer(1)]), None),
        (RowReport([layer(1, predicted_error=2.0, stale_error=3.0)]), 2.0),
        (RowReport([layer(1)]), 2.0),
        (RowReport([layer(1, predicted_error=math.nan, stale_error=3.0)]), 2.0),
        (RowReport([layer(1, predicted_error=1.0, stale_error=3.0)]), 1.0),
    ):
        assert job_figures("sat-1", 0, report, errors)[0].predicted_error == expected


def test_no_more_is_told_than_a_daemon_shows() -> None:
    report = RowReport([layer(number) for number in range(MAX_ENTRIES + 1)])
    assert len(job_figures("sat-1", 0, report, {})) == MAX_ENTRIES
