"""Figures of sessions, jobs and daemons: reports, rates, metrics for Prometheus, and servers of HTTP that few can fill."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from prometheus_client.core import Metric

from atta.cli.cluster.dashboard import server
from atta.client.watch import Sample, rates
from atta.daemon.services.control import MAX_JOBS, JobBoard
from atta.errors import ConfigError
from atta.observe import answering
from atta.observe.catalogue import FIGURES, JOB_FIGURES, SESSION_FIGURES, family_of
from atta.observe.figures import MAX_ENTRIES, MAX_REPORT_S, JobFigures, ProcessFigures, SessionFigures, of_all_layers
from atta.observe.metrics import MAX_SESSIONS, DaemonCollector, DaemonFigures, metrics_app, serve_metrics
from tests.addresses import held_port
from tests.unit.platform.figures import job, session
from tests.waiting import eventually


def test_the_latest_report_is_shown_until_it_is_too_old() -> None:
    now = 100.0
    board = JobBoard(lambda: now)
    board.put([job(epoch=1), job(epoch=1, direction="backward")], 60)
    board.put([job(job="other")], 10)
    board.put([job(epoch=2)], 60)
    assert board.figures() == [job(job="other"), job(epoch=2)]  # the gradients of epoch 1 are gone with its rows
    for now, shown in ((110.0, [job(epoch=2)]), (159.9, [job(epoch=2)]), (160.0, [])):  # noqa: B007 (the clock of above)
        assert board.figures() == shown


def test_a_job_that_ends_is_forgotten_and_the_one_that_is_silent_longest_makes_room() -> None:
    board = JobBoard(lambda: 100.0)
    board.put([job()], 60)
    for number in range(MAX_JOBS - 1):
        board.put([job(job=str(number))], 60)
    board.put([job()], 0)
    board.put([job(job="last")], 60)
    board.put([job(job="0", epoch=9)], 60)
    board.put([job(job="new")], 60)
    shown = [one.job for one in board.figures()]
    assert shown == [*map(str, range(2, MAX_JOBS - 1)), "last", "0", "new"]


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
    board = JobBoard(lambda: 100.0)
    board.put([job(epoch=7)], 60)
    with pytest.raises(ConfigError, match=cause):
        board.put(figures, keep_s)
    assert board.figures() == [job(epoch=7)]


UNREAD = {"rows": 0, "age_min": None, "age_mean": None, "age_max": None}


@pytest.mark.parametrize(
    "figures",
    [
        *(job(), job(**UNREAD), job(age_min=0.0), job(layer=3, predicted_error=0.0, stale_error=2.5)),
        *(session(), session(sigma=None, score=0.0, sample_ms=None, error="broken"), session(score=None)),
    ],
)
def test_figures_cross_the_wire_unknown_ones_too(figures: Any) -> None:
    message = figures.to_message()
    assert figures.of_message(type(message).FromString(message.SerializeToString())) == figures


def test_layers_add_up_for_each_job_and_direction() -> None:
    unread = job(layer=3, sent_bytes=0, **UNREAD)
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


def scrape(stats: Mapping[str, float], *sessions: SessionFigures, jobs: Any = ()) -> dict[str, Metric]:
    collector = DaemonCollector(3, {"dataset": "beef"}, lambda: DaemonFigures(stats, sessions, jobs))
    return {metric.name: metric for metric in collector.collect()}


def values(metric: Metric) -> dict[tuple[str, ...], float]:
    return {tuple(v for k, v in sorted(s.labels.items()) if k != "part"): s.value for s in metric.samples}


def test_no_two_figures_share_a_name() -> None:
    named = [family for figures in (FIGURES, SESSION_FIGURES, JOB_FIGURES) for family in figures.values()]
    families = [*named, *(family_of(name).family for name in LABELLED)]
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


def test_labels_come_out_of_names() -> None:
    for figure, expected in LABELLED.items():
        series = family_of(figure)
        assert (series.family.sample, series.labels) == expected
        assert len(series.family.labels) == len(series.labels)


def test_counters_gauges_and_unknown_figures() -> None:
    tasks = {"tasks_join_cpu_total": 2.0, "tasks_end_cpu_total": 3.0}
    found = scrape({"batches": 5.0, "buffer_bytes": 7.0, **tasks, "odd.one": 1.0})
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
    jobs = (job(layer=2, predicted_error=0.5, stale_error=1.5), job(layer=2, direction="backward", **UNREAD))
    found = scrape({}, jobs=jobs)
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


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_paths_than_those_that_answer_are_not_found(method: str) -> None:
    collector = DaemonCollector(0, {"dataset": "d"}, lambda: DaemonFigures({}, ()))
    app, found = metrics_app(collector, {"/predict": lambda *_: [b"asked"]}), list[str]()
    texts = [
        b"".join(app({"REQUEST_METHOD": method, "PATH_INFO": path}, lambda status, _: found.append(status)))
        for path in ("/recomend", "/predict")
    ]
    assert (found, texts[1]) == (["404 Not Found"], b"asked")
    said = "no such path; there is /metrics, /predict"
    assert json.loads(texts[0]) == {"error": "UnknownNameError", "message": said}


def test_figures_of_the_process() -> None:
    process = ProcessFigures()
    first, second = process.stats(), process.stats()
    assert second["uptime_seconds"] > first["uptime_seconds"] >= 0
    assert second["machine_busy_seconds"] > first["machine_busy_seconds"] - 1e-6 > 0  # a sum over cores is rounded
    assert first["process_resident_bytes"] > 1 << 20
    assert set(first) <= set(FIGURES)


BEFORE = {
    "uptime_seconds": 100.0, "machine_cores": 4.0, "machine_busy_seconds": 1000.0, "cpu_s": 50.0,
    "batches": 200.0, "remote_bytes": 1000.0, "cache_rows_asked": 10.0, "cache_rows_hit": 10.0,
    "requests_GraphService.Sample": 5.0, "requests_SessionService.Next": 7.0, "sent_bytes_KvService.Pull": 100.0,
}  # fmt: skip
AFTER = {
    "uptime_seconds": 102.0, "machine_cores": 4.0, "machine_busy_seconds": 1004.0, "cpu_s": 53.0,
    "batches": 300.0, "remote_bytes": 5000.0, "cache_rows_asked": 110.0, "cache_rows_hit": 85.0,
    "requests_GraphService.Sample": 25.0, "requests_SessionService.Next": 999.0, "sent_bytes_KvService.Pull": 300.0,
    "requests_KvService.Pull": 4.0,
}  # fmt: skip


def sample(counters: dict[str, float], **more: object) -> Sample:
    return Sample(0, "a:1", counters, **more)


def test_a_daemon_between_two_samples() -> None:
    found = rates(sample(BEFORE), sample(AFTER))
    assert (found.machine_cpu_percent, found.daemon_cpu_percent) == (50, 150)  # 4 and 3 s of 4 cores in 2 s
    assert (found.batches_per_s, found.remote_bytes_per_s, found.cache_hit_rate) == (50, 2000, 0.75)
    assert found.served_requests_per_s == 12  # of peers alone; a method without earlier calls counts from 0
    assert found.served_bytes_per_s == 100
    before = sample({**BEFORE, "peer_received_bytes_1": 100.0})
    after = sample({**AFTER, "peer_received_bytes_1": 500.0, "peer_received_bytes_12": 8.0})
    assert rates(before, after).received_per_s == {1: 200, 12: 4}
    assert rates(None, after).received_per_s == {}
    (shown,) = rates(None, sample(AFTER, jobs=(job(),))).to_dict()["jobs"]
    assert (shown["job"], shown["direction"], shown["age_max"], shown["skipped"]) == ("sancus-5e55", "forward", 2.0, 5)


def test_a_session_between_two_samples() -> None:
    before = sample(BEFORE, at=50.0, sessions=(session(taken=10, seeds=1000),))
    after = sample(AFTER, at=54.0, sessions=(session(taken=30, seeds=2900), session(session="new", taken=2, seeds=200)))
    old, new = rates(before, after).sessions
    assert (old.batches_per_s, old.seeds_per_s) == (5, 475)
    assert (new.batches_per_s, new.seeds_per_s) == (0.5, 50)
    assert new.figures.session == "new"


@pytest.mark.parametrize(
    "before",
    [
        None,
        Sample(0, "a:1", error="no daemon answers"),
        sample({**AFTER, "uptime_seconds": 5000.0}, at=5000.0),  # the daemon has restarted since
        sample(AFTER, at=54.0),  # no time has passed
    ],
)
def test_without_an_earlier_sample_there_are_no_rates(before: Sample | None) -> None:
    found = rates(before, sample(AFTER, at=54.0, sessions=(session(),)))
    assert found.batches_per_s is None
    assert found.machine_cpu_percent is None
    assert found.sessions[0].batches_per_s is None
    assert found.sessions[0].figures == session()


def test_no_row_asked_for_is_no_hit_rate_and_a_silent_daemon_keeps_its_reason() -> None:
    found = rates(sample(BEFORE), sample({**BEFORE, "uptime_seconds": 101.0}))
    assert (found.cache_hit_rate, found.batches_per_s) == (None, 0)
    shown = rates(sample(BEFORE), Sample(3, "b:2", error="no answer within the deadline")).to_dict()
    keys = ("part", "address", "error", "sessions", "batches_per_s")
    assert [shown[key] for key in keys] == [3, "b:2", "no answer within the deadline", [], None]


Served = Callable[[int], Callable[[], None]]


def metrics(port: int) -> Callable[[], None]:
    collector = DaemonCollector(0, {"dataset": "d"}, lambda: DaemonFigures({"parts": 1.0}, ()))
    return serve_metrics(port, collector, host="127.0.0.1")


def page(port: int) -> Callable[[], None]:
    return answering.run_aside(server("127.0.0.1", port, lambda: "atta_daemon_info", lambda: "{}"), "page")


@pytest.fixture(params=[metrics, page])
def port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where metrics, or a page, are served; a silent caller has a second."""
    monkeypatch.setattr(answering, "ANSWER_S", 1.0)
    port = held_port()
    end = request.param(port)
    yield port
    end()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def read(port: int, path: str = "/") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def test_half_open_connections_are_few_and_end(port: int) -> None:
    assert "atta_daemon_info" in read(port)
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        addresses = [("127.0.0.1", port)] * (answering.AT_A_TIME + 4)  # four wait
        silent = [stack.enter_context(socket.create_connection(address, timeout=20)) for address in addresses]
        for sock in silent:
            sock.sendall(b"GET /met")
        time.sleep(0.3)  # all that can be accepted are
        assert threading.active_count() <= threads + answering.AT_A_TIME
        assert "atta_daemon_info" in read(port)
        assert [sock.recv(1) for sock in silent] == [b""] * len(silent)


