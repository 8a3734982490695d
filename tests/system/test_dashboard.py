"""``atta dashboard`` beside a real cluster: the page shows its session, and ends with Ctrl-C."""

from __future__ import annotations

import base64
import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import atta
from atta.errors import ConfigError
from atta.train.reports.display import exporting
from atta.train.reports.epochs import EpochReport
from tests.addresses import held_addresses
from tests.system.browser import Browser, missing
from tests.system.conftest import SmallGraph, read
from tests.unit.security.authority import Authority
from tests.waiting import eventually


@contextmanager
def dashboard(cluster: atta.LocalCluster, *words: str) -> Iterator[str]:
    (page,) = held_addresses(1)
    given = f"-m atta.cli.main dashboard --cluster {cluster.cluster_file} --listen {page}"
    command = [sys.executable, *given.split()]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert page in child.stdout.readline()
        try:
            yield page
        finally:
            child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130


def test_the_page_shows_sessions_training_and_a_trace(small_graph: SmallGraph) -> None:
    (metrics,) = held_addresses(1)
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster, exporting(metrics, {}) as show:
        show(EpochReport(0, 0.75, 0.5, 10.0, 20.0, 30.0, {"train": 1.5}))
        loader = atta.NeighborLoader(cluster, [3], "train", batch_size=8, rank=0, world_size=1, job="a<b>c")
        batches = iter(loader)
        next(batches)
        with dashboard(cluster, "--trainer", metrics, "--interval", "500ms") as page:
            assert "1 of 1 daemons answer" in read(page)
            assert "a&lt;b&gt;c" in read(page)
            assert eventually(lambda: "loss: 0.5 after 1 epochs" in read(page))
            assert {event["ph"] for event in json.loads(read(f"{page}/trace"))["traceEvents"]} >= {"M", "X"}


def test_bytes_are_counted_by_link(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(2, "metis"), threads=1, options=("--cache", "0")) as cluster:
        for rank in range(2):  # the home of each is another daemon
            loader = atta.NeighborLoader(cluster, [4, 3], "train", batch_size=16, rank=rank, world_size=2)
            assert len(list(loader)) > 0
        for part, stats in enumerate(cluster.stats()):
            by_peer = {name: value for name, value in stats.items() if name.startswith("peer_received_bytes_")}
            assert by_peer == {f"peer_received_bytes_{1 - part}": stats["link_received_bytes"]}
            assert stats["link_received_bytes"] > 0


def test_a_daemon_serves_the_page(small_graph: SmallGraph) -> None:
    (page,) = held_addresses(1)
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=("--dashboard", page)) as cluster:
        batches = iter(atta.NeighborLoader(cluster, [3], "train", batch_size=8, job="a<b>c"))
        next(batches)
        assert eventually(lambda: "a&lt;b&gt;c" in read(page))
        assert "1 of 1 daemons answer" in read(page)
        assert {event["ph"] for event in json.loads(read(f"{page}/trace"))["traceEvents"]} >= {"M", "X"}
        told = rf"cannot listen on {page}: .* name another port with --dashboard"
        with pytest.raises(ConfigError, match=told):  # two daemons, one address
            atta.local(small_graph.dataset(1, "random"), threads=1, options=("--dashboard", page))


def test_with_tls_the_page_wants_a_token(small_graph: SmallGraph, tmp_path: Path) -> None:
    authority = Authority.in_folder(tmp_path)
    own = authority.certificate("daemon", "peer", hosts=("127.0.0.1",))
    tokens, page = authority.tokens(), held_addresses(1)[0]
    options = ("--tls-ca", own.ca, "--tls-cert", own.cert, "--tls-key", own.key, "--tokens", str(authority.token_file))
    trusted = ssl.create_default_context(cafile=own.ca)

    def status(path: str, token: str) -> int:
        """A browser sends a token as a password."""
        request = urllib.request.Request(f"https://{page}{path}")
        if token:
            coded = base64.b64encode(f"me:{token}".encode()).decode()
            request.add_header("Authorization", f"Basic {coded}")
        try:
            with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code if error.code != 401 or "Basic " in error.headers["WWW-Authenticate"] else -1

    with atta.local(
        small_graph.dataset(1, "random"),
        threads=1,
        options=(*options, "--dashboard", page),
        credentials=authority.certificate("watcher", "reader", "operator"),
    ):
        for path, token, expected in (
            ("/", "", 401), ("/", "atta-no-token", 401), ("/", tokens["reader"], 200), ("/", tokens["writer"], 403),
            ("/trace", tokens["reader"], 403), ("/trace", tokens["operator"], 200), ("/x", tokens["reader"], 404),
        ):  # fmt: skip
            assert status(path, token) == expected, (path, token[:10])


SESSIONS = 100
HOSTILE = "<script>window.broken=1</script><img src=x onerror='window.broken=2'>\"'&amp;"
"""A job's name that would run, if it were not escaped."""
ON_THE_PAGE = """
const table = document.querySelector('table[aria-label^="Sessions"]'), rows = [...table.tBodies[0].rows];
const all = [...document.querySelectorAll('td,th,p,h1,h2')];
return {
  rows: rows.length, jobs: rows.map(row => row.cells[0].textContent), broken: window.broken || 0,
  scripts: document.scripts.length, loaded: performance.getEntriesByType('resource').map(entry => entry.name),
  smallest: Math.min(...all.map(one => parseFloat(getComputedStyle(one).fontSize))),
  overlaps: rows.some((row, at) => at && row.getBoundingClientRect().top < rows[at - 1].getBoundingClientRect().bottom - 1),
  wider: document.documentElement.scrollWidth - window.innerWidth,
};
"""


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_browser_shows_a_hundred_sessions(small_graph: SmallGraph, tmp_path: Path) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        jobs = [f"{HOSTILE}{number}" for number in range(SESSIONS)]
        open_ = [iter(atta.NeighborLoader(cluster, [2], "train", batch_size=60, job=job)) for job in jobs]
        next(open_[0])
        with dashboard(cluster) as page, Browser.opened(tmp_path) as browser:
            browser.go(f"http://{page}")
            found = browser.run(ON_THE_PAGE)
            assert (found["rows"], sorted(found["jobs"])) == (SESSIONS, sorted(jobs))
            assert (found["broken"], found["scripts"], found["loaded"]) == (0, 0, [])
            assert found["smallest"] >= 12
            assert not found["overlaps"]
            assert found["wider"] <= 0, "the page fits the window's width"
            browser.resize(500, 900)  # as on a phone: every line is a box
            narrow = browser.run(ON_THE_PAGE)
            assert (narrow["rows"], narrow["overlaps"]) == (SESSIONS, False)
            assert narrow["wider"] <= 0
            browser.resize(1280, 900)
            browser.click("a[href='/trace']")
            trace = tmp_path / "trace.json"
            assert eventually(trace.exists)
            assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} >= {"M"}
            assert browser.errors() == []
