"""Commands of README and quick start that take minutes, or machines of one's own.

They run as they stand, with smaller figures where it says so, on a stand-in for the dataset that they name.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta_bench.lab.netlab import NetLab
from tests.system.test_documents import ROOT, command_blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FRAGMENTS = [
    block.text
    for page in ("README.md", "docs/guide/quickstart.md")
    for block in command_blocks(ROOT / page)
    if block.mark == "fragment"
]
SMALLER = {"train": ("--epochs", "1", "--hidden", "8", "--device", "cpu")}
CLUSTER = re.findall(
    r"^ {4}# cluster\.toml.*\n(?: {4}.*\n)+", (ROOT / "docs/guide/quickstart.md").read_text(), re.MULTILINE
)[0]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def run(words: Sequence[str], folder: Path, prefix: Sequence[str] = ()) -> str:
    env = {**os.environ, "PATH": PATH, "COLUMNS": "160"}  # a loaded readline would set the terminal's width
    done = subprocess.run([*prefix, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What ``make`` reads, in a folder where it may write, with the environment of these tests."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def test_make_commands(tree: Path) -> None:
    """``make demo`` trains. ``make test`` is what runs these tests, so it is only told what it would do."""
    demo, test = (shlex.split(line, comments=True) for line in FRAGMENTS[0].splitlines())
    assert (demo, test) == (["make", "demo"], ["make", "test"])
    said = run([*demo, "--assume-old=setup"], tree)
    assert "epoch 4" in said.replace("  ", " ")
    assert "test" in said
    shown = [line.removeprefix("$ atta ") for line in said.splitlines() if line.startswith("$ atta ")]
    assert [line.split()[0] for line in shown] == ["generate", "partition", "inspect", "train", "predict"]
    run([f"{sys.prefix}/bin/atta", *shlex.split(shown[-1]), "--quiet"], tree)  # what it names as next
    assert len(list((tree / "classes/demo").glob("part-*"))) == 2
    assert "-m pytest" in run([*test, "--assume-old=setup", "--dry-run"], tree)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A dataset of two partitions under the name that the quick start uses."""
    sizes = {"nodes": 2000, "edges": 20000, "features": 8, "classes": 3, "seed": 5}
    generate("sbm", tmp_path / "graph", GenerateOptions(**sizes, train=0.6, val=0.2, test=0.2))  # type: ignore[arg-type]
    partition_graph(tmp_path / "graph", tmp_path / "data/demo-2p", parts=2, method="metis")
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    return tmp_path


@pytest.fixture
def machines(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """Words that make a command run in ``home`` on a machine with the addresses of both daemons."""
    monkeypatch.chdir(home)  # hosts of a lab have the folder in which it was built
    with NetLab(1) as lab:
        prefix = lab.hosts[0].prefix
        for address in ("10.0.0.1/24", "10.0.0.2/24"):
            run(["ip", "address", "add", address, "dev", "eth0"], home, prefix)
        yield prefix


@pytest.mark.netns
def test_commands_with_machines_of_ones_own(home: Path, machines: tuple[str, ...]) -> None:
    """Both daemons run beside the other commands, until ``atta stop``."""
    said, daemons = {}, []
    try:
        for line in FRAGMENTS[-1].splitlines():
            words = shlex.split(line, comments=True)
            if words[1] == "serve":
                env = {**os.environ, "PATH": PATH}
                daemons.append(subprocess.Popen([*machines, *words], cwd=home, env=env))
            else:
                said[words[1]] = run([*words, *SMALLER.get(words[1], ())], home, machines)
        run(["atta", "stop", "--cluster", "cluster.toml"], home, machines)
        assert [daemon.wait(60) for daemon in daemons] == [0, 0]
    finally:
        for daemon in daemons:
            daemon.kill()
    assert said["status"].count("serving") == 2
    assert "best epoch 0" in said["train"]
