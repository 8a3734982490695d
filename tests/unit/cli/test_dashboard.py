"""The page of ``atta dashboard`` and the picture of ``atta top``: well formed, every name escaped, figures that fit."""

from __future__ import annotations

import io
import math
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from atta.cli.cluster.dashboard import server
from atta.cli.cluster.page import (
    MOST_CHARACTERS,
    MOST_LINKS,
    MOST_SESSIONS,
    TrainerHistory,
    View,
    curve,
    figures_of,
    page,
)
from atta.cli.cluster.top import picture
from atta.cli.main import cli
from atta.client.watch import DaemonRates, Sample, SessionRates
from atta.errors import ConfigError, UnavailableError
from atta.train.reports.display import TrainingCollector
from atta.train.reports.epochs import EpochReport
from tests.unit.platform import figures

HOSTILE = "<script>alert(1)</script>\"'&"
VOID = {"meta", "link"}


class Checked(HTMLParser):
    """Raises AssertionError where elements do not match; collects them, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.words = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words += data + " "


def session(job: str, **changes: Any) -> SessionRates:
    return SessionRates(figures.session(job=job, world_size=1, batches=10, taken=5, **changes), 12.5, 1600.0)


def daemon(*sessions: SessionRates, jobs: tuple[Any, ...] = (), error: str = "") -> DaemonRates:
    sample = Sample(
        0, "10.0.0.1:7070", {"parts": 1.0}, tuple(s.figures for s in sessions), 75.0, error=error, jobs=jobs
    )
    return DaemonRates(sample, sessions, batches_per_s=3.0)


def test_names_are_escaped_and_nothing_is_loaded_from_elsewhere() -> None:
    broken = TrainerHistory(HOSTILE, HOSTILE)
    seen = daemon(session(HOSTILE), session("b", error=HOSTILE), jobs=(figures.job(job=HOSTILE),))
    text = page(View(HOSTILE, [seen, daemon(error=HOSTILE)], [broken]))
    assert "<script" not in text
    found = Checked(text)
    assert found.words.count(HOSTILE) == 8
    assert not [tag for tag, _ in found.tags if tag in {"script", "iframe", "object"}]
    trainer = TrainerHistory("h:1")
    trainer.add(1, {"loss": 1.0})
    found = Checked(page(View("c", [daemon(session("a"))], [trainer])))
    named = {attributes.get(name, "/trace") for _, attributes in found.tags for name in ("src", "href", "action")}
    assert named <= {"/trace", "data:,"}


def test_links_are_shown_with_what_crossed_them() -> None:
    def receiving(part: int, **counters: float) -> DaemonRates:
        return DaemonRates(Sample(part, f"h:{part}", counters), received_per_s={1 - part: 2048.0})

    daemons = [receiving(0, peer_received_bytes_1=5 << 20), receiving(1, peer_received_bytes_0=3 << 30)]
    text = page(View("c", daemons))
    cell = r"<td[^>]*>{}</td>"
    wanted = ["part (\\d)", "part (\\d)", "(h:\\d)", "([^<]*)", "([^<]*)"]
    rows = re.findall("".join(map(cell.format, wanted)), text)
    assert rows == [("0", "1", "h:1", "2 KiB/s", "3 GiB"), ("1", "0", "h:0", "2 KiB/s", "5 MiB")]
    many = {f"peer_received_bytes_{peer}": float(peer) for peer in range(1, MOST_LINKS + 4)}
    assert "3 more are not shown" in page(View("c", [receiving(0, **many)]))
    assert "Links" not in page(View("c", [daemon()]))


def test_a_hundred_sessions_are_shown_and_more_are_counted() -> None:
    many = [session(f"job-{number}") for number in range(MOST_SESSIONS + 3)]
    text = page(View("c", [daemon(*many[:100])]))
    assert all(f">job-{number}<" in text for number in range(100))
    assert "3 more are not shown" in page(View("c", [daemon(*many)]))
    assert "5/10" in text
    assert "1 min" in text


def test_figures_are_those_that_a_trainer_exports() -> None:
    collector, registry = TrainingCollector({"model": "sage"}), CollectorRegistry()
    registry.register(collector)
    assert figures_of(generate_latest(registry).decode()) == (0, {})
    report = EpochReport(3, 0.75, 0.5, 10.0, 20.0, 30.0, {"sample": 0.25, "train": 1.5}, metrics={"val_accuracy": 0.5})
    collector.show(report)
    epochs, found = figures_of(generate_latest(registry).decode())
    assert epochs == report.epoch + 1
    assert found["loss"] == report.loss
    assert found["seeds_per_second"] == report.seeds_per_s
    assert {name: found[name] for name in report.metrics} == dict(report.metrics)
    assert {name: found[f"phase {name}"] for name in report.breakdown} == dict(report.breakdown)


@pytest.mark.parametrize("text", ["{", "a b c d e", "x" * (MOST_CHARACTERS + 1)])
def test_text_that_is_none_of_metrics(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the library's words
        figures_of(text)


def test_a_run_that_begins_anew_replaces_the_one_before() -> None:
    trainer = TrainerHistory("h:1")
    for epochs in (1, 2, 2, 5):
        trainer.add(epochs, {"loss": 1 / epochs})
    assert trainer.series("loss") == [(1, 1.0), (2, 0.5), (5, 0.2)]
    trainer.add(0, {})
    trainer.add(1, {"loss": 9.0})
    assert trainer.series("loss") == [(1, 9.0)]


def test_a_curve_goes_from_edge_to_edge() -> None:
    text = curve("loss", [(1, 4.0), (2, math.nan), (3, 1.0), (5, 0.0)])
    (line,) = re.findall(r'points="([^"]*)"', text)
    places = [tuple(map(float, place.split(","))) for place in line.split()]
    assert places == [(46.0, 8.0), (169.0, 86.0), (292.0, 112.0)]
    assert "0 after 5 epochs; 0 to 4" in text
    assert curve("x", []) == curve("x", [(1, math.nan)]) == ""
    Checked(curve("one", [(1, 2.0)]))


@pytest.mark.parametrize(
    ("points", "across", "along"),
    [
        ([(1, 4.0), (5, 0.0)], ["0", "1", "2", "3", "4"], ["1", "2", "3", "4", "5"]),
        ([(10, 0.31), (250, 0.87)], ["0.4", "0.6", "0.8"], ["100", "200"]),
        ([(1, 250.0), (2, 815.0)], ["400", "600", "800"], ["1", "2"]),
        ([(7, 2.5)], ["2.5"], ["7"]),
    ],
)
def test_a_curve_has_axes_with_round_numbers(
    points: list[tuple[int, float]], across: list[str], along: list[str]
) -> None:
    text = curve("loss", points)
    assert re.findall(r'class="up"[^>]*>([^<]*)<', text) == across
    assert re.findall(r'class="along"[^>]*>([^<]*)<', text) == along
    assert text.count('class="axes"') == 1


def test_a_daemon_that_is_down_keeps_its_columns() -> None:
    alive = DaemonRates(Sample(0, "h:1", {"process_resident_bytes": float(3 << 30)}))
    found = Checked(text := page(View("c", [alive, daemon(error="no daemon answers (" + 100 * "refused " + ")")])))
    assert "3 GiB" in text
    heads = [attributes for tag, attributes in found.tags if tag == "th"]
    cells = [attributes for tag, attributes in found.tags if tag == "td"]
    assert len(cells) == 2 * len(heads) + 1
    assert (cells[-1]["class"], cells[-1]["colspan"]) == ("reason", str(len(heads)))
    assert [c["data-name"] for c in cells[: len(heads)]] == [c["data-name"] for c in cells[len(heads) : -1]]
    assert '<td data-name="up"><span class="bad">down</span></td>' in text
    assert 'content="width=device-width,initial-scale=1"' in text


@contextmanager
def served(page: Any, trace: Any = lambda: "{}") -> Iterator[str]:
    found = server("127.0.0.1", 0, page, trace)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_address[1]}"
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


def test_the_server_answers_two_paths() -> None:
    def down() -> str:
        raise UnavailableError("h:1", "nothing answers")

    with served(lambda: "<p>page</p>", down) as at:
        with urllib.request.urlopen(f"{at}/?x=1") as answer:
            assert answer.read() == b"<p>page</p>"
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        for path, status in (("/etc/passwd", 404), ("/trace", 502)):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(at + path)
            assert error.value.code == status
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(at, data=b"x"))
        assert error.value.code == 501


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("serve --dashboard 0.0.0.0:8800", "--dashboard: 0.0.0.0 is reached from other machines"),
        ("serve --dashboard 127.0.0.1:0", "name a port"),
        ("serve --dashboard 127.0.0.1:8800 --listen 127.0.0.1:0", "name a port with --listen"),
        ("dashboard --listen 0.0.0.0:8800", "--insecure"),
        ("dashboard --listen nowhere", "nowhere"),
        ("dashboard --trainer x", "x"),
    ],
)
def test_bad_options(monkeypatch: pytest.MonkeyPatch, words: str, cause: str) -> None:
    monkeypatch.setattr("atta.observe.logs.configure", lambda **_: None)  # it is for a whole process
    place = "--data absent --part 0" if words.startswith("serve") else "--cluster 127.0.0.1:1"
    told = CliRunner().invoke(cli, f"{words} {place}")
    assert isinstance(told.exception, ConfigError)
    assert cause in str(told.exception)


COUNTERS = {
    "buffer_bytes": 3 << 20,
    "buffer_limit_bytes": 4 << 30,
    "scheduler_ready_cpu": 11.0,
    "scheduler_running_cpu": 2.0,
}


def drawn(*daemons: DaemonRates, width: int = 170) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture("cluster.toml", daemons, width))
    return console.file.getvalue().splitlines()


def line_with(lines: list[str], text: str) -> str:
    return next(line for line in lines if text in line)


def test_daemons_their_sessions_and_silent_ones() -> None:
    daemon = DaemonRates(
        Sample(0, "a:1", COUNTERS),
        (
            SessionRates(figures.session(), 43.21, 4321.0),
            SessionRates(figures.session(session="f", job="fit", world_size=1, score=None)),
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
    found = line_with(lines, "of 4 GiB").split()
    assert found[:8] == ["76.5", "%", "250", "%", "50.0", "2", "MiB/s", "87.5"]
    assert "11 + 2" in line_with(lines, "of 4 GiB")
    assert line_with(lines, "train 1/4").split() == [
        "train", "1/4", "2", "10/100", "43.2", "4,321", "3", "2", "4", "MiB", "120", "80.2", "16.5", "8.2",
    ]  # fmt: skip
    assert line_with(lines, "fit").split()[3:5] == ["-", "-"]  # one sample gives no rates
    assert line_with(lines, "part 1").split() == ["part", "1", "b:2", "no", "daemon", "answers"]


def test_rows_of_jobs_are_shown_by_direction() -> None:
    gradients = figures.job(direction="backward", rows=0, age_min=None, age_mean=None, age_max=None)
    lines = drawn(
        DaemonRates(Sample(0, "a:1", COUNTERS, jobs=(figures.job(predicted_error=1.0, stale_error=4.0), gradients)))
    )
    assert line_with(lines, "skipped").split() == [
        "job", "epoch", "sent", "crossed", "rows", "read", "age", "min", "mean", "max", "broadcasts", "skipped",
        "error",
    ]  # fmt: skip
    assert line_with(lines, "5e55 rows").split() == [
        "sancus-5e55", "rows", "12", "3", "MiB", "2", "MiB", "12,345", "0.0", "0.8", "2.0", "3", "5", "0.25",
    ]  # fmt: skip
    assert line_with(lines, "gradients").split()[-7:] == ["0", "-", "-", "-", "3", "5", "-"]


def test_a_failed_session_says_why() -> None:
    failed = SessionRates(figures.session(error="a:2: no daemon answers"))
    assert "no daemon answers" in "".join(drawn(DaemonRates(Sample(0, "a:1", COUNTERS), (failed,))))


@pytest.mark.parametrize("width", [80, 100])
def test_on_narrow_terminals_figures_wrap_and_are_not_cut(width: int) -> None:
    lines = drawn(
        DaemonRates(Sample(0, "a:1", COUNTERS), (SessionRates(figures.session(), 43.21, 4321.0),)), width=width
    )
    assert max(map(len, lines)) <= width
    text = "".join(lines)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert all(number in text for number in ("43.2", "4,321", "120", "80.2", "16.5", "8.2"))
