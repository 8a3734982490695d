"""Ctrl-C while a command starts: one line, exit code 130, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import SEED
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("own_interpreters")
COMMANDS = {
    "serve": ("serve", "--part", "0", "--listen", "127.0.0.1:0"),
    "train": ("train", "--model", "sage", "--trainers", "2", "--epochs", "1000"),
    "bench": ("bench", "loader"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("moment", range(3))
def test_a_start_ends_with_one_line(command: str, moment: int, small_graph: SmallGraph, tmp_path: Path) -> None:
    data = str(small_graph.dataset(2, "random"))
    started = subprocess.Popen(
        [sys.executable, "-m", "atta.cli.main", *COMMANDS[command], "--data", data],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    maps = Path(f"/proc/{started.pid}/maps")
    eventually(lambda: "_native" in maps.read_text())
    most_s = 0.5 if command == "train" else 2.5  # the interpreters of trainers come later, with tracebacks of their own
    time.sleep(random.Random(f"{SEED} {command} {moment}").uniform(0, most_s))
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does: to its children, too
    _, told = started.communicate(timeout=60)
    lines = [line for line in told.splitlines() if "[info" not in line and not line.startswith("round ")]
    assert (started.returncode, lines) == (130, ["atta: interrupted"])
    assert not [process for process in psutil.process_iter() if _of_session(process, started.pid)]
    assert not list(tmp_path.iterdir())


def _of_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def test_an_interrupt_before_the_command_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    ended = subprocess.run(
        [sys.executable, "-m", "atta.cli.main", "status"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "atta: interrupted\n")
