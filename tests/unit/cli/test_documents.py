"""The documents tell the truth: every command in them is accepted, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from atta.cli.main import cli

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


def commands() -> list[tuple[str, str]]:
    return [
        (path.name, line.strip())
        for path in DOCUMENTS
        for line in path.read_text().splitlines()
        if line.startswith("    atta ")
    ]


@pytest.mark.parametrize(("document", "line"), commands())
def test_commands_are_accepted(document: str, line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"{document}: {name}"
    while isinstance(command, click.Group):
        name = arguments.pop(0)
        inner = command.get_command(click.Context(command), name)
        assert inner is not None, f"{document}: {name}"
        command = inner
    with command.make_context(name, arguments) as context:  # raises UsageError for what does not exist
        assert context.params


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert broken == []


def test_makefile_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {t for path in DOCUMENTS for t in re.findall(r"\bmake ([a-z]+)\b", path.read_text())}
    assert {"demo", "test"} <= named
    assert named <= targets
