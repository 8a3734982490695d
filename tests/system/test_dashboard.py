"""``atta dashboard`` beside a real cluster: the page shows its session, and ends with Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import atta
from atta.train.reports.epochs import EpochReport
from atta.train.reports.export import exporting
from tests.system.browser import Browser, missing
from tests.system.conftest import SmallGraph, free_port
from tests.system.durable import MAIN
from tests.waiting import eventually


def read(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}", timeout=10) as answer:
        return str(answer.read().decode())


@contextmanager
def dashboard(cluster: atta.LocalCluster, *words: str) -> Iterator[str]:
    """The command as a process; yields the page's address."""
    page = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable,
        "-c",
        MAIN,
        "dashboard",
        "--cluster",
        str(cluster.cluster_file),
        "--listen",
        page,
        *words,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert page in child.stdout.readline()
        try:
            yield page
        finally:
            child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130


def test_the_page_shows_sessions_training_and_a_trace(small_graph: SmallGraph) -> None:
    metrics = f"127.0.0.1:{free_port()}"
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
            browser.click("a[href='/trace']")
            trace = tmp_path / "trace.json"
            assert eventually(trace.exists)
            assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} >= {"M"}
            assert browser.errors() == []
