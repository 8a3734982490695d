"""The documentation site, without Sphinx: every public name has an entry, every page is reached, links stay true."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import atta

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
ENTRY = re.compile(r"^\.\. auto(?:class|function|exception|data):: (\w+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def conf() -> Any:
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_one_entry_in_the_reference() -> None:
    assert sorted(ENTRY.findall((DOCS / "api.md").read_text())) == sorted(atta.__all__)


def test_every_page_is_in_a_table_of_contents(conf: Any) -> None:
    reached = set(re.findall(r"^[\w/-]+$", conf.contents((DOCS / "index.md").read_text()), re.MULTILINE))
    for folder in ("decisions", "contributing"):
        assert f"{folder}/index" in reached
        pages = re.findall(r"^[\w-]+$", conf.of_folder(folder), re.MULTILINE)
        reached |= {f"{folder}/{page}" for page in pages}
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert reached == pages - {"index"}


def test_the_list_of_decisions_has_all_of_them() -> None:
    listed = re.findall(r"\]\(([\w.-]+)\)", (DOCS / "decisions/index.md").read_text())
    assert listed == sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))


def test_docstrings_become_restructured_text(conf: Any) -> None:
    given = ["Does it.", "", "    import a", "", "    a(*b)", "", "Then [n, *shape], ``*x`` and 2**3.", "", "Args:",
             "    a: an int.", "", "    *b: more.", "    **c: rest."]  # fmt: skip
    expected = [*given[:2], "::", "", *given[2:6], r"Then [n, \*shape], ``*x`` and 2**3.", *given[7:11], r"    \*b: more.",
                given[12]]  # fmt: skip
    assert conf.as_restructured(given) == expected


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index", "see [bench](../bench/README.md#a).", "see bench (`bench/README.md`)."),
        ("contributing/index", "[x](../../CONTRIBUTING.md)", "x (`CONTRIBUTING.md`)"),
        ("contributing/index", "[x](../glossary.md)", "[x](../glossary.md)"),
        ("index", "[x](glossary.md#a), [y](https://a/../b)", "[x](glossary.md#a), [y](https://a/../b)"),
    ],
)
def test_links_that_leave_the_site_become_names(conf: Any, page: str, text: str, expected: str) -> None:
    assert conf.local_links(text, page) == expected
