"""The documentation site, without Sphinx: every public name has an entry, every page is reached, links stay true."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import atta
from atta.cli.main import cli

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
    assert sorted(ENTRY.findall((DOCS / "reference/api.md").read_text())) == sorted(atta.__all__)


def test_names_of_the_reference_exist() -> None:
    named = re.compile(r"^\.\. (currentmodule|auto(?:class|function|exception|data)):: ([\w.]+)", re.MULTILINE)
    for page in (*(DOCS / "reference").glob("*.md"), DOCS / "internals/simulator.md"):
        module = "atta"
        for kind, name in named.findall(page.read_text()):
            if kind == "currentmodule":
                module = name
                continue
            home, _, last = (name if name.startswith("atta.") else f"{module}.{name}").rpartition(".")
            assert hasattr(importlib.import_module(home), last), f"{page.name}: {name}"


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = re.findall(r"^(?:guide|reference|internals)/[\w/-]+$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages - {"index"}


def test_the_options_of_every_command_are_in_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    text = importlib.import_module("commands").reference(cli)
    headings = re.findall(r"^## (atta .+)$", text, re.MULTILINE)
    assert {"atta train", "atta serve", "atta tables save", "atta bench loader"} <= set(headings)
    train = text.split("## atta train\n")[1].split("\n## ")[0]
    assert "- `--trainers" in train
    assert "\n```text\natta train --data data/demo-2p" in train


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
        ("internals/adding", "[x](../../CONTRIBUTING.md)", "x (`CONTRIBUTING.md`)"),
        ("internals/adding", "[x](../reference/api.md)", "[x](../reference/api.md)"),
        ("index", "[x](guide/ray.md#a), [y](https://a/../b)", "[x](guide/ray.md#a), [y](https://a/../b)"),
    ],
)
def test_links_that_leave_the_site_become_names(conf: Any, page: str, text: str, expected: str) -> None:
    assert conf.local_links(text, page) == expected
