"""Writes the reference of the command line from its commands: ``conf.py`` puts it behind ``reference/commands.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

_SPECIAL = re.compile(r"([\\*_<>\[\]|#])")


class Recorded(click.HelpFormatter):
    """What a command says for ``--help``, as a list of (kind, content) in place of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[str, Any]] = []

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.parts.append(("usage", f"{prog} {args}"))

    def write_text(self, text: str) -> None:
        self.parts.append(("text", text))

    def write_heading(self, heading: str) -> None:
        self.parts.append(("heading", heading))

    def write_dl(self, rows: Sequence[tuple[str, str]], *_: Any, **__: Any) -> None:
        self.parts.append(("rows", list(rows)))

    def write_paragraph(self) -> None:
        """Leave nothing: paragraphs are apart anyway."""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Every command without commands below it, with its context, in the order of help."""
    if not isinstance(command, click.Group):
        yield command, context
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not inner.hidden:
            yield from commands(inner, click.Context(inner, parent=context, info_name=name))


def reference(cli: click.Command) -> str:
    """MyST: a section for each command with its sentence, its examples, and its options by group."""
    lines: list[str] = []
    for command, context in commands(cli, click.Context(cli, info_name="atta")):
        lines += ["", f"## {context.command_path}", "", *_help(command, context)]
        for name in getattr(command, "strategies", ()):
            context.meta["atta.cli.options"] = name  # as if --strategy named it
            lines += ["", f"### {context.command_path} --strategy {name}", "", *_help(command, context)]
        context.meta.pop("atta.cli.options", None)  # contexts share it
    return "\n".join(lines) + "\n"


def _help(command: click.Command, context: click.Context) -> list[str]:
    recorded = Recorded()
    command.format_help(context, recorded)
    return [line for kind, content in recorded.parts for line in _written(kind, content)]


def _written(kind: str, content: Any) -> list[str]:
    if kind == "usage":
        return ["```text", content, "```", ""]
    if kind == "heading":
        return ["", f"**{_plain(content)}**", ""]
    if kind == "rows":
        return [
            f"- `{' '.join(names.split())}`: {_plain(text)}" for names, text in content if "--help" not in names
        ] + [""]
    return [line for text in content.split("\n\n") if text.strip() for line in _paragraph(text.strip("\b \n"))]


def _paragraph(text: str) -> list[str]:
    """Examples stay as they are written; the rest is prose."""
    if not text.startswith("Example"):
        return [_plain(text), ""]
    examples = re.split(r"\s*Examples?:\s*", text)[1:]
    return [line for example in examples for line in ("```text", *_lines(example), "```", "")]


def _lines(example: str) -> list[str]:
    lines = [line.strip() for line in example.splitlines() if line.strip()]
    return [line if line.startswith("atta ") or not at else f"    {line}" for at, line in enumerate(lines)]


def _plain(text: str) -> str:
    """``text`` without what Markdown would take for a mark, but for code between backticks."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if at % 2 else _SPECIAL.sub(r"\\\1", part) for at, part in enumerate(parts))
