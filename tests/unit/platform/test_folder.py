"""Temporary folders: they disappear with their process, or the next process removes them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from atta.observe.machine.held import OwnFolder
from tests.forking import in_fork

HOLDER = """
import sys
from atta.observe.machine.held import OwnFolder
folder = OwnFolder("atta-test-")
print(folder.name, flush=True)
sys.stdin.read()
"""

FORKING = """
import os, sys
from pathlib import Path
from atta.observe.machine.held import OwnFolder
folder = OwnFolder("atta-test-")
if not (child := os.fork()):
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert Path(folder.name).is_dir()
print(folder.name)
"""


def aged(folder: Path) -> Path:
    os.utime(folder, (0, 0))
    return folder


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        stranger = aged(Path(tempfile.mkdtemp(prefix="atta-test-")))
        with OwnFolder("atta-test-") as mine:
            aged(held)
            with OwnFolder("atta-test-"):
                assert held.exists(), "its process lives"
            holder.kill()
            holder.wait()
            with OwnFolder("atta-test-"):
                assert not held.exists()
            assert Path(mine).exists()
        assert not Path(mine).exists()
        assert stranger.exists(), "nobody has ever locked it"


def test_a_young_folder_may_not_be_locked_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    young = tmp_path / "atta-test-young"
    young.mkdir()
    (young / "lock").touch()
    with OwnFolder("atta-test-"):
        assert young.exists()
    aged(young)
    with OwnFolder("atta-test-"):
        assert not young.exists()


def test_a_forked_child_leaves_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = OwnFolder("atta-test-")
    assert in_fork(folder.cleanup)
    assert Path(folder.name).is_dir()
    folder.cleanup()
    folder.cleanup()
    assert not Path(folder.name).exists()


def test_only_the_process_of_a_folder_removes_it_at_its_end(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FORKING], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()
