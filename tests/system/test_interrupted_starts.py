"""Ctrl-C while a command starts: one line, exit code 130, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import SEED
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("own_interpreters")
ATTA = (sys.executable, "-m", "atta.cli.main")
COMMANDS = {
    "serve": ("serve", "--part", "0-1", "--listen", "127.0.0.1:0"),
    "train": ("train", "--model", "sage", "--trainers", "2", "--epochs", "1000"),
    "bench": ("bench", "loader"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("moment", range(2))
def test_a_start_ends_with_one_line(command: str, moment: int, small_graph: SmallGraph, tmp_path: Path) -> None:
    words = [*COMMANDS[command], "--data", str(small_graph.dataset(2, "random"))]
    how: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    started = subprocess.Popen([*ATTA, *words], env={**os.environ, "TMPDIR": str(tmp_path)}, **how)
    maps = Path(f"/proc/{started.pid}/maps")
    eventually(lambda: "_native" in maps.read_text())
    most_s = 0.5 if command == "train" else 2.5  # the interpreters of trainers come later, with tracebacks of their own
    time.sleep(random.Random(f"{SEED} {command} {moment}").uniform(0, most_s))
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does: to its children, too
    _, told = started.communicate(timeout=60)
    usual = ("round ", "atta: starting ")
    lines = [line for line in told.splitlines() if "[info" not in line and not line.startswith(usual)]
    assert (started.returncode, lines) == (130, ["atta: interrupted"])
    assert not [process for process in psutil.process_iter() if _of_session(process, started.pid)]
    assert not list(tmp_path.iterdir())


def _of_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


CLASS = """
import signal

class Field:
    def __set_name__(self, owner, name):  # Python 3.11 makes another error of what this raises
        signal.raise_signal(signal.SIGINT)

class Part:
    field = Field()
"""


@pytest.mark.parametrize(
    "module", [("click.py", "import signal\nsignal.raise_signal(signal.SIGINT)\n"), ("grpc.py", CLASS)]
)
def test_an_interrupt_while_modules_are_imported(module: tuple[str, str], tmp_path: Path) -> None:
    name, text = module
    (tmp_path / name).write_text(text)
    command = (*ATTA, "status", "--cluster", "127.0.0.1:7070")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "atta: interrupted\n")
