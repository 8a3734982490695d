"""The documents tell the truth: commands are accepted, links lead somewhere, the site is whole, pictures are current."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import atta
from atta.cli.main import cli
from tests.unit.test_layers import LAYERS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
ENTRY = re.compile(r"^\.\. auto(?:class|function|exception|data):: (\w+)$", re.MULTILINE)
SVG = "{http://www.w3.org/2000/svg}"
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)

WRAPPED = [*DOCUMENTS, ROOT / "bench/README.md"]
SOURCE_ROOTS = (ROOT, ROOT / "platform", ROOT / "platform/atta")
"""The folders from which documents give the paths of sources."""

GROUPS = tuple(
    f"atta.{name}" for name in ("strategies", "methods", "operators", "partition_methods", "models", "importers")
)
NO_MODULES = ("atta.v1", "atta._native", *GROUPS)
"""Services of gRPC, modules built from C++, and groups of entry points: they have no Python file."""


BESIDE = " &"
"""Ends a command that runs beside the next ones, as in a shell."""


def joined(text: str) -> str:
    return re.sub(r"\\\n +", "", text)


def commands() -> list[tuple[str, str]]:
    return [
        (path.name, line.strip().removesuffix(BESIDE))
        for path in DOCUMENTS
        for line in joined(path.read_text()).splitlines()
        if line.startswith("    atta ")
    ]


def settings_files() -> dict[str, str]:
    """The TOML files in documents: indented, with the name as a comment in the first line."""
    texts = (path.read_text() for path in DOCUMENTS)
    return {
        name: textwrap.dedent(text)
        for document in texts
        for text, name in re.findall(r"^((?: {4}# ([\w-]+\.toml)\b.*\n)(?: {4}.*\n)+)", document, re.MULTILINE)
    }


@pytest.mark.parametrize(("document", "line"), commands())
def test_commands_are_accepted(document: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file, text in settings_files().items():
        (tmp_path / file).write_text(text)
    _, name, *arguments = shlex.split(line, comments=True)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"{document}: {name}"
    while isinstance(command, click.Group):
        name = arguments.pop(0)
        inner = command.get_command(click.Context(command), name)
        assert inner is not None, f"{document}: {name}"
        command = inner
    with command.make_context(name, arguments) as context:  # raises UsageError for an unknown name
        assert context.params or not arguments


def test_makefile_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        t for path in DOCUMENTS for t in re.findall(r"(?:^ {4}|`)make ([a-z-]+)\b", path.read_text(), re.MULTILINE)
    }
    assert {"demo", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize("path", WRAPPED, ids=lambda p: p.name)
def test_lines_are_short_links_lead_somewhere_and_files_and_modules_exist(path: Path) -> None:
    text = path.read_text()
    assert [line for line in text.splitlines() if len(line) > 120] == []
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert [t for t in targets if "://" not in t and not (path.parent / t).exists()] == []
    modules = set(re.findall(r"`(?:python -m )?(atta(?:\.\w+)+)", text))
    assert [name for name in sorted(modules) if not name.startswith(NO_MODULES) and not _exists(name)] == []
    named = set(re.findall(r"(?<![\w./-])((?:[\w-]+/)+[\w-]+\.(?:py|hpp|cpp|proto|sh))\b", text))
    missing = [
        name for name in sorted(named) if not any((root / name).exists() for root in (*SOURCE_ROOTS, path.parent))
    ]
    assert missing == []


def test_layers_are_those_of_imports_in_the_table_and_the_picture(tool: Any) -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", (ROOT / "docs/internals/architecture.md").read_text(), re.MULTILINE)
    assert [(int(number), *re.findall(r"`(.+?)`", packages)) for number, packages in rows] == [
        (number, *packages) for number, packages in enumerate(LAYERS)
    ]
    root = ET.fromstring(tool.layers_picture((DOCS / "internals/architecture.md").read_text()))
    titles = [t.text or "" for t in root.findall(f"{SVG}text") if t.attrib.get("font-weight") == "bold"]
    assert [tuple(re.split(", ", title)) for title in reversed(titles)] == [tuple(layer) for layer in LAYERS]


def _exists(name: str) -> bool:
    """Whether ``name`` is a module, or a name in the source of its module."""
    _, *parts = name.split(".")
    place = ROOT / parts[0] if parts[0] in ("samplers", "partition", "protos") else ROOT / "platform/atta" / parts[0]
    rest = parts[1:]
    while rest and ((place / rest[0]).is_dir() or (place / f"{rest[0]}.py").exists()):
        place, rest = place / rest[0], rest[1:]
    home = next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.exists()), None)
    if home is None:  # a name in ``import atta``
        home, rest = ROOT / "platform/atta/__init__.py", parts
    return not rest or re.search(rf"\b{rest[0]}\b", home.read_text()) is not None


def test_a_notebook_becomes_a_page(module_at: Callable[[str], Any]) -> None:
    code = {"cell_type": "code", "source": ["a = 1\n", "a"], "outputs": []}
    stream = {"output_type": "stream", "text": ["one\n", "two\n"]}
    table = {"data": {"text/html": "<b>1</b>", "text/plain": "1"}}
    cells = [{"cell_type": "markdown", "source": "# Title\n\ntext"}, {**code, "outputs": [stream, table]}, code]
    source = "``````python\na = 1\na\n``````"
    expected = [
        *("## Title", "text", source, "``````text\none\ntwo\n``````"),
        *("``````{raw} html\n<b>1</b>\n``````", source),
    ]
    page = module_at("docs/notebook_page.py").page_of
    assert page(json.dumps({"cells": cells})) == "\n\n".join(expected)
    example = page((ROOT / "examples/first_steps.ipynb").read_text())
    assert (example.count("<svg"), example.count("## First steps")) == (1, 1)


def test_every_public_name_and_page_has_one_entry() -> None:
    assert sorted(ENTRY.findall((DOCS / "reference/api.md").read_text())) == sorted(atta.__all__)
    listed = re.findall(r"^(?:guide|reference|internals)/[\w/-]+$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages - {"index"}


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


def test_the_options_of_every_command_are_in_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    text = importlib.import_module("commands").reference(cli)
    headings = re.findall(r"^## (atta .+)$", text, re.MULTILINE)
    assert {"atta train", "atta serve", "atta tables save", "atta bench loader"} <= set(headings)
    train = text.split("## atta train\n")[1].split("\n## ")[0]
    assert "- `--trainers" in train
    assert "\n```text\natta train --data data/demo-2p" in train


def test_docstrings_become_restructured_text(module_at: Callable[[str], Any]) -> None:
    given = ["Does it.", "", "    import a", "", "    a(*b)", "", "Then [n, *shape], ``*x`` and 2**3.", "", "Args:",
             "    a: an int.", "", "    *b: more.", "    **c: rest."]  # fmt: skip
    expected = [*given[:2], "::", "", *given[2:6], r"Then [n, \*shape], ``*x`` and 2**3.", *given[7:11], r"    \*b: more.",
                given[12]]  # fmt: skip
    assert module_at("docs/conf.py").as_restructured(given) == expected


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index", "see [bench](../bench/README.md#a).", "see bench (`bench/README.md`)."),
        ("internals/adding", "[x](../../CONTRIBUTING.md)", "x (`CONTRIBUTING.md`)"),
        ("internals/adding", "[x](../reference/api.md)", "[x](../reference/api.md)"),
        ("index", "[x](guide/ray.md#a), [y](https://a/../b)", "[x](guide/ray.md#a), [y](https://a/../b)"),
    ],
)
def test_links_that_leave_the_site_become_names(
    module_at: Callable[[str], Any], page: str, text: str, expected: str
) -> None:
    assert module_at("docs/conf.py").local_links(text, page) == expected


@pytest.fixture(scope="module")
def tool(module_at: Callable[[str], Any]) -> Any:
    return module_at("tools/pictures.py")


def test_pictures_are_up_to_date_and_shown(tool: Any) -> None:
    documents = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    for path, text in tool.pictures().items():
        assert path.read_text() == text, "run python tools/pictures.py"
        assert f"pictures/{path.name})" in documents


def test_a_batch_has_a_box_for_each_operator_and_an_arrow_for_each_input(tool: Any) -> None:
    plan = tool.batch_plan()
    root = ET.fromstring(tool.batch_picture(plan))
    boxes = {tuple(box.attrib[name] for name in ("x", "y")) for box in root.findall(f"{SVG}rect") if "x" in box.attrib}
    assert len(boxes) == len(plan.ops) == 6
    assert len(root.findall(f"{SVG}line")) == sum(len(op.inputs) for op in plan.ops) == 5
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert {op.id for op in plan.ops} <= set(texts)
    assert "2 in-neighbours of each" in texts
