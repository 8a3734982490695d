"""The documents tell the truth: every command in them is accepted, and every link leads to something."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest

from atta.cli.main import cli
from tests.unit.test_layers import LAYERS

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)

WRAPPED = [*DOCUMENTS, ROOT / "bench/README.md"]
SOURCE_ROOTS = (ROOT, ROOT / "platform", ROOT / "platform/atta")
"""The folders from which documents give the paths of sources."""

NO_MODULES = ("atta.v1", "atta.operators", "atta._native")
"""Services of gRPC, a group of entry points, and modules built from C++: they have no Python file."""


BESIDE = " &"
"""Ends a command that runs beside the next ones, as in a shell."""


def joined(text: str) -> str:
    """Commands, with lines that a backslash continues joined."""
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
        assert context.params


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert broken == []


def test_makefile_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        t for path in DOCUMENTS for t in re.findall(r"(?:^ {4}|`)make ([a-z-]+)\b", path.read_text(), re.MULTILINE)
    }
    assert {"demo", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize("path", WRAPPED, ids=lambda p: p.name)
def test_lines_have_at_most_120_characters(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("path", WRAPPED, ids=lambda p: p.name)
def test_files_that_documents_name_exist(path: Path) -> None:
    named = set(re.findall(r"(?<![\w./-])((?:[\w-]+/)+[\w-]+\.(?:py|hpp|cpp|proto|sh))\b", path.read_text()))
    diffs = [diff.read_text() for diff in path.with_suffix("").glob("*.diff")]
    named -= {name for diff in diffs for name in re.findall(r"^\+\+\+ b/(\S+)", diff, re.MULTILINE)}  # added by guides
    missing = [
        name for name in sorted(named) if not any((root / name).exists() for root in (*SOURCE_ROOTS, path.parent))
    ]
    assert missing == []


def test_the_table_of_layers_is_that_of_the_test() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", (ROOT / "docs/internals/architecture.md").read_text(), re.MULTILINE)
    assert [(int(number), *re.findall(r"`(.+?)`", packages)) for number, packages in rows] == [
        (number, *packages) for number, packages in enumerate(LAYERS)
    ]


@pytest.mark.parametrize("path", WRAPPED, ids=lambda p: p.name)
def test_modules_that_documents_name_exist(path: Path) -> None:
    named = set(re.findall(r"`(?:python -m )?(atta(?:\.\w+)+)", path.read_text()))
    unknown = [name for name in sorted(named) if not name.startswith(NO_MODULES) and not _exists(name)]
    assert unknown == []


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