def test_a_request_that_trickles_ends(port: int) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(0.1)
        assert eventually(lambda: hung_up(sock), 20)
    assert time.monotonic() - began >= 1


def hung_up(sock: socket.socket) -> bool:
    """Send one more byte; whether the other end has closed the connection."""
    try:
        sock.sendall(b"G")
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_one_caller_hangs_up_and_another_is_answered(port: int) -> None:
    for _ in range(answering.AT_A_TIME + 1):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n")
    assert "atta_daemon_info" in read(port)


def test_an_application_knows_who_asks() -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [f"{environ['REMOTE_ADDR']} {environ['REMOTE_PORT']}".encode()]

    serving = answering.bounded_listener("127.0.0.1", 0, app)
    end = answering.run_aside(serving, "asked")
    with contextlib.closing(socket.create_connection(serving.server_address[:2], timeout=10)) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        told = sock.makefile("rb").read().rpartition(b"\r\n\r\n")[2]
        assert told.decode().split() == ["127.0.0.1", str(sock.getsockname()[1])]
    with contextlib.closing(socket.create_connection(serving.server_address[:2], timeout=10)) as sock:
        sock.sendall(b"GET / HTTP/none\r\n\r\n")
        assert json.loads(sock.makefile("rb").read().splitlines()[-1])["error"] == "ConfigError"
    end()


def test_ctrl_c_amid_the_start_of_a_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = server("127.0.0.1", 0, lambda: "page", lambda: "{}")
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        thread.join()  # it has released its place
        raise KeyboardInterrupt

    with serving, socket.create_connection(serving.server_address[:2]) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            serving.handle_request()
