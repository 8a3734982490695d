"""The command line with one daemon down: it reports on each daemon separately."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

import atta
from atta.cli.main import cli
from atta.errors import RemoteError
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph


def run(*arguments: object, columns: int = 160) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "atta.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.fixture
def half(pair: atta.LocalCluster) -> tuple[str, str, str]:
    """Partition 0 answers, partition 1 does not: both addresses, and the target."""
    (silent,) = held_addresses(1)
    return pair.addresses[0], silent, f"{pair.addresses[0]},{silent}"


def test_status_is_a_line_or_an_object_per_daemon(pair: atta.LocalCluster) -> None:
    batches = iter(atta.NeighborLoader(pair, [4], batch_size=4, job="pictured"))
    next(batches)
    done = run("status", "--cluster", pair.cluster_file)
    assert (done.returncode, done.stderr) == (0, "")
    size = r"[\d.]+ (B|KiB|MiB|GiB)"
    for part, address in enumerate(pair.addresses):
        since = rf"{part} +{address} +serving +\d{{4}}-\d\d-\d\d \d\d:\d\d \(\d+ (s|min)\)"
        assert re.search(rf"^{since} +{1 - part} +[\d.]+ +{size}/s +\d+ % +{size} +{size} of 4 GiB", done.stdout, re.M)
    assert "scheduler_" not in done.stdout
    del batches
    document = json.loads(run("status", "--cluster", pair.cluster_file, "--json", "-").stdout)
    assert document["dataset_id"] == pair.dataset_id
    for part, daemon in enumerate(document["daemons"]):
        assert (daemon["part"], daemon["address"], daemon["error"]) == (part, pair.addresses[part], None)
        assert daemon["scheduler_launched_total"] >= 0
        assert daemon["batches_per_s"] >= 0
        assert datetime.fromisoformat(daemon["up_since"]) < datetime.now().astimezone()
    done = run("status", "--cluster", pair.cluster_file, "--all")
    assert "scheduler_launched_total" in done.stdout


def test_status_names_the_daemon_that_is_down(half: tuple[str, str, str], tmp_path: Path) -> None:
    alive, silent, target = half
    done = run("status", "--cluster", target, "--json", tmp_path / "status.json")
    assert done.returncode == 1
    assert re.search(rf"^0 +{alive} +serving", done.stdout, re.MULTILINE)
    assert re.search(rf"^1 +{silent} +down +-", done.stdout, re.MULTILINE)
    assert "no daemon answers" not in done.stdout
    assert done.stderr.startswith(f"atta: error: 1 of 2 daemons failed: part 1 at {silent}: no daemon")
    hint = "(start it with all its options: "
    assert done.stderr.endswith(f"{hint}atta serve --part 1 --listen {silent} ...)\n")
    daemons = json.loads((tmp_path / "status.json").read_text())["daemons"]
    assert daemons[0]["error"] is None
    assert "no daemon answers" in daemons[1]["error"]
    assert daemons[1]["up_since"] is None


def test_status_tells_how_each_of_many_is_started_again() -> None:
    silent = held_addresses(6)
    done = run("status", "--cluster", ",".join(silent))
    starts = ", ".join(f"atta serve --part {part} --listen {silent[part]} ..." for part in range(4))
    assert done.stderr.endswith(f": {starts} and 2 more)\n")


def test_status_tells_a_terminal_what_it_waits_for(
    half: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, silent, target = half
    command = ["status", "--cluster", target, "--wait", "1s"]
    for terminal, told in ((True, f"waiting for part 1 at {silent}\n"), (False, "")):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        with pytest.raises(RemoteError):
            cli.main(command, standalone_mode=False)
        assert capsys.readouterr().err == told


def test_daemons_that_do_not_belong_together_are_named(pair: atta.LocalCluster) -> None:
    one, two = pair.addresses
    done = run("status", "--cluster", f"{two},{one}")
    assert done.returncode == 1
    assert re.search(rf"^0 +{two} +differs +-", done.stdout, re.MULTILINE)
    assert f"part 0 at {two}: serves partition 1, not 0" in done.stderr
    done = run("status", "--cluster", one)
    assert done.returncode == 2
    assert "1 daemons are named, the dataset has 2 partitions" in done.stderr


def test_a_trace_has_what_answers(half: tuple[str, str, str], tmp_path: Path) -> None:
    _, silent, target = half
    done = run("trace", "--cluster", target, "--out", tmp_path / "trace.json")
    assert done.returncode == 1
    assert "of 1 daemon," in done.stderr
    assert f"part 1 at {silent}: no daemon answers" in done.stderr.splitlines()[-1]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("command", [("top", "--once", "--interval", "100ms"), ("status",)])
def test_pictures_keep_to_the_columns(
    pair: atta.LocalCluster, half: tuple[str, str, str], columns: int, command: tuple[str, ...]
) -> None:
    batches = iter(atta.NeighborLoader(pair, [4], batch_size=4, job="a job with a long name"))
    next(batches)
    for target in (pair.cluster_file, half[2]):
        done = run(*command, "--cluster", target, columns=columns)
        assert max(map(len, done.stdout.splitlines())) <= columns
    del batches


def test_stop_stops_those_that_answer(small_graph: SmallGraph) -> None:
    (silent,) = held_addresses(1)
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        _, alive = cluster.addresses
        done = run("stop", "--cluster", f"{silent},{alive}")
        assert done.returncode == 1
        assert done.stdout == f"part 1 at {alive}: stopping\n"
        assert f"1 of 2 daemons failed: part 0 at {silent}: no daemon answers" in done.stderr
        assert cluster._children[1].wait(30) == 0


@pytest.mark.parametrize(
    "arguments", [("train",), ("predict", "--checkpoint", ".", "--table", "t"), ("check", "m:n"), ("tables", "list")]
)
def test_all_that_are_down_are_named_at_once(arguments: tuple[str, ...]) -> None:
    one, two = held_addresses(2)
    done = run(*arguments, "--cluster", f"{one},{two}")
    assert done.returncode == 1
    refused = "no daemon answers: nothing listens there (connection refused)"
    cure = f"(atta serve starts a daemon, atta status --cluster {one},{two} --wait 1m waits for all)"
    assert done.stderr == f"atta: error: 2 of 2 daemons failed: part 0 at {one}, part 1 at {two}: {refused} {cure}\n"


def test_a_daemon_that_answers_is_not_named(half: tuple[str, str, str]) -> None:
    _, silent, target = half
    with pytest.raises(atta.UnavailableError, match=f"^1 of 2 daemons failed: part 1 at {silent}: no daemon answers"):
        atta.connect(target.split(","))
