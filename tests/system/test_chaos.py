"""``atta chaos`` with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import AttaError
from atta_bench.chaos import run as chaos_run
from tests.system.conftest import ran
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_interpreters")]
SMALL = ["--every", "2s", "--parts", "1", "--consumers", "1"]


def ours(folder: Path) -> list[int]:
    """Processes that were started for a run in ``folder``."""
    every = {process.pid: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
    return [pid for pid, words in every.items() if str(folder) in words and pid != os.getpid()]


def test_half_a_minute_of_chaos(tmp_path: Path) -> None:
    """All faults that are possible here. Nothing is violated, the log is complete, and no process stays."""
    folder = tmp_path / "chaos"
    ran("chaos --minutes 0.5 --seed 3", *SMALL, "--out", folder)
    found = json.loads((folder / "result.json").read_text())
    log = [json.loads(line) for line in (folder / "faults.jsonl").read_text().splitlines()]
    plan = json.loads((folder / "plan.json").read_text())
    assert [fault["target"] for fault in log] == [fault["target"] for fault in plan]
    assert found["violations"] == []
    assert found["batches"] > 0
    assert found["steps"] > 0
    assert "--seed 3 --minutes 0.5" in (folder / "command").read_text()
    assert not ours(folder)


def test_a_violation_ends_it_and_tells_how_to_repeat_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle is made wrong in one digest: exit code 1, and the command with its seed."""
    real = chaos_run.expected_batches

    def wrong(*arguments: object) -> list[list[str]]:
        found = real(*arguments)  # type: ignore[arg-type]
        found[0][1] = "0"
        return found

    monkeypatch.setattr(chaos_run, "expected_batches", wrong)
    folder = tmp_path / "chaos"
    words = ["chaos", "--minutes", "0.5", "--seed", "5", "--faults", "kill", *SMALL, "--out", str(folder)]
    result = CliRunner().invoke(cli, words)
    assert isinstance(result.exception, AttaError)
    assert "batch 1 of epoch 0 in lap 0 differs from the one of the local sampler" in str(result.exception)
    assert "atta chaos --seed 5" in str(result.exception)
    assert not ours(folder)


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "chaos"
    words = [sys.executable, "-m", "atta.cli.main", "chaos", "--minutes", "5", "--faults", "kill", *SMALL]
    child = subprocess.Popen([*words, "--out", str(folder)])
    assert eventually(lambda: (folder / "faults.jsonl").exists(), 120)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 130
    assert eventually(lambda: not ours(folder))
    assert json.loads((folder / "result.json").read_text())["violations"] == []
