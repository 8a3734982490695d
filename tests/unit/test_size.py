"""The product does not grow unnoticed: its figures have ceilings, which only a decision raises."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CEILINGS = {
    "code_lines": 65_400,
    "docstring_lines": 12_340,
    "files": 521,
    "folders": 62,
    "median_function": 6,
    "long_function": 18,
    "largest_lines": 500,
    "bench_lines": 11_350,
}


@pytest.fixture(scope="module")
def size(module_at: Callable[[str], Any]) -> Any:
    return module_at("tools/size.py")


@pytest.fixture(scope="module")
def found(size: Any) -> dict[str, Any]:
    if not (ROOT / ".git").exists():
        pytest.skip("git does not track these files")
    return asdict(size.size_of(ROOT))


@pytest.mark.parametrize("figure", CEILINGS)
def test_no_figure_is_above_its_ceiling(found: dict[str, Any], figure: str) -> None:
    assert found[figure] <= CEILINGS[figure], f"{found['largest_file']} is the largest file"


def test_what_counts(size: Any, tmp_path: Path) -> None:
    folder = tmp_path / "platform/atta"
    folder.mkdir(parents=True)
    (tmp_path / "samplers").mkdir()
    (tmp_path / "samplers/kernel.hpp").write_text("// one\n// two\n")
    (folder / "made_pb2.py").write_text("x = 1\n" * 50)
    (folder / "untracked.py").write_text("x = 1\n" * 60)
    source = (
        '"""A module."""\n\n# A comment.\nLIMIT = 3  # of something\n"""What it is."""\nTEXT = """\nno docstring\n"""\n'
    )
    source += 'def one(\n    a: int,\n) -> int:\n    """Two\n    lines."""\n\n    return a\n'
    source += "def two() -> int:\n    def inner() -> int:\n        return 1\n    return inner()\n"
    (folder / "a.py").write_text(source)
    (tmp_path / "bench/lab").mkdir(parents=True)
    (tmp_path / "bench/lab/b.py").write_text(source)
    for command in (["init", "-q"], ["add", "bench", "platform/atta/a.py", "platform/atta/made_pb2.py", "samplers"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    found = size.size_of(tmp_path)
    assert (found.code_lines, found.docstring_lines, found.native_lines) == (12, 4, 2)
    assert found.bench_lines == 12
    assert (found.files, found.folders) == (2, 2)
    assert (found.median_function, found.long_function) == (4, 7)
    assert (found.largest_lines, found.largest_file) == (19, "platform/atta/a.py")


GENERATED = {"exact-layers.md"}
"""Pages of the documents that a program writes. They count as pages, and not by their words."""


def test_the_documents_stay_short() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    written = [page for page in (ROOT / "README.md", *pages) if page.name not in GENERATED]
    words = {page.name: len(page.read_text().split()) for page in written}
    assert len(pages) <= 49
    assert sum(words.values()) <= 53_000, f"the longest: {max(words, key=words.__getitem__)}"
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90
