"""``atta dashboard`` beside a real cluster: the page shows its session, and ends with Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import atta
from atta.train.reports.epochs import EpochReport
from atta.train.reports.export import exporting
from tests.system.conftest import SmallGraph, free_port
from tests.system.durable import MAIN
from tests.waiting import eventually


def read(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}", timeout=10) as answer:
        return str(answer.read().decode())


def test_the_page_shows_sessions_training_and_a_trace(small_graph: SmallGraph) -> None:
    page, metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster, exporting(metrics, {}) as show:
        show(EpochReport(0, 0.75, 0.5, 10.0, 20.0, 30.0, {"train": 1.5}))
        loader = atta.NeighborLoader(cluster, [3], "train", batch_size=8, rank=0, world_size=1, job="a<b>c")
        batches = iter(loader)
        next(batches)
        words = ["dashboard", "--cluster", str(cluster.cluster_file), "--listen", page, "--trainer", metrics]
        command = [sys.executable, "-c", MAIN, *words, "--interval", "500ms"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert page in child.stdout.readline()
            try:
                assert "1 of 1 daemons answer" in read(page)
                assert "a&lt;b&gt;c" in read(page)
                eventually(lambda: "loss: 0.75 after 1 epochs" in read(page))
                assert {event["ph"] for event in json.loads(read(f"{page}/trace"))["traceEvents"]} >= {"M", "X"}
            finally:
                child.send_signal(signal.SIGINT)
            assert child.wait(20) == 130
