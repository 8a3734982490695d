"""A copy of the package with a guide's diff applied: the state that a newcomer has after following the guide.

The tests of ``docs/internals/adding.md`` run the copy in separate processes, so the code under test stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from atta import _native

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs/internals/adding"
SOURCES = {"platform/atta": "", "samplers": "samplers", "partition": "partition", "protos": "protos"}
"""Folders of the repository with Python sources, and their places inside the package ``atta``."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "native")

# An editable install finds ``atta`` through its own finder, before any path is searched. The copy runs without it.
FORGET_THE_INSTALLED = """\
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "_editable" not in type(finder).__module__]
"""


def applied(diff: Path, into: Path) -> dict[str, str]:
    """Copy the package to ``into/atta``, apply ``diff`` to it, and return the environment that imports the copy.

    ``into/tests`` are the tests, with the diff's changes. Use the environment with ``sys.executable -c ...``,
    ``-m atta.cli.main`` or ``-m pytest``. AssertionError: the diff does not apply; the message is what git says.
    """
    tree = into / "tree"  # the layout of the repository, which the diff names
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, tree / folder, ignore=_LEFT_OUT)
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    _apply(diff, tree)
    for folder, inside in sorted(SOURCES.items(), key=lambda pair: pair[1]):
        shutil.move(tree / folder, into / "atta" / inside)
    shutil.move(tree / "tests", into / "tests")
    shutil.rmtree(tree)
    library = Path(str(_native.__file__))
    shutil.copy2(library, into / "atta" / library.name)
    (into / "sitecustomize.py").write_text(FORGET_THE_INSTALLED)
    paths = [str(into), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def _apply(diff: Path, tree: Path) -> None:
    """Run ``git apply`` as if outside any repository: inside one it would leave out ignored files."""
    found = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(diff.resolve())],
        cwd=tree,
        env={**os.environ, "GIT_DIR": str(tree / ".no-repository"), "GIT_CEILING_DIRECTORIES": str(tree.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, f"{diff.name} does not apply:\n{found.stderr}"
