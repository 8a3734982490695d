"""Watching real daemons: ``atta top`` and ``atta status``."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import atta
from atta.cli.cluster import status
from atta.cli.main import cli
from atta.client.every import DaemonAnswer
from atta.client.watch import DaemonRates, Watch
from atta.errors import AttaError, UnavailableError
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph


@pytest.fixture(scope="module")
def pair(small_graph: SmallGraph) -> Iterator[atta.LocalCluster]:
    with atta.local(small_graph.dataset(2, "metis"), threads=1, options=("--cache", "0")) as running:
        yield running


def top(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atta.cli.main", "top", "--interval", "200ms", *options]
    environment = {**os.environ, "COLUMNS": "160"}  # a loaded readline would set the terminal's width
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_once_prints_a_picture_and_json_a_document(pair: atta.LocalCluster, tmp_path: Path) -> None:
    batches = iter(atta.NeighborLoader(pair, [4, 4], batch_size=4, job="pictured", rank=1, world_size=2))
    for _ in range(6):
        next(batches)
    done = top("--cluster", str(pair.cluster_file), "--once", "--json", str(tmp_path / "top.json"))
    assert done.returncode == 0, done.stderr
    assert "2 of 2 daemons answer" in done.stdout
    assert "pictured" in done.stdout
    document = json.loads((tmp_path / "top.json").read_text())
    assert [daemon["address"] for daemon in document["daemons"]] == pair.addresses
    assert document["daemons"][0]["sessions"] == []
    (session,) = document["daemons"][1]["sessions"]  # at rank 1's home
    named = [session[name] for name in ("job", "rank", "world_size", "epoch", "error")]
    assert named == ["pictured", 1, 2, 0, ""]
    assert 6 <= session["taken"] <= 7
    assert session["taken"] + session["queued"] + session["in_flight"] <= session["batches"] == 15
    assert session["seeds"] == 4 * session["taken"]
    assert session["lent_bytes"] > 0
    assert pair.stats()[0]["link_requests_served"] > 0  # part 1 asked for its neighbours
    assert all(daemon["batches_per_s"] is not None for daemon in document["daemons"])
    assert json.loads(top("--cluster", ",".join(pair.addresses), "--json", "-").stdout)["schema"] == 1


def test_silent_daemons_stop_nobody(pair: atta.LocalCluster) -> None:
    (silent,) = held_addresses(1)
    done = top("--cluster", ",".join([*pair.addresses, silent]), "--once")
    assert done.returncode == 0, done.stderr
    assert "2 of 3 daemons answer" in done.stdout
    assert re.search(rf"part 2 +{silent} +no daemon answers", done.stdout)
    done = top("--cluster", silent, "--once")
    assert done.returncode == 1
    assert "0 of 1 daemons answer" in done.stdout
    assert "Traceback" not in done.stderr


def test_status_waits_for_daemons_that_are_starting(pair: atta.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, asked = status.ask_all, []

    def late(*question: Any, **more: Any) -> list[DaemonAnswer[Any]]:
        asked.append(question)
        away = len(asked) < 3
        answers = ask(*question, **more)
        return [replace(a, value=None, error=UnavailableError(a.address, "away")) if away else a for a in answers]

    monkeypatch.setattr(status, "ask_all", late)
    monkeypatch.setattr(status, "LOOK_AGAIN_S", 0.01)
    words = ["status", "--cluster", str(pair.cluster_file), "--interval", "100ms"]
    done = CliRunner().invoke(cli, words, env={"COLUMNS": "200"})
    assert isinstance(done.exception, AttaError)
    assert len(re.findall(r"down( +-){7}", done.stdout)) == 2  # no figures beside it, though there are some by now
    done = CliRunner().invoke(cli, [*words, "--wait", "30s"], env={"COLUMNS": "200"})
    assert (done.exit_code, len(asked), done.stdout.count(" serving ")) == (0, 3, 2)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_status_tells_of_a_daemon_that_is_lost_between_two_looks(
    small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    look = Watch.look
    monkeypatch.setattr("atta.cli.cluster.status.DEADLINE_S", 1.0)
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as cluster:

        def last_look(watch: Watch) -> list[DaemonRates]:
            found = look(watch)
            os.kill(cluster.pids[1], sent)
            return found

        monkeypatch.setattr(Watch, "look", last_look)
        done = CliRunner().invoke(cli, ["status", "--cluster", str(cluster.cluster_file), "--json", "-"])
        os.kill(cluster.pids[1], signal.SIGKILL)
    assert isinstance(done.exception, AttaError)  # exit code 1
    well, lost = json.loads(done.stdout)["daemons"]
    assert well["error"] is None
    assert f"failed: part 1 at {cluster.addresses[1]}: {lost['error']}" in str(done.exception)


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was(pair: atta.LocalCluster) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "atta.cli.main", "top", "--cluster", str(pair.cluster_file), "--interval", "100ms"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while shown.count(b"2 of 2 daemons answer") < 2:  # a second picture replaces the first
            shown += os.read(ours, 1 << 16)
        child.send_signal(signal.SIGINT)
        try:
            while more := os.read(ours, 1 << 16):
                shown += more
        except OSError:  # the other end is closed
            pass
        assert child.wait(timeout=30) == 130
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1  # enters and leaves the alternate screen
    assert shown.rindex(b"\x1b[?25h") > shown.index(b"\x1b[?25l")  # the cursor is shown again
    assert shown.rstrip().endswith(b"atta: interrupted")
    assert b"Traceback" not in shown
