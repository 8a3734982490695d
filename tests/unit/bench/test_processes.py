"""How a benchmark talks to measured processes. Small scripts take the place of systems."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from atta.errors import AttaError
from atta_bench.lab.netlab import loopback
from atta_bench.lab.processes import Measured, SystemProcesses, Usage
from atta_bench.loader.benchmark import figures

HOST = loopback(1)[0]
RANK = """
import sys, time
from atta_bench.lab.workload import Epoch, Reporter
rank, seconds = int(sys.argv[1]), float(sys.argv[2])
reporter = Reporter()
print("libraries chatter")
def epoch(number):
    out = Epoch(rank, number)
    with out.timed():
        time.sleep(seconds)
        out.seeds, out.batches, out.edges = 100, 2, 700
    return out
warm = epoch(0)
seconds /= float(sys.argv[3])
for measured in reporter.stretches(warm):
    for number in range(measured):
        reporter.report(epoch(number))
"""


def rank(number: int, seconds: float, faster: float = 1.0) -> list[str]:
    """A rank whose epochs take ``seconds``, after its warm-up ``faster`` times less."""
    return [sys.executable, "-c", RANK, str(number), str(seconds), str(faster)]


def test_ranks_run_together_and_report_every_epoch(tmp_path: Path) -> None:
    with SystemProcesses("test", tmp_path) as processes:
        processes.start_support("daemon", HOST, ["sleep", "300"])
        for number in range(2):
            processes.start_rank(HOST, rank(number, 0.1))
        measured = processes.measure(epochs=3, seconds=0.0, timeout_s=60)
    assert sorted((e["rank"], e["epoch"]) for e in measured.epochs) == [(r, e) for r in range(2) for e in range(3)]
    assert measured.total("seeds") == 600
    assert measured.window_s >= 0.3
    # Both ranks started at the same moment, so their epochs overlap.
    starts = {r: min(e["start"] for e in measured.epochs if e["rank"] == r) for r in range(2)}
    ends = {r: max(e["stop"] for e in measured.epochs if e["rank"] == r) for r in range(2)}
    assert starts[0] < ends[1]
    assert starts[1] < ends[0]
    assert "libraries chatter" in (tmp_path / "rank0.log").read_text()


@pytest.mark.parametrize("faster", [1, 10])
def test_as_many_epochs_as_fill_the_time(tmp_path: Path, faster: float) -> None:
    with SystemProcesses("test", tmp_path) as processes:
        for number in range(2):
            processes.start_rank(HOST, rank(number, 0.2, faster))
        measured = processes.measure(epochs=1, seconds=0.7, timeout_s=60)
    assert measured.window_s >= 0.7
    assert measured.whole.seconds >= 0.7
    counts = [max(e["epoch"] for e in measured.epochs if e["rank"] == r) + 1 for r in range(2)]
    assert counts[0] == counts[1] <= 4 * faster
    assert len(measured.epochs) == sum(counts)  # those of the first, short stretch do not count


def test_processes_end_with_the_block(tmp_path: Path) -> None:
    before = set(
        psutil.Process().children()
    )  # Processes of other tests. Process numbers may wrap, so the newest need not have the highest.
    with SystemProcesses("test", tmp_path) as processes:
        processes.start_support("daemon", HOST, [sys.executable, "-c", "import time; time.sleep(300)"])
        (child,) = set(psutil.Process().children()) - before
    assert not child.is_running()


@pytest.mark.parametrize("who", ["rank", "support"])
def test_a_broken_process_is_named_with_the_end_of_its_log(tmp_path: Path, who: str) -> None:
    broken = [sys.executable, "-c", "raise SystemExit('out of cheese')"]
    with SystemProcesses("test", tmp_path) as processes:
        if who == "rank":
            processes.start_rank(HOST, broken)
        else:
            processes.start_support("daemon", HOST, broken)
            processes.start_rank(HOST, rank(0, 30))
        with pytest.raises(AttaError, match=r"ended early.*out of cheese"):
            processes.measure(epochs=1, seconds=0, timeout_s=60)


def test_a_rank_that_is_killed_or_hangs_is_named(tmp_path: Path) -> None:
    with SystemProcesses("test", tmp_path) as processes:
        processes.start_rank(HOST, [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
        with pytest.raises(AttaError, match="rank0 was killed by SIGKILL; out of memory"):
            processes.measure(epochs=1, seconds=0, timeout_s=60)
    start = time.monotonic()
    with SystemProcesses("test", tmp_path) as processes:
        processes.start_rank(HOST, [sys.executable, "-c", "import sys; sys.stdin.read()"])
        with pytest.raises(AttaError, match="not done in time"):
            processes.measure(epochs=1, seconds=0, timeout_s=0.2)
    assert time.monotonic() - start < 60
    follower = "raise SystemExit('RuntimeError: [third_party/gloo/pair.cc] Connection closed by peer')"
    cause = "import time; time.sleep(0.5); raise SystemExit('out of cheese')"
    with SystemProcesses("test", tmp_path) as processes:
        for code in (follower, cause):
            processes.start_rank(HOST, [sys.executable, "-c", code])
        with pytest.raises(AttaError, match=r"rank1 ended early.*out of cheese"):
            processes.measure(epochs=1, seconds=0, timeout_s=60)


def test_figures_refer_to_the_whole_window() -> None:
    def epoch(start: float, stop: float, **more: float) -> dict[str, float]:
        return {"start": start, "stop": stop, "seeds": 100, "edges": 1000, "batches": 2, "nodes": 50, **more}

    warm = [epoch(0, 1, remote_rows=30.0), epoch(0, 1, remote_rows=10.0)]
    measured = Measured(
        warm,
        [epoch(2, 4), epoch(4, 6), epoch(2, 5), epoch(5, 7)],
        Usage(10.0, 5.0, 2.0, (5000, 3000)),
        Usage(9.0, 5.0, 2.0, (5000, 2000)),
    )
    found = figures(measured)
    assert found["seeds_per_s"] == 400 / 5  # from 2 to 7, although no single rank worked all that time
    assert found["edges_per_seed"] == 10
    assert found["remote_rows_per_seed"] == 40 / 200  # only the warm-up counted them
    assert found["link_bytes_per_seed"] == 20
    assert found["cpu_us_per_seed"] == 1e6 * 5 / 400
    assert found["consumer_cpu_us_per_seed"] == 1e6 * 2 / 400
    assert "remote_bytes_per_seed" not in found
    assert "sampling_share" not in found
