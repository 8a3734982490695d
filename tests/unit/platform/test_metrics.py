"""Metrics for Prometheus: right types, one name per figure, labels, bounded numbers.

Closed sessions leave nothing behind.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

import pytest
from prometheus_client.core import Metric

from atta.errors import ConfigError
from atta.observe.catalogue import FIGURES, JOB_FIGURES, SESSION_FIGURES, family_of
from atta.observe.figures import ProcessFigures, SessionFigures
from atta.observe.metrics import MAX_SESSIONS, DaemonCollector, DaemonFigures, metrics_app, serve_metrics
from tests.unit.platform.figures import job, session


def scrape(stats: Mapping[str, float], *sessions: SessionFigures) -> dict[str, Metric]:
    collector = DaemonCollector(3, {"dataset": "beef"}, lambda: DaemonFigures(stats, sessions))
    return {metric.name: metric for metric in collector.collect()}


def values(metric: Metric) -> dict[tuple[str, ...], float]:
    return {tuple(v for k, v in sorted(s.labels.items()) if k != "part"): s.value for s in metric.samples}


def test_no_two_figures_share_a_name() -> None:
    families = [
        *FIGURES.values(),
        *SESSION_FIGURES.values(),
        *JOB_FIGURES.values(),
        *(family_of(n).family for n in LABELLED),
    ]
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    assert all(family.help.endswith(".") for family in families)
    assert not any(family.name.endswith("_total") for family in families)


LABELLED = {
    "tasks_neighborhood_net_total": ("atta_tasks_total", ("neighborhood", "net")),
    "cost_feature_net_xy": ("atta_task_cost_sum_total", ("feature", "net", "xy")),
    "scheduler_ready_cpu": ("atta_scheduler_ready_tasks", ("cpu",)),
    "scheduler_running_net": ("atta_scheduler_running_tasks", ("net",)),
    "requests_KvService.Pull": ("atta_requests_total", ("KvService", "Pull")),
    "request_errors_GraphService.Sample": ("atta_request_errors_total", ("GraphService", "Sample")),
    "sent_bytes_KvService.Pull": ("atta_sent_bytes_total", ("KvService", "Pull")),
    "peer_received_bytes_12": ("atta_peer_received_bytes_total", ("12",)),
}


@pytest.mark.parametrize("figure", LABELLED)
def test_labels_come_out_of_names(figure: str) -> None:
    series = family_of(figure)
    assert (series.family.sample, series.labels) == LABELLED[figure]
    assert len(series.family.labels) == len(series.labels)


def test_counters_gauges_and_unknown_figures() -> None:
    found = scrape(
        {"batches": 5.0, "buffer_bytes": 7.0, "tasks_join_cpu_total": 2.0, "tasks_end_cpu_total": 3.0, "odd.one": 1.0}
    )
    assert (found["atta_batches"].type, values(found["atta_batches"])) == ("counter", {(): 5.0})
    assert (found["atta_buffer_bytes"].type, values(found["atta_buffer_bytes"])) == ("gauge", {(): 7.0})
    assert values(found["atta_tasks"]) == {("join", "cpu"): 2.0, ("end", "cpu"): 3.0}
    assert values(found["atta_odd_one"]) == {(): 1.0}
    assert values(found["atta_task_errors"]) == {(): 0.0}  # counters exist before they first count
    assert {s.labels["part"] for metric in found.values() for s in metric.samples} == {"3"}
    assert found["atta_daemon"].samples[0].labels["dataset"] == "beef"


def test_sessions_have_series_while_they_are_open() -> None:
    found = scrape({}, session(session="a", job="x"), session(session="b", job='y"\n', queued=9, sigma=None))
    assert values(found["atta_session_queued"]) == {("x", "a"): 3, ('y"\n', "b"): 9}
    assert values(found["atta_session_launch_sigma"]) == {("x", "a"): 80.25}  # unknown figures are absent
    assert found["atta_session_batches_taken"].type == "counter"
    assert {f"atta_{family.name}" for family in SESSION_FIGURES.values()} <= set(found)
    assert not any(name.startswith("atta_session_") for name in scrape({}))


def test_jobs_have_series_by_layer_and_direction() -> None:
    jobs = (
        job(layer=2, predicted_error=0.5, stale_error=1.5),
        job(layer=2, direction="backward", rows=0, age_min=None, age_mean=None, age_max=None),
    )
    collector = DaemonCollector(3, {}, lambda: DaemonFigures({}, (), jobs))
    found = {metric.name: metric for metric in collector.collect()}
    rows, gradients = ("sancus-5e55", "forward", "2"), ("sancus-5e55", "backward", "2")
    assert values(found["atta_job_rows_read"]) == {rows: 12_345, gradients: 0}
    assert values(found["atta_job_age_mean_epochs"]) == {rows: 0.75}  # no gradient was read
    assert values(found["atta_job_broadcasts_skipped"]) == {rows: 5, gradients: 5}
    assert {f"atta_{family.name}" for family in JOB_FIGURES.values()} <= set(found)
    assert all(found[f"atta_{family.name}"].type == "gauge" for family in JOB_FIGURES.values())
    assert not any(name.startswith("atta_job_") for name in scrape({}))


def test_series_of_sessions_are_bounded() -> None:
    found = scrape({}, *(session(session=str(i), job="j" * 10_000) for i in range(MAX_SESSIONS + 5)))
    shown = values(found["atta_session_queued"])
    assert len(shown) == MAX_SESSIONS
    assert all(len(job) < 100 for job, _ in shown)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text; version=abc; q=x,;;=,\xff", "text/plain; version=0.0.4"),
        (f"text/plain;version={'9' * 5000}", "text/plain; version=0.0.4"),
    ],
)
def test_any_format_may_be_asked_for(accept: str, kind: str) -> None:
    found: list[tuple[str, dict[str, str]]] = []
    app = metrics_app(DaemonCollector(0, {"dataset": "d"}, lambda: DaemonFigures({}, ())))
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "HTTP_ACCEPT": accept}
    (text,) = app(environ, lambda status, headers: found.append((status, dict(headers))))
    assert found[0][0] == "200 OK"
    assert found[0][1]["Content-Type"].startswith(kind)
    assert b'atta_daemon_info{dataset="d",part="0"} 1.0' in text


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics on port {port}"):
            serve_metrics(port, DaemonCollector(0, {}, lambda: DaemonFigures({}, ())))


def test_figures_cross_the_wire_unknown_ones_too() -> None:
    for figures in (session(), session(sigma=None, score=0.0, sample_ms=None, error="broken"), session(score=None)):
        assert SessionFigures.of_message(figures.to_message()) == figures


def test_figures_of_the_process() -> None:
    process = ProcessFigures()
    first, second = process.stats(), process.stats()
    assert second["uptime_seconds"] > first["uptime_seconds"] >= 0
    assert second["machine_busy_seconds"] > first["machine_busy_seconds"] - 1e-6 > 0  # a sum over cores is rounded
    assert first["process_resident_bytes"] > 1 << 20
    assert set(first) <= set(FIGURES)
