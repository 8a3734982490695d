"""Commands of README and quick start that take minutes, or files and machines of one's own.

They run as they stand, with smaller figures where it says so, on stand-ins for the files that they name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta_bench.lab.netlab import NetLab
from tests.system.test_documents import ROOT, command_blocks
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FRAGMENTS = [
    block.text
    for page in ("README.md", "docs/guide/quickstart.md")
    for block in command_blocks(ROOT / page)
    if block.mark == "fragment"
]
SMALLER = {
    "train": "--epochs 1 --hidden 8 --device cpu",
    "plan": "--probe 1s",
    "bench": "--runs 1 --warm-up 1 --epochs 1 --seconds 1s --batch-size 64",
}
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def run(words: Sequence[str], folder: Path, prefix: Sequence[str] = ()) -> str:
    env = {**os.environ, "PATH": PATH, "COLUMNS": "160"}  # a loaded readline would set the terminal's width
    done = subprocess.run([*prefix, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout + done.stderr


def answers(folder: Path, prefix: Sequence[str]) -> bool:
    command = [*prefix, "atta", "status", "--cluster", "cluster.toml", "--json", "-"]
    env = {**os.environ, "PATH": PATH}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False).returncode == 0


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
    """An own data set in ``cora``, and a dataset of two partitions under the name that the quick start uses."""
    rng = np.random.default_rng(3)
    (tmp_path / "cora").mkdir()
    np.savez(tmp_path / "cora/graph.npz", edge_index=rng.integers(0, 300, (2, 1000)))
    np.save(tmp_path / "cora/x.npy", rng.random((300, 4), np.float32))
    np.save(tmp_path / "cora/y.npy", rng.integers(0, 3, 300))
    sizes = {"nodes": 2000, "edges": 20000, "features": 8, "classes": 3, "seed": 5}
    generate("sbm", tmp_path / "graph", GenerateOptions(**sizes, train=0.6, val=0.2, test=0.2))  # type: ignore[arg-type]
    partition_graph(tmp_path / "graph", tmp_path / "data/big-2p", parts=2, method="metis")
    return tmp_path


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """Words that make a command run in ``home`` on a machine with the address 10.0.0.1."""
    monkeypatch.chdir(home)  # hosts of a lab have the folder in which it was built
    with NetLab(1) as lab:
        prefix = lab.hosts[0].prefix
        run(["ip", "address", "add", "10.0.0.1/24", "dev", "eth0"], home, prefix)
        yield prefix


@pytest.mark.netns
def test_commands_with_files_and_machines_of_ones_own(home: Path, machine: tuple[str, ...]) -> None:
    """``atta serve`` runs beside the rest with a daemon of the other partition, until ``atta stop``."""
    pytest.importorskip("dgl")
    second = "10.0.0.1:7080"
    entries = [f'[[daemon]]\npart = {part}\naddress = "{at}"\n' for part, at in enumerate(("10.0.0.1:7070", second))]
    (home / "cluster.toml").write_text("\n".join(entries))
    said, daemons = {}, []
    try:
        for line in FRAGMENTS[-1].splitlines():
            words = shlex.split(line, comments=True)
            name = words[1]
            words += shlex.split(SMALLER.get(name, ""))
            if name == "serve":
                other = [{"0": "1", "10.0.0.1:7070": second}.get(word, word) for word in words]
                env = {**os.environ, "PATH": PATH}
                daemons += [subprocess.Popen([*machine, *command], cwd=home, env=env) for command in (words, other)]
                assert eventually(partial(answers, home, machine), 60)
            else:
                said[name] = run(words, home, machine if name == "stop" else ())
        assert [daemon.wait(60) for daemon in daemons] == [0, 0]
    finally:
        for daemon in daemons:
            daemon.kill()
    assert (home / "graphs/cora/graph.json").exists()
    assert "cooperative" in said["train"] + said["plan"]
    assert "dgl" in said["bench"].lower()
