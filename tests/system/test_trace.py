"""``atta trace`` tells what real daemons did: every task, in its batch, between launch and ready."""

from __future__ import annotations

import json
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import atta
from atta.observe.recording import BatchMark, MachineSample, ServedSpan, SessionMark, SessionSample, TaskSpan
from tests.system.conftest import SmallGraph
from tests.system.test_daemon_down import run

EPOCHS, BATCHES = 2, 15


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph):  # type: ignore[no-untyped-def]
    options = ("--no-links", "--cache", "0")  # messages are recorded by the daemon that answers them
    with atta.local(small_graph.dataset(2, "random"), threads=2, options=options) as cluster:
        loader = atta.NeighborLoader(cluster, [3, 3], "train", batch_size=8, shuffle=True)
        for _ in range(EPOCHS):
            assert len(list(loader)) == BATCHES
        deadline = time.monotonic() + 10
        while settled(cluster) != (EPOCHS, EPOCHS * BATCHES) and time.monotonic() < deadline:
            time.sleep(0.05)  # a daemon records that a batch is sent a moment after its consumer has all of it
        yield cluster


def settled(cluster: atta.Cluster) -> tuple[int, int]:
    marks = Counter(e.what for e in cluster.trace()[0].entries if isinstance(e, SessionMark | BatchMark))
    return marks["closed"], marks["sent"]


def tasks_run(counters: dict[str, float]) -> float:
    return sum(value for name, value in counters.items() if name.startswith("tasks_"))


def test_every_task_is_recorded_between_its_launch_and_its_batch(cluster: atta.LocalCluster) -> None:
    home, other = cluster.trace()
    assert (home.part, other.part) == (0, 1)
    assert not home.full
    spans = [entry for entry in home.entries if isinstance(entry, TaskSpan)]
    marks = {(e.session, e.batch, e.what): e for e in home.entries if isinstance(e, BatchMark)}
    counters, _ = cluster.stats()
    kinds = Counter(f"tasks_{span.kind}_{span.lane}_total" for span in spans)
    assert kinds == {name: value for name, value in counters.items() if name.startswith("tasks_")}
    assert len({(s.dag, s.kind, s.op, s.owner, s.chunk) for s in spans}) == len(spans)
    assert Counter(what for _, _, what in marks) == dict.fromkeys(
        ("launched", "ready", "taken", "sent"), EPOCHS * BATCHES
    )
    for span in spans:
        launched, ready = (marks[span.session, span.batch, what] for what in ("launched", "ready"))
        assert span.dag == launched.dag == ready.dag
        assert launched.at <= span.ready <= span.started <= span.at <= ready.at
    for session, batch, what in marks:
        if what == "sent":
            times = [marks[session, batch, name].at for name in ("launched", "ready", "taken", "sent")]
            assert times == sorted(times)
    assert {(span.owner, span.owners) for span in spans if span.lane == "net"} == {(-1, "1")}
    assert {(span.owner, span.owners) for span in spans if span.lane == "cpu"} == {(0, "")}
    assert all(span.remote_rows > 0 for span in spans if span.kind == "feature" and span.lane == "net")


def test_the_other_daemon_tells_what_it_served(cluster: atta.LocalCluster) -> None:
    home, other = cluster.trace()
    asked = Counter(e.kind for e in home.entries if isinstance(e, TaskSpan) and e.lane == "net" and e.remote_rows)
    served = Counter(e.request for e in other.entries if isinstance(e, ServedSpan))
    assert served == {"GraphService.Sample": asked["neighborhood"], "KvService.Pull": asked["feature"]}
    assert all(e.started <= e.at and e.nbytes > 0 for e in other.entries if isinstance(e, ServedSpan))


def test_sessions_and_samples(cluster: atta.LocalCluster) -> None:
    home, _ = cluster.trace()
    sessions = [(e.what, e.epoch) for e in home.entries if isinstance(e, SessionMark)]
    assert sessions == [(what, epoch) for epoch in range(EPOCHS) for what in ("opened", "closed")]
    for entry in home.entries:
        if isinstance(entry, SessionSample):
            assert min(entry.score, entry.in_flight, entry.finished, entry.finished_bytes) >= 0
        elif isinstance(entry, MachineSample):
            assert 0 <= entry.utilisation <= 100


def test_the_command(cluster: atta.LocalCluster, tmp_path: Path) -> None:
    out, picture = tmp_path / "trace.json", tmp_path / "trace.png"
    plot = ["--plot", str(picture)] if find_spec("matplotlib") else []
    done = run("trace", "--cluster", str(cluster.cluster_file), "--out", str(out), *plot)
    assert (done.returncode, done.stdout) == (0, "")
    assert not plot or picture.read_bytes().startswith(b"\x89PNG")
    assert "of 2 daemons" in done.stderr
    events: list[dict[str, Any]] = json.loads(out.read_text())["traceEvents"]
    assert f"{sum(e['ph'] != 'M' for e in events):,} events" in done.stderr
    assert all(e.get("ts", 0) >= 0 and e.get("dur", 0) >= 0 for e in events)
    tasks = [e for e in events if e["ph"] == "X" and e["cat"] not in {"batch", "served"}]
    assert len(tasks) == sum(map(tasks_run, cluster.stats()))
    made = Counter((e["args"]["session"], e["args"]["batch"]) for e in tasks)
    assert len(made) == EPOCHS * BATCHES


def test_only_what_happens_meanwhile_and_to_stdout(cluster: atta.LocalCluster) -> None:
    done = run("trace", "--cluster", str(cluster.cluster_file), "--out", "-", "--seconds", "0.2")
    assert done.returncode == 0
    assert not [e for e in json.loads(done.stdout)["traceEvents"] if e["ph"] == "X"]
    assert "nothing happened" in done.stderr


def test_the_ring_is_bounded_and_can_be_switched_off(small_graph: SmallGraph, tmp_path: Path) -> None:
    for kept in (0, 20):
        options = ("--trace-events", str(kept))
        with atta.local(small_graph.dataset(1, "random"), threads=1, options=options) as cluster:
            assert len(list(atta.NeighborLoader(cluster, [2], "train", batch_size=16))) == 8
            (found,) = cluster.trace()
            assert (found.capacity, len(found.entries)) == (kept, kept)
            done = run("trace", "--cluster", cluster.addresses[0], "--out", str(tmp_path / f"{kept}.json"))
            assert done.returncode == (0 if kept else 2)
            assert ("events of 1 daemon," if kept else "--trace-events 0") in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["20.json"]


def test_errors(refused: Any) -> None:
    here = ("--cluster", "127.0.0.1:1")
    for arguments, words in (
        (("--out", "x.json"), "--cluster"),
        (here, "--out"),
        ((*here, "--out", "no/such/folder/x.json"), "no/such/folder"),
        ((*here, "--out", "/"), "folder"),
        (("--cluster", "none.toml", "--out", "-"), "none.toml"),
        ((*here, "--out", "-", "--seconds", "-1"), "seconds"),
    ):
        assert words in refused("trace", *arguments)
    done = run("trace", *here, "--out", "-")
    assert (done.returncode, done.stdout) == (1, "")
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
