"""The picture that ``atta top`` draws."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from atta.cli.cluster.top import picture
from atta.client.watch import DaemonRates, Sample, SessionRates
from tests.unit.platform.figures import job, session

COUNTERS = {
    "buffer_bytes": 3 << 20,
    "buffer_limit_bytes": 4 << 30,
    "scheduler_ready_cpu": 11.0,
    "scheduler_running_cpu": 2.0,
}


def drawn(*daemons: DaemonRates, width: int = 170) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture("cluster.toml", daemons, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def line_with(lines: list[str], text: str) -> str:
    return next(line for line in lines if text in line)


def test_daemons_their_sessions_and_silent_ones() -> None:
    daemon = DaemonRates(
        Sample(0, "a:1", COUNTERS),
        (
            SessionRates(session(), 43.21, 4321.0),
            SessionRates(session(session="f", job="fit", world_size=1, score=None)),
        ),
        machine_cpu_percent=76.54,
        daemon_cpu_percent=250.0,
        batches_per_s=50.0,
        remote_bytes_per_s=2.0 * (1 << 20),
        cache_hit_rate=0.875,
    )
    lines = drawn(daemon, DaemonRates(Sample(1, "b:2", error="no daemon answers")))
    assert lines[0] == "cluster.toml: 1 of 2 daemons answer"
    assert line_with(lines, "part 0").split() == ["part", "0", "a:1"]
    figures = line_with(lines, "of 4 GiB").split()
    assert figures[:8] == ["76.5", "%", "250", "%", "50.0", "2", "MiB/s", "87.5"]
    assert "11 + 2" in line_with(lines, "of 4 GiB")
    assert line_with(lines, "train 1/4").split() == [
        "train", "1/4", "2", "10/100", "43.2", "4,321", "3", "2", "4", "MiB", "120", "80.2", "16.5", "8.2",
    ]  # fmt: skip
    assert line_with(lines, "fit").split()[3:5] == ["-", "-"]  # one sample gives no rates
    assert line_with(lines, "part 1").split() == ["part", "1", "b:2", "no", "daemon", "answers"]


def test_rows_of_jobs_are_shown_by_direction() -> None:
    gradients = job(direction="backward", rows=0, age_min=None, age_mean=None, age_max=None)
    lines = drawn(DaemonRates(Sample(0, "a:1", COUNTERS, jobs=(job(predicted_error=1.0, stale_error=4.0), gradients))))
    assert line_with(lines, "skipped").split() == [
        "job", "epoch", "sent", "crossed", "rows", "read", "age", "min", "mean", "max", "broadcasts", "skipped",
        "error",
    ]  # fmt: skip
    assert line_with(lines, "5e55 rows").split() == [
        "sancus-5e55", "rows", "12", "3", "MiB", "2", "MiB", "12,345", "0.0", "0.8", "2.0", "3", "5", "0.25",
    ]  # fmt: skip
    assert line_with(lines, "gradients").split()[-7:] == ["0", "-", "-", "-", "3", "5", "-"]


def test_a_failed_session_says_why() -> None:
    failed = SessionRates(session(error="a:2: no daemon answers"))
    assert "no daemon answers" in "".join(drawn(DaemonRates(Sample(0, "a:1", COUNTERS), (failed,))))


@pytest.mark.parametrize("width", [80, 100])
def test_on_narrow_terminals_figures_wrap_and_are_not_cut(width: int) -> None:
    lines = drawn(DaemonRates(Sample(0, "a:1", COUNTERS), (SessionRates(session(), 43.21, 4321.0),)), width=width)
    assert max(map(len, lines)) <= width
    text = "".join(lines)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert all(figure in text for figure in ("43.2", "4,321", "120", "80.2", "16.5", "8.2"))
